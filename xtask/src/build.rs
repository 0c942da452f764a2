//! Builds the programs, the parts of the boot image, and releases.

pub mod binary;
mod components;
pub mod coverage;
pub mod dist;
mod elf;
pub mod firmware_files;
pub mod image;
pub mod kernel;
pub mod mkfs;
pub mod modules;
pub mod prepare;
pub mod rare_drivers;
pub mod server;
