//! Makes a small FAT12 volume (Microsoft, FAT: General Overview of On-Disk Format, 1.03) in memory, with a few files in
//! its root directory, so that no driver is needed. FAT12 allows a size of a few MiB on disks with any sector size.

use crate::action::make_filesystem::vfat::padded;

/// Maximum size of a volume in bytes. The rest of a larger partition is not used.
pub(super) const MAX_LEN: u64 = 64 << 20;
/// A volume with more clusters is FAT16, whatever its header says.
const MAX_CLUSTERS: u64 = 4084;
const MIN_CLUSTER: u64 = 2048;
/// Number of the first cluster.
const FIRST_CLUSTER: u64 = 2;
/// Sectors before the first table.
const RESERVED: u64 = 1;
const TABLES: u64 = 2;
/// Entries of the root directory: 4 KiB, which is a whole number of sectors of any size.
const ROOT_ENTRIES: u64 = 128;
const ENTRY: usize = 32;
/// Media type of a fixed disk.
const MEDIA: u8 = 0xF8;
const END_OF_CHAIN: u16 = 0xFFF;
/// The earliest date, 1980-01-01.
const DATE: u16 = 1 << 5 | 1;
const VOLUME_ID: u8 = 0x08;
const ARCHIVE: u8 = 0x20;
const LONG_NAME: u8 = 0x0F;
/// Characters of a long name per entry.
const LONG_PIECE: usize = 13;
const LAST_PIECE: u8 = 0x40;

/// A volume to make.
#[derive(Clone, Copy, Debug)]
pub(super) struct Volume<'a> {
    /// Bytes per sector.
    pub(super) sector: u64,
    /// Bytes of the partition.
    pub(super) len: u64,
    /// Number of sectors of the disk before the partition.
    pub(super) hidden: u64,
    /// Serial number.
    pub(super) id: u32,
    /// At most 11 bytes, in capitals.
    pub(super) label: &'a str,
    /// Names and contents. The names are ASCII and differ in their first six letters.
    pub(super) files: &'a [(&'a str, String)],
}

/// Layout of the volume, in sectors.
struct Layout {
    total: u64,
    per_cluster: u64,
    per_table: u64,
    clusters: u64,
}

impl Volume<'_> {
    /// The bytes of the volume up to the last used one, or why there is no room.
    pub(super) fn bytes(&self) -> Result<Vec<u8>, String> {
        let layout = self.layout();
        let cluster = layout.per_cluster * self.sector;
        let clusters_of = |content: &str| (content.len() as u64).div_ceil(cluster);
        let needed: u64 = self.files.iter().map(|(_, content)| clusters_of(content)).sum();
        if needed > layout.clusters {
            let [needed, room] = [needed, layout.clusters].map(|clusters| crate::text::size(clusters * cluster));
            return Err(format!("the seed needs {needed}, but there is room for {room}"));
        }
        let mut table = vec![0; (layout.per_table * self.sector) as usize];
        set_entry(&mut table, 0, 0xF00 | u16::from(MEDIA));
        set_entry(&mut table, 1, END_OF_CHAIN);
        let mut root = label_entry(self.label).to_vec();
        let mut data = Vec::new();
        let mut next = FIRST_CLUSTER;
        for (name, content) in self.files {
            let end = next + clusters_of(content);
            for cluster in next..end {
                set_entry(&mut table, cluster, if cluster + 1 == end { END_OF_CHAIN } else { (cluster + 1) as u16 });
            }
            root.extend(file_entries(name, if next == end { 0 } else { next as u16 }, content.len() as u32));
            data.extend_from_slice(content.as_bytes());
            data.resize(((end - FIRST_CLUSTER) * cluster) as usize, 0);
            next = end;
        }
        root.resize(ROOT_ENTRIES as usize * ENTRY, 0);
        Ok([self.boot_sector(&layout), table.clone(), table, root, data].concat())
    }

    fn layout(&self) -> Layout {
        let len = self.len.min(MAX_LEN);
        let mut cluster = MIN_CLUSTER.max(self.sector);
        while len / cluster > MAX_CLUSTERS {
            cluster *= 2;
        }
        let (total, per_cluster) = (len / self.sector, cluster / self.sector);
        // Twelve bits per entry. Counts the sectors of the tables as clusters too, so the result is slightly too large.
        let per_table = ((len / cluster + FIRST_CLUSTER) * 3).div_ceil(2).div_ceil(self.sector);
        let data = RESERVED + TABLES * per_table + ROOT_ENTRIES * ENTRY as u64 / self.sector;
        Layout { total, per_cluster, per_table, clusters: total.saturating_sub(data) / per_cluster }
    }

    /// The boot sector (section 3.1 and 3.2).
    fn boot_sector(&self, layout: &Layout) -> Vec<u8> {
        let mut sector = vec![0; self.sector as usize];
        let mut put = |at: usize, bytes: &[u8]| sector[at..at + bytes.len()].copy_from_slice(bytes);
        let half = |number: u64| (number as u16).to_le_bytes();
        // A jump over the fields to the boot code, which is an endless loop.
        put(0, &[0xEB, 0x3C, 0x90]);
        put(3, b"slipway ");
        put(11, &half(self.sector));
        put(13, &[layout.per_cluster as u8]);
        put(14, &half(RESERVED));
        put(16, &[TABLES as u8]);
        put(17, &half(ROOT_ENTRIES));
        match u16::try_from(layout.total) {
            Ok(total) => put(19, &total.to_le_bytes()),
            Err(_) => put(32, &(layout.total as u32).to_le_bytes()),
        }
        put(21, &[MEDIA]);
        put(22, &half(layout.per_table));
        // Sectors per track and number of heads, as BIOSes report them for large disks.
        put(24, &half(63));
        put(26, &half(255));
        put(28, &u32::try_from(self.hidden).unwrap_or_default().to_le_bytes());
        put(36, &[0x80, 0, 0x29]);
        put(39, &self.id.to_le_bytes());
        put(43, &padded(self.label));
        put(54, b"FAT12   ");
        put(62, &[0xEB, 0xFE]);
        put(510, &[0x55, 0xAA]);
        sector
    }
}

