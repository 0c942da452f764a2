//! Makes a small FAT12 or FAT16 volume (Microsoft, FAT: General Overview of On-Disk Format, 1.03) in memory, with its
//! files. Each file is in one piece, so that it can be found and replaced without knowing the file system. [`read`]
//! reads what others made.
#![allow(clippy::indexing_slicing, reason = "it writes into buffers that it has just made")]

mod directory;
pub mod read;

use std::collections::{BTreeMap, BTreeSet};

use directory::Child;

/// Number of the first cluster.
const FIRST_CLUSTER: u64 = 2;
/// Sectors before the first table.
const RESERVED: u64 = 1;
const TABLES: u64 = 2;
/// Bytes of the smallest cluster.
const MIN_CLUSTER: u64 = 2048;
/// Bytes of a directory entry.
const ENTRY: usize = 32;
/// Media type of a fixed disk.
const MEDIA: u8 = 0xF8;

/// Bits of an entry in the table, which follow from the number of clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// For volumes of a few MiB on disks with any sector size.
    Fat12,
    /// For volumes from 16 MiB to 2 GiB.
    Fat16,
}

impl Kind {
    /// A volume with more clusters would be of the next kind, whatever its header says.
    const fn max_clusters(self) -> u64 {
        match self {
            Self::Fat12 => 4084,
            Self::Fat16 => 65524,
        }
    }

    /// Largest volume in bytes.
    pub const fn max_len(self) -> u64 {
        match self {
            Self::Fat12 => 64 << 20,
            Self::Fat16 => 2047 << 20,
        }
    }

    /// Entries of the root directory: a whole number of sectors of any size.
    const fn root_entries(self) -> u64 {
        match self {
            Self::Fat12 => 128,
            Self::Fat16 => 512,
        }
    }

    fn table_bytes(self, entries: u64) -> u64 {
        match self {
            Self::Fat12 => (entries * 3).div_ceil(2),
            Self::Fat16 => entries * 2,
        }
    }
}

/// A file of a volume.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// Names separated by `/`, in ASCII.
    pub path: &'a str,
    /// Content.
    pub content: &'a [u8],
}

/// A volume to make.
#[derive(Clone, Copy, Debug)]
pub struct Volume<'a> {
    /// Its kind.
    pub kind: Kind,
    /// Bytes per sector.
    pub sector: u64,
    /// Bytes of the partition.
    pub len: u64,
    /// Number of sectors of the disk before the partition.
    pub hidden: u64,
    /// Serial number.
    pub id: u32,
    /// At most 11 bytes, in capitals.
    pub label: &'a str,
    /// Its files, in the order in which they are stored.
    pub files: &'a [File<'a>],
}

/// A volume that was made.
#[derive(Clone, Debug)]
pub struct Made<'a> {
    /// The bytes before the content of the first file.
    head: Vec<u8>,
    /// Bytes per cluster, to which each file is padded.
    cluster: u64,
    files: &'a [File<'a>],
}

/// As many zeros as the largest cluster has.
static ZEROS: [u8; 32 << 10] = [0; 32 << 10];

impl<'a> Made<'a> {
    /// The volume up to the last used byte, in pieces, so that nothing is copied.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let padding = |len: usize| len.next_multiple_of(self.cluster as usize) - len;
        let of_file = move |file: &'a File<'a>| [file.content, &ZEROS[..padding(file.content.len())]];
        std::iter::once(&self.head[..]).chain(self.files.iter().flat_map(of_file))
    }

    /// Where the content of each file begins, in bytes, in the order of the files.
    pub fn offsets(&self) -> Vec<u64> {
        let mut next = self.head.len() as u64;
        let mut offsets = Vec::new();
        for file in self.files {
            offsets.push(next);
            next += (file.content.len() as u64).next_multiple_of(self.cluster);
        }
        offsets
    }

    /// The volume in one piece.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.pieces().collect::<Vec<_>>().concat()
    }
}

/// The files do not fit into the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the files need {needed} bytes, but there is room for {room}")]
pub struct NoRoom {
    /// Bytes that the files and folders need.
    pub needed: u64,
    /// Bytes that there are.
    pub room: u64,
}

/// Layout of the volume, in sectors.
struct Layout {
    total: u64,
    per_cluster: u64,
    per_table: u64,
    /// Sectors before the first cluster.
    data: u64,
    clusters: u64,
}

/// Gives out clusters one after the other.
struct Clusters {
    table: Vec<u8>,
    kind: Kind,
    cluster: u64,
    next: u64,
}

