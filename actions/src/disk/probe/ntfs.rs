//! NTFS (Linux, fs/ntfs3/ntfs.h, structs `NTFS_BOOT`, `MFT_REC` and `ATTRIB`).

use super::FileSystem;
use super::area::Area;
use super::fields::{is_at, le16, le32, le64, utf16_le};

/// Maximum size of a record to read in bytes. Usual records have 1 or 4 KiB.
const MAX_RECORD: u64 = 64 << 10;

/// Detects an NTFS file system.
pub(super) fn ntfs(area: &Area) -> Option<FileSystem> {
    let boot_sector = area.bytes(0, 1024)?;
    let volume = volume_record(area, &boot_sector)?;
    let serial = le64(&boot_sector, 72)?;
    let uuid = (serial != 0).then(|| format!("{serial:016X}"));
    Some(FileSystem { kind: "ntfs", uuid, label: label(&volume) })
}

/// Reads the record of the master file table that describes the volume.
fn volume_record(area: &Area, sb: &[u8]) -> Option<Vec<u8>> {
    const VOLUME: u32 = 3;
    const RECORD_MAGIC: &[u8] = b"FILE";
    let (sector, per_cluster) = (u64::from(le16(sb, 11)?), sectors_per_cluster(*sb.get(13)?)?);
    // NTFS has zeros in the fields of FAT.
    let is_unused =
        [14, 17, 19, 22].iter().all(|offset| le16(sb, *offset) == Some(0)) && le32(sb, 32)? == 0 && *sb.get(16)? == 0;
    let cluster = sector * per_cluster;
    let has_magic = is_at(sb, 3, b"NTFS    ");
    if !has_magic || !is_unused || !(256..=4096).contains(&sector) || cluster > 2 << 20 {
        return None;
    }
    let record = record_size(*sb.get(64)?, cluster)?;
    let clusters = le64(sb, 40)? / per_cluster;
    let (table, mirror) = (le64(sb, 48)?, le64(sb, 56)?);
    if table > clusters || mirror > clusters {
        return None;
    }
    let start = table.checked_mul(cluster)?;
    let read = |offset: u64| {
        let bytes =
            area.holds(offset, u64::from(record)).then(|| area.bytes(offset, u64::from(record).min(MAX_RECORD)));
        bytes.flatten().filter(|bytes| bytes.starts_with(RECORD_MAGIC))
    };
    read(start)?;
    read(start.checked_add(u64::from(record.wrapping_mul(VOLUME)))?)
}

fn sectors_per_cluster(field: u8) -> Option<u64> {
    match field {
        1 | 2 | 4 | 8 | 16 | 32 | 64 | 128 => Some(u64::from(field)),
        // Larger values are stored as their negative binary logarithm.
        240..=249 => Some(1 << (256 - u64::from(field))),
        _ => None,
    }
}

/// Returns the size of a record in bytes. The field counts clusters, or is the negative binary logarithm of bytes.
fn record_size(field: u8, cluster: u64) -> Option<u32> {
    match field {
        1 | 2 | 4 | 8 | 16 | 32 | 64 => u32::try_from(u64::from(field) * cluster).ok(),
        0xE1..=0xF7 => Some(1 << (256 - u32::from(field))),
        _ => None,
    }
}

/// Reads the label, an attribute of the volume's record.
fn label(record: &[u8]) -> Option<String> {
    const VOLUME_NAME: u32 = 0x60;
    const END: u32 = 0xFFFF_FFFF;
    let allocated = le32(record, 28)? as usize;
    let mut at = usize::from(le16(record, 20)?);
    while at <= allocated {
        let attribute = record.get(at..)?;
        let (kind, len) = (le32(attribute, 0)?, le32(attribute, 4)? as usize);
        if kind == VOLUME_NAME {
            let (len, offset) = (le32(attribute, 16)? as usize, usize::from(le16(attribute, 20)?));
            return utf16_le(attribute.get(offset..)?.get(..len)?);
        }
        if len == 0 || kind == END {
            return None;
        }
        at = at.checked_add(len)?;
    }
    None
}
