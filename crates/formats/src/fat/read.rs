//! Reads the folders of a FAT file system of any kind, and the beginnings of its files.

use super::ENTRY;

/// Reads this many bytes of the file system at an offset. None if they are not known.
pub type ReadAt<'a> = dyn FnMut(u64, usize) -> Option<Vec<u8>> + 'a;

/// Most bytes of a folder that is read. EFI system partitions have a few dozen files.
const MAX_FOLDER: usize = 256 << 10;
/// Attributes of an entry: a label, a folder, or a part of a long name.
const LABEL: u8 = 0x08;
const FOLDER: u8 = 0x10;
const LONG_NAME: u8 = 0x0F;
/// Flags for the parts of a short name in lower case (Linux, fs/fat/fat.h, CASE_LOWER_BASE).
const LOWER_BASE: u8 = 0x08;
const LOWER_EXTENSION: u8 = 0x10;
/// First byte of the name of an entry that is not used any more.
const REMOVED: u8 = 0xE5;
/// Most letters of a long name: 20 parts.
const LONGEST_NAME: usize = 20 * LETTERS.len();
/// Places of the letters in a part of a long name.
const LETTERS: [usize; 13] = [1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30];

/// A file or folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Long name, or else the short one.
    pub name: String,
    /// Whether it is a folder.
    pub is_folder: bool,
    /// Size of a file in bytes.
    pub len: u64,
    first_cluster: u64,
}

/// A file system that may be known only in part.
pub struct Files<'a, 'b> {
    read: &'a mut ReadAt<'b>,
    layout: Layout,
}

/// Offsets and sizes in bytes. `root_cluster`, `clusters` and `bits` (of a table entry) are numbers.
struct Layout {
    cluster: u64,
    table: u64,
    /// Offset and size of the root folder of FAT12 and FAT16, which is not in clusters. None for FAT32.
    root: Option<(u64, usize)>,
    root_cluster: u64,
    /// Offset of cluster 2, which is the first one.
    data: u64,
    clusters: u64,
    bits: u64,
}

impl Layout {
    /// Reads a boot sector.
    fn parse(sector: &[u8]) -> Option<Self> {
        let byte = |at: usize| sector.get(at).copied().map(u64::from);
        let short = |at: usize| Some(u64::from(u16::from_le_bytes(*sector.get(at..)?.first_chunk()?)));
        let long = |at: usize| Some(u64::from(u32::from_le_bytes(*sector.get(at..)?.first_chunk()?)));
        let (size, per_cluster, reserved, tables) = (short(11)?, byte(13)?, short(14)?, byte(16)?);
        let entries = short(17)?;
        let is_sane = sector.get(510..512)? == [0x55, 0xAA]
            && matches!(size, 512 | 1024 | 2048 | 4096)
            && per_cluster.is_power_of_two()
            && reserved > 0
            && (1..=2).contains(&tables);
        if !is_sane {
            return None;
        }
        let either = |one: u64, other: u64| if one == 0 { other } else { one };
        let (total, per_table) = (either(short(19)?, long(32)?), either(short(22)?, long(36)?));
        let root_sectors = (entries * ENTRY as u64).div_ceil(size);
        let before = reserved + tables * per_table + root_sectors;
        let clusters = total.checked_sub(before)? / per_cluster;
        // As in Linux and EDK II: small file systems may be FAT32, too.
        let bits = match clusters {
            _ if short(22)? == 0 => 32,
            0..4085 => 12,
            _ => 16,
        };
        let root = (bits < 32).then_some(((before - root_sectors) * size, entries as usize * ENTRY));
        Some(Self {
            cluster: per_cluster * size,
            table: reserved * size,
            root,
            root_cluster: if bits == 32 { long(44)? } else { 0 },
            data: before * size,
            clusters,
            bits,
        })
    }
}

impl<'a, 'b> Files<'a, 'b> {
    /// Reads the boot sector. None if there is no FAT file system.
    pub fn open(read: &'a mut ReadAt<'b>) -> Option<Self> {
        let layout = Layout::parse(&read(0, 512)?)?;
        Some(Self { read, layout })
    }

