//! Grows the file system in a partition that was extended.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::fstatvfs;
use rustix::io::Errno;

use super::mount::{self, MountError};
use crate::disk::open::{Access, OpenDisk};
use crate::disk::partitions::{Grown, Partition};
use crate::error::{Error, Tried, advised};
use crate::{sys, text};

/// Why a file system was not grown.
#[derive(Debug, thiserror::Error)]
enum GrowError {
    /// The disk could not be opened or flushed.
    #[error(transparent)]
    Disk(#[from] Error),
    /// The file system could not be mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The kernel refused to grow it.
    #[error("growing {kind}")]
    Refused {
        /// File system type.
        kind: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Lets the kernel grow the file system in a partition that was extended, on a disk that is not in use. Returns in
/// words what was done, with a warning if it failed.
pub(crate) fn finish(path: &str, grown: &Grown) -> (String, Option<String>) {
    let Grown { partition, old_end, kind } = grown;
    let [old, new] = [*old_end, partition.bytes.end].map(|end| text::size(end - partition.bytes.start));
    let from_to = format!("partition {} from {old} to {new}", partition.number);
    match grow_file_system(path, partition, kind) {
        Ok(()) => (format!("grew {from_to}, with its {kind} file system"), None),
        Err(error) => {
            let warning = format!(
                "the {kind} file system in partition {} still has {old}: {}",
                partition.number,
                text::chain(&error)
            );
            (format!("grew {from_to}"), Some(warning))
        }
    }
}

fn grow_file_system(path: &str, partition: &Partition, kind: &'static str) -> Result<(), GrowError> {
    let disk = OpenDisk::open(path, Access::Read)?;
    let root = mount::mount(&disk, partition, kind)?;
    let len = partition.bytes.end - partition.bytes.start;
    let grow = || resize(&root.directory()?, kind, len);
    grow().map_err(|errno| GrowError::Refused { kind, source: advised(Tried::Grow(kind), errno.into()) })?;
    Ok(root.sync()?)
}

/// Grows a file system to `len` bytes.
fn resize(root: &OwnedFd, kind: &str, len: u64) -> Result<(), Errno> {
    match kind {
        "btrfs" => sys::file_system::grow_btrfs(root),
        "xfs" => sys::file_system::grow_xfs(root, len),
        _ => sys::file_system::grow_ext4(root, len / fstatvfs(root)?.f_frsize),
    }
}