impl Clusters {
    /// The first of the clusters for this many bytes, chained; 0 for no bytes.
    fn take(&mut self, bytes: usize) -> u64 {
        let first = self.next;
        let end = first + (bytes as u64).div_ceil(self.cluster);
        for number in first..end {
            set_entry(&mut self.table, self.kind, number, if number + 1 == end { 0xFFFF } else { (number + 1) as u16 });
        }
        self.next = end;
        if first == end { 0 } else { first }
    }
}

impl<'a> Volume<'a> {
    /// Makes the volume.
    pub fn make(&self) -> Result<Made<'a>, NoRoom> {
        let layout = self.layout();
        let cluster = layout.per_cluster * self.sector;
        let folders = self.folders();
        self.check_room(&layout, &folders)?;
        let table = vec![0; (layout.per_table * self.sector) as usize];
        let mut clusters = Clusters { table, kind: self.kind, cluster, next: FIRST_CLUSTER };
        set_entry(&mut clusters.table, self.kind, 0, 0xFF00 | u16::from(MEDIA));
        set_entry(&mut clusters.table, self.kind, 1, 0xFFFF);

        // First cluster and bytes of each file; folders have no bytes. Folders come first, so that they are close
        // together.
        let mut places: BTreeMap<&str, (u64, Option<u64>)> = BTreeMap::from([("", (0, None))]);
        for (path, names) in folders.iter().filter(|(path, _)| !path.is_empty()) {
            places.insert(path, (clusters.take(directory::len(names, false)), None));
        }
        let content = clusters.next;
        for File { path, content } in self.files {
            places.insert(path, (clusters.take(content.len()), Some(content.len() as u64)));
        }
        let place = |path: &str| places.get(path).copied().unwrap_or_default();

        let start = |first: u64| {
            ((layout.data + first.saturating_sub(FIRST_CLUSTER) * layout.per_cluster) * self.sector) as usize
        };
        let mut head = vec![0; start(content)];
        let mut put = |at: usize, content: &[u8]| head[at..at + content.len()].copy_from_slice(content);
        put(0, &self.boot_sector(&layout));
        for table in 0..TABLES {
            put(((RESERVED + table * layout.per_table) * self.sector) as usize, &clusters.table);
        }
        let root = RESERVED + TABLES * layout.per_table;
        for (path, names) in &folders {
            let children = names.iter().map(|name| {
                let (first, len) = place(&if path.is_empty() { (*name).to_owned() } else { format!("{path}/{name}") });
                Child { name, first, len }
            });
            let children: Vec<Child> = children.collect();
            let (first, parent) = (place(path).0, path.rsplit_once('/').map_or("", |(parent, _)| parent));
            match path.is_empty() {
                true => put((root * self.sector) as usize, &directory::root(self.label, &children)),
                false => put(start(first), &directory::folder(first, place(parent).0, &children)),
            }
        }
        Ok(Made { head, cluster, files: self.files })
    }

    /// The names in each folder, by its path; "" is the root.
    fn folders(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut folders: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::from([("", BTreeSet::new())]);
        for file in self.files {
            let mut path = file.path;
            loop {
                let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
                folders.entry(folder).or_default().insert(name);
                if folder.is_empty() {
                    break;
                }
                path = folder;
            }
        }
        folders
    }

    fn check_room(&self, layout: &Layout, folders: &BTreeMap<&str, BTreeSet<&str>>) -> Result<(), NoRoom> {
        let cluster = layout.per_cluster * self.sector;
        let of_files = self.files.iter().map(|file| file.content.len() as u64);
        let of_folders =
            folders.iter().filter(|(path, _)| !path.is_empty()).map(|(_, names)| directory::len(names, false) as u64);
        let needed: u64 = of_files.chain(of_folders).map(|len| len.div_ceil(cluster)).sum();
        match needed > layout.clusters {
            true => Err(NoRoom { needed: needed * cluster, room: layout.clusters * cluster }),
            false => Ok(()),
        }
    }

    fn layout(&self) -> Layout {
        let len = self.len.min(self.kind.max_len());
        let mut cluster = MIN_CLUSTER.max(self.sector);
        while len / cluster > self.kind.max_clusters() {
            cluster *= 2;
        }
        let (total, per_cluster) = (len / self.sector, cluster / self.sector);
        // Counts the sectors of the tables as clusters too, so the result is slightly too large.
        let per_table = self.kind.table_bytes(len / cluster + FIRST_CLUSTER).div_ceil(self.sector);
        let data = RESERVED + TABLES * per_table + self.kind.root_entries() * ENTRY as u64 / self.sector;
        Layout { total, per_cluster, per_table, data, clusters: total.saturating_sub(data) / per_cluster }
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
        put(17, &half(self.kind.root_entries()));
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
        put(43, &directory::padded(self.label));
        put(54, if self.kind == Kind::Fat12 { b"FAT12   " } else { b"FAT16   " });
        put(62, &[0xEB, 0xFE]);
        put(510, &[0x55, 0xAA]);
        sector
    }
}

