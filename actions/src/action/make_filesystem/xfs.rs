//! XFS, by xfsprogs' own mkfs.xfs.

use std::path::Path;
use std::process::Command;

use slipway_protocol::MakeFileSystem;

use super::program;
use crate::disk::open::OpenDisk;
use crate::disk::partitions::Partition;
use crate::machine::Cancel;
use crate::target::mount;
use crate::text;

/// mkfs.xfs makes nothing smaller, in bytes (xfsprogs, mkfs/xfs_mkfs.c, validate_supported).
const MIN_SIZE: u64 = 300 << 20;

/// Why so many bytes are too few, if they are.
pub(super) fn check_size(len: u64) -> Result<(), String> {
    match len {
        MIN_SIZE.. => Ok(()),
        _ => Err(format!("XFS needs at least {}; make the partition larger", text::size(MIN_SIZE))),
    }
}

/// Makes XFS. The program works on whole devices, so it is given that of the partition; the disk is given up before, because the
/// program wants the device for itself.
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
    // The size of the device may be that of an old table, if the kernel has not read the new one.
    command.args(["-q", "-f", "-d", &format!("size={}", partition.bytes.end - partition.bytes.start)]);
    command.args(inputs.label.iter().flat_map(|label| ["-L", label.as_str()]));
    command.args(inputs.uuid.iter().flat_map(|uuid| ["-m".to_owned(), format!("uuid={uuid}")]));
    program::run(command.arg("--").arg(&source.path), cancel)
}
