//! Runs that would fail once the disk was erased are refused, or end before it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use slipway_protocol::{Cpu, Disk, DiskChoice, DiskHints, Event, EventKind, Inventory, NodeState, RunState};
use slipway_server::image::examine::examine as examine_images;
use slipway_server::store::{node_contacts, nodes};
use slipway_server::{Error, operate, store};

use crate::installing::{add_system, debian, start, web1};
use crate::program::{fail, succeed};
use crate::support::{IMAGE, TestServer};
use crate::work::new_run;

/// A list says only what is known. `run start` examines a file that has changed.
fn examine(data: &Path) {
    fail(data, &["run", "start", "web1", "--os", "debian"]);
}

/// Why a run of the operating system is refused.
async fn refused(server: &TestServer) -> String {
    start(server, debian()).await.expect_err("refused").to_string()
}

async fn with_disk(server: &TestServer, size: u64) {
    with_machine(server, "", size, 0).await;
}

/// Lets the machine of the node be one of this architecture, with one disk of this size and these blocks.
async fn with_machine(server: &TestServer, arch: &str, size: u64, logical_block: u32) {
    let store = server.store().await;
    let mut transaction = store.write().await.unwrap();
    let mut node = nodes::find(&mut transaction, "web1").await.unwrap().unwrap();
    let disk = Disk { path: "/dev/vda".to_owned(), size, logical_block, ..Disk::default() };
    let cpu = Cpu { arch: arch.to_owned(), ..Cpu::default() };
    node.inventory = Some(Inventory { disks: vec![disk], cpu, ..Inventory::default() });
    nodes::save(&mut transaction, &node).await.unwrap();
    store::commit(transaction).await.unwrap();
}

#[tokio::test]
async fn an_image_whose_file_is_not_as_it_was_added_is_shown_and_not_installed() {
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    let digest = add_system(&server, |_| {}).await.unwrap().image;
    let (data, file) = (server.data_path(), server.data().image(&digest));
    let lists = || [["image", "list"], ["os", "list"]].map(|list| succeed(&data, &list));
    assert!(lists().iter().all(|list| list.contains("  there  ")), "{:?}", lists());
    let cases: [(&str, &str, &dyn Fn()); 4] = [
        ("changed", "its digest differs", &|| {
            fs::write(&file, [&IMAGE[..511], b"?"].concat()).unwrap();
            examine(&data);
        }),
        ("missing", "is missing on this server", &|| fs::remove_file(&file).unwrap()),
        ("wrong-size", "its size differs", &|| fs::write(&file, &IMAGE[..511]).unwrap()),
        ("unreadable", "cannot be read", &|| fs::create_dir(&file).unwrap()),
    ];
    for (word, words, damage) in cases {
        fs::remove_file(&file).ok();
        fs::write(&file, IMAGE).unwrap();
        if word == "unreadable" {
            fs::remove_file(&file).unwrap();
        }
        damage();
        assert!(lists().iter().all(|list| list.contains(word)), "{:?}", lists());
        let json = |kind: &str| -> serde_json::Value {
            serde_json::from_str(&succeed(&data, &[kind, "list", "--json"])).unwrap()
        };
        assert_eq!((&json("image")[0]["problem"], &json("os")[0]["image_problem"]), (&word.into(), &word.into()));
        let added = fail(&data, &["os", "add", "other", "--image", &digest.to_string()]);
        assert!(added.contains(words) && added.contains("`slipway-server image add FILE`"), "{added}");
        let refused = fail(&data, &["run", "start", "web1", "--os", "debian"]);
        assert!(
            refused.contains("step 2 (stream-image) would fail: the image ") && refused.contains(words),
            "{refused}"
        );
        assert!(refused.contains(digest.hex()) && refused.contains("`slipway-server image add FILE`"), "{refused}");
    }
    fs::remove_dir(&file).unwrap();
    add_system(&server, |_| {}).await.unwrap();
    start(&server, debian()).await.unwrap();
}

