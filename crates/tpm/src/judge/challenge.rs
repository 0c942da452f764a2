//! Challenges to a TPM, and checks of its answers.

use std::collections::BTreeMap;

use ring::digest::{SHA256, digest};
use ring::hmac::{self, HMAC_SHA256};
use slipway_protocol::node::attestation::{Blob, QUOTED_PCRS, TpmChallenge, TpmProof};
use subtle::ConstantTimeEq;
use thiserror::Error;

use super::credential;
use super::event_log::{Event, EventLog};
use super::keys::Keys;
use super::quote::{Quote, is_signed};
use crate::wire;

/// Lifetime of a challenge in milliseconds.
const LIFETIME: u64 = 300_000;
/// Bytes of a nonce. TPMs without SHA-384 accept at most 34 (TPM2B_DATA).
const NONCE_BYTES: usize = 32;

/// Makes challenges and checks the answers. It stores neither: what it needs again is in the nonce, or derived from it.
pub struct Challenger {
    secret: hmac::Key,
}

/// What a TPM proved about the boot of its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measurements {
    /// The values of [`QUOTED_PCRS`] in the SHA-256 bank.
    pub pcrs: BTreeMap<u8, [u8; 32]>,
    /// The events that extended these registers, if the machine sent a log.
    pub events: Option<Vec<Event>>,
}

/// Why a challenge cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChallengeError {
    /// No TPM can have the endorsement key.
    #[error("encrypting a challenge: the endorsement key is not a valid curve point, or no random bytes are available")]
    Encrypt,
}

/// Why an answer proves nothing. It contains no text from the machine.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum ProofError {
    /// No server of this site issued the nonce, or it was issued for other keys.
    #[error("checking the proof of a TPM: this server did not issue its nonce for these keys")]
    Nonce,
    /// The challenge has expired.
    #[error("checking the proof of a TPM: its challenge is older than five minutes")]
    Late,
    /// The machine could not open the credential.
    #[error("checking the proof of a TPM: wrong secret, so the attestation key is not in the endorsement key's TPM")]
    Secret,
    /// The quote is invalid, or the attestation key did not sign it.
    #[error("checking the proof of a TPM: its quote is invalid, or not signed by the attestation key")]
    Quote,
    /// The quote is for another challenge.
    #[error("checking the proof of a TPM: its quote has another nonce")]
    Replayed,
    /// The quote covers other registers.
    #[error("checking the proof of a TPM: its quote must cover exactly the SHA-256 registers {QUOTED_PCRS:?}")]
    Selection,
    /// The register values differ from the quoted ones.
    #[error("checking the proof of a TPM: the register values do not match the quote")]
    Altered,
    /// The event log does not lead to the register values.
    #[error("checking the event log of a TPM: {reason}")]
    EventLog { reason: String },
}

impl ProofError {
    /// Whether the machine should ask for a new challenge.
    pub fn ask_again(&self) -> bool {
        matches!(self, Self::Nonce | Self::Late)
    }
}

impl Challenger {
    /// Uses a secret of 32 random bytes. Only answers to challenges that were made with the same secret are accepted.
    pub fn new(secret: &[u8; 32]) -> Self {
        Self { secret: hmac::Key::new(HMAC_SHA256, secret) }
    }

    /// Makes a challenge for the TPM with these keys, in the machine with this key fingerprint. It is valid for 300
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
    /// If the answer proves nothing: the reason.
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

    /// Makes a nonce: the end of the challenge's lifetime, and a tag that only this server can make.
    fn nonce(&self, keys: &Keys, machine_key: &str, until: u64) -> [u8; NONCE_BYTES] {
        let tag = self.tag(b"nonce ", keys, machine_key, until);
        let mut nonce = [0; NONCE_BYTES];
        let bytes = until.to_be_bytes().into_iter().chain(tag.as_ref().iter().copied());
        nonce.iter_mut().zip(bytes).for_each(|(byte, value)| *byte = value);
        nonce
    }

    /// The secret that only the TPM with both keys can decrypt.
    fn secret(&self, keys: &Keys, machine_key: &str, until: u64) -> [u8; 32] {
        let mut secret = [0; 32];
        secret.copy_from_slice(self.tag(b"secret", keys, machine_key, until).as_ref());
        secret
    }

    /// Computes a tag of all inputs. All except the machine's key have a fixed length, so that no two inputs give the
    /// same bytes.
    fn tag(&self, purpose: &[u8; 6], keys: &Keys, machine_key: &str, until: u64) -> hmac::Tag {
        let mut tag = hmac::Context::with_key(&self.secret);
        let parts: [&[u8]; 5] = [purpose, &until.to_be_bytes(), &keys.ek_name, &keys.ak_name, machine_key.as_bytes()];
        parts.into_iter().for_each(|part| tag.update(part));
        tag.sign()
    }
}

/// The values of [`QUOTED_PCRS`], if they match the quoted digest.
fn quoted_values(values: &[Blob], quoted: &[u8]) -> Option<BTreeMap<u8, [u8; 32]>> {
    if values.len() != QUOTED_PCRS.len() {
        return None;
    }
    let values: Vec<[u8; 32]> = values.iter().map(|value| value.0[..].try_into().ok()).collect::<Option<_>>()?;
    let is_quoted = digest(&SHA256, &values.concat()).as_ref() == quoted;
    is_quoted.then(|| QUOTED_PCRS.into_iter().zip(values).collect())
}

/// Returns the events that led to the register values.
///
/// Every register must match, including 9 and 11 to 13, which programs could extend without the log: slipway's machine
/// does not do so before it answers. A register without events must have its initial value.
fn explain(log: &[u8], pcrs: &BTreeMap<u8, [u8; 32]>) -> Result<Vec<Event>, String> {
    let log = EventLog::parse(log)?;
    let replayed = log.replay();
    match pcrs.iter().find(|(pcr, value)| replayed.get(pcr) != Some(value)) {
        Some((pcr, _)) => Err(format!("replaying it does not give the value of register {pcr}")),
        None => Ok(log.events),
    }
}
