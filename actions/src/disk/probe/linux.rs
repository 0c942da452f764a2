//! File systems of Linux that need no checks beyond their superblock.

use super::FileSystem;
use super::area::Area;
use super::fields::{be16, is_at, le16, le32, text, utf16_le, uuid};

/// Offset in bytes of the superblock of ext, f2fs and erofs.
const SUPERBLOCK: u64 = 1024;
const BTRFS_SUPERBLOCK: u64 = 0x1_0000;

/// Detects ext2, ext3, ext4, or the journal of one on a device of its own (Linux, fs/ext4/ext4.h, struct
/// `ext4_super_block`).
pub(super) fn ext(area: &Area) -> Option<FileSystem> {
    const COMPAT_HAS_JOURNAL: u32 = 0x4;
    const INCOMPAT_RECOVER: u32 = 0x4;
    const INCOMPAT_JOURNAL_DEV: u32 = 0x8;
    // Features of ext2: FILETYPE, META_BG; SPARSE_SUPER, LARGE_FILE, BTREE_DIR. ext3 also has RECOVER.
    const INCOMPAT_EXT2: u32 = 0x2 | 0x10;
    const RO_COMPAT_EXT2: u32 = 0x7;
    let superblock = ext_superblock(area)?;
    let (compat, incompat, ro_compat) = (le32(&superblock, 0x5C)?, le32(&superblock, 0x60)?, le32(&superblock, 0x64)?);
    let has_journal = compat & COMPAT_HAS_JOURNAL != 0;
    let unknown_to = |incompat_known: u32| incompat & !incompat_known != 0 || ro_compat & !RO_COMPAT_EXT2 != 0;
    let kind = if incompat & INCOMPAT_JOURNAL_DEV != 0 {
        "jbd"
    } else if unknown_to(INCOMPAT_EXT2 | INCOMPAT_RECOVER) {
        // A file system that is marked for test code is ext4dev.
        (!is_for_test_code(&superblock)?).then_some("ext4")?
    } else if has_journal {
        "ext3"
    } else {
        // A file system that needs journal recovery but has no journal is invalid.
        (!unknown_to(INCOMPAT_EXT2)).then_some("ext2")?
    };
    Some(FileSystem { kind, uuid: uuid(&superblock, 0x68), label: text(&superblock, 0x78, 16) })
}

/// Detects ext4dev, the name of ext4 during its development.
pub(super) fn ext4dev(area: &Area) -> Option<FileSystem> {
    const INCOMPAT_JOURNAL_DEV: u32 = 0x8;
    let superblock = ext_superblock(area)?;
    let is_one = is_for_test_code(&superblock)? && le32(&superblock, 0x60)? & INCOMPAT_JOURNAL_DEV == 0;
    let file_system = FileSystem { kind: "ext4dev", uuid: uuid(&superblock, 0x68), label: text(&superblock, 0x78, 16) };
    is_one.then_some(file_system)
}

fn ext_superblock(area: &Area) -> Option<Vec<u8>> {
    let is_one = area.has(SUPERBLOCK + 0x38, &[0x53, 0xEF]);
    is_one.then(|| area.bytes(SUPERBLOCK, 0x200)).flatten()
}

fn is_for_test_code(superblock: &[u8]) -> Option<bool> {
    const FLAGS_TEST_FILESYS: u32 = 0x4;
    Some(le32(superblock, 0x160)? & FLAGS_TEST_FILESYS != 0)
}

/// Detects btrfs (Linux, uapi/linux/btrfs_tree.h, struct `btrfs_super_block`).
pub(super) fn btrfs(area: &Area) -> Option<FileSystem> {
    const MIN_SIZE: u64 = 1 << 20;
    if area.size() < MIN_SIZE || !area.has(BTRFS_SUPERBLOCK + 0x40, b"_BHRfS_M") {
        return None;
    }
    let superblock = area.bytes(BTRFS_SUPERBLOCK, 0x22B)?;
    Some(FileSystem { kind: "btrfs", uuid: uuid(&superblock, 0x20), label: text(&superblock, 0x12B, 256) })
}

/// Detects f2fs (Linux, include/linux/f2fs_fs.h, struct `f2fs_super_block`).
pub(super) fn f2fs(area: &Area) -> Option<FileSystem> {
    if !area.has(SUPERBLOCK, &0xF2F5_2010_u32.to_le_bytes()) {
        return None;
    }
    let superblock = area.bytes(SUPERBLOCK, 0x47C)?;
    if (le16(&superblock, 4)?, le16(&superblock, 6)?) == (1, 0) {
        // Version 1.0 has its fields elsewhere.
        return Some(FileSystem::of_kind("f2fs"));
    }
    Some(FileSystem { kind: "f2fs", uuid: uuid(&superblock, 0x6C), label: utf16_le(superblock.get(0x7C..)?) })
}

/// Detects erofs (Linux, fs/erofs/erofs_fs.h, struct `erofs_super_block`).
pub(super) fn erofs(area: &Area) -> Option<FileSystem> {
    if !area.has(SUPERBLOCK, &0xE0F5_E1E2_u32.to_le_bytes()) {
        return None;
    }
    let superblock = area.bytes(SUPERBLOCK, 0x80)?;
    Some(FileSystem { kind: "erofs", uuid: uuid(&superblock, 0x30), label: text(&superblock, 0x40, 16) })
}

/// Detects squashfs, which has neither UUID nor label (Linux, fs/squashfs/squashfs_fs.h, struct
/// `squashfs_super_block`). Before version 4 it has either byte order.
pub(super) fn squashfs(area: &Area) -> Option<FileSystem> {
    const OLD: std::ops::Range<u16> = 0..4;
    let superblock = area.bytes(0, 1024)?;
    let (version, is_big_endian) = match is_at(&superblock, 0, b"hsqs") {
        true => (le16(&superblock, 28)?, false),
        false if is_at(&superblock, 0, b"sqsh") => (be16(&superblock, 28)?, true),
        false => return None,
    };
    match OLD.contains(&version) {
        true => Some(FileSystem::of_kind("squashfs3")),
        false => (!is_big_endian).then(|| FileSystem::of_kind("squashfs")),
    }
}
