//! `stream-image`: what arrives is on the disk byte for byte, or the disk does not boot and the error says why.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sha2::{Digest as _, Sha384, Sha512};
use slipway_actions::{Error, ImageError, SourceError, is_transient};
use slipway_protocol::{Action, Digest, StreamImage, Verify};

use common::disk_image::{can_mount, run};
use common::written::{
    DISK, IMAGE, check_does_not_boot, check_untouched, check_untouched_or_does_not_boot, check_written, fails,
    fails_for, file,
};
use common::{Answer, Bench, MIB, Server, bzip2, chain, gzip, image, sha256, stream, xz, xz_blocks, zstd, zstd_sized};

#[test]
fn every_format_arrives_byte_for_byte() {
    let raw = image(IMAGE);
    let halves = |encode: fn(&[u8]) -> Vec<u8>| [encode(&raw[..IMAGE / 3]), encode(&raw[IMAGE / 3..])].concat();
    let skippable = [&[0x50, 0x2A, 0x4D, 0x18, 4, 0, 0, 0, 1, 2, 3, 4], zstd(&raw).as_slice()].concat();
    for (name, stream) in [
        ("raw", raw.clone()),
        ("zstd", zstd(&raw)),
        ("zstd of two frames", halves(zstd)),
        ("zstd after a skippable frame", skippable),
        ("gzip", gzip(&raw)),
        ("gzip of two members", halves(gzip)),
        ("xz", xz(&raw)),
        ("xz of two streams", halves(xz)),
        ("xz of two streams with padding between", [&xz(&raw[..MIB])[..], &[0; 8], &xz(&raw[MIB..])].concat()),
        ("xz of many blocks", xz_blocks(&raw, 700_001)),
        ("zstd of many frames", raw.chunks(700_001).flat_map(zstd_sized).collect()),
        ("zstd of many frames with their table behind", seekable(&raw, 700_001)),
        ("zstd of many frames that do not say their size", raw.chunks(700_001).flat_map(zstd).collect()),
        ("zstd of many frames by pzstd", pzstd(&raw)),
        ("bzip2", bzip2(&raw)),
        ("bzip2 of two streams", halves(bzip2)),
    ] {
        // With the digest of the raw image, pieces are passed on in order. Without it, as they are decoded.
        let pieces = name.contains("many");
        for raw_digest in [Some(sha256(&raw)), None].into_iter().take(1 + usize::from(pieces)) {
            let bench = Bench::new(DISK);
            let image = StreamImage {
                digest: Some(sha256(&stream)),
                raw_digest,
                raw_size: Some(IMAGE as u64),
                ..file(&bench, &stream)
            };
            let (result, reports) = bench.run(&Action::StreamImage(image));
            let done = result.unwrap_or_else(|error| panic!("{name}: {}", chain(&error)));
            check_written(&bench, &raw);
            assert_eq!(done.outcome.warnings, [""; 0], "{name}");
            let last = reports.progress.last().unwrap();
            assert_eq!((last.bytes, last.total), (IMAGE as u64, Some(IMAGE as u64)), "{name}");
            assert_eq!((last.fetched, last.fetch_total), (stream.len() as u64, Some(stream.len() as u64)), "{name}");
            assert!(reports.notes[0].starts_with("chose "), "{name}: {:?}", reports.notes);
        }
    }
}

/// pzstd's output: frames without their size, each behind a skippable frame.
fn pzstd(raw: &[u8]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("raw");
    fs::write(&path, raw).unwrap();
    run(Command::new("pzstd").args(["-q", "-1", "-p", "2"]).arg(&path));
    fs::read(path.with_extension("zst")).unwrap()
}

