//! `write-file` on a disk that carries an image.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::disk_image::{LINUX, Part, ROOT, can_mount, can_mount_btrfs, copy_file, debugfs, make, read_file, run};
use common::{Answer, Bench, MIB, Server, image, ok, sha256};
use slipway_protocol::{Action, NumberOrName, WriteFile};

const DATA_AT: usize = 1;
const ROOT_AT: usize = 10;

fn installed() -> Bench {
    let bench = Bench::new(MIB);
    let passwd = "root:x:0:0::/root:/bin/sh\nweb2:x:9:9::/:\nweb:x:33:34::/:/bin/false\nbad:x:-1:\nshort:x\n";
    let root = [
        ("etc/os-release", "NAME=Debian"),
        ("etc/passwd", passwd),
        ("etc/group", "root:x:0:\nweb:x:44:\n"),
        ("etc/motd", "-> ../run/motd"),
        ("etc/kept", "old"),
        ("srv/dir/file", ""),
        ("outside", "-> ../../../../../../etc"),
    ];
    let parts = [
        Part { mib: DATA_AT..9, type_guid: LINUX, name: "data", files: &[] },
        Part { mib: ROOT_AT..39, type_guid: ROOT, name: "system", files: &root },
    ];
    make(&bench.path("disk"), 40, &parts);
    bench
}

fn text(path: &str, content: &str) -> WriteFile {
    WriteFile { path: path.to_owned(), content: Some(content.to_owned()), ..WriteFile::default() }
}

fn fetched(path: &str, url: &str) -> WriteFile {
    WriteFile { path: path.to_owned(), url: Some(url.to_owned()), ..WriteFile::default() }
}

#[track_caller]
fn write(bench: &Bench, file: WriteFile) -> slipway_actions::Done {
    bench.succeeds(&Action::WriteFile(file)).0
}

#[track_caller]
fn refusal(bench: &Bench, file: WriteFile) -> String {
    bench.refusal(&Action::WriteFile(file))
}

#[test]
fn the_root_is_found_in_the_subvolume_that_installers_make_for_it() {
    let true = can_mount_btrfs() else { return };
    for name in ["root", "@", "@rootfs"] {
        let bench = Bench::new(MIB);
        let (disk, place) = (bench.path("disk"), bench.path("place"));
        fs::File::create(&disk).unwrap().set_len((130 * MIB) as u64).unwrap();
        run(Command::new("mkfs.btrfs").arg("-q").arg(&disk));
        fs::create_dir(&place).unwrap();
        let mounted = |disk: &Path, options: &str, script: &str| {
            let script = format!("mount -o loop,{options} \"$0\" \"$1\"; trap 'umount \"$1\"' EXIT; {script}");
            // In a private mount namespace. Another process that creates a namespace would copy the mount and keep it
            // busy.
            run(Command::new("unshare").args(["--mount", "sh", "-euc", &script]).arg(disk).arg(&place))
        };
        let make = format!(
            "cd \"$1\"; btrfs -q subvolume create {name}; mkdir {name}/etc; echo ID=x >{name}/etc/os-release; cd /"
        );
        mounted(&disk, "rw", &make);
        write(&bench, text("/etc/motd", "welcome"));
        // A copy, because another process may keep the action's loop device open, and mount would then refuse a second
        // one.
        let copy = bench.path("copy");
        fs::copy(&disk, &copy).unwrap();
        assert_eq!(mounted(&copy, &format!("ro,subvol={name}"), "cat \"$1/etc/motd\""), "welcome");
    }
}

/// Names in a directory of the root file system, as debugfs lists them.
fn names(bench: &Bench, dir: &str) -> String {
    debugfs(&bench.path("disk"), ROOT_AT, &format!("ls -p {dir}"))
}

