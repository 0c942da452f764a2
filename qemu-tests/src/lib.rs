//! A machine and its server for the tests of this crate. Each file tests one claim, and has the claim as its name.

mod bench;
pub mod installed;
pub mod nginx;
pub mod programs;
pub mod secure_boot;
pub mod site;
pub mod tpm;

pub use bench::{
    Bench, DISK_SERIAL, LIMIT, UUID, bootable_image, firmware_trusts, has_empty_head, noise, progress, step, stream,
    timed,
};
