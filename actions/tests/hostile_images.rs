//! `stream-image` of images that ask for more than there is: of the disk, or of memory.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::written::{check_untouched, check_untouched_or_does_not_boot, fails, file};
use common::{Bench, MIB, bzip2, chain, gzip, image, xz, xz_blocks, zstd, zstd_sized};
use slipway_actions::{Error, ImageError, is_retryable};

/// Size of the disk.
const ROOM: usize = 3 * MIB;

/// Fails to write the image, once and for all; returns the disk and why.
#[track_caller]
fn refused(stream: &[u8]) -> (Bench, Error) {
    let bench = Bench::new(ROOM);
    let error = fails(&bench, file(&bench, stream));
    assert!(!is_retryable(&error), "{}", chain(&error));
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
        assert!(matches!(error, Error::Image(ImageError::TooLarge { .. })), "{name}: {}", chain(&error));
        // Frames and blocks that are there as a whole say how large they are.
        check_untouched_or_does_not_boot(&bench);
    }
}

#[test]
fn a_frame_that_says_that_it_does_not_fit_is_believed_before_anything_is_written() {
    // RFC 8878, 3.1.1.1: no window, eight bytes for the size of the content.
    let frame = [&[0x28, 0xB5, 0x2F, 0xFD, 0xE0][..], &(1_u64 << 60).to_le_bytes(), &[1, 0, 0]].concat();
    for stream in [frame, zstd_sized(&vec![0; 64 * MIB])] {
        let (bench, error) = refused(&stream);
        assert!(matches!(error, Error::Image(ImageError::TooLarge { .. })), "{}", chain(&error));
        check_untouched(&bench);
    }
}

#[test]
fn a_stream_that_wants_gigabytes_of_memory_is_refused() {
    let check = |stream: &[u8], expect: &str| {
        let (bench, error) = refused(stream);
        assert!(
            matches!(error, Error::Image(ImageError::Decode { .. })) && chain(&error).contains(expect),
            "{}",
            chain(&error)
        );
        check_untouched_or_does_not_boot(&bench);
    };
    let raw = image(100_000);
    let too_much = "it needs more than 80 MiB of memory to decode; compress it with xz -9 or less";
    check(&with_dictionary(xz(&raw), 40), too_much);
    check(&with_dictionary(xz(&raw), 30), too_much);
    check(&with_dictionary(xz_blocks(&raw, 30_000), 40), too_much);
    // RFC 8878, 3.1.1.1.2: a window of 2 GiB, and the largest there is, before a block of nothing.
    for window in [0xA8, 0xFF] {
        check(&[0x28, 0xB5, 0x2F, 0xFD, 0, window, 1, 0, 0], "too much memory");
    }
}

/// The stream with another dictionary in the header of its first block (The .xz file format, 3.1 and 5.3.1).
fn with_dictionary(mut stream: Vec<u8>, bits: u8) -> Vec<u8> {
    const BLOCK: usize = 12;
    let crc_at = BLOCK + usize::from(stream[BLOCK]) * 4;
    let header = &mut stream[BLOCK..crc_at];
    let filter = header.windows(2).position(|pair| pair == [0x21, 1]).unwrap();
    header[filter + 2] = bits;
    let mut crc = flate2::Crc::new();
    crc.update(header);
    stream[crc_at..crc_at + 4].copy_from_slice(&crc.sum().to_le_bytes());
    stream
}
