//! FAT32 (Microsoft, FAT: General Overview of On-Disk Format, 1.03). FAT12 and FAT16 are not made, because an EFI
//! system partition should be FAT32 (UEFI specification, 13.3.1).

use slipway_protocol::{MakeFileSystem, workflow};

use super::clear;
use crate::disk::open::OpenDisk;
use crate::disk::partitions::Partition;
use crate::error::Error;
use crate::{random, text};

/// Sectors before the first table.
const RESERVED: u64 = 32;
const TABLES: u64 = 2;
/// Sectors of FSInfo, and of the backup boot sector. The backup of FSInfo follows that.
const FS_INFO: u64 = 1;
const BACKUP: u64 = 6;
/// A volume with fewer clusters is FAT16, whatever its header says.
const MIN_CLUSTERS: u64 = 65_525;
const MAX_CLUSTERS: u64 = 0x0FFF_FFF4;
/// Number of the first cluster, which holds the root directory.
const FIRST_CLUSTER: u32 = 2;
/// Media type of a fixed disk.
const MEDIA: u8 = 0xF8;
const END_OF_CHAIN: u32 = 0x0FFF_FFFF;
const NO_LABEL: &str = "NO NAME";
/// Largest partition for a cluster size, and that cluster size, in bytes (the document's table for FAT32).
const CLUSTERS: &[(u64, u64)] = &[(260 << 20, 512), (8 << 30, 4096), (16 << 30, 8192), (32 << 30, 16384)];
const LARGEST_CLUSTER: u64 = 32768;

/// Layout of the volume, in sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Bytes per sector.
    sector: u64,
    total: u64,
    per_cluster: u64,
    per_table: u64,
    clusters: u64,
}

/// Makes FAT32.
pub(super) fn make(
    disk: &OpenDisk,
    partition: &Partition,
    layout: &Layout,
    inputs: &MakeFileSystem,
) -> Result<(), Error> {
    let sector = layout.sector;
    let id = match inputs.uuid.as_deref().and_then(workflow::volume_id) {
        Some(id) => id,
        None => u32::from_le_bytes(random::bytes()?),
    };
    let label = inputs.label.as_deref();
    let start = partition.bytes.start;
    let boot = boot_sector(layout, start / sector, id, label);
    let info = fs_info(layout);
    let write = |bytes: &[u8], at: u64| disk.write_at(bytes, start + at * sector);
    clear(disk, partition)?;
    let root = RESERVED + TABLES * layout.per_table;
    disk.zero(start..start + (root + layout.per_cluster) * sector)?;
    for table in 0..TABLES {
        write(&table_head(), RESERVED + table * layout.per_table)?;
    }
    if let Some(label) = label {
        write(&label_entry(label), root)?;
    }
    write(&info, FS_INFO)?;
    write(&boot, BACKUP)?;
    write(&info, BACKUP + FS_INFO)?;
    disk.flush()?;
    write(&boot, 0)?;
    disk.flush()
}

/// Plans the layout of a FAT32 partition of `len` bytes on a disk with sectors of `sector` bytes, or says why that is
/// not possible.
pub(super) fn layout(len: u64, sector: u64) -> Result<Layout, String> {
    let cluster = CLUSTERS.iter().find(|(up_to, _)| len <= *up_to).map_or(LARGEST_CLUSTER, |(_, cluster)| *cluster);
    let per_cluster = (cluster / sector).max(1);
    let total = (len / sector).min(u64::from(u32::MAX));
    // An entry has four bytes. The sectors of the tables count as clusters too, so the result is a few sectors too
    // large.
    let per_table = ((total / per_cluster + 2) * 4).div_ceil(sector);
    let clusters = total.saturating_sub(RESERVED + TABLES * per_table) / per_cluster;
    let layout = Layout { sector, total, per_cluster, per_table, clusters };
    match clusters {
        MIN_CLUSTERS..=MAX_CLUSTERS => Ok(layout),
        0..MIN_CLUSTERS => {
            let least = MIN_CLUSTERS * per_cluster + RESERVED + TABLES * (MIN_CLUSTERS * 4).div_ceil(sector);
            let least = (least * sector).next_multiple_of(1 << 20) + (1 << 20);
            Err(format!("FAT32 needs at least {} on this disk; make the partition larger", text::size(least)))
        }
        _ => Err("FAT32 cannot be this large; make the partition smaller".to_owned()),
    }
}

