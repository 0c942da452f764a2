//! Checks when an image is added.

use std::io::Write;
use std::path::Path;

use sha2::{Digest as _, Sha256};
use slipway_protocol::Digest;
use slipway_server::Error;
use slipway_server::image::{self, Added, Known};
use slipway_server::store::{db, findings, images};

use crate::installing::add_system;
use crate::support::{IMAGE, TestServer};

const MIB: usize = 1 << 20;

/// A disk with a boot sector that compresses somewhat.
fn disk() -> Vec<u8> {
    [IMAGE.to_vec(), (0..3 * MIB as u32 / 2).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect()].concat()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 0);
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn bzip2(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

type Compress = fn(&[u8]) -> Vec<u8>;
const COMPRESSIONS: [Compress; 4] = [zstd, gzip, xz, bzip2];

/// A qcow2 header of version 2 with twenty L1 entries and clusters of 64 KiB, in a file that is as long as its tables
/// need.
fn qcow2(size: u64) -> Vec<u8> {
    let words = [0x5146_49FB_u32, 2, 0, 0, 0, 16, (size >> 32) as u32, size as u32, 0, 20, 0, 0x10000, 0, 0x20000, 1];
    let mut image: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
    image.resize(0x30000, 0);
    image
}

fn sha256(bytes: &[u8]) -> Digest {
    format!("sha256:{:x}", Sha256::digest(bytes)).parse().unwrap()
}

async fn add(server: &TestServer, bytes: &[u8], known: Known) -> Result<Added, Error> {
    let file = server.folder.path().join("disk.img");
    std::fs::write(&file, bytes).unwrap();
    let added = image::add(&server.store().await, &server.data(), &file, known, |_| {}).await;
    assert!(!has_left_overs(&server.data_path().join("images")), "what was copied is published or taken away");
    added
}

fn has_left_overs(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().any(|file| file.unwrap().file_name().to_str().unwrap().starts_with("incoming"))
}

async fn refused(server: &TestServer, bytes: &[u8], known: Known) -> String {
    let error = add(server, bytes, known).await.expect_err("it is refused");
    let Error::Refused { message, .. } = error else { panic!("{error}") };
    message
}

#[tokio::test]
async fn size_and_digest_of_the_raw_image_are_found_in_every_format() {
    let (server, raw) = (TestServer::start().await, disk());
    let halves = |encode: fn(&[u8]) -> Vec<u8>| [encode(&raw[..MIB / 3]), encode(&raw[MIB / 3..])].concat();
    let streams = COMPRESSIONS.into_iter().flat_map(|encode| [encode(&raw), halves(encode)]);
    for stream in streams.chain([raw.clone()]) {
        let Added { image, warnings } = add(&server, &stream, Known::default()).await.unwrap();
        assert_eq!((image.digest, image.size), (sha256(&stream), stream.len() as u64));
        assert_eq!((image.raw_size, image.raw_digest), (Some(raw.len() as u64), Some(sha256(&raw))));
        assert!(warnings.len() == 1 && warnings[0].contains("has a boot sector without partitions"), "{warnings:?}");
    }
    let Added { image, warnings } = add(&server, &qcow2(10 << 30), Known::default()).await.unwrap();
    assert_eq!((image.raw_size, image.raw_digest), (Some(10 << 30), None));
    assert!(warnings[0].contains("has no partition table"), "it is all zeros");
}

#[tokio::test]
async fn what_no_machine_could_install_is_refused() {
    let (server, raw) = (TestServer::start().await, disk());
    let tar = [&[0xFA; 257][..], b"ustar", &[0; 250]].concat();
    let qcow2_with = |at: usize, byte: u8| {
        let mut image = qcow2(10 << 30);
        image[at] = byte;
        image
    };
    for (bytes, expect) in [
        (b"# Notes\n\nnothing\n".to_vec(), "it is a text file; give the disk image itself: raw, "),
        (b"<!DOCTYPE html>".to_vec(), "it is an HTML or XML page; "),
        (b"PK\x03\x04".to_vec(), "it is a zip archive; "),
        (b"\x28\xB5\x2F\xFD\0\xA8\x01\0\0".to_vec(), "a frame needs a window of 2048 MiB to decode, but 128 MiB are"),
        (xz(&tar), "it contains a tar archive; "),
        (zstd(b"# Notes\n"), "it contains a text file; "),
        (gzip(&zstd(&raw)), "it contains zstd; "),
        (zstd(b""), "is empty"),
        (qcow2_with(15, 1), "it has a backing file; use qemu-img convert"),
        (qcow2(10 << 30)[..0x20000].to_vec(), "the file ends at byte 131072, but its tables end at byte 196608; "),
    ] {
        let message = refused(&server, &bytes, Known::default()).await;
        assert!(message.starts_with("the image \"") && message.contains(expect), "{message}");
    }
    assert!(images::all(&mut server.store().await.read().await.unwrap()).await.unwrap().is_empty());
}

#[tokio::test]
async fn what_was_cut_off_or_has_more_behind_its_end_is_refused() {
    let (server, raw) = (TestServer::start().await, disk());
    for (encode, name) in COMPRESSIONS.into_iter().zip(["zstd", "gzip", "xz", "bzip2"]) {
        let stream = encode(&raw);
        let mut damaged = stream.clone();
        damaged[stream.len() / 2] ^= 0x10;
        let more = [&stream[..], b"trailing garbage"].concat();
        let cut = [1, 9, stream.len() / 2].map(|cut| stream[..stream.len() - cut].to_vec());
        for bytes in cut.into_iter().chain([damaged, more]) {
            let message = refused(&server, &bytes, Known::default()).await;
            assert!(message.starts_with(&format!("the {name} data of the image ")), "{message}");
            assert!(message.contains("cannot be decoded after ") && message.contains("it is damaged, truncated"));
        }
    }
    let large_window = [&zstd(&raw)[..], b"\x28\xB5\x2F\xFD\0\xA8\x01\0\0"].concat();
    let message = refused(&server, &large_window, Known::default()).await;
    assert!(message.ends_with("compress it with zstd --long=27, or without --long"), "{message}");
    let padded = [gzip(&raw), vec![0; 512]].concat();
    assert_eq!(add(&server, &padded, Known::default()).await.unwrap().image.raw_size, Some(raw.len() as u64));
}

#[tokio::test]
async fn what_the_operator_says_of_an_image_has_to_be_so() {
    let (server, raw) = (TestServer::start().await, disk());
    let known = |raw_size, raw_digest| Known { raw_size, raw_digest, ..Known::default() };
    let size = raw.len() as u64;
    add(&server, &zstd(&raw), known(Some(size), Some(sha256(&raw)))).await.unwrap();
    let message = refused(&server, &zstd(&raw), known(Some(size - 1), None)).await;
    assert!(message.contains(&format!("is {size} bytes, not {}; is it the right file?", size - 1)), "{message}");
    let message = refused(&server, &zstd(&raw), known(None, Some(sha256(b"")))).await;
    assert!(message.contains(&format!("is {}, not {};", sha256(&raw), sha256(b""))), "{message}");
    let sha512: Digest = format!("sha512:{}", "0".repeat(128)).parse().unwrap();
    let message = refused(&server, &zstd(&raw), known(None, Some(sha512))).await;
    assert!(message.contains("give it to `os add --raw-digest`"), "{message}");
    let message = refused(&server, &qcow2(1 << 30), known(None, Some(sha256(&raw)))).await;
    assert!(message.contains("leave out --raw-digest, or convert the image"), "{message}");
}

#[tokio::test]
async fn no_operating_system_of_a_qcow2_image_has_a_digest_of_the_raw_image() {
    let server = TestServer::start().await;
    let image = add(&server, &qcow2(1 << 30), Known::default()).await.unwrap().image.digest;
    let refused = add_system(&server, |system| {
        system.image = image.clone();
        system.raw_digest = Some(sha256(b""));
    });
    let message = refused.await.expect_err("a machine would fail after it erased the disk").to_string();
    assert!(message.contains(&format!("{image} is a qcow2 image")), "{message}");
    add_system(&server, |system| system.image = image).await.unwrap();
    add_system(&server, |system| system.raw_digest = Some(sha256(&IMAGE))).await.unwrap();
}

#[tokio::test]
async fn no_operating_system_is_made_of_a_qcow2_image_that_one_pass_cannot_read() {
    let (server, Some(raw)) = (TestServer::start().await, gpt()) else { return };
    let late = "for at in 7 6 5 4 3 2 1; do qemu-io -f qcow2 -c \"write -P 7 ${at}M 64k\" $1; done >$1.out
        qemu-io -f qcow2 -c \"write -s $0 0 1M\" $1 >$1.out";
    let create = "qemu-img create -q -f qcow2 $1 8M";
    let large = "qemu-img create -q -f qcow2 -o cluster_size=2M $1 8M
        for at in $LATE; do qemu-io -f qcow2 -c \"write -P 7 ${at}M 64k\" $1; done >$1.out
        qemu-io -f qcow2 -c \"write -s $0 0 1M\" $1 >$1.out";
    for (script, is_refused) in [
        (format!("{create}; {late}"), true),
        // Machines have six buffers of 1 MiB, and need one for the first block.
        (large.replace("$LATE", "6 4 2"), true),
        (large.replace("$LATE", "6 4"), false),
        ("qemu-img convert -f raw -O qcow2 -o preallocation=full $0 $1".to_owned(), true),
        ("qemu-img convert -f raw -O qcow2 $0 $1".to_owned(), false),
        (format!("{create}; {late}; qemu-img convert -O qcow2 $1 $1.new; mv $1.new $1"), false),
    ] {
        let [from, to] = ["raw", "qcow2"].map(|name| server.folder.path().join(name));
        std::fs::remove_file(&to).ok();
        std::fs::write(&from, &raw).unwrap();
        let made = std::process::Command::new("sh").args(["-ec", &script]).arg(&from).arg(&to).output().unwrap();
        if made.status.code() == Some(127) {
            eprintln!("not checked: qemu-img or qemu-io is missing");
            return;
        }
        assert!(made.status.success(), "{script}: {}", String::from_utf8_lossy(&made.stderr));
        let bytes = std::fs::read(&to).unwrap();
        let image = add(&server, &bytes, Known::default()).await.unwrap().image.digest;
        // It stays so when its file is restored, and where nobody looked at it yet.
        let store = server.store().await;
        for (touched, is_unseen) in [(0, false), (1, false), (2, true)] {
            let file = std::fs::File::open(server.data().image(&image)).unwrap();
            file.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(touched)).unwrap();
            if is_unseen {
                findings::remove(&mut store.read().await.unwrap(), &image).await.unwrap();
            }
            let case = format!("{script}, {touched}");
            match add_system(&server, |system| system.image = image.clone()).await {
                Ok(_) => assert!(!is_refused, "{case}"),
                Err(error) => {
                    assert!(is_refused && error.to_string().contains("checking it in one pass"), "{case}: {error}")
                }
            }
        }
    }
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_named_and_its_cause_stays_in_the_log() {
    let server = TestServer::start().await;
    let digest = add(&server, &zstd(&disk()), Known::default()).await.unwrap().image.digest;
    let store = server.store().await;
    let mut connection = store.read().await.unwrap();
    for (sql, column, cause) in [
        ("UPDATE images SET raw_digest = 'md5:0'", "raw_digest", "md5:0"),
        ("UPDATE images SET size = 'x'", "size", "column"),
    ] {
        if column == "size" && server.data().postgres().is_some() {
            // PostgreSQL does not store this.
            db::query(sql).execute(&mut connection).await.expect_err(sql);
            continue;
        }
        db::query(sql).execute(&mut connection).await.unwrap();
        let error = images::get_by_digest(&mut connection, &digest).await.expect_err("it is damaged");
        assert_eq!(error.to_string(), format!("decoding {column} from the database"));
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains(cause) && !error.body().message.contains(&source), "{source}");
        db::query("UPDATE images SET raw_digest = NULL").execute(&mut connection).await.unwrap();
    }
}

