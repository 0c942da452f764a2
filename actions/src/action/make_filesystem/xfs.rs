//! XFS, made by mkfs.xfs of xfsprogs.

use std::path::Path;
use std::process::Command;

use slipway_protocol::MakeFileSystem;

use super::program;
use crate::disk::open::OpenDisk;
use crate::disk::partitions::Partition;
use crate::machine::Cancel;
use crate::target::mount;
use crate::text;

/// Minimum size that mkfs.xfs accepts, in bytes (xfsprogs, mkfs/xfs_mkfs.c, validate_supported).
const MIN_SIZE: u64 = 300 << 20;

/// Fails if `len` bytes are too few; the error is why.
pub(super) fn check_size(len: u64) -> Result<(), String> {
    match len {
        MIN_SIZE.. => Ok(()),
        _ => Err(format!("XFS needs at least {}; make the partition larger", text::size(MIN_SIZE))),
    }
}

/// Makes XFS. mkfs.xfs works on whole devices, so it gets the device of the partition. The disk is closed first,
/// because mkfs.xfs needs exclusive access.
pub(super) fn make(
    program: &Path,
    disk: OpenDisk,
    partition: &Partition,
    inputs: &MakeFileSystem,
    cancel: &Cancel,
) -> Result<(), String> {
    let source = mount::source(&disk, partition).map_err(|error| text::chain(&error))?;
    drop(disk);
    let mut command = Command::new(program);
    // If the kernel has not read the new table yet, the device may still have its old size.
    command.args(["-q", "-f", "-d", &format!("size={}", partition.bytes.end - partition.bytes.start)]);
    command.args(inputs.label.iter().flat_map(|label| ["-L", label.as_str()]));
    command.args(inputs.uuid.iter().flat_map(|uuid| ["-m".to_owned(), format!("uuid={uuid}")]));
    program::run(command.arg("--").arg(&source.path), cancel)
}
