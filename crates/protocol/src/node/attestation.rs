//! How a machine proves that it has a certain TPM. `POST /v1/enrol` carries the TPM's public keys. The server answers
//! with a challenge, and the machine repeats the request with the proof.
//!
//! Structures of the TPM are those of the Trusted Platform Module Library, Part 2, in their marshalled form, without
//! the two-byte size field of a TPM2B.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The media type of a [`TpmChallenge`].
pub const CHALLENGE_TYPE: &str = "application/vnd.slipway.tpm-challenge+json";
/// The PCRs of the SHA-256 bank that a machine's quote covers. The firmware extends 0 to 7, the kernel's EFI stub 9,
/// and the stub of a unified kernel image 11 to 13.
pub const QUOTED_PCRS: [u8; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 9, 11, 12, 13];
/// The largest event log that a machine sends, in bytes.
pub const MAX_EVENT_LOG_BYTES: usize = 128 << 10;
/// The longest [`Blob`] of a machine other than the event log, in bytes.
pub const MAX_BLOB_BYTES: usize = 8 << 10;

/// What a machine reports about its TPM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Tpm {
    /// The machine has no TPM.
    Absent,
    /// The machine has a TPM that cannot be used.
    Broken {
        /// Why the TPM cannot be used, for the operator.
        reason: String,
    },
    /// The machine has a TPM that can be used.
    Present {
        /// The TPM's keys.
        keys: TpmKeys,
        /// The answer to the server's challenge. Absent until the server has sent one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        proof: Option<TpmProof>,
    },
}

/// The public keys of a machine's TPM. They alone prove nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TpmKeys {
    /// The endorsement key (TPMT_PUBLIC), of the template L-1 (RSA 2048) or L-2 (ECC P-256) of the TCG EK Credential
    /// Profile.
    pub ek: Blob,
    /// The TPM manufacturer's certificate for the endorsement key, in DER. Absent if the machine found none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ek_certificate: Option<Blob>,
    /// The attestation key (TPMT_PUBLIC): an ECC P-256 key that signs only data that the TPM itself has made.
    pub ak: Blob,
}

/// The answer (401) to a machine that may be let in as a node if it proves that its TPM is the node's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TpmChallenge {
    /// The nonce that the quote must contain. It is valid only for these TPM keys and this machine key.
    pub nonce: Blob,
    /// The credential that TPM2_ActivateCredential takes (TPMS_ID_OBJECT). It contains a secret.
    pub credential: Blob,
    /// The seed of the credential, encrypted to the endorsement key (the contents of a TPM2B_ENCRYPTED_SECRET).
    pub secret: Blob,
}

/// The answer to a challenge. Only the TPM that has both keys can give it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TpmProof {
    /// The nonce of the challenge.
    pub nonce: Blob,
    /// The secret that TPM2_ActivateCredential returned for the challenge.
    pub secret: Blob,
    /// What the TPM signed (TPMS_ATTEST of a quote).
    pub quote: Blob,
    /// The attestation key's signature of `quote` (TPMT_SIGNATURE).
    pub signature: Blob,
    /// The values of [`QUOTED_PCRS`], in that order.
    pub pcrs: Vec<Blob>,
    /// The firmware's event log (TCG PC Client Platform Firmware Profile, section 10). Absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_log: Option<Blob>,
}

/// Bytes, in base64 in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(value_type = String, format = Byte))]
pub struct Blob(pub Vec<u8>);

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map(Self).map_err(|_| serde::de::Error::custom("expected bytes in base64"))
    }
}

impl Tpm {
    /// Returns whether each part is within its size limit.
    pub fn is_within_bounds(&self) -> bool {
        let short = |blob: &Blob| blob.0.len() <= MAX_BLOB_BYTES;
        match self {
            Self::Absent => true,
            Self::Broken { reason } => reason.len() <= MAX_BLOB_BYTES,
            Self::Present { keys, proof } => {
                let keys = [Some(&keys.ek), keys.ek_certificate.as_ref(), Some(&keys.ak)];
                keys.into_iter().flatten().all(short) && proof.as_ref().is_none_or(TpmProof::is_within_bounds)
            }
        }
    }
}

impl TpmProof {
    fn is_within_bounds(&self) -> bool {
        let small = [&self.nonce, &self.secret, &self.quote, &self.signature];
        self.pcrs.len() <= QUOTED_PCRS.len()
            && small.into_iter().chain(&self.pcrs).all(|blob| blob.0.len() <= MAX_BLOB_BYTES)
            && self.event_log.as_ref().is_none_or(|log| log.0.len() <= MAX_EVENT_LOG_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_base64_in_json() {
        let blob = Blob(vec![0, 255, 16]);
        let json = serde_json::to_string(&blob).expect("bytes are a string");
        assert_eq!(json, "\"AP8Q\"");
        assert_eq!(serde_json::from_str::<Blob>(&json).expect("it was just written"), blob);
        assert!(serde_json::from_str::<Blob>("\"AP8\"").is_err());
    }

    #[test]
    fn what_no_tpm_sends_is_out_of_bounds() {
        let keys = |bytes| TpmKeys { ek: Blob(vec![0; bytes]), ek_certificate: None, ak: Blob::default() };
        let proof = |log| TpmProof {
            nonce: Blob::default(),
            secret: Blob::default(),
            quote: Blob::default(),
            signature: Blob::default(),
            pcrs: vec![],
            event_log: Some(Blob(vec![0; log])),
        };
        let present = |bytes, log| Tpm::Present { keys: keys(bytes), proof: Some(proof(log)) };
        assert!(Tpm::Absent.is_within_bounds());
        assert!(present(MAX_BLOB_BYTES, MAX_EVENT_LOG_BYTES).is_within_bounds());
        assert!(!present(MAX_BLOB_BYTES + 1, 0).is_within_bounds());
        assert!(!present(0, MAX_EVENT_LOG_BYTES + 1).is_within_bounds());
        assert!(!Tpm::Broken { reason: "x".repeat(MAX_BLOB_BYTES + 1) }.is_within_bounds());
    }
}
