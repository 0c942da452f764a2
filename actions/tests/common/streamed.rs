//! What becomes of a disk an image is put on, and what its sources were asked.

use slipway_actions::{Error, is_retryable};
use slipway_protocol::{Action, StreamImage};

use super::{Bench, MIB, Server, chain};

/// Size of the disk in bytes.
pub const DISK: usize = 4 * MIB;

/// The step fails for good, and for this reason.
#[track_caller]
pub fn fails(bench: &Bench, image: StreamImage, expect: &str) -> Error {
    let error = bench.run(&Action::StreamImage(image)).0.unwrap_err();
    assert!(chain(&error).contains(expect), "{}", chain(&error));
    assert!(!is_retryable(&error), "{}", chain(&error));
    error
}

pub fn check_untouched(bench: &Bench) {
    assert!(bench.disk().iter().all(|byte| *byte == 0xAA), "the disk is as it was");
}

/// With small images a fault may be found before the first block is written.
pub fn check_untouched_or_does_not_boot(bench: &Bench) {
    let disk = bench.disk();
    let is_empty = disk[..MIB].iter().chain(&disk[DISK - MIB..]).all(|byte| *byte == 0);
    assert!(is_empty || disk.iter().all(|byte| *byte == 0xAA), "head and tail are zero, or nothing was written");
}

/// Where each request wanted to go on.
pub fn ranges(server: &Server) -> Vec<Option<u64>> {
    server.asked().iter().map(|asked| asked.range).collect()
}
