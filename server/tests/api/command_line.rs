//! Operators' commands: what they print and what they refuse.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use slipway_protocol::{NodeState, NodeStatus, RecoveryKey};
use slipway_server::base::data::DataDir;
use slipway_server::store;
use slipway_server::store::{Store, recovery_keys};

use crate::postgres;
use crate::program::{Ended, command, fail, made, run, serve, succeed};
use crate::support::{IMAGE, UUID};

#[test]
fn whoever_reads_the_output_may_stop_to() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    made(data);
    succeed(data, &["node", "add", "--name", "web1", "--uuid", UUID]);
    for arguments in [&["node", "show", "web1"] as &[&str], &["node", "list"], &["status", "--json"]] {
        let mut child = command(data, arguments);
        let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{arguments:?}");
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{arguments:?}");
    }
}

#[test]
fn operators_set_a_machine_up_beside_a_running_server() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let _server = serve(data);
    let id = succeed(data, &["node", "add", "--name", "web1", "--uuid", UUID, "--mac", "52:54:00:12:34:56"]);
    assert_eq!(succeed(data, &["node", "release", "web1"]), "web1 is released\n");
    let node: NodeStatus = serde_json::from_str(&succeed(data, &["node", "show", id.trim()])).unwrap();
    assert_eq!((node.state, node.released), (NodeState::Registered, true));
    assert!(succeed(data, &["node", "list"]).contains("52:54:00:12:34:56"));

    let network = folder.path().join("network.yaml");
    std::fs::write(&network, "interfaces:\n- {name: lan0, mac: \"52:54:00:12:34:56\", dhcp4: true}\n").unwrap();
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA me";
    let set = |rest: &[&str]| succeed(data, &[&["node", "set", "web1"], rest].concat());
    let shown = || serde_json::from_str::<NodeStatus>(&succeed(data, &["node", "show", "web1"])).unwrap();
    assert_eq!(
        set(&["--network", network.to_str().unwrap(), "--ssh-key", key]),
        "web1 is changed; runs that were started keep their settings\n"
    );
    assert_eq!((shown().network.unwrap().interfaces[0].name.as_str(), &*shown().ssh_keys[0]), ("lan0", key));
    set(&["--no-network"]);
    assert_eq!((shown().network, shown().ssh_keys.len()), (None, 1));
    set(&["--no-ssh-keys"]);
    assert_eq!(shown().ssh_keys.len(), 0);
    assert_eq!(run(data, &["node", "set", "web1"]).status.code(), Some(2), "there is nothing to set");

    let image = folder.path().join("disk.img");
    std::fs::write(&image, IMAGE).unwrap();
    let digest = succeed(data, &["image", "add", image.to_str().unwrap(), "--raw-size", "512"]);
    let expect = "sha256:b140168e270a194660d4ecb93bbd23892cfa96a2ccd38cfb9959fd0f0da91db6\n";
    assert_eq!(digest, expect);
    let add = [
        "os",
        "add",
        "debian",
        "--image",
        digest.trim(),
        "--phone-home",
        "--kernel-arg",
        "-quiet",
        "--disk-choose",
        "smallest",
    ];
    assert_eq!(succeed(data, &add), "debian\n");
    let run = succeed(data, &["run", "start", "--yes", "web1", "--os", "debian"]);
    let metadata = succeed(data, &["node", "metadata-url", "web1"]);
    assert!(metadata.starts_with(&format!("https://server.test/v1/metadata/{}.", run.trim())), "{metadata}");
    let line = succeed(data, &["status", "--json", "web1"]);
    let node: NodeStatus = serde_json::from_str(&line).unwrap();
    assert_eq!(node.run.unwrap().id, run.trim());
    let table = succeed(data, &["status"]);
    assert!(table.starts_with("Machine  State"), "{table}");
    assert!(table.contains("0/6") && table.contains("waiting for the machine to boot slipway"), "{table}");
    assert!(succeed(data, &["ca"]).starts_with("-----BEGIN CERTIFICATE-----"));
    assert_eq!(succeed(data, &["operator-token"]), succeed(data, &["operator-token"]));
    assert_ne!(succeed(data, &["token", "add"]), succeed(data, &["token", "add", "--expires", "1h"]));
}