#[tokio::test]
async fn a_file_that_steps_of_a_workflow_name_on_this_server_must_be_there() {
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    let none = format!("https://server.test:8443/images/sha256:{}", "0".repeat(64));
    let steps = [
        format!("stream-image: {{url: {none}}}"),
        format!("stream-image: {{url: https://elsewhere.test/x, bmap: {none}}}"),
        format!("stream-image: {{url: https://elsewhere.test/x, sums: {none}}}"),
        format!("unpack-archive: {{url: {none}}}"),
        format!("write-file: {{path: /x, url: {none}}}"),
    ];
    for step in steps {
        let workflow = erase_and(&step);
        let refused = operate::start_run(&server.store().await, &server.ca(), "web1", new_run(&workflow)).await;
        let refused = refused.expect_err(&step).to_string();
        assert!(refused.starts_with("step 2 (x) would fail: there is no image sha256:000"), "{refused}");
    }
    let mirrored = format!(
        "steps:\n- {{name: x, action: {{stream-image: {{url: {none}, mirrors: [https://elsewhere.test/x]}}}}}}\n"
    );
    operate::start_run(&server.store().await, &server.ca(), "web1", new_run(&mirrored)).await.unwrap();
}

#[tokio::test]
async fn each_file_of_this_server_that_steps_fetch_must_be_as_it_was_added() {
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    let digest = add_system(&server, |_| {}).await.unwrap().image;
    let url = format!("https://server.test:8443/images/{digest}");
    let file = server.data().image(&digest);
    for step in [
        format!("stream-image: {{url: https://elsewhere.test/x, bmap: {url}}}"),
        format!("unpack-archive: {{url: {url}}}"),
        format!("write-file: {{path: /x, url: {url}}}"),
    ] {
        // A file that changed since it was looked at is looked at again.
        fs::write(&file, [&IMAGE[..511], b"?"].concat()).unwrap();
        let refused = operate::start_run(&server.store().await, &server.ca(), "web1", new_run(&erase_and(&step))).await;
        let refused = refused.expect_err(&step).to_string();
        assert!(refused.contains("its digest differs"), "{step}: {refused}");
    }
}

#[tokio::test]
async fn a_run_ends_before_the_disk_is_erased_if_its_image_vanished_since() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let digest = add_system(&server, |_| {}).await.unwrap().image;
    start(&server, debian()).await.unwrap();
    fs::remove_file(server.data().image(&digest)).unwrap();
    assert_eq!(node.workflow(&server).await, None);
    let shown = web1(&server).await;
    let run = shown.run.unwrap();
    assert_eq!((shown.state, run.state), (NodeState::Failed, RunState::Failed));
    let failure = run.steps[0].failure.as_ref().unwrap();
    assert_eq!(failure.reason, "checking step 2 (stream-image) before the first step; the disks are as they were");
    assert!(failure.causes[0].contains("is missing on this server"), "{failure:?}");

    add_system(&server, |_| {}).await.unwrap();
    start(&server, debian()).await.unwrap();
    let workflow = node.workflow(&server).await.unwrap();
    let began = Event { seq: workflow.next_seq, at: 1, step: 0, attempt: 1, kind: EventKind::Started };
    assert!(node.post_events(&server, &workflow.run, &[began]).await.status().is_success());
    fs::remove_file(server.data().image(&digest)).unwrap();
    assert_eq!(node.workflow(&server).await, None, "its machine was power-cycled");
    let failure = web1(&server).await.run.unwrap().steps[0].failure.clone().unwrap();
    let again = "checking step 2 (stream-image) before the run begins again; the disk may have no system";
    assert_eq!(failure.reason, again);
}