/// Frames of this many bytes, and their table in a skippable frame (zstd,
/// contrib/seekable_format/zstd_seekable_compression_format.md).
fn seekable(raw: &[u8], len: usize) -> Vec<u8> {
    let (mut stream, mut table) = (Vec::new(), Vec::new());
    for chunk in raw.chunks(len) {
        let frame = zstd_sized(chunk);
        table.extend([frame.len() as u32, chunk.len() as u32].map(u32::to_le_bytes).concat());
        stream.extend(frame);
    }
    let frames = table.len() as u32 / 8;
    table.extend([&frames.to_le_bytes()[..], &[0], &0x8F92_EAB1_u32.to_le_bytes()].concat());
    stream.extend([0x184D_2A5E, table.len() as u32].map(u32::to_le_bytes).concat());
    stream.extend(table);
    stream
}

#[test]
fn what_is_plainly_no_image_is_refused_before_anything_is_written() {
    let raw = image(IMAGE);
    let [mut archive, mut vmdk] = [raw.clone(), raw.clone()];
    archive[257..262].copy_from_slice(b"ustar");
    vmdk[..4].copy_from_slice(b"KDMV");
    for (format, stream) in [
        ("gzip", zstd(&gzip(&raw))),
        ("xz", bzip2(&xz(&raw))),
        ("a VMDK image", gzip(&vmdk)),
        ("a tar archive", xz(&archive)),
        ("a tar archive", archive.clone()),
        ("a text file", gzip(b"# Notes\n")),
        ("a text file", "Notizen für später\n".repeat(100_000).into_bytes()),
    ] {
        let bench = Bench::new(DISK);
        fails_for(
            &bench,
            StreamImage { digest: Some(sha256(&stream)), ..file(&bench, &stream) },
            &format!("the raw image: it is {format};"),
        );
        check_untouched(&bench);
    }
}

#[test]
fn the_name_of_an_image_says_nothing_about_its_format() {
    let raw = image(IMAGE);
    for (name, stream) in [("image.gz", raw.clone()), ("image.raw", xz(&raw)), ("image.zst", gzip(&raw))] {
        let bench = Bench::new(DISK);
        fs::write(bench.path(name), &stream).unwrap();
        let image = StreamImage { raw_digest: Some(sha256(&raw)), ..common::stream(bench.place(name)) };
        bench.run(&Action::StreamImage(image)).0.unwrap_or_else(|error| panic!("{name}: {}", chain(&error)));
        check_written(&bench, &raw);
    }
}

#[test]
fn a_disk_that_refuses_direct_access_is_written_and_read_through_the_page_cache() {
    let true = can_mount() else { return };
    let mut bench = Bench::without_disks();
    let _ram = RamDisk::mount(bench.path("ram"));
    bench.add_disk("ram/disk", DISK);
    let direct = rustix::fs::open(bench.path("ram/disk"), OFlags::RDWR | OFlags::DIRECT, Mode::empty());
    assert_eq!(direct.unwrap_err(), Errno::INVAL, "the disk takes no direct access");
    // There is no request for zeros on such a disk either.
    let raw = [image(5 * MIB), vec![0; 5 * MIB], image(9 * MIB + 517)].concat();
    let image = StreamImage { raw_digest: Some(sha256(&raw)), verify: Verify::Readback, ..file(&bench, &zstd(&raw)) };
    bench.streams(image);
    let disk = fs::read(bench.path("ram/disk")).unwrap();
    assert!(disk[..raw.len()] == raw && disk[DISK - MIB..].iter().all(|byte| *byte == 0));
}

/// A file system without O_DIRECT. tmpfs supports it only since Linux 6.6.
struct RamDisk(PathBuf);

impl RamDisk {
    fn mount(place: PathBuf) -> Self {
        fs::create_dir(&place).unwrap();
        run(Command::new("mount").args(["-t", "ramfs", "ramfs"]).arg(&place));
        Self(place)
    }
}

impl Drop for RamDisk {
    fn drop(&mut self) {
        run(Command::new("umount").arg("--lazy").arg(&self.0));
    }
}

