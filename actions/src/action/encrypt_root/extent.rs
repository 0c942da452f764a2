//! Size of a file system in its partition, and the smallest unit it reads and writes.

use std::ops::Range;

use crate::disk::open::OpenDisk;
use crate::disk::partitions::Partition;
use crate::disk::probe::{be16, be32, be64, le32, le64};
use crate::error::Error;

/// The superblocks of xfs, ext and btrfs are all within this many bytes from the start of the partition.
const HEAD: usize = 68 << 10;
/// Largest and smallest sector size of dm-crypt, in bytes.
const LARGE: u64 = 4096;
const SMALL: u64 = 512;

/// The part of a partition that a file system uses, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) size: u64,
    /// Smallest unit of the file system's requests, in bytes. A device with larger sectors cannot hold the file system.
    unit: u64,
}

impl Extent {
    /// Reads the extent of a file system whose kind the kernel just mounted; `None` if it cannot be determined.
    pub(super) fn of(disk: &OpenDisk, partition: &Partition, kind: &str) -> Result<Option<Self>, Error> {
        let len = partition.bytes.end - partition.bytes.start;
        let mut head = vec![0; HEAD.min(len as usize)];
        disk.read_at(&mut head, partition.bytes.start)?;
        let whole = |extent: &Self| extent.size > 0 && extent.size <= len && extent.size.is_multiple_of(SMALL);
        Ok(parse(&head, kind).filter(whole))
    }

    /// Returns the sector size in bytes for encrypting the file system in a partition with this byte range on its disk.
    pub(super) fn sector(&self, place: &Range<u64>) -> usize {
        let is_large = [self.size, self.unit, place.start, place.end].iter().all(|bytes| bytes.is_multiple_of(LARGE));
        (if is_large { LARGE } else { SMALL }) as usize
    }
}

fn parse(head: &[u8], kind: &str) -> Option<Extent> {
    match kind {
        "xfs" => xfs(head),
        "btrfs" => btrfs(head.get(64 << 10..)?),
        _ => ext(head.get(1024..)?),
    }
}

/// Reads the extent of ext2, ext3 or ext4 (Linux, fs/ext4/ext4.h, struct `ext4_super_block`).
fn ext(superblock: &[u8]) -> Option<Extent> {
    const INCOMPAT_64BIT: u32 = 0x80;
    let unit = 1024_u64.checked_shl(le32(superblock, 0x18)?).filter(|unit| *unit >= 1024)?;
    let high = if le32(superblock, 0x60)? & INCOMPAT_64BIT == 0 { 0 } else { le32(superblock, 0x150)? };
    let blocks = u64::from(high) << 32 | u64::from(le32(superblock, 0x4)?);
    Some(Extent { size: blocks.checked_mul(unit)?, unit })
}

/// Reads the extent of XFS (Linux, fs/xfs/libxfs/xfs_format.h, struct `xfs_dsb`).
fn xfs(superblock: &[u8]) -> Option<Extent> {
    let size = be64(superblock, 8)?.checked_mul(u64::from(be32(superblock, 4)?))?;
    Some(Extent { size, unit: u64::from(be16(superblock, 102)?) })
}

/// Reads the extent of btrfs on a single device (Linux, uapi/linux/btrfs_tree.h, struct `btrfs_super_block`).
fn btrfs(superblock: &[u8]) -> Option<Extent> {
    let extent = Extent { size: le64(superblock, 0xD1)?, unit: u64::from(le32(superblock, 0x90)?) };
    (le64(superblock, 0x88)? == 1).then_some(extent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::process::Command;

    fn check(program: &[&str], size: u64, expect: Extent) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        File::create(&path).unwrap().set_len(size).unwrap();
        let output = Command::new(program[0]).args(&program[1..]).arg(&path).output();
        let Ok(output) = output else { return };
        assert!(output.status.success(), "{program:?}: {}", String::from_utf8_lossy(&output.stderr));
        let image = fs::read(&path).unwrap();
        let kind = program[0].trim_start_matches("mkfs.");
        assert_eq!(parse(&image[..HEAD], kind), Some(expect), "{program:?}");
        for len in [0, 1, 100, 1024, 1100, 4096, HEAD - 4096] {
            _ = parse(&image[..len], kind);
        }
    }

    #[test]
    fn what_a_file_system_takes_up_is_in_its_superblock() {
        const MIB: u64 = 1 << 20;
        let extent = |size, unit| Extent { size, unit };
        check(&["mkfs.ext4", "-q", "-b", "4096"], 40 * MIB + 2048, extent(40 * MIB, 4096));
        check(&["mkfs.ext4", "-q", "-b", "1024", "-O", "^64bit"], 44 * MIB + 512, extent(44 * MIB, 1024));
        check(&["mkfs.ext2", "-q", "-b", "2048"], 40 * MIB, extent(40 * MIB, 2048));
        check(&["mkfs.xfs", "-q"], 400 * MIB, extent(400 * MIB, 512));
        check(&["mkfs.xfs", "-q", "-s", "size=4096"], 400 * MIB, extent(400 * MIB, 4096));
        check(&["mkfs.btrfs", "-q"], 120 * MIB, extent(120 * MIB, 4096));
    }

    #[test]
    fn sectors_are_large_where_everything_is_made_of_them() {
        const MIB: u64 = 1 << 20;
        let check = |size, unit, place, expect| assert_eq!(Extent { size, unit }.sector(&place), expect, "{place:?}");
        check(MIB, 4096, MIB..2 * MIB, 4096);
        check(MIB, 512, MIB..2 * MIB, 512);
        check(MIB, 1024, MIB..2 * MIB, 512);
        check(MIB, 4096, MIB..2 * MIB + 512, 512);
        check(MIB, 4096, MIB + 512..2 * MIB, 512);
        check(MIB + 512, 4096, MIB..3 * MIB, 512);
    }
}
