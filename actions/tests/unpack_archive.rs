//! `unpack-archive`: the target gets the whole archive, or nothing of it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::disk_image::{self, LINUX, Part, ROOT, can_mount, make, read_file, run};
use common::{Bench, MIB, Server, chain, ok, sha256};
use ring::signature::{Ed25519KeyPair, KeyPair};
use slipway_protocol::{Action, DetachedSignature, UnpackArchive};

const ROOT_AT: usize = 1;

fn installed() -> Bench {
    let bench = Bench::new(MIB);
    let files = [
        ("etc/os-release", "NAME=Debian"),
        ("etc/kept", "old"),
        ("usr/lib/kept", "old"),
        ("lib", "-> usr/lib"),
        ("file", "old"),
    ];
    let parts = [Part { mib: ROOT_AT..39, type_guid: ROOT, name: "system", files: &files }];
    make(&bench.path("disk"), 40, &parts);
    bench
}

fn debugfs(bench: &Bench, request: &str) -> String {
    disk_image::debugfs(&bench.path("disk"), ROOT_AT, request)
}

/// All names in the root of the target.
fn names(bench: &Bench) -> String {
    debugfs(bench, "ls -p /")
}

fn archive(bench: &Bench, bytes: &[u8]) -> UnpackArchive {
    UnpackArchive { url: bench.put("archive", bytes), ..UnpackArchive::default() }
}

#[track_caller]
fn refusal(bench: &Bench, archive: UnpackArchive) -> String {
    bench.refusal(&Action::UnpackArchive(archive))
}

#[track_caller]
fn unpack(bench: &Bench, archive: UnpackArchive) -> Vec<String> {
    let done = bench.succeeds(&Action::UnpackArchive(archive)).0;
    assert!(!names(bench).contains(".slipway"), "nothing else is left");
    done.outcome.warnings
}

