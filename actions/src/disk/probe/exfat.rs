//! exFAT (Microsoft, exFAT file system specification).

use super::FileSystem;
use super::area::Area;
use super::fields::{le32, serial, utf16_le};

const ENTRY: u64 = 32;

/// Detects an exFAT file system.
pub(super) fn exfat(area: &Area) -> Option<FileSystem> {
    if !area.has(3, b"EXFAT   ") {
        return None;
    }
    let boot_sector = area.bytes(0, 120)?;
    let volume = Volume::of(&boot_sector)?;
    Some(FileSystem { kind: "exfat", uuid: serial(&boot_sector, 0x64), label: label(area, &volume) })
}

/// Places of the parts of the file system. Invalid numbers lead to places where nothing is found.
struct Volume {
    table: u64,
    heap: u64,
    cluster: u64,
    root: u32,
}

const FIRST_CLUSTER: u32 = 2;
const LAST_CLUSTER: u32 = 0x0FFF_FFF6;

impl Volume {
    fn of(boot_sector: &[u8]) -> Option<Self> {
        let (sector_log, cluster_log) = (u32::from(*boot_sector.get(0x6C)?), u32::from(*boot_sector.get(0x6D)?));
        // Gives the same result as libblkid's shifts when they overflow.
        let cluster = 1_u32.wrapping_shl(sector_log).wrapping_shl(cluster_log);
        let in_bytes = |sectors: u32| u64::from(sectors).wrapping_shl(sector_log);
        (cluster > 0).then_some(Self {
            table: in_bytes(le32(boot_sector, 0x50)?),
            heap: in_bytes(le32(boot_sector, 0x58)?),
            cluster: u64::from(cluster),
            root: le32(boot_sector, 0x60)?,
        })
    }

    fn offset(&self, cluster: u32) -> Option<u64> {
        let index = u64::from(cluster.checked_sub(FIRST_CLUSTER)?);
        self.heap.checked_add(index.checked_mul(self.cluster)?)
    }
}

/// Reads the label, an entry of the root directory, which is a chain of clusters.
fn label(area: &Area, volume: &Volume) -> Option<String> {
    const MAX_ENTRIES: usize = 10_000;
    const END: u8 = 0;
    const LABEL: u8 = 0x83;
    const MAX_LEN: usize = 22;
    let mut cluster = volume.root;
    let mut offset = volume.offset(cluster)?;
    for _ in 0..MAX_ENTRIES {
        let entry = area.bytes(offset, ENTRY)?;
        match *entry.first()? {
            END => return None,
            LABEL => {
                let len = usize::from(*entry.get(1)?) * 2;
                return utf16_le(entry.get(2..2 + len.min(MAX_LEN))?);
            }
            _ => offset += ENTRY,
        }
        if offset.is_multiple_of(volume.cluster) {
            cluster = le32(&area.bytes(volume.table.checked_add(u64::from(cluster) * 4)?, 4)?, 0)?;
            if !(FIRST_CLUSTER..=LAST_CLUSTER).contains(&cluster) {
                return None;
            }
            offset = volume.offset(cluster)?;
        }
    }
    None
}
