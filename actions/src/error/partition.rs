//! Partitions, what is made of them, or their table.

use std::io;

/// Why partitions, arrays, volumes and file systems were not made, found or read.
#[derive(Debug, thiserror::Error)]
pub enum PartitionError {
    /// The partition table is of a kind that cannot be read, or the image's cannot be made to fit the disk.
    #[error("{operation} the partition table of {disk}: {reason}")]
    Table {
        /// What was done: "reading", "fitting", "making".
        operation: &'static str,
        /// Path of the disk.
        disk: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The partitions asked for are not to be had on this disk.
    #[error("laying out partitions on {disk}: {reason}")]
    Layout {
        /// Path of the disk.
        disk: String,
        /// What stands in the way.
        reason: String,
    },
    /// An array or a volume group cannot be had.
    #[error("making {what}: {reason}")]
    Layer {
        /// Which.
        what: String,
        /// What stands in the way, and what to do.
        reason: String,
    },
    /// An array or a volume group is on its disks, and the kernel does not start it.
    #[error("{what}")]
    StartLayer {
        /// What was done.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Not exactly one partition is meant.
    #[error("looking for {choice} on {disk}: found {found} of it; there is {there}")]
    ChoosePartition {
        /// Path of the disk.
        disk: String,
        /// What was asked for.
        choice: String,
        /// How many there are.
        found: usize,
        /// All partitions of the disk.
        there: String,
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
    /// The partition named is not one partition, or is none that can be mounted.
    #[error("choosing partition {wanted} of {disk}: {reason}")]
    NamedPartition {
        /// Path of the disk.
        disk: String,
        /// Its number or name as given.
        wanted: String,
        /// Why not, and which there are.
        reason: String,
    },
}