#[test]
fn a_damaged_byte_in_a_stream_of_pieces_is_an_error_without_any_digest() {
    let raw = image(100_000);
    let sized: Vec<u8> = raw.chunks(30_001).flat_map(zstd_sized).collect();
    for (format, stream) in [("xz", xz_blocks(&raw, 30_001)), ("zstd", sized), ("bzip2", bzip2(&raw))] {
        let len = stream.len();
        for at in (0..64).chain((64..len - 64).step_by(len / 50)).chain(len - 64..len) {
            let bench = Bench::new(3 * MIB);
            let mut damaged = stream.clone();
            damaged[at] ^= 0x10;
            let (result, _) = bench.run(&Action::StreamImage(file(&bench, &damaged)));
            match result {
                Err(error) => {
                    assert!(!is_transient(&error), "{format} at {at}: {}", chain(&error));
                    check_untouched_or_does_not_boot(&bench);
                }
                // Either the magic was hit, so the stream is taken for a raw image, or a bit without effect, such as
                // one of the window size.
                Ok(_) if bench.disk().starts_with(&damaged) || bench.disk().starts_with(&raw) => {}
                Ok(done) => panic!("{format} at {at}: {done:?}"),
            }
        }
    }
}

#[test]
fn what_the_disk_lost_is_found_by_reading_it_back() {
    let raw = image(IMAGE);
    let body = Arc::new(raw.clone());
    let bench = Bench::new(DISK);
    let disk = bench.path("disk");
    // The first answer ends before anything is read back. The lost place is lost once it was written.
    let server = Server::start(move |n, _| {
        if n == 1 {
            let file = fs::OpenOptions::new().read(true).write(true).open(&disk).unwrap();
            let mut found = [0; 512];
            while found != body[3_000_000..3_000_512] {
                thread::sleep(Duration::from_millis(5));
                file.read_exact_at(&mut found, 3_000_000).unwrap();
            }
            file.write_all_at(b"?", 3_000_000).unwrap();
        }
        Answer::file(&body, "\"a\"", if n == 0 { 25 * MIB } else { usize::MAX })
    });
    let image = |verify| StreamImage { digest: Some(sha256(&raw)), verify, ..stream(&server.url) };
    let error = fails(&bench, image(Verify::Readback));
    assert_error!(error, Error::ReadBack { offset, len, .. } if (offset..offset + len).contains(&3_000_000));
    assert!(!is_transient(&error));
    check_does_not_boot(&bench);
}

#[test]
fn what_was_written_reads_back() {
    let raw = image(IMAGE);
    for stream in [raw.clone(), raw.chunks(700_001).flat_map(zstd_sized).collect()] {
        for size in [DISK, IMAGE.next_multiple_of(4096)] {
            let bench = Bench::new(size);
            let image = StreamImage { verify: Verify::Readback, ..file(&bench, &stream) };
            bench.streams(image);
            assert!(bench.disk().starts_with(&raw));
        }
    }
}

#[test]
fn an_image_as_large_as_the_disk_arrives_and_one_smaller_than_what_is_held_back() {
    let bench = Bench::new(DISK);
    let (large, small) = (image(DISK), image(5000));
    bench.streams(file(&bench, &large));
    assert!(bench.disk() == large);
    bench.streams(file(&bench, &zstd(&small)));
    check_written(&bench, &small);
}

#[test]
fn a_truncated_stream_is_an_error_without_any_digest() {
    let raw = image(9 * MIB + 3);
    let streams = [("zstd", zstd(&raw)), ("gzip", gzip(&raw)), ("xz", xz(&raw)), ("bzip2", bzip2(&raw))];
    for (format, stream) in streams {
        let len = stream.len();
        for cut in [1, 2, 4, 8, 9, 1000, len / 2, len - 100] {
            let kept = len - cut;
            let bench = Bench::new(DISK);
            let error = fails(&bench, file(&bench, &stream[..kept]));
            assert_error!(error, Error::Image(ImageError::Decode { .. }), "{format} without {cut}");
            let text = chain(&error);
            let is_told = text.ends_with(" of raw data: the data ends too early; download or create the image again");
            assert!(is_told, "{format} without {cut}: {text}");
            assert!(!is_transient(&error));
            check_untouched_or_does_not_boot(&bench);
        }
    }
}