/// An entry of a ustar archive, with its content.
fn entry(path: &str, kind: u8, link: &str, content: &[u8]) -> Vec<u8> {
    let mut header = [0_u8; 512];
    header[..path.len()].copy_from_slice(path.as_bytes());
    header[100..107].copy_from_slice(b"0000644");
    header[108..115].copy_from_slice(b"0000000");
    header[116..123].copy_from_slice(b"0000000");
    header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
    header[136..147].copy_from_slice(b"00000000007");
    header[156] = kind;
    header[157..157 + link.len()].copy_from_slice(link.as_bytes());
    header[257..265].copy_from_slice(b"ustar\x0000");
    seal(&mut header);
    let mut bytes = [&header[..], content].concat();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn seal(header: &mut [u8]) {
    header[148..156].fill(b' ');
    let sum: u32 = header[..512].iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
}

fn file(path: &str) -> Vec<u8> {
    entry(path, b'0', "", path.as_bytes())
}

/// Another path for the next entry, of any length.
fn pax(path: &str) -> Vec<u8> {
    let len = path.len() + if path.len() > 90 { 10 } else { 9 };
    entry("pax", b'x', "", format!("{len} path={path}\n").as_bytes())
}

fn ended(entries: &[Vec<u8>]) -> Vec<u8> {
    [entries.concat(), vec![0; 1024]].concat()
}

/// An archive of a tree, made by GNU tar.
fn tar(tree: &Path, options: &[&str]) -> Vec<u8> {
    let output = Command::new("tar").args(options).arg("-C").arg(tree).args(["-c", "."]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

#[test]
fn owners_modes_times_attributes_and_links_arrive() {
    let true = can_mount() else { return };
    let tree = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| tree.path().join(name);
    let deep = format!("opt/{}/{}", "d".repeat(120), "f".repeat(120));
    fs::create_dir_all(path(&deep).parent().unwrap()).unwrap();
    fs::write(path(&deep), "a long name").unwrap();
    fs::create_dir(path("etc")).unwrap();
    fs::write(path("etc/new"), "new").unwrap();
    fs::write(path("opt/tool"), "#!/bin/sh\n").unwrap();
    std::os::unix::fs::chown(path("opt/tool"), Some(70_000), Some(3_000_000)).unwrap();
    fs::set_permissions(path("opt/tool"), PermissionsExt::from_mode(0o6755)).unwrap();
    fs::hard_link(path("opt/tool"), path("opt/same")).unwrap();
    symlink("/usr/bin/absolute", path("opt/link")).unwrap();
    run(Command::new("mkfifo").arg(path("opt/fifo")));
    let has_xattrs =
        rustix::fs::setxattr(path("opt/tool"), "user.note", b"kept", rustix::fs::XattrFlags::empty()).is_ok();
    run(Command::new("setcap").arg("cap_net_bind_service=ep").arg(path("etc/new")));
    run(Command::new("touch").args(["-h", "-d", "2001-02-03 04:05:06.5 UTC"]).args([path("opt/tool"), path("opt")]));
    for format in [&["--format=pax", "--xattrs", "--xattrs-include=*"][..], &["--format=gnu"]] {
        let plain = tar(tree.path(), format);
        let frames = plain.chunks(3001).flat_map(common::zstd_sized).collect();
        for bytes in [
            plain.clone(),
            common::zstd(&plain),
            frames,
            common::gzip(&plain),
            common::xz(&plain),
            common::xz_blocks(&plain, 3001),
            common::bzip2(&plain),
        ] {
            let bench = installed();
            let digest = Some(sha256(&bytes));
            assert_eq!(unpack(&bench, UnpackArchive { digest, ..archive(&bench, &bytes) }), [""; 0]);
            let disk = bench.path("disk");
            let found = |path: &str| read_file(&disk, ROOT_AT, path);
            assert_eq!(found("/opt/tool"), Some(("#!/bin/sh\n".to_owned(), "06755 70000:3000000".to_owned())));
            assert_eq!(found(&format!("/{deep}")).unwrap().0, "a long name");
            assert_eq!(found("/etc/new").unwrap().0, "new");
            assert_eq!(found("/etc/kept").unwrap().0, "old");
            let tool = debugfs(&bench, "stat /opt/tool");
            assert!(tool.contains("Links: 2"), "{tool}");
            assert!(tool.contains("mtime: 0x3a7b8372"), "{tool}");
            assert!(debugfs(&bench, "stat /opt").contains("mtime: 0x3a7b8372"));
            assert!(debugfs(&bench, "stat /opt/link").contains("Fast link dest: \"/usr/bin/absolute\""));
            assert!(debugfs(&bench, "stat /opt/fifo").contains("Type: FIFO"));
            if format[0] == "--format=pax" {
                assert!(!has_xattrs || tool.contains("user.note (4) = \"kept\""), "{tool}");
                assert!(debugfs(&bench, "stat /etc/new").contains("security.capability"));
            }
        }
    }
}

#[test]
fn directories_that_are_there_keep_what_they_have() {
    let true = can_mount() else { return };
    let bench = installed();
    let bytes = ended(&[
        entry("./", b'5', "", b""),
        entry("etc/", b'5', "", b""),
        file("etc/new"),
        file("lib/through-a-link"),
        file("file"),
        file("made/on/the/way"),
        file("./opt//..a/./b.."),
        pax(&format!("{}f", "d/".repeat(127))),
        file("x"),
    ]);
    unpack(&bench, archive(&bench, &bytes));
    let found = |path: &str| read_file(&bench.path("disk"), ROOT_AT, path).map(|found| found.0);
    assert_eq!(found("/usr/lib/through-a-link").as_deref(), Some("lib/through-a-link"));
    assert_eq!((found("/file").as_deref(), found("/etc/kept").as_deref()), (Some("file"), Some("old")));
    assert_eq!(found("/made/on/the/way").as_deref(), Some("made/on/the/way"));
    assert_eq!(found("/opt/..a/b..").as_deref(), Some("./opt//..a/./b.."));
    assert!(names(&bench).contains("/040755/0/0/etc/"), "{}", names(&bench));
    let below = UnpackArchive { directory: "/srv/app".to_owned(), ..archive(&bench, &bytes) };
    assert_eq!(unpack(&bench, below), ["the archive was unpacked without a digest to check it against"]);
    assert_eq!(found("/srv/app/etc/new").as_deref(), Some("etc/new"));
}

#[test]
fn a_hostile_entry_is_named_and_leaves_nothing() {
    let true = can_mount() else { return };
    let outside = tempfile::tempdir().unwrap();
    let out = outside.path().to_str().unwrap();
    let check = |bad: &[Vec<u8>], entry: &str, reason: &str| {
        let bench = installed();
        let bytes = ended(&[vec![file("first")], bad.to_vec(), vec![file("last")]].concat());
        let error = refusal(&bench, archive(&bench, &bytes));
        assert!(error.starts_with(&format!("unpacking {entry} of the archive")), "{error}");
        assert!(error.ends_with(reason), "{error}");
        let left = names(&bench);
        assert!(!left.contains("first") && !left.contains(".slipway"), "{left}");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "nothing is written outside");
    };
    let dots = "its path has \"..\", which could lead out of the target";
    check(&[file("../up")], "\"../up\"", dots);
    check(&[file("a/../../up")], "\"a/../../up\"", dots);
    check(&[file("/abs")], "\"/abs\"", "its path is absolute");
    check(&[pax("/abs"), file("x")], "\"/abs\"", "its path is absolute");
    check(&[file("a/..")], "\"a/..\"", dots);
    for long in ["a/".repeat(129), "a".repeat(256)] {
        let reason = "its path is deeper than 128 directories, or has a name longer than 255 bytes";
        check(&[pax(&long), file("x")], &format!("{long:?}"), reason);
    }
    check(&[pax("a\0b"), file("x")], "\"a\\0b\"", "or has a zero byte");
    let through = "its path leads through a symbolic link";
    check(&[entry("l", b'2', out, b""), file("l/x")], "\"l/x\"", through);
    check(&[entry("l", b'2', "..", b""), file("l/x")], "\"l/x\"", through);
    let no_directory = "an earlier entry of the same name is not a directory";
    check(&[entry("l", b'2', out, b""), entry("l", b'5', "", b"")], "\"l\"", no_directory);
    let unknown = "it is a hard link to an entry that does not come before it in the archive";
    check(&[entry("h", b'1', "/etc/passwd", b"")], "\"h\"", unknown);
    check(&[entry("h", b'1', "../etc/kept", b"")], "\"h\"", unknown);
    check(&[entry("h", b'1', "etc/kept", b"")], "\"h\"", unknown);
    check(&[entry("l", b'2', "/etc", b""), entry("h", b'1', "l/passwd", b"")], "\"h\"", unknown);
    check(&[entry("null", b'3', "", b"")], "\"null\"", "set `devices: true` to allow device nodes");
    check(
        &[entry("sparse", b'S', "", b"")],
        "\"sparse\"",
        "make the archive without --sparse (bsdtar: with --no-read-sparse)",
    );
    check(
        &[entry("odd", b'Q', "", b"")],
        "\"odd\"",
        "it is of an unsupported type; make the archive with tar --format=pax",
    );
    check(&[file(".slipway-unpack/x")], "\".slipway-unpack/x\"", "in which archives are unpacked first");
    check(&[entry("d", b'5', "", b"x")], "\"d\"", "it has a size, but only files have one");
    check(&[file("file/x"), file("file")], "\"file\"", "an earlier entry made a directory of the same name");
    let mut huge = entry("huge", b'L', "", b"");
    huge[124..136].copy_from_slice(b"\x80\0\0\0\0\xff\xff\xff\xff\xff\xff\xff");
    seal(&mut huge);
    check(&[huge], "entry 2", "an extended header is larger than 1 MiB");
    check(&[vec![7; 512]], "entry 2", "or this is not a tar archive");
}

#[test]
fn the_next_place_is_asked_where_one_fails_or_gives_something_else() {
    let true = can_mount() else { return };
    let right = common::gzip(&ended(&[file("right")]));
    let other = ended(&[file("other")]);
    let hostile = ended(&[file("first"), file("../up"), entry("big", b'0', "", &common::image(5 * MIB))]);
    let mut flipped = right.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    // So large that the size limit is hit before the digest is known.
    let mut bomb = common::gzip(&[ended(&[file("first")]), vec![0; 90 * MIB]].concat());
    bomb.extend(common::gzip(&common::image(8 * MIB)));
    let too_large = ended(&[file("first"), entry("big", b'0', "", &vec![0; 60 * MIB])]);
    let cut = right[..right.len() - 9].to_vec();
    let qcow2 = [b"QFI\xfb\0\0\0\x03", &[0; 504][..]].concat();
    let page = b"<html>".to_vec();
    let wrongs = [other.clone(), hostile.clone(), flipped, cut, Vec::new(), bomb, too_large, qcow2, page];
    for wrong in wrongs {
        let bench = installed();
        let (first, second) = (Server::giving(ok(&wrong)), Server::giving(ok(&right)));
        let (url, mirrors, digest) = (first.url.clone(), vec![second.url.clone()], Some(sha256(&right)));
        let inputs = UnpackArchive { url, mirrors, digest, ..UnpackArchive::default() };
        let reports = bench.succeeds(&Action::UnpackArchive(inputs)).1;
        let because = format!("because {} did not deliver a valid archive: ", first.url);
        reports.tell(&format!("starting over with {}, {because}", second.url));
        let left = names(&bench);
        assert!(left.contains("/right/") && !left.contains("first") && !left.contains("other"), "{left}");
    }
    // Without a digest, a refused archive ends the step. With a digest, other places are tried, and here they give
    // nothing either.
    for (digest, expect) in [
        (None, "unpacking \"../up\" of the archive: its path has"),
        (Some(sha256(&hostile)), "fetching: all 2 URLs failed: "),
    ] {
        let bench = installed();
        let mirrors = vec![bench.put("second", &right)];
        let archive = UnpackArchive { digest, mirrors, ..archive(&bench, &hostile) };
        let error = refusal(&bench, archive);
        assert!(error.starts_with(expect) && error.contains("unpacking \"../up\" of the archive"), "{error}");
        assert!(!names(&bench).contains("right"));
    }
    // No other place is tried if the target is at fault.
    let bench = installed();
    let (mirrors, digest) = (vec![bench.put("second", &right)], Some(sha256(&right)));
    let inputs = UnpackArchive { mirrors, digest, directory: "/etc/kept/x".to_owned(), ..archive(&bench, &right) };
    let (result, reports) = bench.run(&Action::UnpackArchive(inputs));
    let error = chain(&result.unwrap_err());
    assert!(error.contains("/etc/kept") && !error.contains("URLs failed"), "{error}");
    assert!(!reports.notes.iter().any(|note| note.contains("did not deliver a valid")), "{:?}", reports.notes);

    let bench = installed();
    let mirrors = vec![bench.put("second", &right)];
    let sparse = ended(&[entry("sparse", b'S', "", b"")]);
    let error = refusal(&bench, UnpackArchive { mirrors, ..archive(&bench, &sparse) });
    assert!(error.starts_with("unpacking \"sparse\" of the archive: it is stored as a sparse file"), "{error}");
    // A place that does not answer, and an archive that is damaged in itself.
    let bench = installed();
    let (url, mirrors) = (bench.place("gone"), vec![bench.put("second", &right)]);
    unpack(&bench, UnpackArchive { mirrors, url, ..UnpackArchive::default() });
    assert!(names(&bench).contains("/right/"));
    for cut in [100, 514, 600] {
        let bench = installed();
        let mirrors = vec![bench.put("second", &right)];
        unpack(&bench, UnpackArchive { mirrors, ..archive(&bench, &other[..cut]) });
        assert!(names(&bench).contains("/right/"), "{cut}");
    }
}

#[test]
fn sums_and_signatures_vouch_for_an_archive() {
    let true = can_mount() else { return };
    let bytes = ended(&[file("new")]);
    let key = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
    let public_key = STANDARD.encode(key.public_key().as_ref());
    let bench = installed();
    let list = format!("{}  archive\n", sha256(&bytes).hex());
    let url = bench.put("list.sig", key.sign(list.as_bytes()).as_ref());
    let listed = UnpackArchive {
        sums: Some(bench.put("SUMS", list.as_bytes())),
        signature: Some(DetachedSignature { url, public_key: public_key.clone() }),
        ..archive(&bench, &bytes)
    };
    assert_eq!(unpack(&bench, listed.clone()), [""; 0]);
    let wrong = format!("{}  archive\n", sha256(b"another").hex());
    let error = |archive| refusal(&bench, archive);
    let forged = UnpackArchive { sums: Some(bench.put("FORGED", wrong.as_bytes())), ..listed };
    assert!(error(forged.clone()).starts_with("verifying the list of sums with its signature "));
    let unsigned = UnpackArchive { signature: None, ..forged };
    assert!(error(unsigned).starts_with("checking the digest of the stream: expected sha256:"));
    let url = bench.put("sig", key.sign(&bytes).as_ref());
    let signature = Some(DetachedSignature { url, public_key });
    let signed = UnpackArchive { signature, directory: "/signed".to_owned(), ..archive(&bench, &bytes) };
    assert_eq!(unpack(&bench, signed.clone()), [""; 0]);
    fs::write(bench.path("archive"), ended(&[file("old")])).unwrap();
    assert!(error(signed).starts_with("verifying the stream with its signature "));
    assert!(!debugfs(&bench, "ls -p /signed").contains("old"));
}

#[test]
fn what_is_cut_short_or_changed_leaves_nothing() {
    let true = can_mount() else { return };
    let bytes = ended(&[file("first"), entry("big", b'0', "", &common::image(100_000)), file("last")]);
    let check = |bytes: &[u8], digest: Option<&[u8]>, expect: &str| {
        let bench = installed();
        let archive = UnpackArchive { digest: digest.map(sha256), ..archive(&bench, bytes) };
        let error = refusal(&bench, archive);
        assert!(error.contains(expect), "{error}");
        assert!(!names(&bench).contains("first") && !names(&bench).contains(".slipway"), "{}", names(&bench));
    };
    check(&bytes, Some(b"another"), "checking the digest of the stream");
    for cut in [0, 1, 511, 512, 600, 1024, 50_000, bytes.len() - 1024 - 100, bytes.len() - 1024, bytes.len() - 512] {
        let expect = if cut == 0 { "it is empty" } else { "" };
        check(&bytes[..cut], None, expect);
    }
    let zstd = common::zstd(&bytes);
    check(&zstd[..zstd.len() - 3], None, "decoding the zstd image");
    check(&[&bytes[..], b"more"].concat(), None, "there is data after the end of the archive");
    let expect = "unpacking /etc of the installed system: the archive has a directory";
    check(&ended(&[file("first"), file("etc")]), None, expect);
}

#[test]
fn an_archive_larger_than_its_file_system_leaves_nothing() {
    let true = can_mount() else { return };
    let check = |bytes: &[u8], expect: &[&str]| {
        let bench = installed();
        let error = refusal(&bench, archive(&bench, bytes));
        assert!(expect.iter().all(|part| error.contains(part)), "{error}");
        let left = names(&bench);
        assert!(!left.contains("first") && !left.contains("big") && !left.contains(".slipway"), "{left}");
    };
    let big = |mib: usize| entry("big", b'0', "", &vec![0; mib * MIB]);
    let full = ended(&[file("first"), big(60), file("last")]);
    for bytes in [&full, &common::zstd(&full)] {
        check(bytes, &["unpacking \"big\" of the archive", "No space left on device"]);
    }
    // Data that takes no room is also limited: entries that replace others, and padding.
    let replaced = common::zstd(&ended(&[file("first"), big(30), big(30), big(30)]));
    let padded = common::zstd(&[ended(&[file("first")]), vec![0; 90 * MIB]].concat());
    for bytes in [replaced, padded] {
        check(&bytes, &["unpacking all of the archive", "it has more than 76 MiB, twice the size of partition 1"]);
    }
}

#[test]
fn device_nodes_are_made_when_asked_for() {
    let true = can_mount() else { return };
    let bench = installed();
    let mut null = entry("null", b'3', "", b"");
    null[100..107].copy_from_slice(b"0000666");
    null[329..336].copy_from_slice(b"0000001");
    null[337..344].copy_from_slice(b"0000003");
    seal(&mut null);
    unpack(&bench, UnpackArchive { devices: true, ..archive(&bench, &ended(&[null])) });
    let stat = debugfs(&bench, "stat /null");
    assert!(stat.contains("Type: character special    Mode:  0666") && stat.contains("01:03"), "{stat}");
}

#[test]
fn attributes_of_every_program_are_kept_and_what_is_left_out_is_told() {
    let true = can_mount() else { return };
    let tree = tempfile::tempdir().unwrap();
    fs::write(tree.path().join("file"), "new").unwrap();
    let made_by = |keywords: &str| {
        let mut tar = Command::new("tar");
        let tar = tar.arg("-C").arg(tree.path()).args(["--format=pax", "--pax-option"]).arg(keywords);
        tar.args(["-c", "file"]).output().unwrap().stdout
    };
    let check = |keywords: &str, expect: &str, warnings: &[&str]| {
        let bench = installed();
        let bytes = made_by(keywords);
        let proven = UnpackArchive { digest: Some(sha256(&bytes)), ..archive(&bench, &bytes) };
        assert_eq!(unpack(&bench, proven), warnings, "{keywords}");
        let found = debugfs(&bench, "stat /file");
        assert!(found.contains(expect), "{keywords}: {found}");
    };
    check("LIBARCHIVE.xattr.user.note:=a2VwdA", "user.note (4) = \"kept\"", &[]);
    check("LIBARCHIVE.xattr.user.a:=a2VwdA==,SCHILY.xattr.user.a:=kept", "user.a (4) = \"kept\"", &[]);
    check("RHT.security.selinux:=system_u:object_r:etc_t:s0", "security.selinux (27)", &[]);
    check("SCHILY.fflags:=nodump", "", &["1 entries have file flags (as by chattr), which were left out"]);
    let bench = installed();
    let damaged = refusal(&bench, archive(&bench, &made_by("LIBARCHIVE.xattr.user.a:=?")));
    assert!(damaged.contains("an extended attribute is not in base64"), "{damaged}");
    let labelled = tar(tree.path(), &["-V", "a label", "--format=gnu"]);
    unpack(&bench, archive(&bench, &labelled));
    for (kind, expect) in [(b'D', "--listed-incremental"), (b'M', "--multi-volume"), (b'X', "with tar --format=pax")] {
        let error = refusal(&bench, archive(&bench, &ended(&[entry("file", kind, "", b"")])));
        assert!(error.contains(expect), "{error}");
    }
}

/// A disk with a root, and another partition that this fstab may mount.
fn with_another(fstab: &str) -> Bench {
    let bench = Bench::new(MIB);
    let files = [
        ("etc/os-release", "NAME=Debian"),
        ("etc/fstab", fstab),
        ("home", "-> var/home"),
        ("usr/local/a", ""),
        ("boot/a", ""),
        ("var/a", ""),
        ("srv/a", ""),
    ];
    let parts = [
        Part { mib: ROOT_AT..39, type_guid: ROOT, name: "system", files: &files },
        Part { mib: DATA_AT..58, type_guid: LINUX, name: "data", files: &[] },
    ];
    make(&bench.path("disk"), 60, &parts);
    bench
}

const DATA_AT: usize = 40;

#[test]
fn files_go_where_the_running_system_sees_them() {
    let true = can_mount() else { return };
    for place in ["var", "boot", "usr/local", "srv"] {
        let bench = with_another(&format!("/dev/sda1 / ext4\nPARTLABEL=data /{place} ext4 defaults 0 2\n"));
        let into = UnpackArchive { directory: format!("/{place}/below"), ..archive(&bench, &ended(&[file("x")])) };
        unpack(&bench, into.clone());
        let found = |mib, path: &str| read_file(&bench.path("disk"), mib, path).is_some();
        assert!(found(DATA_AT, "/below/x") && !found(ROOT_AT, &format!("/{place}/below/x")), "{place}");
        let left = disk_image::debugfs(&bench.path("disk"), DATA_AT, "ls -p /below");
        assert!(!left.contains(".slipway"), "{left}");

        let over = archive(&bench, &ended(&[file("etc/new"), file(&format!("{place}/y"))]));
        let refused = refusal(&bench, over.clone());
        assert!(refused.contains(&format!("unpacking /{place} of the installed system")), "{refused}");
        assert!(
            refused.contains(&format!("its fstab mounts PARTLABEL=data on /{place}, which would hide it")),
            "{refused}"
        );
        assert!(!found(ROOT_AT, "/etc/new") && !names(&bench).contains(".slipway"), "nothing is done");
        unpack(&bench, UnpackArchive { partition: Some("system".into()), ..over });
        assert!(found(ROOT_AT, &format!("/{place}/y")), "the partition was named");
        let alone = [file("etc/new"), entry(&format!("{place}/"), b'5', "", b"")];
        unpack(&bench, archive(&bench, &ended(&alone)));
        assert!(found(ROOT_AT, "/etc/new"), "a directory at a mount point is no reason");
    }
    let bench = with_another("/dev/sda1 / ext4\nPARTLABEL=data /var ext4 defaults 0 2\ntmpfs /srv tmpfs\n");
    let refused = refusal(&bench, archive(&bench, &ended(&[file("home/x")])));
    assert!(refused.contains("mounts PARTLABEL=data on /var"), "a link leads there: {refused}");
    let into = UnpackArchive { directory: "/home/x".to_owned(), ..archive(&bench, &ended(&[file("y")])) };
    unpack(&bench, into);
    assert!(read_file(&bench.path("disk"), DATA_AT, "/home/x/y").is_some());
    let away = UnpackArchive { directory: "/srv/x".to_owned(), ..archive(&bench, &ended(&[file("y")])) };
    let refused = refusal(&bench, away);
    assert!(refused.contains("its fstab mounts tmpfs on /srv, which would hide the files"), "{refused}");
    let refused = refusal(&bench, archive(&bench, &ended(&[file("srv/x")])));
    assert!(refused.contains("which would hide it; leave it out of the archive, or give partition"), "{refused}");
}

#[test]
fn a_bound_folder_is_where_the_running_system_sees_it() {
    let true = can_mount() else { return };
    let bench = with_another("PARTLABEL=data /data ext4\n/srv/v /var none bind\n/data/l /usr/local none rbind\n");
    let found = |mib, path: &str| read_file(&bench.path("disk"), mib, path).is_some();
    for (place, source) in [("var", "/srv/v"), ("usr/local", "/data/l")] {
        let refused = refusal(&bench, archive(&bench, &ended(&[file("etc/new"), file(&format!("{place}/x"))])));
        let expect =
            format!("its fstab mounts {source} on /{place}, which would hide it; unpack what belongs there with");
        assert!(refused.contains(&expect), "{refused}");
        assert!(!found(ROOT_AT, "/etc/new") && !names(&bench).contains(".slipway"), "nothing is done");
        unpack(&bench, UnpackArchive { directory: format!("/{place}"), ..archive(&bench, &ended(&[file("x")])) });
        assert!(!found(ROOT_AT, &format!("/{place}/x")));
    }
    assert!(found(ROOT_AT, "/srv/v/x") && found(DATA_AT, "/l/x"));
}
