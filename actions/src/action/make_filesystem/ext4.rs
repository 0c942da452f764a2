//! ext4, by e2fsprogs' own mke2fs.

use std::path::Path;
use std::process::Command;

use slipway_protocol::MakeFileSystem;

use super::program;
use crate::disk::node;
use crate::disk::open::OpenDisk;
use crate::disk::partitions::Partition;
use crate::machine::Cancel;

/// mke2fs counts in these when it is told so, whatever the blocks it makes.
const KIB: u64 = 1024;

/// Makes ext4, on the partition's own device where there is one: the whole disk may be in use, as where another partition of it is
/// part of an array. The disk is given up before, because the program wants the device for itself.
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
