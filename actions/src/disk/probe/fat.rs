//! FAT12, FAT16 and FAT32 (Microsoft, FAT32 File System Specification, version 1.03).

use super::area::Area;
use super::fields::{is_at, le16, le32, serial, text};
use super::{FileSystem, crypt};

/// A boot sector that describes a FAT file system. Sizes are in sectors.
struct Layout {
    boot_sector: Vec<u8>,
    sector: u32,
    cluster: u32,
    reserved: u32,
    fats: u32,
    is_fat32: bool,
}

const ENTRY: u64 = 32;
const ENTRY_LEN: usize = ENTRY as usize;

/// Detects a FAT file system.
pub(super) fn vfat(area: &Area) -> Option<FileSystem> {
    let layout = layout(area)?;
    let (extended, id) = if layout.is_fat32 { (0x42, 0x43) } else { (0x26, 0x27) };
    if layout.is_fat32 && !has_plausible_info(area, &layout)? {
        return None;
    }
    let has_id = layout.is_fat32 || matches!(layout.boot_sector.get(extended), Some(0x28 | 0x29));
    let uuid = (has_id && !layout.has_no_fat()).then(|| serial(&layout.boot_sector, id)).flatten();
    let label = if layout.is_fat32 { label_of_fat32(area, &layout) } else { label_of_fat16(area, &layout) };
    Some(FileSystem { kind: "vfat", uuid, label })
}

fn layout(area: &Area) -> Option<Layout> {
    const MAX_CLUSTERS: [u32; 3] = [0xFF4, 0xFFF4, 0x0FFF_FFF6];
    let sb = area.bytes(0, 1024)?;
    let byte = |offset: usize| sb.get(offset).copied();
    let has_name = is_at(&sb, 0x52, b"MSWIN")
        || is_at(&sb, 0x52, b"FAT32   ")
        || [&b"MSDOS"[..], b"FAT16   ", b"FAT12   ", b"FAT     "].iter().any(|name| is_at(&sb, 0x36, name));
    let is_signed = is_at(&sb, 0x1FE, &[0x55, 0xAA]);
    // Some systems put a FAT-like boot sector in front of their own file systems.
    let is_other = [b"JFS     ", b"HPFS    "].iter().any(|name| is_at(&sb, 0x36, *name));
    if !has_name && (!is_signed || is_other) {
        return None;
    }
    let (sector, reserved, cluster) = (u32::from(le16(&sb, 0x0B)?), u32::from(le16(&sb, 0x0E)?), byte(0x0D)?);
    let (copies, media) = (u32::from(byte(0x10)?), byte(0x15)?);
    let is_sane = copies > 0
        && reserved > 0
        && (media >= 0xF8 || media == 0xF0)
        && cluster.is_power_of_two()
        && sector.is_power_of_two()
        && (512..=4096).contains(&sector);
    if !is_sane {
        return None;
    }
    let sectors = match le16(&sb, 0x13)? {
        0 => le32(&sb, 0x20)?,
        sectors => u32::from(sectors),
    };
    let (fat16_len, fat32_len) = (u32::from(le16(&sb, 0x16)?), le32(&sb, 0x24)?);
    let fat_len = if fat16_len == 0 { fat32_len } else { fat16_len };
    let is_fat32 = fat16_len == 0 && fat32_len > 0;
    // The product has 32 bits as in libblkid, which does not check for overflow either.
    let fats = fat_len.wrapping_mul(copies);
    let root_dir = (u32::from(le16(&sb, 0x11)?) * 32).div_ceil(sector);
    let overhead = fats.wrapping_add(reserved).wrapping_add(root_dir);
    let clusters = sectors.wrapping_sub(overhead) / u32::from(cluster);
    let [max_fat12, max_fat16, max_fat32] = MAX_CLUSTERS;
    let max = match is_fat32 {
        true => max_fat32,
        false if clusters > max_fat12 => max_fat16,
        false => max_fat12,
    };
    if clusters > max || crypt::bitlocker(area).is_some() {
        return None;
    }
    Some(Layout { boot_sector: sb, sector, cluster: u32::from(cluster), reserved, fats, is_fat32 })
}

