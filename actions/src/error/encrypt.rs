//! Encrypting the root file system.

/// Why a root file system is not encrypted.
#[derive(Debug, thiserror::Error)]
pub enum EncryptError {
    /// The root file system cannot become an encrypted one.
    #[error("encrypting {what}: {reason}")]
    Refused {
        /// The partition.
        what: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// The TPM does not keep the key.
    #[error("sealing the key of the root file system")]
    Tpm {
        /// The cause.
        #[source]
        source: super::TpmError,
    },
    /// The header of an encrypted volume has no room for all that it is to hold.
    #[error("making the LUKS2 header: it would have {needed} bytes of text, more than there is room for")]
    LuksHeader {
        /// Bytes of text.
        needed: usize,
    },
    /// Nobody took the recovery key.
    #[error("storing the recovery key; the disk was not changed")]
    Escrow {
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
        /// Whether the same may succeed if it is tried again.
        is_transient: bool,
    },
    /// A partition sealed by dm-verity is not what it was sealed as.
    #[error("checking {what}, which dm-verity seals: {reason}; write the image again")]
    Sealed {
        /// The partition.
        what: String,
        /// What is wrong.
        reason: String,
    },
}
