//! Capturing a disk.

use std::io;

/// Why a disk was not captured.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// Data of the disk could not be compressed.
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
    /// The captured image could not be stored.
    #[error("storing the image {name}")]
    Upload {
        /// Name of the image.
        name: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
        /// Whether another try may succeed.
        is_transient: bool,
    },
    /// Too long a series of failures without a byte stored.
    #[error("storing the image {name}: stopped at byte {offset} after {failures} failures in a row in {seconds} s")]
    UploadGaveUp {
        /// Name of the image.
        name: String,
        /// Bytes stored before that.
        offset: u64,
        /// How many failures.
        failures: u32,
        /// Seconds since the first failure.
        seconds: u64,
        /// The last failure.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Data of an image that was already stored is no longer there.
    #[error(
        "storing the image {name}: the server had stored {sent} bytes, but now has {stored}; capture the image again"
    )]
    UploadLost {
        /// Name of the image.
        name: String,
        /// Bytes stored before, as far as they were confirmed.
        sent: u64,
        /// Bytes stored now.
        stored: u64,
    },
}

impl CaptureError {
    /// Whether another try may succeed.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::UploadGaveUp { .. } | Self::UploadLost { .. } => true,
            Self::Upload { is_transient, .. } => *is_transient,
            Self::Compress { .. } => false,
        }
    }
}