#[test]
fn a_machine_that_was_registered_without_a_name_gets_one() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    made(data);
    let shown = |node: &str| serde_json::from_str::<NodeStatus>(&succeed(data, &["node", "show", node])).unwrap();
    let id = succeed(data, &["node", "add", "--serial", "7CZ1"]).trim().to_owned();

    let again = |name: &str| fail(data, &["node", "add", "--name", name, "--serial", "7CZ1"]);
    let known =
        |node: &str| format!("slipway-server: node {node} is already registered with one of these identifiers; ");
    assert_eq!(again("web1"), known(&id) + &format!("`node release {id} --name web1` names it and lets it in"));
    assert_eq!(
        fail(data, &["node", "release", &id, "--name", "web 1"]),
        "slipway-server: \"web 1\" is not a valid node name: use letters, digits, hyphens and dots, as in host names"
    );
    assert!(!shown(&id).released, "all or nothing");
    assert_eq!(succeed(data, &["node", "release", &id, "--name", "web1"]), "web1 is released\n");
    let named = format!("web1 ({id})");
    assert_eq!(again("web2"), known(&named) + "`node set web1 --name web2` names it");
    assert_eq!(
        fail(data, &["node", "add", "--serial", "7CZ1"]),
        known(&named) + "it is already released, so there is nothing left to do"
    );

    let other = succeed(data, &["node", "add", "--serial", "7CZ2"]).trim().to_owned();
    let set = |node: &str, name: &str| run(data, &["node", "set", node, "--name", name]);
    let taken = format!("slipway-server: the name \"web1\" already refers to node {id}; choose another name\n");
    assert_eq!(String::from_utf8(set(&other, "web1").stderr).unwrap(), taken);
    assert_eq!(set("web1", "db1").stdout, b"db1 is changed; runs that were started keep their settings\n");
    assert_eq!(set("db1", "db1").status.code(), Some(0), "its own name is no other's");
    assert_eq!(set(&other, "web1").status.code(), Some(0));
    assert_eq!(shown("db1").id, id);

    // Its machine comes back as an unknown machine.
    succeed(data, &["node", "decommission", "--yes", "db1"]);
    let back = succeed(data, &["node", "add", "--serial", "7CZ1"]).trim().to_owned();
    let release = ["node", "release", &back, "--name", "db1"];
    let advice = format!(
        "that node is out of service: `node recommission {id}` puts it back, and `node remove {id}` frees its name"
    );
    assert_eq!(fail(data, &release), format!("slipway-server: the name \"db1\" already refers to node {id}; {advice}"));
    succeed(data, &["node", "remove", "--yes", &id]);
    assert_eq!(succeed(data, &release), "db1 is released\n");
}

/// The cells of a table. They are separated by at least two blanks.
fn cells(table: &str) -> Vec<Vec<&str>> {
    let cells = |line| str::split(line, "  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    table.lines().map(cells).collect()
}

#[test]
fn lists_are_tables_for_people() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    made(data);
    let image = folder.path().join("debian.raw");
    std::fs::write(&image, vec![0xAA; 1500]).unwrap();
    let digest = succeed(data, &["image", "add", image.to_str().unwrap()]);
    let digest = digest.trim();
    succeed(data, &["os", "add", "debian", "--image", digest, "--phone-home"]);
    let images = succeed(data, &["image", "list"]);
    let images = cells(&images);
    assert_eq!(images[0], ["Name", "Size", "Raw size", "Added", "File", "Digest"]);
    assert_eq!((&images[1][..3], &images[1][4..]), (&["debian.raw", "1.5 KiB", "1.5 KiB"][..], &["there", digest][..]));
    assert!(images[1][3].starts_with("20") && images[1][3].ends_with(" UTC"), "{images:?}");
    let systems = succeed(data, &["os", "list"]);
    let expect = [
        vec!["Name", "Image", "File", "Raw size", "Reports", "Digest"],
        vec!["debian", "debian.raw", "there", "1.5 KiB", "phone-home", digest],
    ];
    assert_eq!(cells(&systems), expect);
    let json =
        |what: &str| serde_json::from_str::<serde_json::Value>(&succeed(data, &[what, "list", "--json"])).unwrap();
    assert_eq!((&json("image")[0]["size"], &json("os")[0]["name"]), (&1500.into(), &"debian".into()));
}

