//! Encrypting the root file system.

/// Why a root file system was not encrypted.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum EncryptError {
    /// The root file system cannot be encrypted.
    #[error("encrypting {what}: {reason}")]
    Refused {
        what: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// The key could not be sealed to the TPM.
    #[error("sealing the key of the root file system")]
    Tpm { source: slipway_tpm::device::TpmError },
    /// The metadata, of `needed` bytes, does not fit into the header of the encrypted volume.
    #[error("making the LUKS2 header: its text would need {needed} bytes, more than there is room for")]
    LuksHeader { needed: usize },
    /// The recovery key could not be stored.
    #[error("storing the recovery key; the disk was not changed")]
    NotStored { source: Box<dyn std::error::Error + Send + Sync>, is_transient: bool },
    /// A partition sealed by dm-verity does not match its seal.
    #[error("checking {what}, which is sealed by dm-verity: {reason}; write the image again")]
    Sealed { what: String, reason: String },
}
