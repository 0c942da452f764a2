//! The device node of a partition.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, thread};

use super::open::OpenDisk;
use super::partitions::Partition;

/// How long the node of a partition may take to appear after the table was read.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);
const NODE_CHECK: Duration = Duration::from_millis(20);
/// Unit of partition starts in sysfs in bytes, whatever the disk's block size.
const SECTOR: u64 = 512;

/// Returns the device node of a partition; `None` if the kernel creates no partition nodes for the disk, such as a file
/// or a loop device.
pub(crate) fn of_partition(disk: &OpenDisk, partition: &Partition) -> Option<PathBuf> {
    let name = disk.path().strip_prefix("/dev/")?;
    if partition.number == 0 {
        return Some(PathBuf::from(disk.path()));
    }
    let dir = Path::new("/sys/block").join(name.replace('/', "!"));
    if !dir.exists() || name.starts_with("loop") {
        return None;
    }
    let deadline = Instant::now() + NODE_TIMEOUT;
    loop {
        let found = partition_at(&dir, partition.bytes.start).filter(|node| node.exists());
        if found.is_some() || Instant::now() >= deadline {
            return found;
        }
        // An earlier step may have written the table, and the kernel may not have read it yet.
        _ = disk.reread_partitions();
        thread::sleep(NODE_CHECK);
    }
}

fn partition_at(dir: &Path, offset: u64) -> Option<PathBuf> {
    let entries = fs::read_dir(dir).ok()?.flatten();
    let starts_here = |path: &Path| {
        let start = fs::read_to_string(path.join("start")).ok()?.trim().parse::<u64>().ok()?;
        (start * SECTOR == offset).then_some(())
    };
    let found = entries.map(|entry| entry.path()).find(|path| starts_here(path).is_some())?;
    Some(Path::new("/dev").join(found.file_name()?.to_str()?.replace('!', "/")))
}