/// Sets a twelve-bit entry (section 4.1).
fn set_entry(table: &mut [u8], number: u64, value: u16) {
    let at = (number + number / 2) as usize;
    let [low, high] = value.to_le_bytes();
    if number.is_multiple_of(2) {
        table[at] = low;
        table[at + 1] = table[at + 1] & 0xF0 | high;
    } else {
        table[at] = table[at] & 0x0F | low << 4;
        table[at + 1] = low >> 4 | high << 4;
    }
}

/// The entry of the volume label in the root directory (section 6).
fn label_entry(label: &str) -> [u8; ENTRY] {
    short_entry(padded(label), VOLUME_ID, 0, 0)
}

/// The entries of a file (section 7): the pieces of its long name, last piece first, and its short alias.
fn file_entries(name: &str, first_cluster: u16, len: u32) -> Vec<u8> {
    let alias = padded(&format!("{:.6}~1", name.to_ascii_uppercase()));
    let sum = alias.iter().fold(0_u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
    let letters: Vec<u16> = name.bytes().map(u16::from).collect();
    let pieces: Vec<&[u16]> = letters.chunks(LONG_PIECE).collect();
    let mut entries = Vec::new();
    for (index, piece) in pieces.iter().enumerate().rev() {
        let mark = if index + 1 == pieces.len() { LAST_PIECE } else { 0 };
        entries.extend(long_entry(piece, mark | (index as u8 + 1), sum));
    }
    entries.extend(short_entry(alias, ARCHIVE, first_cluster, len));
    entries
}

fn long_entry(piece: &[u16], order: u8, sum: u8) -> [u8; ENTRY] {
    const PLACES: [usize; LONG_PIECE] = [1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30];
    let mut entry = [0; ENTRY];
    entry[0] = order;
    entry[11] = LONG_NAME;
    entry[13] = sum;
    for (index, place) in PLACES.into_iter().enumerate() {
        // A zero ends the name; the rest is filled with 0xFFFF.
        let unit = piece.get(index).copied().unwrap_or(if index == piece.len() { 0 } else { 0xFFFF });
        entry[place..place + 2].copy_from_slice(&unit.to_le_bytes());
    }
    entry
}

fn short_entry(name: [u8; 11], attributes: u8, first_cluster: u16, len: u32) -> [u8; ENTRY] {
    let mut entry = [0; ENTRY];
    entry[..11].copy_from_slice(&name);
    entry[11] = attributes;
    for date in [16, 18, 24] {
        entry[date..date + 2].copy_from_slice(&DATE.to_le_bytes());
    }
    entry[26..28].copy_from_slice(&first_cluster.to_le_bytes());
    entry[28..].copy_from_slice(&len.to_le_bytes());
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_of_any_size_is_fat12_and_has_room_for_what_it_says() {
        let check = |mib: u64, sector: u64, cluster: u64| {
            let volume = Volume { sector, len: mib << 20, hidden: 0, id: 1, label: "CIDATA", files: &[] };
            let layout = volume.layout();
            assert_eq!(layout.per_cluster * sector, cluster, "{mib} MiB of {sector}");
            assert!((1..=MAX_CLUSTERS).contains(&layout.clusters), "{mib} MiB of {sector}: {}", layout.clusters);
            let before = RESERVED + TABLES * layout.per_table + 4096 / sector;
            assert!(before + layout.clusters * layout.per_cluster <= layout.total);
            assert!(layout.per_table * sector * 2 >= (layout.clusters + FIRST_CLUSTER) * 3);
        };
        check(1, 512, 2048);
        check(4, 512, 2048);
        check(4, 4096, 4096);
        check(8, 512, 4096);
        check(64, 512, 32768);
        check(1 << 20, 4096, 32768);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let files = [("user-data", "x".repeat(1 << 20))];
        let volume = Volume { sector: 512, len: 1 << 20, hidden: 0, id: 1, label: "CIDATA", files: &files };
        assert_eq!(volume.bytes().unwrap_err(), "the seed needs 1 MiB, but there is room for 1016 KiB");
    }

    #[test]
    fn entries_of_twelve_bits_leave_their_neighbours_alone() {
        let mut table = vec![0; 6];
        for (number, value) in [(0, 0xABC), (1, 0x123), (2, 0xFFF), (3, 0x456)] {
            set_entry(&mut table, number, value);
        }
        assert_eq!(table, [0xBC, 0x3A, 0x12, 0xFF, 0x6F, 0x45]);
    }
}
