//! How the server judges what a TPM says: made by hand, by rcgen, and by a TPM in software.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod certificate;
#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "some of it is for the other tests")]
mod common;
mod event_log;
mod keys;
mod log;
mod public;
mod quote;
mod swtpm;