/// Bytes of a FAT16 volume with sectors of 512 bytes that has room for these files.
pub fn fat16_len(files: &[File]) -> u64 {
    // The smallest that is not FAT12, and a largest cluster for each file and folder.
    let content: u64 = files.iter().map(|file| file.content.len() as u64 + (64 << 10)).sum();
    let tables = content / 512;
    (content + tables + (1 << 20)).next_multiple_of(1 << 20).max(16 << 20)
}

/// Sets an entry of a table (section 4.1).
fn set_entry(table: &mut [u8], kind: Kind, number: u64, value: u16) {
    let [low, high] = value.to_le_bytes();
    if kind == Kind::Fat16 {
        let at = number as usize * 2;
        table[at] = low;
        table[at + 1] = high;
        return;
    }
    let at = (number + number / 2) as usize;
    if number.is_multiple_of(2) {
        table[at] = low;
        table[at + 1] = table[at + 1] & 0xF0 | high & 0x0F;
    } else {
        table[at] = table[at] & 0x0F | low << 4;
        table[at + 1] = low >> 4 | high << 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_of_any_size_is_of_its_kind_and_has_room_for_what_it_says() {
        let check = |kind: Kind, mib: u64, sector: u64, cluster: u64| {
            let volume = Volume { kind, sector, len: mib << 20, hidden: 0, id: 1, label: "CIDATA", files: &[] };
            let layout = volume.layout();
            assert_eq!(layout.per_cluster * sector, cluster, "{mib} MiB of {sector}");
            let least = if kind == Kind::Fat16 { Kind::Fat12.max_clusters() + 1 } else { 1 };
            assert!((least..=kind.max_clusters()).contains(&layout.clusters), "{mib} MiB: {}", layout.clusters);
            let before = RESERVED + TABLES * layout.per_table + kind.root_entries() * 32 / sector;
            assert!(before + layout.clusters * layout.per_cluster <= layout.total);
            assert!(layout.per_table * sector >= kind.table_bytes(layout.clusters + FIRST_CLUSTER));
        };
        check(Kind::Fat12, 1, 512, 2048);
        check(Kind::Fat12, 4, 512, 2048);
        check(Kind::Fat12, 4, 4096, 4096);
        check(Kind::Fat12, 8, 512, 4096);
        check(Kind::Fat12, 64, 512, 32768);
        check(Kind::Fat12, 1 << 20, 4096, 32768);
        check(Kind::Fat16, 16, 512, 2048);
        check(Kind::Fat16, 100, 512, 2048);
        check(Kind::Fat16, 200, 512, 4096);
        check(Kind::Fat16, 2000, 512, 32768);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let content = vec![b'x'; 1 << 20];
        let files = [File { path: "user-data", content: &content }];
        let volume =
            Volume { kind: Kind::Fat12, sector: 512, len: 1 << 20, hidden: 0, id: 1, label: "CIDATA", files: &files };
        assert_eq!(volume.make().map(|_| ()).unwrap_err(), NoRoom { needed: 1 << 20, room: 1016 << 10 });
    }

    #[test]
    fn entries_of_twelve_bits_leave_their_neighbours_alone() {
        let mut table = vec![0; 6];
        for (number, value) in [(0, 0xABC), (1, 0x123), (2, 0xFFF), (3, 0x456)] {
            set_entry(&mut table, Kind::Fat12, number, value);
        }
        assert_eq!(table, [0xBC, 0x3A, 0x12, 0xFF, 0x6F, 0x45]);
    }

    #[test]
    fn a_volume_has_as_much_room_as_was_asked_for() {
        for sizes in [vec![], vec![25 << 20], vec![100 << 20, 1], vec![1; 200], vec![400 << 20]] {
            let contents: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0; *size]).collect();
            let names: Vec<String> = (0..sizes.len()).map(|n| format!("folder{n}/file")).collect();
            let files: Vec<File> = contents.iter().zip(&names).map(|(content, path)| File { path, content }).collect();
            let len = fat16_len(&files);
            let volume =
                Volume { kind: Kind::Fat16, sector: 512, len, hidden: 0, id: 1, label: "SLIPWAY", files: &files };
            assert!(volume.make().unwrap().to_bytes().len() as u64 <= len, "{sizes:?}");
        }
    }
}