#[test]
fn every_prefix_of_a_small_stream_is_an_error() {
    let raw = image(300);
    let (first, second) = raw.split_at(100);
    for encode in [zstd, zstd_sized, gzip, xz, bzip2] as [fn(&[u8]) -> Vec<u8>; 5] {
        let (first, second) = (encode(first), encode(second));
        let stream = [first.as_slice(), &second].concat();
        let bench = Bench::new(2 * MIB + 4096);
        // With fewer bytes than a magic number, it is a raw image. A cut behind the first stream leaves a complete
        // stream.
        for kept in (6..stream.len()).filter(|kept| *kept != first.len()) {
            let error = fails(&bench, file(&bench, &stream[..kept]));
            assert_error!(error, Error::Image(ImageError::Decode { .. }), "{kept} bytes");
        }
        check_untouched_or_does_not_boot(&bench);
    }
}

#[test]
fn what_follows_the_stream_is_an_error() {
    let raw = image(3 * MIB);
    for stream in [zstd(&raw), zstd_sized(&raw), gzip(&raw), xz(&raw), bzip2(&raw)] {
        let bench = Bench::new(DISK);
        let error = fails(&bench, file(&bench, &[stream.as_slice(), b"trailing garbage"].concat()));
        assert_error!(error, Error::Image(ImageError::Decode { .. }));
        check_untouched_or_does_not_boot(&bench);
    }
}

#[test]
fn zeros_after_gzip_are_the_padding_of_tapes() {
    let raw = image(3 * MIB);
    let bench = Bench::new(DISK);
    let stream = [gzip(&raw[..MIB]), gzip(&raw[MIB..]), vec![0; 3 * MIB]].concat();
    bench.streams(file(&bench, &stream));
    check_written(&bench, &raw);
}

#[test]
fn a_flipped_bit_is_found_by_either_digest() {
    let raw = image(IMAGE);
    let mut flipped = raw.clone();
    flipped[20 * MIB] ^= 1;
    let bench = Bench::new(DISK);
    let error = fails(&bench, StreamImage { digest: Some(sha256(&raw)), ..file(&bench, &flipped) });
    assert!(chain(&error).starts_with("checking the digest of the stream: expected sha256:"), "{}", chain(&error));
    assert!(!is_transient(&error));
    check_does_not_boot(&bench);
    let bench = Bench::new(DISK);
    let error = fails(&bench, StreamImage { raw_digest: Some(sha256(&raw)), ..file(&bench, &zstd(&flipped)) });
    assert!(chain(&error).starts_with("checking the digest of the raw image: expected sha256:"), "{}", chain(&error));
    check_does_not_boot(&bench);
}

#[test]
fn the_stream_and_the_raw_image_are_checked_by_each_algorithm() {
    let raw = image(3 * MIB);
    let mut flipped = raw.clone();
    flipped[2 * MIB] ^= 1;
    let of = |algorithm: &str, bytes: &[u8]| -> Digest {
        let digits = match algorithm {
            "sha384" => format!("{:x}", Sha384::digest(bytes)),
            _ => format!("{:x}", Sha512::digest(bytes)),
        };
        format!("{algorithm}:{digits}").parse().unwrap()
    };
    for algorithm in ["sha384", "sha512"] {
        let check = |bytes: &[u8], is_raw: bool| {
            let bench = Bench::new(DISK);
            let right = if is_raw { of(algorithm, &raw) } else { of(algorithm, &gzip(&raw)) };
            let (digest, raw_digest) = if is_raw { (None, Some(right)) } else { (Some(right), None) };
            let (result, _) =
                bench.run(&Action::StreamImage(StreamImage { digest, raw_digest, ..file(&bench, &gzip(bytes)) }));
            (bench, result)
        };
        for (is_raw, what) in [(false, "the stream"), (true, "the raw image")] {
            let (bench, result) = check(&raw, is_raw);
            assert_eq!(result.unwrap_or_else(|error| panic!("{}", chain(&error))).outcome.warnings, [""; 0]);
            check_written(&bench, &raw);
            let (bench, result) = check(&flipped, is_raw);
            let error = chain(&result.unwrap_err());
            let expect = format!("checking the digest of {what}: expected {algorithm}:");
            assert!(error.starts_with(&expect) && error.contains(&format!(", got {algorithm}:")), "{error}");
            check_untouched_or_does_not_boot(&bench);
        }
    }
}

