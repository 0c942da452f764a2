//! What a machine asks of its TPM: to prove which TPM it is, and to seal a secret to the machine's state. Both are
//! commands of the Trusted Platform Module Library (family 2.0, revision 1.59). What a proof sends to the server is in
//! [`slipway_protocol::node::attestation`].
#![deny(clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

mod attester;
mod commands;
mod device;
mod error;
mod event_log;
mod seal;
mod wire;

pub use attester::Attester;
pub use error::TpmError;
pub use event_log::{EVENT_LOG, read_event_log};
pub use seal::{Sealed, seal};

/// The first TPM, behind the kernel's resource manager. A TPM 1.2 has no such device.
pub const DEVICE: &str = "/dev/tpmrm0";
