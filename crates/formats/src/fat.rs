//! Makes a small FAT12 or FAT16 volume (Microsoft, FAT: General Overview of On-Disk Format, 1.03) in memory, with its
//! files. Each file is in one piece, so that it can be found and replaced without knowing the file system. [`read`]
//! reads what others made.

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
/// Entry of the last cluster of a chain.
const LAST: u16 = 0xFFFF;

/// Kind of a FAT, by the bits of an entry in the table. The kind follows from the number of clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// For volumes of a few MiB on disks with any sector size.
    Fat12,
    /// For volumes from 16 MiB to 2 GiB.
    Fat16,
}

impl Kind {
    /// Most clusters. A volume with more would be of the next kind, whatever its header says.
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

    /// Number of entries of the root directory, which fill a whole number of sectors of any size.
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
    /// Content of the file.
    pub content: &'a [u8],
}

/// A volume to make.
#[derive(Clone, Copy, Debug)]
pub struct Volume<'a> {
    /// Kind of the FAT.
    pub kind: Kind,
    /// Bytes per sector.
    pub sector: u64,
    /// Size of the partition in bytes.
    pub len: u64,
    /// Number of sectors of the disk before the partition.
    pub hidden: u64,
    /// Serial number.
    pub id: u32,
    /// At most 11 bytes, in capitals.
    pub label: &'a str,
    /// Files of the volume, in the order in which they are stored.
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
        let of_file =
            move |file: &'a File<'a>| [file.content, ZEROS.get(..padding(file.content.len())).unwrap_or_default()];
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
    /// Bytes that the volume has for files and folders.
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
    /// The entries of the table so far; each new cluster gets the next number.
    entries: Vec<u16>,
    cluster: u64,
}

impl Clusters {
    /// Takes and chains the clusters for this many bytes. Returns the first one; 0 for no bytes.
    fn take(&mut self, bytes: usize) -> u64 {
        let first = self.next();
        let end = first + (bytes as u64).div_ceil(self.cluster);
        self.entries.extend((first + 1..end).map(|next| next as u16));
        self.entries.extend((first < end).then_some(LAST));
        if first == end { 0 } else { first }
    }

    fn next(&self) -> u64 {
        self.entries.len() as u64
    }
}

impl<'a> Volume<'a> {
    /// Makes the volume.
    pub fn make(&self) -> Result<Made<'a>, NoRoom> {
        let layout = self.layout();
        let cluster = layout.per_cluster * self.sector;
        let folders = self.folders();
        self.check_room(&layout, &folders)?;
        let mut clusters = Clusters { entries: vec![0xFF00 | u16::from(MEDIA), LAST], cluster };

        // First cluster and size in bytes of each file; folders have no size. Folders come first, so that they are
        // close together.
        let mut places: BTreeMap<&str, (u64, Option<u64>)> = BTreeMap::from([("", (0, None))]);
        for (path, names) in folders.iter().filter(|(path, _)| !path.is_empty()) {
            places.insert(path, (clusters.take(directory::len(names, false)), None));
        }
        let content = clusters.next();
        for File { path, content } in self.files {
            places.insert(path, (clusters.take(content.len()), Some(content.len() as u64)));
        }
        let place = |path: &str| places.get(path).copied().unwrap_or_default();