#[test]
fn a_file_has_the_content_owner_and_mode_asked_for() {
    let true = can_mount() else { return };
    let bench = installed();
    let name = |name: &str| Some(NumberOrName::from(name));
    let mode = |mode: &str| Some(mode.to_owned());
    let found = |path: &str| read_file(&bench.path("disk"), ROOT_AT, path);
    let check = |file: WriteFile, content: &str, attributes: &str| {
        let path = file.path.clone();
        assert_eq!(write(&bench, file).outcome.warnings, [""; 0]);
        assert_eq!(found(&path), Some((content.to_owned(), attributes.to_owned())), "{path}");
    };
    check(text("/new", "plain"), "plain", "0644 0:0");
    check(WriteFile { owner: name("web"), group: name("web"), ..text("/named", "") }, "", "0644 33:44");
    check(WriteFile { owner: name("7"), group: name("8"), mode: mode("4750"), ..text("/ids", "x") }, "x", "04750 7:8");
    let kept = "what is there keeps its owner and mode";
    check(text("/ids", kept), kept, "04750 7:8");
    check(WriteFile { mode: mode("600"), dir_mode: mode("0700"), ..text("/a/b/c", "deep") }, "deep", "0600 0:0");
    let encoded = WriteFile { content: None, content_base64: Some("YmFz\nZTY0\n".to_owned()), ..text("/encoded", "") };
    check(encoded, "base64", "0644 0:0");
    check(text("/etc/motd", "in place of a link"), "in place of a link", "0644 0:0");
    assert!(names(&bench, "/").contains("/040700/0/0/a/"), "{}", names(&bench, "/"));
    assert!(!names(&bench, "/").contains(".slipway"), "no temporary file is left");
}

#[test]
fn a_partition_is_found_by_number_name_and_label() {
    let true = can_mount() else { return };
    let bench = installed();
    let on = |partition: &str| WriteFile { partition: Some(NumberOrName::from(partition)), ..text("/x", partition) };
    for partition in ["1", "data"] {
        write(&bench, on(partition));
        assert_eq!(read_file(&bench.path("disk"), DATA_AT, "/x").unwrap().0, partition);
    }
    let disk = bench.path("disk");
    let expect = format!(
        "choosing partition 3 of {0}: no partition has that number or name; the disk has partition 1 (data) of {0}, \
         partition 2 (system) of {0}",
        disk.display()
    );
    assert_eq!(refusal(&bench, on("3")), expect);
    let owned = WriteFile { owner: Some(NumberOrName::from("web")), ..on("data") };
    let expect =
        "looking up \"web\" in /etc/passwd of the installed system: there is no such file; give the numeric id";
    assert_eq!(refusal(&bench, owned), expect);
    for unknown in ["we", "bad", "short"] {
        let owned = WriteFile { owner: Some(NumberOrName::from(unknown)), ..text("/x", "") };
        assert!(refusal(&bench, owned).contains("there is no such name; give the numeric id"), "{unknown}");
    }
}

#[test]
fn what_is_fetched_arrives_as_it_is_and_only_whole() {
    let true = can_mount() else { return };
    let bench = installed();
    let delivered = common::gzip(b"not to be unpacked");
    let source = bench.put("source", &delivered);
    let digest = Some(sha256(&delivered));
    let done = write(&bench, WriteFile { digest: digest.clone(), ..fetched("/etc/file.gz", &source) });
    assert_eq!(done.outcome.warnings, [""; 0]);
    let dump = bench.path("dump");
    copy_file(&bench.path("disk"), ROOT_AT, "/etc/file.gz", &dump);
    assert_eq!(fs::read(dump).unwrap(), delivered);
    let done = write(&bench, fetched("/etc/unverified", &source));
    assert_eq!(done.outcome.warnings, ["the file was written without a digest to check it against"]);

    let wrong = WriteFile { digest: Some(sha256(b"another")), ..fetched("/etc/kept", &source) };
    assert!(refusal(&bench, wrong).starts_with("checking the digest of the stream: expected sha256:"));
    assert_eq!(read_file(&bench.path("disk"), ROOT_AT, "/etc/kept").unwrap().0, "old");
    assert!(!names(&bench, "/etc").contains(".slipway"), "no temporary file is left");
}

