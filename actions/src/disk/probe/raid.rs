//! Members of RAID arrays of Linux and of firmware.

use super::FileSystem;
use super::area::Area;
use super::fields::{array, be32, be64, is_at, le32, le64, text, uuid};

const SECTOR: u64 = 512;
/// Magic number of both Linux formats (Linux, uapi/linux/raid/md_p.h, `MD_SB_MAGIC`).
const MD_MAGIC: u32 = 0xA92B_4EFC;
/// Bytes reserved at the end for the superblock of version 0.90 (md_p.h, `MD_RESERVED_BYTES`).
const MD_RESERVED: u64 = 64 << 10;

/// Detects a member of a Linux software RAID: version 0.90 or 1.0 at the end, 1.1 at the start, or 1.2 near the start.
pub(super) fn md_member(area: &Area) -> Option<FileSystem> {
    let size = area.size();
    let has_tail = size > MD_RESERVED;
    let version_0 = || has_tail.then(|| version_0(area, size - size % MD_RESERVED - MD_RESERVED)).flatten();
    let at_end = || has_tail.then(|| version_1(area, size - size % 4096 - 8192)).flatten();
    version_0().or_else(at_end).or_else(|| version_1(area, 0)).or_else(|| version_1(area, 4096))
}

/// Detects version 0.90 (md_p.h, struct `mdp_superblock_s`): words in the byte order of the machine that made it.
fn version_0(area: &Area, offset: u64) -> Option<FileSystem> {
    let superblock = area.bytes(offset, 64)?;
    let word: fn(&[u8], usize) -> Option<u32> = match (le32(&superblock, 0)?, be32(&superblock, 0)?) {
        (MD_MAGIC, _) => le32,
        (_, MD_MAGIC) => be32,
        _ => return None,
    };
    let size = u64::from(word(&superblock, 32)?) * 1024;
    let start = offset.checked_sub(size)?;
    // The end of the last partition may be the end of the disk too.
    if area.size() < size + MD_RESERVED || area.is_in_partition(&(start..offset + MD_RESERVED)) {
        return None;
    }
    let mut set_uuid = [0; 16];
    // Before minor version 90 the UUID had one word.
    let words: &[usize] = if word(&superblock, 8)? >= 90 { &[20, 52, 56, 60] } else { &[20] };
    for (bytes, offset) in set_uuid.chunks_mut(4).zip(words) {
        bytes.copy_from_slice(&word(&superblock, *offset)?.to_be_bytes());
    }
    Some(FileSystem { kind: "linux_raid_member", uuid: uuid(&set_uuid, 0), label: None })
}

/// Detects version 1 (md_p.h, struct `mdp_superblock_1`).
fn version_1(area: &Area, offset: u64) -> Option<FileSystem> {
    let superblock = area.bytes(offset, 256)?;
    let is_here =
        (le32(&superblock, 0)?, le32(&superblock, 4)?, le64(&superblock, 144)?) == (MD_MAGIC, 1, offset / SECTOR);
    is_here.then_some(FileSystem {
        kind: "linux_raid_member",
        uuid: uuid(&superblock, 16),
        label: text(&superblock, 32, 32),
    })
}

/// Detects a disk that DRBD copies to other machines, with its metadata at the end (drbd-utils, user/shared/drbdmeta.c,
/// structs `md_on_disk_08` and `meta_data_on_disk_9`).
pub(super) fn drbd(area: &Area) -> Option<FileSystem> {
    const MIN_SIZE: u64 = 0x1_0000;
    const METADATA: u64 = 4096;
    /// Magic numbers of the versions 8, 8.4 in use, and 9, each with the byte offset of the device's identity.
    const VERSIONS: [(u32, usize); 3] = [(0x8374_026B, 40), (0x8374_026C, 40), (0x8374_026D, 48)];
    let start = area.size().checked_sub(METADATA).filter(|_| area.size() >= MIN_SIZE)?;
    let metadata = area.bytes(start, 64)?;
    let magic = be32(&metadata, 60)?;
    let (_, identity) = VERSIONS.into_iter().find(|(version, _)| *version == magic)?;
    let device = be64(&metadata, identity)?;
    let uuid = (device != 0).then(|| format!("{device:x}"));
    Some(FileSystem { kind: "drbd", uuid, label: None })
}

/// Detects a member of a firmware RAID in the common format (SNIA, Common RAID Disk Data Format, 5.5, "DDF Header").
/// The anchor is the last block, or with some firmware 256 blocks before it.
pub(super) fn ddf(area: &Area) -> Option<FileSystem> {
    const MIN_SIZE: u64 = 0x3_0000;
    const MAGIC: u32 = 0xDE11_DE11;
    if area.size() < MIN_SIZE {
        return None;
    }
    let anchors = [1, 257].map(|from_end| area.bytes((area.size() / SECTOR - from_end) * SECTOR, SECTOR));
    let is_anchor = |block: &Vec<u8>| is_at(block, 0, &MAGIC.to_be_bytes()) || is_at(block, 0, &MAGIC.to_le_bytes());
    let anchor = anchors.into_iter().flatten().find(is_anchor)?;
    let signature: [u8; 4] = array(&anchor, 0)?;
    let is_big_endian = signature == MAGIC.to_be_bytes();
    let primary = if is_big_endian { be64(&anchor, 96)? } else { le64(&anchor, 96)? };
    let has_primary = || area.bytes(primary.wrapping_mul(SECTOR), 4).is_some_and(|block| is_at(&block, 0, &signature));
    let found = FileSystem { kind: "ddf_raid_member", uuid: text(&anchor, 8, 24), label: None };
    (primary == 0 || has_primary()).then_some(found)
}

/// Detects a member of an Intel firmware RAID, which always consists of whole disks (mdadm, super-intel.c, struct
/// `imsm_super`).
pub(super) fn isw(area: &Area) -> Option<FileSystem> {
    const MIN_SIZE: u64 = 0x1_0000;
    const SIGNATURE: &[u8] = b"Intel Raid ISM Cfg Sig. ";
    if area.size() < MIN_SIZE || !area.is_whole_disk() {
        return None;
    }
    let last_but_one = (area.size() / area.block()).checked_sub(2)?;
    let anchor = area.bytes(last_but_one * area.block(), 48)?;
    is_at(&anchor, 0, SIGNATURE).then(|| FileSystem::of_kind("isw_raid_member"))
}
