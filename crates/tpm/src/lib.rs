//! TPM 2.0 (Trusted Platform Module Library, family 2.0, revision 1.59). [`device`] is the machine's side: it answers
//! challenges and seals secrets. [`judge`] is the server's side: it makes challenges and checks the answers. The
//! messages between them are in [`slipway_protocol::node::attestation`].
#![deny(clippy::indexing_slicing, clippy::expect_used, clippy::panic)]

pub mod device;
#[cfg(feature = "judge")]
pub mod judge;
mod wire;
