//! Capturing a disk.

use std::io;

/// Why a disk was not captured.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum CaptureError {
    /// Data of the disk could not be compressed.
    #[error("compressing {disk} at byte {offset}")]
    Compress { disk: String, offset: u64, source: io::Error },
    /// The captured image could not be stored.
    #[error("storing the image {name}")]
    Upload { name: String, source: Box<dyn std::error::Error + Send + Sync>, is_transient: bool },
    /// Storing the image failed for too long, without a byte stored in the meantime.
    #[error("storing the image {name}: stopped at byte {offset} after {failures} failures in a row in {seconds} s")]
    UploadGaveUp {
        name: String,
        offset: u64,
        failures: u32,
        seconds: u64,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server lost data of an image that it had already stored.
    #[error(
        "storing the image {name}: the server had stored {sent} bytes, but now has {stored}; capture the image again"
    )]
    UploadLost {
        name: String,
        /// Number of bytes that the server had confirmed as stored.
        sent: u64,
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
