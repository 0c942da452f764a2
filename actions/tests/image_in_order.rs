//! `stream-image` in the order of the image, which its digest requires: pieces decoded by several threads reach the
//! disk in the order of the image, or the disk does not boot.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use slipway_actions::{Error, ImageError, is_transient};
use slipway_protocol::{Action, Digest, StreamImage};

use common::written::{
    DISK, check_does_not_boot, check_untouched, check_untouched_or_does_not_boot, check_written, fails, file,
};
use common::{Bench, MIB, chain, image, sha256, xz, xz_blocks, zstd, zstd_sized};

/// Bytes that do not compress.
fn noise(size: usize) -> Vec<u8> {
    image(4 * size).chunks(32).flat_map(|random| random[..8].to_vec()).collect()
}

/// The parts of an image, each encoded separately.
fn pieces(parts: &[impl AsRef<[u8]>], encode: fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    parts.iter().flat_map(|part| encode(part.as_ref())).collect()
}

#[test]
fn pieces_of_every_size_arrive_as_they_are() {
    let (data, huge, long) = (image(14 * MIB), noise(6 * MIB), image(7 * MIB));
    let (small, rest) = data[..3 * MIB].split_at(1001);
    let sizes: [&[u8]; 8] = [small, &huge, b"", rest, small, &long, b"", small];
    let skippable = [&[0x53, 0x2A, 0x4D, 0x18, 4, 0, 0, 0][..], b"skip"].concat();
    let open_ended: Vec<u8> =
        [zstd_sized(small), skippable.clone(), zstd(rest), zstd(b""), zstd_sized(small), zstd(&huge), skippable]
            .concat();
    for (name, raw, stream) in [
        ("tiny frames", data[..MIB / 2].to_vec(), data[..MIB / 2].chunks(1009).flat_map(zstd_sized).collect()),
        ("tiny blocks", data[..MIB / 2].to_vec(), xz_blocks(&data[..MIB / 2], 1009)),
        ("frames as they are captured", data.clone(), data.chunks(2 * MIB).flat_map(zstd_sized).collect()),
        ("blocks of as much", data.clone(), xz_blocks(&data, 2 * MIB)),
        ("frames of every size", sizes.concat(), pieces(&sizes, zstd_sized)),
        ("blocks of every size", sizes.concat(), pieces(&sizes, xz)),
        ("frames of no known size", [small, rest, small, &huge].concat(), open_ended),
    ] {
        let bench = Bench::new(DISK);
        let (raw_digest, raw_size) = (Some(sha256(&raw)), Some(raw.len() as u64));
        let image = StreamImage { raw_digest, raw_size, ..file(&bench, &stream) };
        bench.run(&Action::StreamImage(image)).0.unwrap_or_else(|error| panic!("{name}: {}", chain(&error)));
        check_written(&bench, &raw);
    }
}

#[test]
fn the_first_damaged_piece_in_the_image_is_the_one_that_is_told() {
    let (data, last) = (image(MIB), image(100));
    for encode in [zstd_sized, xz as fn(&[u8]) -> Vec<u8>] {
        // More pieces than buffers come before the damage, so the disk was written to. Damage that comes later is found
        // earlier.
        let before = 10;
        let damaged = |bytes: &[u8]| {
            let mut piece = encode(bytes);
            let at = piece.len() / 2;
            piece[at] ^= 0x10;
            piece
        };
        let first = image(3 * MIB);
        let stream =
            [pieces(&[&data; 10], encode), damaged(&first), damaged(&last), damaged(&last), encode(&data)].concat();
        let bench = Bench::new(DISK);
        let error = fails(&bench, StreamImage { raw_digest: Some(sha256(b"")), ..file(&bench, &stream) });
        let within = (before * MIB) as u64..((before + 3) * MIB) as u64;
        assert_error!(error, Error::Image(ImageError::Decode { raw_bytes, .. }) if within.contains(&raw_bytes));
        assert!(!is_transient(&error));
        check_does_not_boot(&bench);
    }
}

#[test]
fn a_frame_that_lies_about_its_size_is_an_error() {
    const SIZE: usize = 70_000;
    let (data, frame) = (image(MIB), zstd_sized(&image(SIZE)));
    // RFC 8878, 3.1.1.1: no window, four bytes for the size of the content.
    assert_eq!((frame[4] & 0xE0, &frame[5..9]), (0xA0, &(SIZE as u32).to_le_bytes()[..]));
    let check = |said: usize, raw_digest: Option<Digest>| {
        let mut lying = frame.clone();
        lying[5..9].copy_from_slice(&(said as u32).to_le_bytes());
        let stream = [pieces(&[&data; 4], zstd_sized), lying, pieces(&[&data; 4], zstd_sized)].concat();
        let bench = Bench::new(12 * MIB);
        let error = fails(&bench, StreamImage { raw_digest, ..file(&bench, &stream) });
        assert_error!(error, Error::Image(ImageError::Decode { .. }), "{said}");
        assert!(!is_transient(&error));
        check_untouched_or_does_not_boot(&bench);
    };
    for said in [0, 1, SIZE - 1, SIZE + 1, 2 * MIB, 6 * MIB] {
        check(said, Some(sha256(b"")));
        check(said, None);
    }
}

#[test]
fn pieces_without_content_are_no_image() {
    for stream in [pieces(&[b""; 20], zstd_sized), pieces(&[b""; 20], xz)] {
        let bench = Bench::new(DISK);
        let error = fails(&bench, StreamImage { raw_digest: Some(sha256(b"")), ..file(&bench, &stream) });
        assert!(chain(&error).contains("it is empty"), "{}", chain(&error));
        check_untouched(&bench);
    }
}
