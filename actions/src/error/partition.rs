//! Errors of partitions, their contents or the partition table.

use std::io;

/// Why partitions, arrays, volumes or file systems could not be made, found or read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum PartitionError {
    /// The partition table is of a kind that cannot be read, or the image's table cannot be adapted to the disk.
    #[error("{operation} the partition table of {disk}: {reason}")]
    Table {
        /// What was done: "reading", "fitting", "making".
        operation: &'static str,
        disk: String,
        reason: String,
    },
    /// The requested partitions cannot be made on this disk.
    #[error("laying out partitions on {disk}: {reason}")]
    Layout { disk: String, reason: String },
    /// An array or a volume group cannot be made.
    #[error("making {what}: {reason}")]
    Layer {
        what: String,
        /// The reason, and what to do.
        reason: String,
    },
    /// An array or a volume group was written to its disks, but the kernel does not start it.
    #[error("{what}")]
    StartLayer { what: String, source: io::Error },
    /// The choice does not select exactly one partition.
    #[error("looking for {choice} on {disk}: {reason}")]
    ChoosePartition {
        disk: String,
        choice: String,
        /// What the disk has instead, and what to do.
        reason: String,
    },
    /// A file system could not be made.
    #[error("making {kind} in {partition}: {reason}")]
    MakeFileSystem {
        kind: &'static str,
        partition: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// The named partition is ambiguous, or cannot be mounted.
    #[error("choosing partition {wanted} of {disk}: {reason}")]
    NamedPartition {
        disk: String,
        /// The partition's number or name, as given in the step.
        wanted: String,
        /// Why not, and which partitions there are.
        reason: String,
    },
}