#[test]
fn a_raw_image_of_another_size_is_an_error() {
    let raw = image(3 * MIB);
    for raw_size in [3 * MIB as u64 - 1, 3 * MIB as u64 + 1] {
        let bench = Bench::new(DISK);
        let error = fails(&bench, StreamImage { raw_size: Some(raw_size), ..file(&bench, &zstd(&raw)) });
        assert_error!(error, Error::Image(ImageError::RawSize { expected, .. }) if expected == raw_size);
        check_untouched_or_does_not_boot(&bench);
    }
}

#[test]
fn an_image_that_does_not_fit_leaves_the_disk_as_it_was_if_its_size_is_known() {
    let raw = image(DISK + 1);
    let bench = Bench::new(DISK);
    let error = fails(&bench, StreamImage { raw_size: Some(raw.len() as u64), ..file(&bench, &zstd(&raw)) });
    assert_error!(error, Error::Image(ImageError::TooLarge { .. }));
    check_untouched(&bench);
    let error = fails(&bench, file(&bench, &zstd(&raw)));
    assert_error!(error, Error::Image(ImageError::TooLarge { .. }));
    check_does_not_boot(&bench);
}

#[test]
fn what_is_no_image_leaves_the_disk_as_it_was() {
    for (bytes, expect) in [
        (&b""[..], "it is empty"),
        (b"QFI\xfb rest", "reading the header of the qcow2 image"),
        (b"\x04\x22\x4D\x18", "it is an LZ4 stream"),
        (b"<!DOCTYPE html>", "it is an HTML or XML page"),
        (&zstd(b""), "it is empty"),
    ] {
        let bench = Bench::new(DISK);
        let error = fails(&bench, file(&bench, bytes));
        assert!(chain(&error).contains(expect), "{}", chain(&error));
        check_untouched(&bench);
    }
    let bench = Bench::new(DISK);
    let error = fails(&bench, stream("/nowhere/image"));
    assert!(chain(&error).starts_with("fetching /nowhere/image: opening the file"), "{}", chain(&error));
    check_untouched(&bench);
}

#[test]
fn a_disk_is_not_written_over_itself() {
    let bench = Bench::new(DISK);
    fs::hard_link(bench.path("disk"), bench.path("same")).unwrap();
    std::os::unix::fs::symlink(bench.path("disk"), bench.path("link")).unwrap();
    for name in ["disk", "same", "link"] {
        for scheme in ["", "file://"] {
            let error = fails(&bench, stream(format!("{scheme}{}", bench.path(name).display())));
            assert_error!(error, Error::Source(SourceError::OnTarget { .. }), "{name}");
            check_untouched(&bench);
        }
    }
}

#[test]
fn a_folder_is_no_source_and_is_not_tried_again() {
    let bench = Bench::new(DISK);
    let (result, reports) = bench.run(&Action::StreamImage(stream(bench.dir.path().to_str().unwrap())));
    let error = result.unwrap_err();
    assert!(chain(&error).contains("reading the file: Is a directory"), "{}", chain(&error));
    assert!(!is_transient(&error));
    assert!(!reports.notes.iter().any(|note| note.starts_with("fetching again")), "{:?}", reports.notes);
    check_untouched(&bench);
}

#[test]
fn an_ambiguous_disk_is_refused_by_name() {
    let mut bench = Bench::new(DISK);
    bench.add_disk("other", MIB);
    let error = fails_for(&bench, file(&bench, b"raw"), "there are 2: ");
    assert!(chain(&error).contains("/other (1 MiB)"), "{}", chain(&error));
    check_untouched(&bench);
}
