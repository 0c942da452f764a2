//! Readers of others' formats that node and server share. They get bytes and do no input or output.
#![deny(clippy::indexing_slicing)]

pub mod image;
pub mod qcow2;
