//! What an image left on a disk.

use slipway_actions::{Error, is_transient};
use slipway_protocol::{Action, StreamImage};

use super::{Bench, MIB, chain, stream};

/// Not a multiple of any block size, and more than every buffer can hold.
pub const IMAGE: usize = 33 * MIB + 517;
pub const DISK: usize = 40 * MIB;

pub fn check_written(bench: &Bench, raw: &[u8]) {
    let disk = bench.disk();
    assert!(disk[..raw.len()] == *raw, "the image is on the disk");
    assert_eq!(disk.len(), DISK);
    assert!(disk[DISK - MIB..].iter().all(|byte| *byte == 0), "the old backup table is gone");
}

pub fn check_does_not_boot(bench: &Bench) {
    let disk = bench.disk();
    assert!(disk[..MIB].iter().all(|byte| *byte == 0), "the head of the disk is zero");
    assert!(disk[disk.len() - MIB..].iter().all(|byte| *byte == 0), "the tail of the disk is zero");
}

pub fn check_untouched(bench: &Bench) {
    assert!(bench.disk().iter().all(|byte| *byte == 0xAA), "the disk is as it was");
}

/// For small images: the fault may be found before the first block is written.
pub fn check_untouched_or_does_not_boot(bench: &Bench) {
    if !bench.disk().iter().all(|byte| *byte == 0xAA) {
        check_does_not_boot(bench);
    }
}

pub fn file(bench: &Bench, bytes: &[u8]) -> StreamImage {
    stream(bench.put("image", bytes))
}

/// The step fails permanently, with this reason.
#[track_caller]
pub fn fails_for(bench: &Bench, image: StreamImage, expect: &str) -> Error {
    let error = fails(bench, image);
    assert!(chain(&error).contains(expect), "{}", chain(&error));
    assert!(!is_transient(&error), "{}", chain(&error));
    error
}

#[track_caller]
pub fn fails(bench: &Bench, image: StreamImage) -> Error {
    let (result, reports) = bench.run(&Action::StreamImage(image));
    result.map(|done| panic!("succeeded: {done:?}, {reports:?}")).unwrap_err()
}