#[tokio::test]
async fn an_image_without_a_partition_table_is_added_with_a_warning() {
    let server = TestServer::start().await;
    let added = add(&server, &zstd(&[0xFA; 8192]), Known::default()).await.unwrap();
    assert!(added.warnings[0].contains("has no partition table, so no machine will start from it"));
    let mut fat = vec![0; 8192];
    fat[510..512].copy_from_slice(&[0x55, 0xAA]);
    fat[..13].copy_from_slice(b"\xEB\x3C\x90mkfs.fat\0\x02");
    let added = add(&server, &zstd(&fat), Known::default()).await.unwrap();
    assert!(added.warnings[0].contains("has a boot sector without partitions"), "{:?}", added.warnings);
}

#[tokio::test]
async fn an_operating_system_takes_its_size_from_its_image() {
    let (server, raw) = (TestServer::start().await, disk());
    let image = add(&server, &zstd(&raw), Known::default()).await.unwrap().image.digest;
    let system = add_system(&server, |system| system.image = image).await.unwrap();
    // The digest of the stream verifies all of the image. Without a digest of the raw image, a machine can decode in
    // any order.
    assert_eq!((system.raw_size, system.raw_digest), (Some(raw.len() as u64), None));
}

#[tokio::test]
async fn a_file_for_other_actions_is_taken_as_it_is() {
    let server = TestServer::start().await;
    let other = Known { is_other: true, ..Known::default() };
    let Added { image, warnings } = add(&server, b"<bmap/>", other).await.unwrap();
    assert_eq!((image.digest, image.raw_size, warnings), (sha256(b"<bmap/>"), None, Vec::new()));
    let other = Known { is_other: true, ..Known::default() };
    assert_eq!(add(&server, b"<bmap/>", other.clone()).await.unwrap().warnings, [""; 0]);
    let file = server.folder.path().join("disk.bmap");
    std::fs::write(&file, b"<bmap/>").unwrap();
    let renamed = image::add(&server.store().await, &server.data(), &file, other, |_| {}).await.unwrap();
    assert_eq!(renamed.warnings, [r#"the image already existed as "disk.img"; its name is now "disk.bmap""#]);
}

#[tokio::test]
async fn what_a_stopped_command_left_is_removed() {
    let server = TestServer::start().await;
    let [left, locked, new] =
        ["left", "locked", "new"].map(|name| server.data().incoming_image().with_file_name(format!("incoming-{name}")));
    let make = |path: &std::path::Path, age: u64| {
        let file = std::fs::File::create(path).unwrap();
        file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(age)).unwrap();
        file
    };
    let lock = make(&locked, 3600);
    lock.lock().unwrap();
    drop((make(&left, 3600), make(&new, 0)));
    server.data().remove_leftovers();
    assert_eq!([&left, &locked, &new].map(|path| path.exists()), [false, true, false]);
}

const DISK: usize = 8 * MIB;

/// An image with a GPT of one partition, as `sgdisk` makes it; none without that program.
fn gpt() -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(DISK as u64).unwrap();
    let made =
        std::process::Command::new("sgdisk").args(["--new=1:2048:8191", "--change-name=1:root"]).arg(&image).output();
    if !made.is_ok_and(|made| made.status.success()) {
        eprintln!("not checked: sgdisk is missing");
        return None;
    }
    Some(std::fs::read(image).unwrap())
}

