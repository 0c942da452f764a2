//! `stream-image` of images that need more disk or memory than there is, or whose pointers lead elsewhere.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::process::Command;

use slipway_actions::{Error, ImageError, is_transient};
use slipway_protocol::{Action, Digest, StreamImage};

use common::disk_image::run;
use common::written::{check_untouched, check_untouched_or_does_not_boot, fails, fails_for, file};
use common::xz_dictionary::{with_dictionary, with_filter};
use common::{Bench, MIB, bzip2, chain, gzip, image, sha256, xz, xz_blocks, zstd, zstd_sized};

/// Size of the disk.
const ROOM: usize = 3 * MIB;

/// Fails permanently to write the image. Returns the disk and the reason.
#[track_caller]
fn refused(stream: &[u8]) -> (Bench, Error) {
    let bench = Bench::new(ROOM);
    let error = fails(&bench, file(&bench, stream));
    assert!(!is_transient(&error), "{}", chain(&error));
    (bench, error)
}

#[test]
fn a_bomb_is_written_to_the_end_of_the_disk_at_most() {
    let zeros = vec![0; 64 * MIB];
    let frames = |bytes: &[u8]| bytes.chunks(MIB).flat_map(zstd).collect();
    let blocks = |bytes: &[u8]| xz_blocks(bytes, MIB);
    for (name, encode) in
        [("zstd", &zstd as &dyn Fn(&[u8]) -> Vec<u8>), ("frames", &frames), ("xz", &xz), ("blocks", &blocks)]
            .into_iter()
            .chain([("gzip", &gzip as &dyn Fn(&[u8]) -> Vec<u8>), ("bzip2", &bzip2)])
    {
        let (bench, error) = refused(&encode(&zeros));
        assert_error!(error, Error::Image(ImageError::TooLarge { .. }), "{name}");
        // Complete frames and blocks state their size.
        check_untouched_or_does_not_boot(&bench);
    }
}

#[test]
fn a_frame_that_says_that_it_does_not_fit_is_believed_before_anything_is_written() {
    // RFC 8878, 3.1.1.1: no window, eight bytes for the size of the content.
    let frame = [&[0x28, 0xB5, 0x2F, 0xFD, 0xE0][..], &(1_u64 << 60).to_le_bytes(), &[1, 0, 0]].concat();
    for stream in [frame, zstd_sized(&vec![0; 64 * MIB])] {
        let (bench, error) = refused(&stream);
        assert_error!(error, Error::Image(ImageError::TooLarge { .. }));
        check_untouched(&bench);
    }
}

#[test]
fn a_stream_that_wants_gigabytes_of_memory_is_refused() {
    let check = |stream: &[u8], expect: &str| {
        let (bench, error) = refused(stream);
        assert_error!(error, Error::Image(ImageError::Decode { .. }));
        assert!(chain(&error).contains(expect), "{}", chain(&error));
        check_untouched_or_does_not_boot(&bench);
    };
    let raw = image(100_000);
    let too_much = "it needs more than 80 MiB of memory to decode; compress it with xz -9 or less";
    check(&with_dictionary(xz(&raw), 40), too_much);
    check(&with_dictionary(xz(&raw), 30), too_much);
    check(&with_dictionary(xz_blocks(&raw, 30_000), 40), too_much);
    // RFC 8878, 3.1.1.1.2: a window of 2 GiB and the largest possible one, before an empty block.
    for (window, needed) in [(0xA8, 2048), (0xFF, 3_932_160)] {
        let expect =
            format!("a frame needs a window of {needed} MiB to decode, but 128 MiB are supported; compress it with");
        check(&[0x28, 0xB5, 0x2F, 0xFD, 0, window, 1, 0, 0], &expect);
        // Behind a frame that can be decoded.
        check(&[&zstd(&raw)[..], &[0x28, 0xB5, 0x2F, 0xFD, 0, window, 1, 0, 0]].concat(), &expect);
    }
    check(&[0x28, 0xB5, 0x2F, 0xFD, 1, 0x58, 7, 1, 0, 0], "a frame was compressed with the dictionary 7");
}

#[test]
fn a_filter_that_is_longer_than_the_header_of_its_block_is_refused() {
    let stream = xz(&image(100_000));
    for filter in [&[0x21, 0x7F][..], &[0x21, 0x08], &[0xFF, 0xFF, 0xFF, 0xFF, 0xFF], &[0x21, 0xFF, 0xFF, 0xFF, 0x7F]] {
        let (bench, error) = refused(&with_filter(stream.clone(), filter));
        assert_error!(error, Error::Image(ImageError::Decode { .. }), "{filter:x?}");
        check_untouched_or_does_not_boot(&bench);
    }
}

/// A qcow2 image that qemu-img makes from a raw image, or empty.
fn qcow2(raw: Option<&[u8]>, arguments: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let mut make = Command::new("qemu-img");
    make.current_dir(&dir);
    match raw {
        Some(raw) => {
            fs::write(dir.path().join("raw"), raw).unwrap();
            make.args(["convert", "-f", "raw", "-O", "qcow2"]).args(arguments).args(["raw", "image"]);
        }
        None => drop(make.args(["create", "-q", "-f", "qcow2"]).args(arguments)),
    }
    run(&mut make);
    fs::read(dir.path().join("image")).unwrap()
}