        let start = |first: u64| {
            ((layout.data + first.saturating_sub(FIRST_CLUSTER) * layout.per_cluster) * self.sector) as usize
        };
        let mut head = self.boot_sector(&layout);
        for table in 1..=TABLES {
            head.extend(table_of(self.kind, &clusters.entries));
            head.resize(((RESERVED + table * layout.per_table) * self.sector) as usize, 0);
        }
        // The root comes first, and then the other folders in the order of their clusters.
        for (path, names) in &folders {
            let children = names.iter().map(|name| {
                let (first, len) = place(&if path.is_empty() { (*name).to_owned() } else { format!("{path}/{name}") });
                Child { name, first, len }
            });
            let children: Vec<Child> = children.collect();
            let (first, parent) = (place(path).0, path.rsplit_once('/').map_or("", |(parent, _)| parent));
            match path.is_empty() {
                true => head.extend(directory::root(self.label, &children)),
                false => {
                    head.resize(start(first), 0);
                    head.extend(directory::folder(first, place(parent).0, &children));
                }
            }
        }
        head.resize(start(content), 0);
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
        let in_root = folders.get("").map_or(0, |names| directory::len(names, true)) as u64;
        let root = self.kind.root_entries() * ENTRY as u64;
        if in_root > root {
            return Err(NoRoom { needed: in_root, room: root });
        }
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
        let half = |number: u64| (number as u16).to_le_bytes();
        let (small, large) = match u16::try_from(layout.total) {
            Ok(total) => (total, 0),
            Err(_) => (0, layout.total as u32),
        };
        let mut sector = [
            // A jump over the fields to the boot code, which is an endless loop.
            &[0xEB, 0x3C, 0x90][..],
            b"slipway ",
            &half(self.sector),
            &[layout.per_cluster as u8],
            &half(RESERVED),
            &[TABLES as u8],
            &half(self.kind.root_entries()),
            &small.to_le_bytes(),
            &[MEDIA],
            &half(layout.per_table),
            // Sectors per track and number of heads, as BIOSes report them for large disks.
            &half(63),
            &half(255),
            &u32::try_from(self.hidden).unwrap_or_default().to_le_bytes(),
            &large.to_le_bytes(),
            &[0x80, 0, 0x29],
            &self.id.to_le_bytes(),
            &directory::padded(self.label),
            if self.kind == Kind::Fat12 { b"FAT12   " } else { b"FAT16   " },
            &[0xEB, 0xFE],
        ]
        .concat();
        sector.resize(510, 0);
        sector.extend([0x55, 0xAA]);
        sector.resize(self.sector as usize, 0);
        sector
    }
}

/// Size in bytes of a FAT16 volume with sectors of 512 bytes that has room for these files.
pub fn fat16_len(files: &[File]) -> u64 {
    // From 16 MiB on, no volume is FAT12. Each file and its folder may each take up to 32 KiB more.
    let content: u64 = files.iter().map(|file| file.content.len() as u64 + (64 << 10)).sum();
    let tables = content / 512;
    (content + tables + (1 << 20)).next_multiple_of(1 << 20).max(16 << 20)
}

/// The bytes of a table (section 4.1).
fn table_of(kind: Kind, entries: &[u16]) -> Vec<u8> {
    let pair = |pair: &[u16]| {
        let [low, high] =
            [pair.first(), pair.get(1)].map(|entry| u32::from(entry.copied().unwrap_or_default()) & 0xFFF);
        let [first, second, third, _] = (high << 12 | low).to_le_bytes();
        [first, second, third]
    };
    match kind {
        Kind::Fat12 => entries.chunks(2).flat_map(pair).collect(),
        Kind::Fat16 => entries.iter().flat_map(|entry| entry.to_le_bytes()).collect(),
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
        let check = |files: &[File], needed: u64, room: u64| {
            let (kind, sector, label) = (Kind::Fat12, 512, "CIDATA");
            let volume = Volume { kind, sector, len: 1 << 20, hidden: 0, id: 1, label, files };
            assert_eq!(volume.make().err(), Some(NoRoom { needed, room }));
        };
        let content = vec![b'x'; 1 << 20];
        check(&[File { path: "user-data", content: &content }], 1 << 20, 1016 << 10);
        let names: Vec<String> = (0..128).map(|n| n.to_string()).collect();
        let files: Vec<File> = names.iter().map(|path| File { path, content: &[] }).collect();
        check(&files, 129 * 32, 128 * 32);
    }

    #[test]
    fn entries_of_twelve_bits_leave_their_neighbours_alone() {
        let check = |entries: &[u16], expect: &[u8]| assert_eq!(table_of(Kind::Fat12, entries), expect, "{entries:x?}");
        check(&[0xABC, 0x123, LAST, 0x456], &[0xBC, 0x3A, 0x12, 0xFF, 0x6F, 0x45]);
        check(&[0xABC, 0x123, LAST], &[0xBC, 0x3A, 0x12, 0xFF, 0x0F, 0]);
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
