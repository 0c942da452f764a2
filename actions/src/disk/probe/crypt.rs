//! Encrypted and verified block devices.

use super::area::Area;
use super::fields::{array, be16, is_at, le32, le64, text, uuid};
use super::{FileSystem, VERITY_HASHES};

/// Detects LUKS 1 and 2 (LUKS On-Disk Format, versions 1.2.3 and 2, "Header").
pub(super) fn luks(area: &Area) -> Option<FileSystem> {
    const HEADER: u64 = 512;
    // Version 2 has a second header in one of these places, for when the first is lost.
    let backups = (14..=22).map(|bit| 1_u64 << bit);
    let primary = area.bytes(0, HEADER)?;
    if is_at(&primary, 0, b"LUKS\xBA\xBE") {
        return named_luks(&primary);
    }
    let mut headers = backups.map_while(|offset| area.bytes(offset, HEADER));
    named_luks(&headers.find(|header| is_at(header, 0, b"SKUL\xBA\xBE"))?)
}

fn named_luks(header: &[u8]) -> Option<FileSystem> {
    let version = be16(header, 6)?;
    let uuid = matches!(version, 1 | 2).then(|| text(header, 168, 40)).flatten();
    let label = (version == 2).then(|| text(header, 24, 48)).flatten();
    Some(FileSystem { kind: "crypto_LUKS", uuid, label })
}

/// Detects a partition of dm-verity hashes (cryptsetup, lib/verity/verity.c, struct `verity_sb`).
pub(super) fn verity(area: &Area) -> Option<FileSystem> {
    if !area.has(0, b"verity\0\0") {
        return None;
    }
    let superblock = area.bytes(0, 512)?;
    let found = FileSystem { kind: VERITY_HASHES, uuid: uuid(&superblock, 16), label: None };
    (le32(&superblock, 8)? == 1).then_some(found)
}

/// Detects dm-integrity (Linux, drivers/md/dm-integrity.c, struct `superblock`).
pub(super) fn integrity(area: &Area) -> Option<FileSystem> {
    let has_version = |superblock: &Vec<u8>| superblock.get(8).is_some_and(|version| *version != 0);
    let is_one = area.has(0, b"integrt\0") && area.bytes(0, 32).as_ref().is_some_and(has_version);
    is_one.then(|| FileSystem::of_kind("DM_integrity"))
}

/// Detects `BitLocker` of Windows (libbde, "BitLocker Drive Encryption (BDE) format", "Volume header").
pub(super) fn bitlocker(area: &Area) -> Option<FileSystem> {
    let header = area.bytes(0, 1024)?;
    // The header gives the offset of the metadata, except on Windows Vista.
    let (metadata, has_serial) = if is_at(&header, 0, b"\xEB\x52\x90-FVE-FS-") {
        return Some(FileSystem::of_kind("BitLocker"));
    } else if is_at(&header, 0, b"\xEB\x58\x90-FVE-FS-") {
        (le64(&header, 176)?, true)
    } else if is_at(&header, 0, b"\xEB\x58\x90MSWIN4.1") {
        (le64(&header, 440)?, false)
    } else {
        return None;
    };
    if metadata == 0 || !is_at(&area.bytes(metadata, 12)?, 0, b"-FVE-FS-") {
        return None;
    }
    let serial = i32::from_le_bytes(array(&header, 67)?);
    let uuid = (has_serial && serial != 0).then(|| format!("{serial:016}"));
    Some(FileSystem { kind: "BitLocker", uuid, label: None })
}
