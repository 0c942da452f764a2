//! XFS (Linux, fs/xfs/libxfs/xfs_format.h and `xfs_log_format.h`).

use super::FileSystem;
use super::area::Area;
use super::fields::{be16, be32, be64, is_at, text, uuid};

const MAGIC: &[u8] = b"XFSB";

pub(super) fn xfs(area: &Area) -> Option<FileSystem> {
    if !area.has(0, MAGIC) {
        return None;
    }
    let superblock = area.bytes(0, 160)?;
    is_plausible(&superblock)?.then_some(FileSystem {
        kind: "xfs",
        uuid: uuid(&superblock, 32),
        label: text(&superblock, 108, 12),
    })
}

/// Makes the checks of the kernel's `xfs_sb_validate_common` that only need the fields.
fn is_plausible(sb: &[u8]) -> Option<bool> {
    const MIN_AG_BLOCKS: u64 = 64;
    const MAX_PERCENT: u8 = 100;
    let log2 = |offset: usize| sb.get(offset).copied().map(u32::from);
    let (block_log, sector_log, inode_log, inodes_per_block_log) = (log2(120)?, log2(121)?, log2(122)?, log2(123)?);
    let (block, sector, inode) = (be32(sb, 4)?, u32::from(be16(sb, 102)?), u32::from(be16(sb, 104)?));
    let realtime_extent = be32(sb, 80)?.wrapping_mul(block);
    let (ag_blocks, ag_count) = (u64::from(be32(sb, 84)?), u64::from(be32(sb, 88)?));
    let blocks = be64(sb, 8)?;
    let is_power = |size: u32, log: u32, logs: std::ops::RangeInclusive<u32>| logs.contains(&log) && size == 1 << log;
    Some(
        is_power(sector, sector_log, 9..=15)
            && is_power(block, block_log, 9..=16)
            && is_power(inode, inode_log, 8..=11)
            && block_log.checked_sub(inode_log) == Some(inodes_per_block_log)
            && (4 << 10..=1 << 30).contains(&realtime_extent)
            && *sb.get(127)? <= MAX_PERCENT
            && ag_count > 0
            && blocks > 0
            && ((ag_count - 1) * ag_blocks + MIN_AG_BLOCKS..=ag_count * ag_blocks).contains(&blocks),
    )
}

/// Detects a log on a separate device: the header of a record in one of the first sectors.
pub(super) fn external_log(area: &Area) -> Option<FileSystem> {
    const MIN_SIZE: u64 = 10 << 20;
    const SEARCHED: u64 = 256 << 10;
    const SECTOR: usize = 512;
    if area.size() < MIN_SIZE {
        return None;
    }
    let head = area.bytes(0, SEARCHED)?;
    let of_interest = |sector: &&[u8]| sector.starts_with(MAGIC) || is_log_record(sector).unwrap_or(false);
    let first = head.chunks(SECTOR).find(of_interest)?;
    (!first.starts_with(MAGIC)).then(|| FileSystem::of_kind("xfs_external_log"))
}

fn is_log_record(sector: &[u8]) -> Option<bool> {
    const RECORD_MAGIC: u32 = 0xFEED_BABE;
    const VERSIONS: std::ops::RangeInclusive<u32> = 1..=3;
    const FORMATS: std::ops::RangeInclusive<u32> = 1..=3;
    Some(
        is_at(sector, 0, &RECORD_MAGIC.to_be_bytes())
            && VERSIONS.contains(&be32(sector, 8)?)
            && (1..=i32::MAX.cast_unsigned()).contains(&be32(sector, 12)?)
            && FORMATS.contains(&be32(sector, 300)?),
    )
}
