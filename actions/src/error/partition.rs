//! Partitions, their contents or the partition table.

use std::io;

/// Why partitions, arrays, volumes or file systems could not be made, found or read.
#[derive(Debug, thiserror::Error)]
pub enum PartitionError {
    /// The partition table is of a kind that cannot be read, or the image's table cannot be adapted to the disk.
    #[error("{operation} the partition table of {disk}: {reason}")]
    Table {
        /// What was done: "reading", "fitting", "making".
        operation: &'static str,
        /// Path of the disk.
        disk: String,
        /// What is wrong.
        reason: String,
    },
    /// The requested partitions cannot be made on this disk.
    #[error("laying out partitions on {disk}: {reason}")]
    Layout {
        /// Path of the disk.
        disk: String,
        /// The reason.
        reason: String,
    },
    /// An array or a volume group cannot be made.
    #[error("making {what}: {reason}")]
    Layer {
        /// The array or volume group.
        what: String,
        /// The reason, and what to do.
        reason: String,
    },
    /// An array or a volume group was written to its disks, but the kernel does not start it.
    #[error("{what}")]
    StartLayer {
        /// What was done.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The choice does not select exactly one partition.
    #[error("looking for {choice} on {disk}: {reason}")]
    ChoosePartition {
        /// Path of the disk.
        disk: String,
        /// The choice.
        choice: String,
        /// What there is instead, and what to do.
        reason: String,
    },
    /// A file system could not be made.
    #[error("making {kind} in {partition}: {reason}")]
    MakeFileSystem {
        /// File system type.
        kind: &'static str,
        /// The partition.
        partition: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// The named partition is ambiguous, or cannot be mounted.
    #[error("choosing partition {wanted} of {disk}: {reason}")]
    NamedPartition {
        /// Path of the disk.
        disk: String,
        /// Its number or name as given.
        wanted: String,
        /// Why not, and which partitions there are.
        reason: String,
    },
}
