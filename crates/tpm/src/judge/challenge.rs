//! Challenges to a TPM, and what it proves by its answer.

use std::collections::BTreeMap;

use ring::digest::{SHA256, digest};
use ring::hmac::{self, HMAC_SHA256};
use ring::rand::SystemRandom;
use slipway_protocol::node::attestation::{Blob, QUOTED_PCRS, TpmChallenge, TpmProof};
use subtle::ConstantTimeEq;
use thiserror::Error;

use super::credential;
use super::event_log::{Event, EventLog};
use super::keys::Keys;
use super::quote::{Quote, is_signed};
use crate::wire;

/// How long a challenge can be answered, in milliseconds.
const LIFETIME: u64 = 300_000;
/// Bytes of a nonce. TPMs without SHA-384 take at most 34 (TPM2B_DATA).
const NONCE_BYTES: usize = 32;

/// Makes challenges and checks the answers. It keeps nothing of either: what it must know again is in the nonce, or derived
/// from it.
pub struct Challenger {
    secret: hmac::Key,
}

/// What a TPM has proven of how its machine was booted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measurements {
    /// The values of [`QUOTED_PCRS`] in the SHA-256 bank.
    pub pcrs: BTreeMap<u8, [u8; 32]>,
    /// What these registers were extended with, if the machine sent a log.
    pub events: Option<Vec<Event>>,
}

/// A challenge cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChallengeError {
    /// The kernel gives no random bytes.
    #[error("making a secret for challenges: the kernel gives no random bytes")]
    Random,
    /// Nobody can have the endorsement key.
    #[error(
        "encrypting a challenge to an endorsement key: it is no point of its curve, or the kernel gives no random bytes"
    )]
    Encrypt,
}

/// Why an answer proves nothing. It has no text of the machine's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProofError {
    /// The nonce is none of this server process, or was given to other keys.
    #[error("checking the proof of a TPM: its nonce was not given by this server for these keys")]
    Nonce,
    /// The challenge is too old.
    #[error("checking the proof of a TPM: its challenge is older than five minutes")]
    Late,
    /// The machine could not open the credential.
    #[error(
        "checking the proof of a TPM: its secret is wrong, so the attestation key is not in the TPM of the endorsement key"
    )]
    Secret,
    /// There is no quote that the attestation key has signed.
    #[error("checking the proof of a TPM: its quote is none, or is not signed by the attestation key")]
    Quote,
    /// The quote answers another challenge.
    #[error("checking the proof of a TPM: its quote is over another nonce")]
    Replayed,
    /// The quote is over other registers.
    #[error("checking the proof of a TPM: its quote is not over the registers {QUOTED_PCRS:?} of SHA-256 alone")]
    Selection,
    /// The values are not those that were quoted.
    #[error("checking the proof of a TPM: the values of its registers are not those of its quote")]
    Altered,
    /// The event log does not explain the values.
    #[error("checking the event log of a TPM: {reason}")]
    EventLog {
        /// What is wrong with it.
        reason: String,
    },
}

impl ProofError {
    /// Whether the machine should ask for another challenge and answer that.
    pub fn ask_again(&self) -> bool {
        matches!(self, Self::Nonce | Self::Late)
    }
}

impl Challenger {
    /// With a new secret, so no answer to a challenge of another one is accepted.
    ///
    /// # Errors
    /// If the kernel gives no random bytes.
    pub fn new() -> Result<Self, ChallengeError> {
        let secret = hmac::Key::generate(HMAC_SHA256, &SystemRandom::new()).map_err(|_| ChallengeError::Random)?;
        Ok(Self { secret })
    }

    /// A challenge to the TPM with these keys, in the machine with the key of that fingerprint. It can be answered for 300
    /// seconds. Times are in milliseconds since 1970.
    ///
    /// # Errors
    /// If nothing can be encrypted to the endorsement key.
    pub fn challenge(&self, keys: &Keys, machine_key: &str, now_ms: u64) -> Result<TpmChallenge, ChallengeError> {
        let until = now_ms.saturating_add(LIFETIME);
        let secret = self.secret(keys, machine_key, until);
        let credential = credential::make(&keys.ek, &keys.ak_name, &secret).map_err(|_| ChallengeError::Encrypt)?;
        Ok(TpmChallenge {
            nonce: Blob(self.nonce(keys, machine_key, until).to_vec()),
            credential: Blob(credential.object),
            secret: Blob(credential.seed),
        })
    }

