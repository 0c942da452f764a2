//! ext4, made by mke2fs of e2fsprogs.

use std::path::Path;
use std::process::Command;

use slipway_protocol::MakeFileSystem;

use super::program;
use crate::disk::node;
use crate::disk::open::OpenDisk;
use crate::disk::partitions::Partition;
use crate::machine::Cancel;

/// With the suffix `k`, mke2fs counts in this unit, whatever the block size is.
const KIB: u64 = 1024;

/// Makes ext4, on the device of the partition if it has one: the whole disk may be in use, for example because another
/// partition of it belongs to an array. The disk is closed first, because mke2fs needs exclusive access.
pub(super) fn make(
    program: &Path,
    disk: OpenDisk,
    partition: &Partition,
    inputs: &MakeFileSystem,
    cancel: &Cancel,
) -> Result<(), String> {
    let node = node::of_partition(&disk, partition);
    let (path, offset) = match node {
        Some(node) => (node, 0),
        None => (disk.path().into(), partition.bytes.start),
    };
    drop(disk);
    let mut command = Command::new(program);
    command.args(["-q", "-F", "-t", "ext4", "-E", &format!("offset={offset}")]);
    for (option, value) in [("-L", &inputs.label), ("-U", &inputs.uuid)] {
        command.args(value.iter().flat_map(|value| [option, value.as_str()]));
    }
    command.arg("--").arg(&path).arg(format!("{}k", (partition.bytes.end - partition.bytes.start) / KIB));
    program::run(&mut command, cancel)
}
