//! Whole machines in QEMU: firmware or one of our kernels, disks in files, and network cards on QEMU's user network,
//! where this host's loopback is 10.0.2.2.
//!
//! What is needed comes from packages that are installed, or from paths that the caller gives. An error names the
//! package that is missing.

pub mod accel;
mod arguments;
mod config;
mod console;
pub mod drive;
mod escape;
pub mod firmware;
pub mod lasting;
mod machine;
pub mod nvram;
mod qmp;
mod tpm;

pub use config::{Boot, Disk, MachineConfig, Nic, create_disk};
pub use machine::Machine;