impl Layout {
    /// Whether both lengths of the table are zero.
    fn has_no_fat(&self) -> bool {
        !self.is_fat32 && le16(&self.boot_sector, 0x16) == Some(0)
    }
}

/// Whether the information sector of FAT32 is valid, or empty, as some programs leave it.
fn has_plausible_info(area: &Area, layout: &Layout) -> Option<bool> {
    let number = le16(&layout.boot_sector, 0x30)?;
    if number == 0 {
        return Some(true);
    }
    let info = area.bytes(u64::from(number) * u64::from(layout.sector), 512)?;
    let one_of = |offset: usize, known: &[&[u8]]| known.iter().any(|magic| is_at(&info, offset, magic));
    Some(one_of(0, &[b"RRaA", b"RRdA", &[0; 4]]) && one_of(484, &[b"rrAa", &[0; 4]]))
}

/// Reads the label, an entry of the root directory, which follows the tables.
fn label_of_fat16(area: &Area, layout: &Layout) -> Option<String> {
    if layout.has_no_fat() {
        return None;
    }
    let start = layout.reserved.wrapping_add(layout.fats).wrapping_mul(layout.sector);
    let entries = u64::from(le16(&layout.boot_sector, 0x11)?);
    label_among(area, u64::from(start), entries)
}

/// Reads the label, an entry of the root directory, which is a chain of clusters in FAT32.
fn label_of_fat32(area: &Area, layout: &Layout) -> Option<String> {
    const MAX_CLUSTERS: usize = 99;
    const CLUSTER_MASK: u32 = 0x0FFF_FFFF;
    let sector = u64::from(layout.sector);
    let cluster_len = u64::from(layout.cluster) * sector;
    let table = u64::from(layout.reserved) * sector;
    let clusters = u64::from(le32(&layout.boot_sector, 0x24)?) * sector / 4;
    let data = layout.reserved.wrapping_add(layout.fats);
    let mut next = le32(&layout.boot_sector, 0x2C)?;
    for _ in 0..MAX_CLUSTERS {
        if next == 0 || u64::from(next) >= clusters {
            return None;
        }
        let first_sector = next.wrapping_sub(2).wrapping_mul(layout.cluster).wrapping_add(data);
        let label = label_among(area, u64::from(first_sector) * sector, cluster_len / ENTRY);
        if label.is_some() {
            return label;
        }
        let entry = area.bytes(table + u64::from(next) * 4, 4)?;
        next = le32(&entry, 0)? & CLUSTER_MASK;
    }
    None
}

fn label_among(area: &Area, offset: u64, entries: u64) -> Option<String> {
    const FREE: u8 = 0xE5;
    /// Replaces a first character 0xE5, which would mark the entry as free.
    const ESCAPED_FREE: u8 = 0x05;
    const LONG_NAME: u8 = 0x0F;
    const VOLUME_ID: u8 = 0x08;
    const DIRECTORY: u8 = 0x10;
    const ATTRIBUTES: u8 = 0x3F;
    // A small disk may be truncated within its directory.
    let len = if area.is_tiny() { (entries * ENTRY).min(area.size().saturating_sub(offset)) } else { entries * ENTRY };
    let directory = area.bytes(offset, len)?;
    for entry in directory.as_chunks::<ENTRY_LEN>().0.iter().take_while(|entry| entry[0] != 0) {
        let has_content = (le16(entry, 20)?, le16(entry, 26)?) != (0, 0);
        let attributes = entry[11] & ATTRIBUTES;
        if entry[0] == FREE || has_content || attributes == LONG_NAME {
            continue;
        }
        if attributes & (VOLUME_ID | DIRECTORY) == VOLUME_ID {
            let mut name = *entry;
            if entry[0] == ESCAPED_FREE {
                name[0] = FREE;
            }
            return text(&name, 0, 11);
        }
    }
    None
}