#[test]
fn what_is_not_needed_any_more_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    made(data);
    let image = folder.path().join("disk.img");
    std::fs::write(&image, IMAGE).unwrap();
    let digest = succeed(data, &["image", "add", image.to_str().unwrap()]).trim().to_owned();
    succeed(data, &["os", "add", "debian", "--image", &digest]);
    succeed(data, &["node", "add", "--name", "web1", "--uuid", UUID]);
    let run = succeed(data, &["run", "start", "--yes", "web1", "--os", "debian"]).trim().to_owned();
    let runs = || succeed(data, &["run", "list", "web1"]);
    assert_eq!(cells(&runs())[0], ["Run", "Machine", "State", "Steps done", "Created", "Ended", "Reason"]);
    assert_eq!(cells(&runs())[1][..4], [&run, "web1", "pending", "0/5"]);

    assert_eq!(succeed(data, &["os", "remove", "--yes", "debian"]), "operating system debian is removed\n");
    let used = format!("slipway-server: image {digest} is in use: run {run} of node web1 has a step that uses it; ");
    assert!(fail(data, &["image", "remove", "--yes", "disk.img"]).starts_with(&used));
    assert_eq!(succeed(data, &["run", "cancel", "--yes", "web1"]), format!("run {run} is cancelled\n"));
    assert!(runs().ends_with("  cancelled by an operator\n"), "{}", runs());
    assert_eq!(
        succeed(data, &["image", "remove", "--yes", &digest]),
        format!("image disk.img ({digest}) is removed\n")
    );
    assert_eq!(std::fs::read_dir(data.join("images/sha256")).unwrap().count(), 0);

    assert_eq!(succeed(data, &["node", "remove", "--yes", "web1"]), "web1 is removed\n");
    assert_eq!(cells(&succeed(data, &["run", "list"])).len(), 1, "only the header");
    succeed(data, &["token", "add", "--expires", "1h"]);
    let tokens = succeed(data, &["token", "list"]);
    let id = cells(&tokens)[1][0];
    assert_eq!(succeed(data, &["token", "revoke", id]), format!("token {id} is revoked\n"));
    assert_eq!(cells(&succeed(data, &["token", "list"])).len(), 1, "only the header");
}

#[test]
fn what_is_missing_on_the_command_line_is_named_in_full() {
    let output = Command::new(env!("CARGO_BIN_EXE_slipway-server"))
        .args(["run", "start", "web1"])
        .env("SLIPWAY_DATA", "/nonexistent")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("not provided:\n  <--os <OS>|--workflow <FILE>|--secure-boot>\n"), "{message}");
    assert!(
        message.contains("Usage: slipway-server run start <--os <OS>|--workflow <FILE>|--secure-boot> <NODE>\n"),
        "{message}"
    );
    let output = Command::new(env!("CARGO_BIN_EXE_slipway-server"))
        .arg("status")
        .env("SLIPWAY_DATA", "/nonexistent")
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.starts_with("slipway-server: there is no slipway data in \"/nonexistent\": "), "{message}");
}

