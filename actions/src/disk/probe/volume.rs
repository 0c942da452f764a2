//! Members of logical volumes, and caches.

use super::FileSystem;
use super::area::Area;
use super::fields::{array, is_at, le32, le64, uuid};

const SECTOR: u64 = 512;

/// Detects a physical volume of LVM2 (lvm2, lib/format_text/layout.h and lib/label/label.h).
pub(super) fn lvm2(area: &Area) -> Option<FileSystem> {
    const LABEL: &[u8] = b"LABELONE";
    const LABEL_LEN: usize = 512;
    // The label is in one of the first four sectors.
    let found = [1, 0, 2, 3].into_iter().find(|sector| area.has(sector * SECTOR + 24, b"LVM2 001"))?;
    let pair = found - found % 2;
    let sectors = area.bytes(pair * SECTOR, 2 * SECTOR)?;
    let at = [0, 1].into_iter().find(|sector| is_at(&sectors, sector * LABEL_LEN, LABEL))?;
    let label: [u8; LABEL_LEN] = array(&sectors, at * LABEL_LEN)?;
    let is_valid = le64(&label, 8)? == pair + at as u64 && le32(&label, 16)? == crc(label.get(20..)?);
    is_valid.then_some(FileSystem { kind: "LVM2_member", uuid: lvm_uuid(array(&label, 32)?), label: None })
}

/// Formats a UUID of LVM2: letters and digits in groups.
fn lvm_uuid(id: [u8; 32]) -> Option<String> {
    let groups = [&id[..6], &id[6..10], &id[10..14], &id[14..18], &id[18..22], &id[22..26], &id[26..]];
    let groups: Vec<_> = groups.iter().map(|group| String::from_utf8_lossy(group)).collect();
    (id != [0; 32]).then(|| groups.join("-"))
}

/// Computes the CRC-32 with the initial value of LVM2 (lvm2, lib/misc/crc.h).
pub(crate) fn crc(bytes: &[u8]) -> u32 {
    const INITIAL: u32 = 0xF597_A6CF;
    const POLYNOMIAL: u32 = 0xEDB8_8320;
    let shift = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
    bytes.iter().fold(INITIAL, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| shift(crc)))
}

/// Detects a backing or caching device of bcache (Linux, drivers/md/bcache/bcache_ondisk.h, struct `cache_sb_disk`).
pub(super) fn bcache(area: &Area) -> Option<FileSystem> {
    const SUPERBLOCK: u64 = 4096;
    const MAGIC: &[u8] = b"\xC6\x85\x73\xF6\x4E\x1A\x45\xCA\x82\x65\xF5\x7F\x48\xBA\x6D\x81";
    if !area.has(SUPERBLOCK + 24, MAGIC) {
        return None;
    }
    let superblock = area.bytes(SUPERBLOCK, 56)?;
    let is_here = le64(&superblock, 8)? == SUPERBLOCK / SECTOR;
    is_here.then_some(FileSystem { kind: "bcache", uuid: uuid(&superblock, 40), label: None })
}

/// Detects Ceph's `BlueStore` (Ceph, src/os/bluestore/BlueStore.cc, `_write_bdev_label`).
pub(super) fn bluestore(area: &Area) -> Option<FileSystem> {
    area.has(0, b"bluestore block device").then(|| FileSystem::of_kind("ceph_bluestore"))
}

/// Detects VDO, a deduplicating volume (Linux, drivers/md/dm-vdo/encodings.h, struct `volume_geometry`).
pub(super) fn vdo(area: &Area) -> Option<FileSystem> {
    let is_one = area.has(0, b"dmvdo001");
    is_one.then(|| FileSystem { kind: "vdo", uuid: area.bytes(0, 56).and_then(|head| uuid(&head, 40)), label: None })
}
