//! Erasing.

use slipway_protocol::EraseMode;

/// Why a disk was not erased.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum EraseError {
    /// An erased place does not read as zeros.
    #[error("verifying that {disk} is erased: byte {offset} is not zero")]
    NotErased {
        disk: String,
        /// Byte offset of the first byte that is not zero.
        offset: u64,
    },
    /// The disk cannot be erased in the requested way.
    #[error("erasing {disk} with mode {mode}: {reason}")]
    Refused {
        disk: String,
        mode: EraseMode,
        /// Why not, and what to do.
        reason: String,
    },
    /// The disk started to erase itself and failed in a state in which it must not be used.
    #[error("erasing {disk} with mode {mode}: {reason}")]
    Stuck {
        disk: String,
        mode: EraseMode,
        /// What happened, and what to do.
        reason: String,
    },
    /// Data from before the secure erase is still on the disk.
    #[error("verifying that {disk} is erased: the old data at byte {offset} is still there")]
    Unchanged { disk: String, offset: u64 },
    /// A disk that stays in the machine would be skipped.
    #[error("nothing was erased, because of {}; unplug it, make it writable, or end what uses it", disks.join("; "))]
    Incomplete {
        /// Each disk, with the reason.
        disks: Vec<String>,
    },
    /// Some of several disks were not erased.
    #[error("erasing {count} disks: {}", [failed.as_slice(), others.as_slice()].concat().join("; "))]
    SomeNotErased {
        count: usize,
        /// Each disk that failed, with the reason and causes.
        failed: Vec<String>,
        /// The result of each other disk, and notes about it.
        others: Vec<String>,
    },
}