    /// Checks the answer to a challenge to these keys and this machine.
    ///
    /// # Errors
    /// Why it proves nothing.
    pub fn check(
        &self,
        keys: &Keys,
        machine_key: &str,
        proof: &TpmProof,
        now_ms: u64,
    ) -> Result<Measurements, ProofError> {
        let nonce = &proof.nonce.0;
        let until = nonce.first_chunk().map(|until| u64::from_be_bytes(*until)).ok_or(ProofError::Nonce)?;
        if !bool::from(self.nonce(keys, machine_key, until).ct_eq(nonce)) {
            return Err(ProofError::Nonce);
        }
        if now_ms > until {
            return Err(ProofError::Late);
        }
        if !bool::from(self.secret(keys, machine_key, until).ct_eq(&proof.secret.0)) {
            return Err(ProofError::Secret);
        }
        if !is_signed(&keys.ak, &proof.quote.0, &proof.signature.0) {
            return Err(ProofError::Quote);
        }
        let quote = Quote::parse(&proof.quote.0).ok_or(ProofError::Quote)?;
        if quote.extra_data != nonce {
            return Err(ProofError::Replayed);
        }
        if !matches!(&quote.selection[..], [(wire::SHA256, registers)] if *registers == QUOTED_PCRS) {
            return Err(ProofError::Selection);
        }
        let pcrs = quoted_values(&proof.pcrs, quote.digest).ok_or(ProofError::Altered)?;
        let events = proof.event_log.as_ref().map(|log| explain(&log.0, &pcrs)).transpose();
        let events = events.map_err(|reason| ProofError::EventLog { reason })?;
        Ok(Measurements { pcrs, events })
    }

    /// The time until which it is valid, and a tag without which nobody else can make one.
    fn nonce(&self, keys: &Keys, machine_key: &str, until: u64) -> [u8; NONCE_BYTES] {
        let tag = self.tag(b"nonce ", keys, machine_key, until);
        let mut nonce = [0; NONCE_BYTES];
        let bytes = until.to_be_bytes().into_iter().chain(tag.as_ref().iter().copied());
        nonce.iter_mut().zip(bytes).for_each(|(byte, value)| *byte = value);
        nonce
    }

    /// What only the TPM with both keys can read.
    fn secret(&self, keys: &Keys, machine_key: &str, until: u64) -> [u8; 32] {
        let mut secret = [0; 32];
        secret.copy_from_slice(self.tag(b"secret", keys, machine_key, until).as_ref());
        secret
    }

    /// Everything but the key of the machine has a fixed length, so no two inputs are alike.
    fn tag(&self, purpose: &[u8; 6], keys: &Keys, machine_key: &str, until: u64) -> hmac::Tag {
        let mut tag = hmac::Context::with_key(&self.secret);
        let parts: [&[u8]; 5] = [purpose, &until.to_be_bytes(), &keys.ek_name, &keys.ak_name, machine_key.as_bytes()];
        parts.into_iter().for_each(|part| tag.update(part));
        tag.sign()
    }
}

/// The values of [`QUOTED_PCRS`], if they have that digest.
fn quoted_values(values: &[Blob], quoted: &[u8]) -> Option<BTreeMap<u8, [u8; 32]>> {
    if values.len() != QUOTED_PCRS.len() {
        return None;
    }
    let values: Vec<[u8; 32]> = values.iter().map(|value| value.0[..].try_into().ok()).collect::<Option<_>>()?;
    let is_quoted = digest(&SHA256, &values.concat()).as_ref() == quoted;
    is_quoted.then(|| QUOTED_PCRS.into_iter().zip(values).collect())
}

/// The events that led to the values.
///
/// That goes for every register, also 9 and 11 to 13, which programs could extend after the firmware: nothing in the
/// machine that is asked does so before it answers. A register without events must still have the value of its start.
fn explain(log: &[u8], pcrs: &BTreeMap<u8, [u8; 32]>) -> Result<Vec<Event>, String> {
    let log = EventLog::parse(log)?;
    let replayed = log.replay();
    match pcrs.iter().find(|(pcr, value)| replayed.get(pcr) != Some(value)) {
        Some((pcr, _)) => Err(format!("it does not give the value of register {pcr}")),
        None => Ok(log.events),
    }
}
