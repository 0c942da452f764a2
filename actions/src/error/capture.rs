//! Capturing a disk.

use std::io;

/// Why a disk was not captured.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// Data of a disk could not be compressed.
    #[error("compressing {disk} at byte {offset}")]
    Compress {
        /// Path of the disk.
        disk: String,
        /// Byte offset of the data.
        offset: u64,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A captured disk could not be stored.
    #[error("storing the image {name}")]
    Upload {
        /// Name of the image.
        name: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
        /// Whether the same may succeed if it is tried again.
        is_transient: bool,
    },
    /// Failures in a row without a byte stored, for too long.
    #[error("storing the image {name}: stopped at byte {offset} after {failures} failures in a row in {seconds} s")]
    UploadGaveUp {
        /// Name of the image.
        name: String,
        /// Bytes stored until then.
        offset: u64,
        /// How many failures.
        failures: u32,
        /// Seconds since the first of them.
        seconds: u64,
        /// The last of them.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What was stored of an image is not there any more.
    #[error(
        "storing the image {name}: {sent} bytes of it were stored, and {stored} are there; it has to be captured anew"
    )]
    UploadLost {
        /// Name of the image.
        name: String,
        /// Bytes that were stored, as far as anybody said.
        sent: u64,
        /// Bytes there are.
        stored: u64,
    },
}

impl CaptureError {
    /// Whether the same may succeed if it is tried again.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::UploadGaveUp { .. } | Self::UploadLost { .. } => true,
            Self::Upload { is_transient, .. } => *is_transient,
            Self::Compress { .. } => false,
        }
    }
}
