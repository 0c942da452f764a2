//! Grows the file system in a partition that was extended.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::fstatvfs;
use rustix::io::Errno;

use super::mount::{self, MountError};
use crate::disk::grow::Grown;
use crate::disk::open::{Access, OpenDisk};
use crate::disk::partitions::Partition;
use crate::error::{Error, Tried, advised};
use crate::{sys, text};

/// Offset in bytes of the device number in btrfs, which is 1 only if no device was ever replaced (Linux,
/// uapi/linux/btrfs_tree.h, struct `btrfs_super_block`, `dev_item`).
const BTRFS_DEVICE: u64 = 0x1_0000 + 0xC9;
/// Offset in bytes of the state in ext4, and its bit for errors (Linux, fs/ext4/ext4.h, `s_state`, `EXT4_ERROR_FS`).
const EXT_STATE: u64 = 1024 + 0x3A;
const EXT_ERRORS: u16 = 2;

/// Offsets in bytes, in xfs, of the block size and of the number of blocks in an allocation group (Linux,
/// fs/xfs/libxfs/xfs_format.h, struct `xfs_dsb`).
const XFS_BLOCK: u64 = 4;
const XFS_GROUP: u64 = 84;
/// Maximum number of allocation groups without a warning. From 400 on, Fedora CoreOS creates its root file system
/// again, because such an xfs is slower; with 20,000, systems did not start.
const MOST_GROUPS: u64 = 2000;

/// Why a file system was not grown.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
enum GrowError {
    /// The disk could not be opened or flushed.
    #[error(transparent)]
    Disk(#[from] Error),
    /// The file system could not be mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The kernel grows no file system that has errors, and returns EPERM.
    #[error("it is marked as having errors: check it with e2fsck -f, and create the image again")]
    HasErrors,
    /// The kernel refused to grow it.
    #[error("the kernel refused it")]
    Refused { source: io::Error },
}

/// Lets the kernel grow the file system in a partition that was extended, on a disk that is not in use. Returns in
/// words what was done, with a warning if it failed or has a price.
pub(crate) fn finish(path: &str, grown: &Grown) -> (String, Option<String>) {
    let Grown { partition, old_end, kind } = grown;
    let [old, new] = [*old_end, partition.bytes.end].map(|end| text::size(end - partition.bytes.start));
    let from_to = format!("partition {} from {old} to {new}", partition.number);
    match grow_file_system(path, partition, kind) {
        Ok(warning) => (format!("grew {from_to}, with its {kind} file system"), warning),
        Err(error) => {
            let (number, why) = (partition.number, text::chain(&error));
            let warning =
                format!("the {kind} file system in partition {number} was not grown, and still has {old}: {why}");
            (format!("grew {from_to}, but not its {kind} file system"), Some(warning))
        }
    }
}

fn grow_file_system(path: &str, partition: &Partition, kind: &'static str) -> Result<Option<String>, GrowError> {
    let disk = OpenDisk::open(path, Access::Read)?;
    if kind.starts_with("ext") && u16::from_le_bytes(field(&disk, partition, EXT_STATE)?) & EXT_ERRORS != 0 {
        return Err(GrowError::HasErrors);
    }
    let device = if kind == "btrfs" { u64::from_le_bytes(field(&disk, partition, BTRFS_DEVICE)?) } else { 0 };
    let root = mount::mount(&disk, partition, kind)?;
    let len = partition.bytes.end - partition.bytes.start;
    let grow = || match kind {
        "btrfs" => sys::file_system::grow_btrfs(&root.directory()?, device),
        "xfs" => sys::file_system::grow_xfs(&root.directory()?, len),
        _ => grow_ext4(&root.directory()?, len),
    };
    grow().map_err(|errno| GrowError::Refused { source: advised(Tried::Grow(kind), errno.into()) })?;
    root.sync()?;
    if kind != "xfs" {
        return Ok(None);
    }
    let [block, group] =
        [XFS_BLOCK, XFS_GROUP].map(|at| Ok::<_, Error>(u32::from_be_bytes(field(&disk, partition, at)?)));
    Ok(many_groups(len, block?, group?))
}

/// Returns a warning for an xfs of `len` bytes if it has very many groups, of `group` blocks of `block` bytes. Growing
/// only adds groups of the size that suited the image. Then mounting takes longer than systems wait at their start.
fn many_groups(len: u64, block: u32, group: u32) -> Option<String> {
    let groups = len.div_ceil(u64::from(block).saturating_mul(group.into()).max(1));
    (groups > MOST_GROUPS).then(|| {
        format!(
            "the xfs file system has {groups} allocation groups now, because that of the image is far smaller: the \
             system may be slow, or not start; make it larger in the image, or with mkfs.xfs -d agcount=2"
        )
    })
}

/// Reads a field of a partition at this offset in bytes.
fn field<const N: usize>(disk: &OpenDisk, partition: &Partition, at: u64) -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    disk.read_at(&mut bytes, partition.bytes.start + at)?;
    Ok(bytes)
}

fn grow_ext4(root: &OwnedFd, len: u64) -> Result<(), Errno> {
    sys::file_system::grow_ext4(root, len / fstatvfs(root)?.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_xfs_that_grew_into_very_many_groups_is_told() {
        let check = |len: u64, expect: Option<&str>| {
            let found = many_groups(len, 4096, 19840);
            assert_eq!(found.is_some(), expect.is_some(), "{found:?}");
            assert!(found.is_none_or(|found| found.contains(expect.unwrap_or_default())));
        };
        check(30 << 30, None);
        check(2000 * 4096 * 19840, None);
        check(2000 * 4096 * 19840 + 1, Some("has 2001 allocation groups"));
        check(536_870_400 * 4096, Some("has 27060 allocation groups"));
        assert!(many_groups(u64::MAX, 0, 0).is_some());
    }
}