/// The raw image in a qcow2 image, by qemu-img; none without that program.
fn as_qcow2(raw: &[u8]) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let [from, to] = ["raw", "qcow2"].map(|name| folder.path().join(name));
    std::fs::write(&from, raw).unwrap();
    let mut convert = std::process::Command::new("qemu-img");
    let made = convert.args(["convert", "-f", "raw", "-O", "qcow2", "-c"]).arg(from).arg(&to).output();
    if !made.is_ok_and(|made| made.status.success()) {
        eprintln!("not checked: qemu-img is missing");
        return None;
    }
    Some(std::fs::read(to).unwrap())
}

#[tokio::test]
async fn a_damaged_partition_table_is_refused_in_every_format() {
    let (server, Some(sound)) = (TestServer::start().await, gpt()) else { return };
    for (at, expect) in [
        (None, ""),
        (
            Some(528),
            "the header of its GPT is damaged: its checksum is wrong; its backup at the end of the image is whole",
        ),
        (Some(1024 + 40), "the entries of its GPT have a wrong checksum; its backup at the end of the image is whole"),
        (Some(510), "its GPT has no protective record"),
    ] {
        let mut raw = sound.clone();
        at.into_iter().for_each(|at: usize| raw[at] ^= 0x10);
        for stream in COMPRESSIONS.iter().map(|encode| encode(&raw)).chain([raw.clone()]).chain(as_qcow2(&raw)) {
            if expect.is_empty() {
                let warnings = add(&server, &stream, Known::default()).await.unwrap().warnings;
                assert_eq!(warnings, [""; 0]);
                continue;
            }
            let message = refused(&server, &stream, Known::default()).await;
            assert!(
                message.starts_with("the image \"") && message.contains(&format!(" cannot be installed: {expect}")),
                "{message}"
            );
            add(&server, &stream, Known { is_other: true, ..Known::default() }).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_cut_off_image_and_a_damaged_backup_are_added_with_a_warning() {
    let (server, Some(sound)) = (TestServer::start().await, gpt()) else { return };
    let mut damaged = sound.clone();
    damaged[DISK - 512 + 16] ^= 1;
    for (raw, expect) in [
        (&sound[..2 * MIB], "partition 1 (root) of the image "),
        (&damaged, "the backup of its GPT is damaged"),
        (&sound[..DISK - MIB], "the backup of its GPT is missing"),
    ] {
        for stream in [zstd(raw), raw.to_vec()].into_iter().chain(as_qcow2(raw)) {
            let warnings = add(&server, &stream, Known::default()).await.unwrap().warnings;
            assert!(warnings.len() == 1 && warnings[0].contains(expect), "{warnings:?}");
        }
    }
}
