//! Machines in QEMU, and what they start from, install and talk to.

pub mod bootable;
pub mod demo;
pub mod power_cut;
pub mod qemu;
pub mod server;
pub mod tables;
pub mod target_image;
pub mod write_log;