    /// The content of a folder. Upper and lower case in names do not matter. Names in the path are separated by `/`; an
    /// empty path is the root folder. None if there is no such folder, or if it is not known.
    pub fn list(&mut self, path: &str) -> Option<Vec<Found>> {
        let mut found = match self.layout.root {
            Some((at, len)) => entries(&(self.read)(at, len)?),
            None => entries(&self.folder(self.layout.root_cluster)?),
        };
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let next = found.into_iter().find(|found| found.is_folder && found.name.eq_ignore_ascii_case(name))?;
            found = self.within(&next)?;
        }
        Some(found)
    }

    /// What is in a folder that was found. None if it is not known.
    pub fn within(&mut self, folder: &Found) -> Option<Vec<Found>> {
        Some(entries(&self.folder(folder.first_cluster)?))
    }

    /// The first bytes of a file, at most as many as a cluster has.
    pub fn head(&mut self, file: &Found, len: usize) -> Option<Vec<u8>> {
        let len = (len as u64).min(file.len).min(self.layout.cluster);
        let at = self.place(file.first_cluster)?;
        (self.read)(at, len as usize)
    }

    /// Up to `len` bytes of a file from an offset on. None if they are not known.
    pub fn read(&mut self, file: &Found, offset: u64, len: usize) -> Option<Vec<u8>> {
        let end = offset.checked_add(len as u64)?.min(file.len);
        let (mut bytes, mut cluster, mut at) = (Vec::new(), file.first_cluster, 0);
        while at < end {
            let from = offset.clamp(at, at + self.layout.cluster);
            let to = end.min(at + self.layout.cluster);
            let place = self.place(cluster)?;
            if from < to {
                bytes.extend((self.read)(place + (from - at), (to - from) as usize)?);
            }
            at += self.layout.cluster;
            cluster = match self.next(cluster)? {
                Some(next) => next,
                None if at >= end => break,
                None => return None,
            };
        }
        Some(bytes)
    }

    fn folder(&mut self, first: u64) -> Option<Vec<u8>> {
        let (mut bytes, mut cluster) = (Vec::new(), first);
        loop {
            let at = self.place(cluster)?;
            bytes.extend((self.read)(at, self.layout.cluster as usize)?);
            cluster = match self.next(cluster)? {
                None => return Some(bytes),
                Some(next) if bytes.len() < MAX_FOLDER => next,
                Some(_) => return None,
            };
        }
    }

    fn place(&self, cluster: u64) -> Option<u64> {
        let index = cluster.checked_sub(super::FIRST_CLUSTER).filter(|index| *index < self.layout.clusters)?;
        Some(self.layout.data + index * self.layout.cluster)
    }

    /// The cluster after this one; none at the end of a chain.
    fn next(&mut self, cluster: u64) -> Option<Option<u64>> {
        let bits = self.layout.bits;
        let at = self.layout.table + cluster * bits / 8;
        let bytes = (self.read)(at, if bits == 32 { 4 } else { 2 })?;
        let entry = bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
        let (entry, end) = match bits {
            12 if cluster % 2 == 1 => (entry >> 4, 0xFF7),
            12 => (entry & 0xFFF, 0xFF7),
            16 => (entry, 0xFFF7),
            _ => (entry & 0x0FFF_FFFF, 0x0FFF_FFF7),
        };
        Some((entry < end).then_some(entry))
    }
}

