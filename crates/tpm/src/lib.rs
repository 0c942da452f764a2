//! A machine's TPM 2.0 (Trusted Platform Module Library, family 2.0, revision 1.59): [`device`] asks it for a proof of
//! which TPM it is, and has it seal secrets; [`judge`] is the server's side, which makes the challenge and checks the
//! proof. What they exchange is in [`slipway_protocol::node::attestation`].
#![deny(clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

pub mod device;
#[cfg(feature = "judge")]
pub mod judge;
mod wire;
