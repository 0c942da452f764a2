//! What a machine's TPM proves to the server. Pure: no input or output.
//!
//! [`Keys`] alone prove nothing, because anyone can claim that a key is in a TPM. An endorsement key is trusted by its
//! manufacturer's certificate ([`Keys::endorsement`]), or because an operator registered its digest
//! ([`Keys::ek_digest`]). [`Challenger`] then proves the rest:
//!
//! 1. Only the TPM with this endorsement key can open the credential, and only while the attestation key of that name
//!    is loaded. So the attestation key is in the same TPM and is what its public area says.
//! 2. The attestation key signs only data that the TPM made. So the quote shows the TPM's own registers.
//! 3. The quote contains the nonce of the challenge, which is bound to both keys and to the machine's key. So the quote
//!    is new, and comes from this machine.
//! 4. Replaying the event log gives the quoted values. So the log shows what was measured.

mod certificate;
mod challenge;
mod credential;
pub mod event_log;
mod keys;
pub mod quote;

pub use certificate::{Endorsement, Roots, RootsError};
pub use challenge::{ChallengeError, Challenger, Measurements, ProofError};
pub use keys::{Keys, KeysError};