/// Makes the boot sector (section 3.1 and 3.3).
fn boot_sector(layout: &Layout, hidden: u64, id: u32, label: Option<&str>) -> Vec<u8> {
    let mut sector = vec![0; layout.sector as usize];
    let mut put = |at: usize, bytes: &[u8]| sector[at..at + bytes.len()].copy_from_slice(bytes);
    // A jump over the fields to the boot code, which is an endless loop.
    put(0, &[0xEB, 0x58, 0x90]);
    put(3, b"slipway ");
    put(11, &(layout.sector as u16).to_le_bytes());
    put(13, &[layout.per_cluster as u8]);
    put(14, &(RESERVED as u16).to_le_bytes());
    put(16, &[TABLES as u8]);
    put(21, &[MEDIA]);
    // Sectors per track and number of heads, as BIOSes report them for large disks.
    put(24, &63_u16.to_le_bytes());
    put(26, &255_u16.to_le_bytes());
    put(28, &u32::try_from(hidden).unwrap_or_default().to_le_bytes());
    put(32, &(layout.total as u32).to_le_bytes());
    put(36, &(layout.per_table as u32).to_le_bytes());
    put(44, &FIRST_CLUSTER.to_le_bytes());
    put(48, &(FS_INFO as u16).to_le_bytes());
    put(50, &(BACKUP as u16).to_le_bytes());
    put(64, &[0x80, 0, 0x29]);
    put(67, &id.to_le_bytes());
    put(71, &padded(label.unwrap_or(NO_LABEL)));
    put(82, b"FAT32   ");
    put(90, &[0xEB, 0xFE]);
    put(510, &[0x55, 0xAA]);
    sector
}

/// Makes FSInfo (section 5): number of free clusters, and where to look for a free cluster.
fn fs_info(layout: &Layout) -> Vec<u8> {
    let mut sector = vec![0; layout.sector as usize];
    let mut put = |at: usize, value: u32| sector[at..at + 4].copy_from_slice(&value.to_le_bytes());
    put(0, 0x4161_5252);
    put(484, 0x6141_7272);
    put(488, layout.clusters as u32 - 1);
    put(492, FIRST_CLUSTER + 1);
    put(508, 0xAA55_0000);
    sector
}

/// Makes the first entries of a table (section 4.2): media type, clean volume, and the only cluster of the root
/// directory.
fn table_head() -> Vec<u8> {
    [0x0FFF_FF00 | u32::from(MEDIA), END_OF_CHAIN, END_OF_CHAIN].iter().flat_map(|entry| entry.to_le_bytes()).collect()
}

/// Makes the entry of the volume label in the root directory (section 6).
fn label_entry(label: &str) -> Vec<u8> {
    const VOLUME_ID: u8 = 0x08;
    // The earliest date, 1980-01-01.
    const DATE: u16 = 1 << 5 | 1;
    let mut entry = vec![0; 32];
    entry[..11].copy_from_slice(&padded(label));
    entry[11] = VOLUME_ID;
    entry[24..26].copy_from_slice(&DATE.to_le_bytes());
    entry
}

/// Pads a label with spaces to a name in a FAT directory.
fn padded(label: &str) -> [u8; 11] {
    let mut padded = [b' '; 11];
    padded.iter_mut().zip(label.bytes()).for_each(|(to, from)| *to = from);
    padded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_as_many_clusters_as_fat32_must_have_or_is_refused() {
        let check = |mib: u64, sector: u64, expect: Option<u64>| {
            let found = layout(mib << 20, sector);
            assert_eq!(found.as_ref().ok().map(|layout| layout.per_cluster * sector), expect, "{mib}: {found:?}");
            if let Ok(found) = found {
                let entries = found.per_table * sector / 4;
                assert!(entries >= found.clusters + 2, "{found:?}");
                assert!(RESERVED + TABLES * found.per_table + found.clusters * found.per_cluster <= found.total);
            }
        };
        check(32, 512, None);
        check(34, 512, Some(512));
        check(260, 512, Some(512));
        check(512, 512, Some(4096));
        check(1 << 20, 512, Some(32768));
        check(256, 4096, None);
        check(260, 4096, Some(4096));
        let error = layout(1 << 20, 512).unwrap_err();
        assert!(error.starts_with("FAT32 needs at least 34 MiB"), "{error}");
    }
}
