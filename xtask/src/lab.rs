//! Machines in QEMU, what they boot and install, and the servers they use.

pub mod bootable;
pub mod demo;
pub mod power_cut;
pub mod qemu;
pub mod server;
pub mod tables;
pub mod target_image;
pub mod write_log;