/// A number in the header or a table of a qcow2 image (QEMU, docs/interop/qcow2.txt).
fn number(image: &[u8], at: usize) -> usize {
    u64::from_be_bytes(image[at..at + 8].try_into().unwrap()) as usize
}

#[test]
fn a_qcow2_image_that_is_too_large_or_leans_on_another_leaves_the_disk_as_it_was() {
    let check = |image: Vec<u8>, expect: &str| {
        for digest in [None, Some(sha256(&image))] {
            let bench = Bench::new(ROOM);
            fails_for(&bench, StreamImage { digest, ..file(&bench, &image) }, expect);
            check_untouched(&bench);
        }
    };
    let too_large = "the disk has 3 MiB, but the image needs at least 64 MiB";
    check(qcow2(None, &["image", "64M"]), too_large);
    check(qcow2(None, &["-u", "-b", "/etc/passwd", "-F", "raw", "image", "1M"]), "it has a backing file");
}

#[test]
fn a_qcow2_image_whose_tables_lead_into_themselves_does_not_boot() {
    const COPIED: u64 = 1 << 63;
    let image = qcow2(Some(&image(ROOM)), &[]);
    let l1 = number(&image, 40);
    let l2 = number(&image, l1) & !(COPIED as usize);
    // Each entry is redirected to `to`. The last one is reached after other clusters were written.
    for (entry, to, expect) in
        [(l1, l1, "two tables are at byte"), (l2, l2, "points into a table"), (l2 + 40 * 8, l2, "points")]
    {
        let mut image = image.clone();
        image[entry..entry + 8].copy_from_slice(&(to as u64 | COPIED).to_be_bytes());
        let by_ranges = fails_as_qcow2(&image, None);
        assert!(by_ranges.contains(expect), "{by_ranges}");
        let once = fails_as_qcow2(&image, Some(sha256(&image)));
        assert!(once.contains("has passed"), "{once}");
    }
}

/// The reason why a qcow2 image cannot be read. Checks that the disk was not written or does not boot.
#[track_caller]
fn fails_as_qcow2(image: &[u8], digest: Option<Digest>) -> String {
    let bench = Bench::new(ROOM);
    let error = fails(&bench, StreamImage { digest, ..file(&bench, image) });
    assert_error!(error, Error::Image(ImageError::Qcow2 { .. }));
    assert!(!is_transient(&error));
    check_untouched_or_does_not_boot(&bench);
    chain(&error)
}

#[test]
fn what_is_plainly_no_disk_is_refused_though_its_digest_is_right() {
    for (head, expect) in [
        (&b"partclone-image\0"[..], "an image of one file system by partclone"),
        (b"\x5D\0\0\x80\0\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\0", "an LZMA stream"),
        (b"age-encryption.org/v1\n-> X25519 ", "a file encrypted by age"),
        (b"\xD0\x0D\xFE\xED", "a device tree or an image for U-Boot (FIT)"),
        (b"\x7FELF\x02\x01\x01", "an ELF program"),
        (b"UBI#\x01", "an image for raw flash (UBI)"),
    ] {
        let raw = [head, &image(MIB)].concat();
        for bytes in [raw.clone(), gzip(&raw), zstd(&raw)] {
            let bench = Bench::new(ROOM);
            let digest = Some(sha256(&bytes));
            let action = Action::StreamImage(StreamImage { digest, ..file(&bench, &bytes) });
            let error = bench.refusal(&action);
            assert!(error.contains(&format!("checking the first block of the raw image: it is {expect}; ")), "{error}");
            check_untouched(&bench);
        }
    }
}

#[test]
fn an_image_without_partitions_is_told_before_the_disk_is_touched() {
    let told = |raw: &[u8], expect: &str| {
        let bench = Bench::new(ROOM);
        let reports = bench.streams(file(&bench, raw)).1;
        let expect = format!("warning: the image has {expect}");
        reports.notes.iter().filter(|note| note.starts_with(&expect)).count()
    };
    let none = "no partition table, so no machine will start from it; is it the image of a disk?";
    assert_eq!((told(&vec![0; 2 * MIB], none), told(&image(MIB), none)), (1, 1));
    let mut bootable = image(MIB);
    bootable[510..512].copy_from_slice(&[0x55, 0xAA]);
    bootable[446..510].fill(0);
    let empty = "a boot sector without partitions, as a bare FAT, exFAT or NTFS file system has; is it";
    assert_eq!(told(&bootable, empty), 1);
    for mkfs in [&["mkfs.vfat"][..], &["mkfs.exfat"], &["mkfs.ntfs", "-q", "-F"]] {
        let bench = Bench::new(ROOM);
        let path = bench.put("fs", &vec![0; 8 * MIB]);
        run(Command::new(mkfs[0]).args(&mkfs[1..]).arg(&path));
        assert_eq!(told(&fs::read(path).unwrap()[..MIB], empty), 1, "{mkfs:?}");
    }
}
