//! Builds slipway, its boot image and a target image, and runs whole machines in QEMU. The commands are in the binary; what they
//! are made of is here, for the tests of whole machines.

pub mod binary;
pub mod cache;
pub mod command;
mod elf;
pub mod host;
pub mod python;
pub mod workspace;
