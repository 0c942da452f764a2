//! Builds slipway, its boot image and a target image, and runs whole machines in QEMU. The commands are in the binary; what they
//! are made of is here, for the tests of whole machines.

pub mod bench;
pub mod binary;
pub mod bootable;
pub mod cache;
pub mod command;
pub mod cpio;
pub mod debian;
pub mod demo;
mod elf;
pub mod fresh;
pub mod fuzz;
pub mod host;
pub mod image;
pub mod kernel;
pub mod lab;
pub mod layers;
pub mod manual;
pub mod mkfs;
pub mod modules;
pub mod power_cut;
pub mod prepare;
pub mod python;
pub mod qemu;
pub mod runner;
pub mod tables;
pub mod target_image;
pub mod torture;
pub mod uki;
pub mod workspace;
pub mod write_log;