#[tokio::test]
async fn an_image_that_is_larger_than_the_disk_is_not_installed() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    add_system(&server, |_| {}).await.unwrap();
    with_disk(&server, 256).await;
    let expect = "step 2 (stream-image) would fail: the disk /dev/vda has 256 bytes, but the image needs 512 bytes";
    assert!(refused(&server).await.starts_with(expect), "{}", refused(&server).await);
    with_disk(&server, 512).await;
    let started: Result<_, Error> = start(&server, debian()).await;
    started.unwrap();
    // The machine enrolled again when only one of its disks was there. It judges itself once all are.
    with_disk(&server, 256).await;
    assert!(node.workflow(&server).await.is_some());
}

#[tokio::test]
async fn the_largest_disk_is_chosen_by_the_machine_that_has_them_all() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let largest = DiskHints { choose: DiskChoice::Largest, ..DiskHints::default() };
    add_system(&server, |system| system.disk = largest).await.unwrap();
    start(&server, debian()).await.unwrap();
    with_disk(&server, 256).await;
    assert!(node.workflow(&server).await.is_some());
}

#[tokio::test]
async fn what_a_machine_reported_long_ago_keeps_it_from_no_run() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let Some(image) = made(&server, "arm64", 16, &ROOT.replace("$TYPE", "8305")) else { return };
    install(&server, &image);
    let (store, data) = (server.store().await, server.data_path());
    let line = ["run", "start", "--yes", "web1", "--os", "debian"];
    for (arch, size, can) in [("aarch64", 256, true), ("x86_64", 64 * MIB, false)] {
        with_machine(&server, arch, size, 512).await;
        fail(&data, &line);
        node_contacts::seen(&mut store.read().await.unwrap(), &node.enrolment.node, 0).await.unwrap();
        // It may get another disk, and no other architecture.
        if can {
            succeed(&data, &line);
            succeed(&data, &["run", "cancel", "--yes", "web1"]);
        } else {
            assert!(fail(&data, &line).contains("but the machine is x86-64"));
        }
        assert_eq!(node.workflow(&server).await, None, "it is here again");
    }
    // It was heard of a moment ago, but of the system that it installed.
    with_machine(&server, "aarch64", 64 * MIB, 512).await;
    succeed(&data, &line);
    let workflow = node.workflow(&server).await.unwrap();
    node.finish(&server, &workflow).await;
    with_disk(&server, 256).await;
    succeed(&data, &line);
}

#[tokio::test]
async fn an_image_is_examined_once_however_many_ask() {
    let server = TestServer::start().await;
    let digest = add_system(&server, |_| {}).await.unwrap().image;
    let store = server.store().await;
    let turn = store.turn_to_examine(&digest).await;
    let waiting = tokio::time::timeout(Duration::from_millis(200), examine_images(&store, vec![digest.clone()]));
    assert!(waiting.await.is_err(), "another examines it");
    drop(turn);
    examine_images(&store, vec![digest]).await.unwrap();
}

const MIB: u64 = 1 << 20;

/// A file of a server that a program made, in a folder of its own; none without the program.
pub fn made(server: &TestServer, name: &str, mib: u64, script: &str) -> Option<PathBuf> {
    let image = server.folder.path().join(name);
    fs::File::create(&image).unwrap().set_len(mib * MIB).unwrap();
    let done = Command::new("sh").args(["-ec", script]).arg(&image).output().unwrap();
    if done.status.code() == Some(127) {
        eprintln!("not checked: sgdisk, sfdisk or mtools are missing");
        return None;
    }
    assert!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&done.stderr));
    Some(image)
}

/// A workflow that erases a disk first.
fn erase_and(step: &str) -> String {
    format!("steps:\n- {{name: erase, action: {{erase-disk: {{}}}}}}\n- {{name: x, action: {{{step}}}}}\n")
}

/// Adds an image and an operating system of it, by the command line. Returns the digest.
pub fn install(server: &TestServer, image: &Path) -> String {
    let data = server.data_path();
    let digest = succeed(&data, &["image", "add", image.to_str().unwrap()]).trim().to_owned();
    succeed(&data, &["os", "add", "debian", "--image", &digest]);
    digest
}

