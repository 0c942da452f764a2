//! How a machine proves which TPM it has: the commands of the Trusted Platform Module Library (family 2.0, revision
//! 1.59) that make its keys, open the server's secret and quote the registers. What is sent to the server is in
//! [`slipway_protocol::attestation`].
#![deny(clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

mod attester;
mod device;
mod error;
mod event_log;
mod wire;

pub use attester::Attester;
pub use error::TpmError;
pub use event_log::{EVENT_LOG, read_event_log};

/// The first TPM, behind the kernel's resource manager. A TPM 1.2 has no such device.
pub const DEVICE: &str = "/dev/tpmrm0";