#[test]
fn user_data_may_be_compressed() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let _server = serve(data);
    let file = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.path().join(name), bytes).unwrap();
        folder.path().join(name).to_str().unwrap().to_owned()
    };
    let compressed = |text: &str| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let config = "#cloud-config\na: \"ü\"\n";
    let (user, vendor) = (file("user.gz", &compressed(config)), file("vendor.gz", &compressed("#!/bin/sh\n")));
    let plain = file("plain", b"hello\n");
    let cut = file("cut.gz", &compressed(config)[..20]);
    let foreign = file("foreign", b"#cloud-config\na: \xff\n");
    let much = file("much.gz", &compressed(&"\n".repeat((16 << 20) + 1)));

    succeed(data, &["node", "add", "--name", "web1", "--uuid", UUID]);
    let digest = succeed(data, &["image", "add", &file("disk.img", &IMAGE)]);
    let add = ["os", "add", "debian", "--image", digest.trim(), "--raw-size", "512", "--phone-home"];
    succeed(data, &[&add[..], &["--user-data", &user, "--vendor-data", &vendor]].concat());
    let systems: serde_json::Value = serde_json::from_str(&succeed(data, &["os", "list", "--json"])).unwrap();
    assert_eq!((&systems[0]["user_data"], &systems[0]["vendor_data"]), (&config.into(), &"#!/bin/sh\n".into()));

    let start = |file: &str| fail(data, &["run", "start", "web1", "--os", "debian", "--user-data", file]);
    let reading = |file: &str, why: &str| format!("slipway-server: reading {file:?}: {why}");
    assert!(start(&cut).starts_with(&reading(&cut, "line 1, column 1: it begins like gzip")));
    assert!(start(&much).starts_with(&reading(&much, "line 1, column 1: it has more than 16 MiB")));
    assert_eq!(start(&foreign), reading(&foreign, "line 2, column 4: the text is not UTF-8 from here on"));
    assert!(start("/nonexistent").starts_with(&reading("/nonexistent", "No such file")));
    let refused = "slipway-server: step \"seed-cloud-init\": the user-data cannot be used: line 1, column 1: ";
    assert!(
        start(&plain).starts_with(refused) && start(&file("plain.gz", &compressed("hello\n"))).starts_with(refused)
    );
    succeed(data, &["run", "start", "--yes", "web1", "--os", "debian", "--user-data", &user]);
}

#[test]
fn a_snippet_is_made_for_a_machine_that_has_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let _server = serve(data);
    succeed(data, &["node", "add", "--name", "web1", "--uuid", UUID]);
    let snippet = ["snippet", "--for", "shell", "--node", "web1"];
    let expect = "slipway-server: node web1 has no run to report to; start one with `run start`";
    assert_eq!(fail(data, &snippet), expect);
    let workflow = folder.path().join("workflow.yaml");
    std::fs::write(&workflow, "steps:\n- {name: leave, action: {reboot: {}}}\n").unwrap();
    succeed(
        data,
        &["run", "start", "--yes", "web1", "--workflow", workflow.to_str().unwrap(), "--known-step", "packages"],
    );
    let (first, second) = (succeed(data, &snippet), succeed(data, &snippet));
    assert!(first.contains("url='https://server.test/v1/report'"), "{first}");
    assert_ne!(first, second, "each has a token of its own");
    for surrounding in ["kickstart", "preseed", "autoinstall"] {
        succeed(data, &["snippet", "--node", "web1", "--for", surrounding]);
    }
    assert_ne!(succeed(data, &["token", "boot-reporter", "web1"]), "");
    assert_eq!(succeed(data, &["node", "log", "web1", "--type", "host_boot"]), "");
}

#[test]
fn a_block_of_the_operators_own_is_not_replaced_without_a_word() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let _server = serve(data);
    let (image, user) = (folder.path().join("disk.img"), folder.path().join("user"));
    std::fs::write(&image, IMAGE).unwrap();
    std::fs::write(&user, "#cloud-config\nphone_home: {url: 'https://example.org/'}\n").unwrap();
    let digest = succeed(data, &["image", "add", image.to_str().unwrap()]);
    let add = ["os", "add", "debian", "--image", digest.trim(), "--user-data", user.to_str().unwrap()];
    let warned = |arguments: &[&str]| String::from_utf8(run(data, arguments).stderr).unwrap();
    assert_eq!(warned(&add), "");
    let expect = "warning: the user-data has a phone_home block, which is replaced with one for this server; \
                  to keep it, leave out --phone-home\n";
    assert_eq!(warned(&[&add[..], &["--phone-home"]].concat()), expect);
    std::fs::write(&user, "#cloud-config\nhostname: web1\n").unwrap();
    assert_eq!(warned(&[&add[..], &["--phone-home"]].concat()), "");
}