/// A GPT image whose root partition is of this type.
const ROOT: &str = "sgdisk --new=1:2048:18431 --typecode=1:$TYPE $0 >$0.out";
/// A GPT image with an EFI system partition and this program in it, which is none by its headers.
const PROGRAM: &str = "sgdisk --new=1:2048:0 --typecode=1:ef00 $0 >$0.out
    mformat -i $0@@1M -T 28000 ::
    mmd -i $0@@1M ::EFI ::EFI/BOOT
    echo program >$0.efi
    mcopy -i $0@@1M $0.efi ::EFI/BOOT/$TYPE";

#[tokio::test]
async fn an_image_for_another_architecture_is_not_installed() {
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    for (script, kind, machine, other, names) in [
        (ROOT, "8305", "aarch64", "x86_64", ("arm64", "x86-64")),
        (ROOT, "8304", "x86_64", "aarch64", ("x86-64", "arm64")),
        (PROGRAM, "BOOTAA64.EFI", "aarch64", "x86_64", ("arm64", "x86-64")),
        (PROGRAM, "BOOTX64.EFI", "x86_64", "aarch64", ("x86-64", "arm64")),
    ] {
        let Some(image) = made(&server, kind, 16, &script.replace("$TYPE", kind)) else { return };
        install(&server, &image);
        with_machine(&server, other, 64 * MIB, 512).await;
        let refused = fail(&server.data_path(), &["run", "start", "web1", "--os", "debian", "--replace"]);
        let (of_image, of_machine) = names;
        let expect = format!("step 2 (stream-image) would fail: the image is for {of_image} (by ");
        assert!(refused.contains(&expect), "{refused}");
        assert!(
            refused.contains(&format!("but the machine is {of_machine}; use an image for {of_machine}")),
            "{refused}"
        );
        for arch in [machine, ""] {
            with_machine(&server, arch, 64 * MIB, 512).await;
            succeed(&server.data_path(), &["run", "start", "--yes", "web1", "--os", "debian", "--replace"]);
        }
    }
}

#[tokio::test]
async fn an_operating_system_is_for_one_architecture() {
    let server = TestServer::start().await;
    let data = server.data_path();
    let node = server.enrolled("web1").await;
    let digest = add_system(&server, |_| {}).await.unwrap().image.to_string();
    succeed(&data, &["os", "add", "arm", "--image", &digest, "--arch", "aarch64"]);
    let line = ["run", "start", "--yes", "web1", "--os", "arm"];
    with_machine(&server, "x86_64", 64 * MIB, 512).await;
    let refused = fail(&data, &line);
    let expect = "the operating system arm is for arm64, but the machine is x86-64; use one for x86-64";
    assert!(refused.ends_with(expect), "{refused}");
    // Nobody knows the machine yet, and it turns out to be another one.
    with_machine(&server, "", 64 * MIB, 512).await;
    succeed(&data, &line);
    with_machine(&server, "x86_64", 64 * MIB, 512).await;
    assert_eq!(node.workflow(&server).await, None);
    let run = web1(&server).await.run.unwrap();
    let failure = run.steps[0].failure.as_ref().unwrap();
    assert!(failure.reason.contains("before the first step; the disks are as they were"), "{failure:?}");
    assert_eq!(failure.causes, [expect]);
    with_machine(&server, "aarch64", 64 * MIB, 512).await;
    succeed(&data, &line);
    assert!(node.workflow(&server).await.is_some());
    let Some(image) = made(&server, "x86", 16, &ROOT.replace("$TYPE", "8304")) else { return };
    let image = succeed(&data, &["image", "add", image.to_str().unwrap()]);
    let contradicts = fail(&data, &["os", "add", "arm", "--image", image.trim(), "--arch", "aarch64"]);
    assert!(contradicts.contains("the image is for x86-64 (by the type of"), "{contradicts}");
    assert!(contradicts.ends_with(", and not for arm64 as given"), "{contradicts}");
}