/// The entries of a folder that are files or folders.
fn entries(folder: &[u8]) -> Vec<Found> {
    let (mut found, mut long) = (Vec::new(), Vec::new());
    for entry in folder.as_chunks::<ENTRY>().0 {
        let [first, ..] = *entry;
        let attributes = entry.get(11).copied().unwrap_or_default();
        match (first, attributes) {
            (0, _) => break,
            (REMOVED, _) => long.clear(),
            (_, LONG_NAME) => {
                let unit = |at: &usize| Some(u16::from_le_bytes(*entry.get(*at..)?.first_chunk()?));
                let part: Vec<u16> = LETTERS.iter().filter_map(unit).take_while(|unit| *unit != 0).collect();
                // The last part comes first. A name that is too long is ignored.
                if long.len() + part.len() > LONGEST_NAME {
                    long.clear();
                } else {
                    long.splice(0..0, part);
                }
            }
            (b'.', _) => long.clear(),
            _ if attributes & LABEL != 0 => long.clear(),
            _ => {
                let name = if long.is_empty() { short_name(entry) } else { String::from_utf16_lossy(&long) };
                long.clear();
                found.extend(file(entry, name, attributes & FOLDER != 0));
            }
        }
    }
    found
}

fn file(entry: &[u8; ENTRY], name: String, is_folder: bool) -> Option<Found> {
    let short = |at: usize| Some(u64::from(u16::from_le_bytes(*entry.get(at..)?.first_chunk()?)));
    let first_cluster = short(20)? << 16 | short(26)?;
    let len = short(30)? << 16 | short(28)?;
    Some(Found { name, is_folder, len, first_cluster })
}