#[test]
fn watching_shows_every_change() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    made(data);
    succeed(data, &["node", "add", "--name", "web1", "--uuid", UUID]);
    let mut child = command(data, &["status", "--watch", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let _child = Ended(child);
    let mut next = || serde_json::from_str::<NodeStatus>(&lines.next().unwrap().unwrap()).unwrap();
    assert!(!next().released);
    succeed(data, &["node", "release", "web1"]);
    assert!(next().released);
}

#[test]
fn mistakes_get_one_clear_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    made(data);
    let workflow = folder.path().join("bad.yaml");
    std::fs::write(&workflow, "steps:\n- name: go\n  action: {explode: {}}\n").unwrap();
    let workflow = workflow.to_str().unwrap();
    let zeros = format!("sha256:{}", "0".repeat(64));
    succeed(data, &["node", "add", "--name", "web1", "--uuid", UUID]);
    let (empty, image) = (folder.path().join("empty.img"), folder.path().join("disk.img"));
    std::fs::write(&empty, "").unwrap();
    std::fs::write(&image, IMAGE).unwrap();
    let empty = empty.to_str().unwrap();
    let digest = succeed(data, &["image", "add", image.to_str().unwrap()]);
    let two_arguments = ["os", "add", "debian", "--image", digest.trim(), "--kernel-arg", "quiet splash"];
    let table: [(&[&str], &str); 9] = [
        (&["node", "show", "web2"], "no node has the id, name or claim code \"web2\""),
        (&["node", "add", "--name", "web2"], "a node needs at least one of UUID, serial number and MAC address"),
        (&["node", "add", "--name", "web1", "--serial", "7CZ1"], "the name \"web1\" already refers to node "),
        (&["image", "add", "/nonexistent"], "opening \"/nonexistent\": No such file or directory (os error 2)"),
        (&["image", "add", empty], &format!("the image {empty:?} is empty")),
        (&two_arguments, "the kernel argument \"quiet splash\" cannot be used: it has a space outside double quotes"),
        (&["os", "add", "debian", "--image", &zeros], "there is no image \"sha256:0000"),
        (&["run", "start", "web1", "--os", "debian"], "there is no operating system \"debian\""),
        (&["run", "start", "web1", "--workflow", workflow], "reading "),
    ];
    for (arguments, expect) in table {
        let message = fail(data, arguments);
        assert!(message.starts_with(&format!("slipway-server: {expect}")), "{message}");
    }
    let message = fail(data, &["run", "start", "web1", "--workflow", workflow]);
    assert!(message.contains("line 3, column ") && message.contains("explode"), "{message}");
}

#[tokio::test]
async fn a_recovery_key_is_printed_before_it_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    made(data);
    let id = succeed(data, &["node", "add", "--name", "m1", "--uuid", UUID]).trim_end().to_owned();
    let store = Store::of(&DataDir::open(postgres::place(data)).unwrap()).await.unwrap();
    let mut transaction = store.write().await.unwrap();
    for (volume, digit, at) in [("old", "c", 1), ("new", "d", 2)] {
        let key = RecoveryKey { volume: volume.to_owned(), key: digit.to_owned().into() };
        recovery_keys::insert(&mut transaction, &id, "run", &key, None, at).await.unwrap();
    }
    store::commit(transaction).await.unwrap();
    store.close().await;

    let list = succeed(data, &["node", "recovery-key", "m1", "--list"]);
    let columns: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().take(2).collect()).collect();
    assert_eq!(columns, [["Volume", "Run"], ["new", "run"], ["old", "run"]]);
    assert_eq!(succeed(data, &["node", "recovery-key", "m1"]), "new d\nold c\n");
    assert_eq!(succeed(data, &["node", "recovery-key", "m1", "--forget", "old"]), "old c\n");
    assert_eq!(succeed(data, &["node", "recovery-key", "m1"]), "new d\n");
}