#[tokio::test]
async fn an_image_whose_table_is_for_another_disk_is_not_installed() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let gpt = "sgdisk --new=1:2048:18431 $0 >$0.out";
    // Cut off, so that the image itself fits.
    let cut = "sgdisk --new=1:2048:100000 --change-name=1:root $0 >$0.out; truncate -s 4M $0";
    let mbr =
        "printf 'label: dos\nstart=2048, size=8192, type=83\n' | sfdisk -q $0; mke2fs -q -F -E offset=1048576 $0 4M";
    let mbr_cut = "printf 'label: dos\nstart=2048, size=100000, type=83\n' | sfdisk -q $0; truncate -s 4M $0";
    let blocks =
        "is made for blocks of 512 bytes, but the disk /dev/vda has blocks of 4096 bytes; use an image made for";
    let small = "is made for a disk of ";
    for (name, script, size, block, expect) in [
        ("gpt", gpt, 64 * MIB, 4096, blocks),
        ("mbr", mbr, 64 * MIB, 4096, blocks),
        ("cut", cut, 32 * MIB, 512, small),
        ("mbr-cut", mbr_cut, 32 * MIB, 512, small),
    ] {
        let Some(image) = made(&server, name, 64, script) else { return };
        install(&server, &image);
        with_machine(&server, "x86_64", size, block).await;
        let refused = fail(&server.data_path(), &["run", "start", "web1", "--os", "debian", "--replace"]);
        let begin = "step 2 (stream-image) would fail: the partition table of the image ";
        assert!(refused.contains(begin) && refused.contains(expect), "{name}: {refused}");
        assert!(refused.contains("(disks are as the machine reported them when it last enrolled; "), "{refused}");
        with_machine(&server, "x86_64", 64 * MIB, 512).await;
        succeed(&server.data_path(), &["run", "start", "--yes", "web1", "--os", "debian", "--replace"]);
    }
    // The machine enrolled again when only one of its disks was there.
    with_machine(&server, "x86_64", 64 * MIB, 4096).await;
    assert!(node.workflow(&server).await.is_some());
}

#[tokio::test]
async fn a_number_of_a_partition_is_one_of_the_image_of_this_server() {
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    let gpt = "sgdisk --new=1:2048:18431 --new=14:20480:+1M $0 >$0.out";
    let Some(image) = made(&server, "gpt", 64, gpt) else { return };
    let digest = install(&server, &image);
    let url = format!("https://server.test:8443/images/{digest}");
    let steps = |number: u32| {
        let write = format!("write-file: {{path: /a, content: b, partition: {number}}}");
        erase_and(&format!("stream-image: {{url: {url}}}")) + &format!("- {{name: y, action: {{{write}}}}}\n")
    };
    let start = |number| {
        let workflow = steps(number);
        let server = &server;
        async move { operate::start_run(&server.store().await, &server.ca(), "web1", new_run(&workflow)).await }
    };
    let refused = start(7).await.expect_err("7").to_string();
    let expect = "step 3 (y) would fail: the image has no partition 7; give one of 1, 14";
    assert!(refused.contains(expect), "{refused}");
    start(14).await.unwrap();
}

