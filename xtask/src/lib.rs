//! Builds slipway, its boot image and target images, and runs whole machines in QEMU. The binary has the commands. This
//! library has their parts, which whole-machine tests use too.

pub mod bench;
pub mod build;
pub mod check;
pub mod host;
pub mod lab;
