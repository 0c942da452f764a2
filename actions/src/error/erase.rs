//! Erasing.

use slipway_protocol::EraseMode;

/// Why a disk is not erased.
#[derive(Debug, thiserror::Error)]
pub enum EraseError {
    /// An erased place does not read as zeros.
    #[error("verifying that {disk} is erased: byte {offset} is not zero")]
    NotErased {
        /// Path of the disk.
        disk: String,
        /// Byte offset of the first byte that is not zero.
        offset: u64,
    },
    /// The disk cannot be erased in the way asked for.
    #[error("erasing {disk} by {mode}: {reason}")]
    Refused {
        /// Path of the disk.
        disk: String,
        /// The way asked for.
        mode: EraseMode,
        /// Why not, and what to do.
        reason: String,
    },
    /// The disk began to erase itself, and is not to be used for anything else as that left it.
    #[error("erasing {disk} by {mode}: {reason}")]
    Stuck {
        /// Path of the disk.
        disk: String,
        /// The way asked for.
        mode: EraseMode,
        /// What happened, and what to do.
        reason: String,
    },
    /// What was on the disk before its secure erase is still there.
    #[error("verifying that {disk} is erased: what is at byte {offset} is what was there before")]
    Unchanged {
        /// Path of the disk.
        disk: String,
        /// Byte offset of the place.
        offset: u64,
    },
    /// Some of several disks were not erased.
    #[error("erasing {count} disks: {}", [failed.as_slice(), others.as_slice()].concat().join("; "))]
    SomeNotErased {
        /// How many there were.
        count: usize,
        /// Each that failed, with its reason and causes.
        failed: Vec<String>,
        /// What came of each other one, and what is to be known of those.
        others: Vec<String>,
    },
}
