//! Builds slipway, its boot image and target images, and runs whole machines in QEMU. The binary has the commands. This
//! library has their parts, which whole-machine tests use too.

pub mod bench;
pub mod binary;
pub mod bootable;
pub mod cache;
pub mod command;
mod components;
pub mod coverage;
pub mod debian;
pub mod demo;
pub mod dist;
mod elf;
pub mod firmware_files;
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
pub mod rare_drivers;
pub mod runner;
pub mod tables;
pub mod target_image;
pub mod torture;
pub mod translation;
pub mod workspace;
pub mod write_log;
