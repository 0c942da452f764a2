//! What a machine's TPM 2.0 proves to the server. Bytes in, a judgement out: no input or output.
//!
//! [`Keys`] alone prove nothing: anybody can write down that a key is in a TPM. Two things tell that an endorsement key is:
//! its manufacturer's certificate ([`Keys::endorsement`]), or that an operator knew its digest before ([`Keys::ek_digest`]).
//! With the endorsement key known, [`Challenger`] proves the rest:
//!
//! 1. The credential can be opened only by the TPM with this endorsement key, and only if the attestation key of that name
//!    is loaded in the same TPM. So the attestation key is what its public area says.
//! 2. The attestation key signs nothing but what the TPM has made. So the quote is the TPM's, of its own registers.
//! 3. The quote is over the nonce of the challenge, which belongs to both keys and to the machine's key. So it is new, and
//!    it is no other machine's.
//! 4. The event log gives the quoted values when it is replayed. So the log tells what was measured.

mod certificate;
mod challenge;
mod credential;
pub mod event_log;
mod keys;
pub mod quote;

pub use certificate::{Endorsement, Roots, RootsError};
pub use challenge::{ChallengeError, Challenger, Measurements, ProofError};
pub use keys::{Keys, KeysError};