// Several threads: while the test waits for a command, PostgreSQL must be told that a transaction was dropped.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_was_stored_unseen_is_judged_before_it_is_installed() {
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    let data = server.data_path();
    let damaged = "sgdisk --new=1:2048:18431 $0 >$0.out
        printf '\\377\\377\\377\\377' | dd of=$0 bs=1 seek=528 conv=notrunc 2>$0.err";
    for (name, script, expect) in [
        ("gpt", damaged.to_owned(), "the header of its GPT is damaged"),
        ("gpt.gz", format!("{damaged}; gzip -c $0 >$0.gz; mv $0.gz $0"), "the header of its GPT is damaged"),
        ("notes", "echo some notes >$0".to_owned(), "it is a text file"),
        ("cut.xz", "printf '\\375' >$0; printf '7zXZ\\0\\0' >>$0".to_owned(), "it cannot be decoded: "),
    ] {
        let Some(image) = made(&server, name, 16, &script) else { return };
        let digest = succeed(&data, &["image", "add", "--not-an-image", image.to_str().unwrap()]).trim().to_owned();
        let streamed =
            |called: &str| erase_and(&format!("stream-image: {{url: https://server.test:8443/images/{called}}}"));
        // Nobody looked at it before it is called by its name.
        for called in [name, &digest] {
            let run = new_run(&streamed(called));
            let refused = operate::start_run(&server.store().await, &server.ca(), "web1", run).await;
            let refused = refused.expect_err(called).to_string();
            assert!(refused.starts_with("step 2 (x) would fail: the image ") && refused.contains(expect), "{refused}");
        }
        let refused = fail(&data, &["os", "add", "x", "--image", &digest]);
        assert!(refused.contains(&format!("the image {name:?} cannot be installed: {expect}")), "{refused}");
        assert!(!refused.contains("--not-an-image"), "it was added so: {refused}");
        // For other actions it is a file like any other.
        let unpack = streamed(&digest).replace("stream-image: {", "unpack-archive: {partition: 1, ");
        operate::start_run(&server.store().await, &server.ca(), "web1", new_run(&unpack)).await.unwrap();
        succeed(&data, &["run", "cancel", "--yes", "web1"]);
        succeed(&data, &["image", "remove", "--yes", &digest]);
    }
}

#[tokio::test]
async fn a_step_says_of_an_image_what_the_server_knows_of_it() {
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    let digest = add_system(&server, |_| {}).await.unwrap().image;
    let other = format!("sha256:{}", "0".repeat(64));
    for (said, expect) in [
        (format!("digest: {other}"), "has the digest sha256:"),
        (format!("raw_digest: {other}"), "the raw image of "),
        ("raw_size: 1024".to_owned(), "has 512 bytes, not 1024 bytes as given"),
    ] {
        let url = format!("https://server.test:8443/images/{digest}");
        let steps = format!("steps:\n- {{name: x, action: {{stream-image: {{url: {url}, {said}}}}}}}\n");
        let refused = operate::start_run(&server.store().await, &server.ca(), "web1", new_run(&steps)).await;
        let refused = refused.expect_err(&said).to_string();
        assert!(refused.starts_with("step 1 (x) would fail: the ") && refused.contains(expect), "{refused}");
        assert!(refused.ends_with(" as given"), "{refused}");
    }
    let refused = add_system(&server, |system| system.raw_size = Some(1024)).await.expect_err("another size");
    assert!(refused.to_string().contains("512 bytes, not 1024 bytes"), "{refused}");
}

#[tokio::test]
async fn what_a_run_brings_for_the_first_boot_is_judged_when_it_starts() {
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    add_system(&server, |_| {}).await.unwrap();
    let file = server.folder.path().join("user-data");
    fs::write(&file, "#cloud-config\nusers: [\n").unwrap();
    let data = server.data_path();
    let refused = fail(&data, &["run", "start", "web1", "--os", "debian", "--user-data", file.to_str().unwrap()]);
    assert!(refused.contains("user-data"), "{refused}");
    for (seed, expect) in [
        ("user_data: \"#cloud-config\\nusers: [\\n\"", "user-data"),
        ("network_config: \"version: 2\\nethernets: {eth0: {addresses: [192.0.2.5/24]}\\n\"", "network"),
    ] {
        let steps = erase_and(&format!("seed-cloud-init: {{{seed}}}"));
        let refused = operate::start_run(&server.store().await, &server.ca(), "web1", new_run(&steps)).await;
        let refused = refused.expect_err(seed).to_string();
        assert!(refused.contains(expect) && refused.contains("line "), "{refused}");
    }
}