/// The name in 8 and 3 letters. Either part may be in lower case, as Linux and Windows write it.
fn short_name(entry: &[u8; ENTRY]) -> String {
    let cases = entry.get(12).copied().unwrap_or_default();
    let part = |range, lower: u8| {
        let text = String::from_utf8_lossy(entry.get(range).unwrap_or_default()).trim_end().to_owned();
        if cases & lower == 0 { text } else { text.to_ascii_lowercase() }
    };
    let (base, extension): (String, String) = (part(0..8, LOWER_BASE), part(8..11, LOWER_EXTENSION));
    if extension.is_empty() { base } else { format!("{base}.{extension}") }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const PROGRAM: &[u8] = b"MZ is how it begins";

    /// A file system that this command makes, with a program at several paths.
    fn made(make: &str) -> Option<Vec<u8>> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("program"), PROGRAM).unwrap();
        let script = format!(
            "{make} >made
             mmd -i volume ::EFI ::EFI/BOOT '::EFI/Linux and others'
             mcopy -i volume program ::EFI/BOOT/bootaa64.efi
             mcopy -i volume program '::EFI/Linux and others/systemd-bootriscv64.efi'
             mdel -i volume ::EFI/BOOT/bootaa64.efi
             mcopy -i volume program ::EFI/BOOT/BOOTX64.EFI
             for n in $(seq 100); do mmd -i volume ::EFI/BOOT/folder-number-$n; done
             mcopy -i volume program ::EFI/BOOT/LAST.EFI
             seq 20000 >numbers; mcopy -i volume numbers ::"
        );
        let done = Command::new("sh").args(["-ec", &script]).current_dir(folder.path()).output().unwrap();
        if done.status.code() == Some(127) {
            eprintln!("not checked: mtools or dosfstools are not installed");
            return None;
        }
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Some(std::fs::read(folder.path().join("volume")).unwrap())
    }

    fn part(volume: &[u8], at: u64, len: usize) -> Option<Vec<u8>> {
        volume.get(usize::try_from(at).ok()?..)?.get(..len).map(<[u8]>::to_vec)
    }

    #[test]
    fn files_of_each_kind_are_found() {
        // FAT12, FAT16 and FAT32 with clusters of several sizes. The last has few clusters for FAT32.
        for make in [
            "mformat -C -i volume -T 4096 ::",
            "mformat -C -i volume -T 65536 -c 4 ::",
            "mformat -C -i volume -T 204800 -c 8 ::",
            "mformat -C -i volume -F -T 131072 ::",
            "mformat -C -i volume -F -T 262144 -c 2 ::",
            "mkfs.vfat -F 32 -C volume 34000",
        ] {
            let Some(volume) = made(make) else { return };
            let mut read = |at, len| part(&volume, at, len);
            let mut files = Files::open(&mut read).unwrap();
            let names = |found: &[Found]| found.iter().map(|found| found.name.clone()).collect::<Vec<String>>();
            assert_eq!(names(&files.list("").unwrap()), ["EFI", "numbers"], "{make}");
            assert_eq!(names(&files.list("efi").unwrap()), ["BOOT", "Linux and others"], "{make}");
            assert_eq!(names(&files.list("EFI/linux and others").unwrap()), ["systemd-bootriscv64.efi"]);
            let found = files.list("EFI/BOOT").unwrap();
            assert_eq!((names(&found)[0].as_str(), found.len()), ("BOOTX64.EFI", 102), "{make}");
            assert_eq!(names(&found)[101], "LAST.EFI");
            assert_eq!(files.head(&found[0], 4096).unwrap(), PROGRAM);
            assert_eq!(files.read(&found[0], 3, 4).unwrap(), b"is h"[..4]);
            let large = &files.list("").unwrap()[1];
            let whole: Vec<u8> = (1..=20_000).flat_map(|number| format!("{number}\n").into_bytes()).collect();
            assert_eq!(
                (large.len, files.read(large, 0, usize::MAX)),
                (whole.len() as u64, Some(whole.clone())),
                "{make}"
            );
            for at in [1, 511, 4096, 99_999] {
                assert_eq!(files.read(large, at, 5000).unwrap(), whole[at as usize..][..5000], "{make}: {at}");
            }
            assert_eq!(files.read(large, whole.len() as u64 + 1, 1), Some(Vec::new()));
            assert_eq!(files.list("EFI/other"), None);
        }
    }

    #[test]
    fn what_is_damaged_or_cut_off_ends() {
        let Some(volume) = made("mformat -C -i volume -T 4096 ::") else { return };
        let mut state = 1_u32;
        for round in 0..2000 {
            let mut volume = volume.clone();
            for _ in 0..8 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = (state >> 8) as usize % 30_000;
                volume[at] = (state >> 3) as u8;
            }
            volume.truncate(if round % 2 == 0 { (state >> 5) as usize % 100_000 } else { volume.len() });
            let mut reads = 0;
            let mut read = |at, len| {
                reads += 1;
                part(&volume, at, len)
            };
            let Some(mut files) = Files::open(&mut read) else { continue };
            let found = files.list("EFI/BOOT").unwrap_or_default();
            found.iter().for_each(|found| _ = files.head(found, 4096));
            // Each of three folders is read in clusters of at least 512 bytes, each with its table entry.
            assert!(found.len() <= MAX_FOLDER / ENTRY + 128 && reads <= 3 * 2 * MAX_FOLDER / 512 + 2 + found.len());
            assert!(found.iter().all(|found| found.name.chars().count() <= LONGEST_NAME));
            let mut read = |at, len| part(&volume, at, len);
            let Some(mut files) = Files::open(&mut read) else { continue };
            for file in files.list("").unwrap_or_default() {
                assert!(files.read(&file, 0, 100_000).is_none_or(|read| read.len() <= 100_000));
            }
        }
    }

    #[test]
    fn a_name_with_too_many_parts_is_left_out() {
        let mut part = [b'a'; ENTRY];
        part[11] = LONG_NAME;
        let mut short = [b' '; ENTRY];
        short[..4].copy_from_slice(b"FILE");
        short[11] = 0;
        for (parts, expect) in [(0, 4), (1, 13), (20, 260), (21, 4), (22, 13), (8000, 260)] {
            let folder = [part.repeat(parts), short.to_vec()].concat();
            let found = entries(&folder);
            assert_eq!((found.len(), found[0].name.chars().count()), (1, expect), "{parts}");
        }
    }

    #[test]
    fn a_short_name_has_its_cases() {
        let mut entry = *b"GRUBX64 EFI\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        for (cases, expect) in [(0, "GRUBX64.EFI"), (0x08, "grubx64.EFI"), (0x10, "GRUBX64.efi"), (0x18, "grubx64.efi")]
        {
            entry[12] = cases;
            assert_eq!(entries(&entry)[0].name, expect);
        }
    }
}
