//! What the tests in this crate share: a server and a machine on one host, an installed system, and prepared answers.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

pub mod answers;
pub mod lab;
pub mod system;

pub use lab::{DISK, Lab, UUID};