#[test]
fn the_next_place_is_asked_where_one_fails_or_gives_something_else() {
    let true = can_mount() else { return };
    let bench = installed();
    let (gone, wrong, right) = (bench.place("gone"), bench.put("wrong", b"wrong"), bench.put("right", b"right"));
    let file = WriteFile { digest: Some(sha256(b"right")), mirrors: vec![wrong, right], ..fetched("/x", &gone) };
    let reports = bench.succeeds(&Action::WriteFile(file.clone())).1;
    assert_eq!(read_file(&bench.path("disk"), ROOT_AT, "/x").unwrap().0, "right");
    assert!(
        reports.notes.iter().any(|note| note.contains("did not deliver a valid file: checking the digest")),
        "{reports:?}"
    );
    let nowhere = WriteFile { mirrors: file.mirrors[..1].to_vec(), path: "/y".to_owned(), ..file.clone() };
    assert!(refusal(&bench, nowhere).starts_with("fetching: all 2 URLs failed: "));
    let list = bench.put("SUMS", format!("{}  gone\n", sha256(b"right").hex()).as_bytes());
    let listed = WriteFile { digest: None, sums: Some(list), path: "/z".to_owned(), ..file };
    assert_eq!(write(&bench, listed).outcome.warnings, ["fetching took 3 attempts, and 5 bytes were fetched again"]);
    let sums_alone = WriteFile { sums: Some("/SUMS".to_owned()), ..text("/x", "") };
    assert!(refusal(&bench, sums_alone).contains("without a url that they apply to"));
}

#[test]
fn a_dropped_connection_is_resumed_and_a_changed_source_starts_over() {
    let true = can_mount() else { return };
    let bench = installed();
    let (first, second) = (image(3 * MIB), image(2 * MIB));
    let (body, other) = (std::sync::Arc::new(first), std::sync::Arc::new(second.clone()));
    let server = Server::start(move |n, _| match n {
        0 => Answer::file(&body, "\"a\"", 2 * MIB + 7),
        1 => Answer::Bytes(ok(&other)),
        _ => Answer::file(&other, "\"b\"", usize::MAX),
    });
    let file = WriteFile { digest: Some(sha256(&second)), ..fetched("/x", &server.url) };
    let reports = bench.succeeds(&Action::WriteFile(file)).1;
    reports.tell("starting over: ");
    let dump = bench.path("dump");
    copy_file(&bench.path("disk"), ROOT_AT, "/x", &dump);
    assert!(fs::read(dump).unwrap() == second, "nothing of the first source is left");
}

#[test]
fn what_cannot_be_written_is_told() {
    let true = can_mount() else { return };
    let bench = installed();
    let expect =
        "reading the inputs of write-file: it cannot write \"/../x\": it has \"..\", which could lead elsewhere";
    assert_eq!(refusal(&bench, text("/../x", "")), expect);
    assert!(refusal(&bench, text("/srv/dir", "")).starts_with("writing /srv/dir of the installed system: "));
    let full = refusal(&bench, text("/full", &"x".repeat(40 * MIB)));
    assert!(full.starts_with("writing //full of ") || full.starts_with("writing /full of "), "{full}");
    assert!(!names(&bench, "/").contains("full"), "nothing is left of a file that does not fit");
}

#[test]
fn a_link_of_the_image_leads_to_a_place_inside_it() {
    let true = can_mount() else { return };
    let bench = installed();
    write(&bench, text("/outside/slipway-test", "inside"));
    assert_eq!(read_file(&bench.path("disk"), ROOT_AT, "/etc/slipway-test").unwrap().0, "inside");
    assert!(!std::path::Path::new("/etc/slipway-test").exists());
}
