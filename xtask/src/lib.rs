//! Builds slipway, its boot image and target images, and runs whole machines in QEMU. The binary has the commands; this
//! library has the code that they and the whole-machine tests share.

pub mod bench;
pub mod build;
pub mod check;
pub mod host;
pub mod lab;
