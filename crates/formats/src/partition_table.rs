//! The partition table of a disk image, judged as Linux and UEFI firmware read it: a GPT (UEFI specification, 5.3) or
//! an MBR (5.2.1). What makes Linux ignore a table is from block/partitions/efi.c and msdos.c.
//!
//! A table can be judged when only a part of the image is known. What is not known yet is not judged, so the caller
//! judges again when more is known.

mod content;
mod gpt;
mod mbr;
#[cfg(test)]
mod tests;

use std::ops::Range;

use self::mbr::BootRecord;

pub use self::gpt::{Backup, Fitted, Gpt};
pub use self::mbr::is_extended;

/// Block sizes of disks. A table is made for one of them.
const BLOCK_SIZES: [u64; 2] = [512, 4096];
/// Size of a boot record in bytes, whatever the block size.
const BOOT_RECORD: usize = 512;

/// Reads this many bytes of the image at an offset. None if they are not known.
pub type ReadAt<'a> = dyn FnMut(u64, usize) -> Option<Vec<u8>> + 'a;

/// What is known about an image and the disk it is for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// Logical block size of the disk in bytes. If it is not known, a table may be made for any.
    pub block: Option<u64>,
    /// Size of the disk in bytes, if it is known.
    pub disk: Option<u64>,
    /// Size of the image in bytes, if it is known.
    pub image: Option<u64>,
}

/// Which table an image has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// None, and no boot sector.
    None,
    /// A boot sector without partitions, such as that of a FAT file system on a whole disk.
    BootSector,
    /// An MBR with partitions.
    Mbr,
    /// A GPT whose primary copy is intact, as far as it is known.
    Gpt(Box<Gpt>),
    /// Too little of the image is known.
    Unknown,
}

/// A table that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Kind of the table.
    pub kind: Kind,
    /// Size in bytes of the blocks in which the table counts.
    pub block: u64,
    /// Whether the table itself shows that size. A GPT does. An MBR does if file systems or other known content begin
    /// where its partitions would be with this block size, and not with another. Not judged for an MBR if the disk is
    /// known.
    pub block_is_certain: bool,
    /// Partitions in the order of their numbers, as far as they are known.
    pub partitions: Vec<Partition>,
    /// What an operator should know about it: complete clauses, such as "partitions 1 and 2 overlap".
    pub remarks: Vec<String>,
}

impl Table {
    fn without_partitions(kind: Kind, block: u64) -> Self {
        Self { kind, block, block_is_certain: false, partitions: Vec::new(), remarks: Vec::new() }
    }

    /// What an operator should know about an image without partitions, as the rest of a sentence that begins with the
    /// image. None for one with a table.
    pub fn lacks_partitions(&self) -> Option<&'static str> {
        match self.kind {
            Kind::None => Some("has no partition table, so no machine will start from it; is it the image of a disk?"),
            Kind::BootSector => Some(
                "has a boot sector without partitions, as a bare FAT, exFAT or NTFS file system has; is it the image \
                 of a disk?",
            ),
            Kind::Mbr | Kind::Gpt(_) | Kind::Unknown => None,
        }
    }

    /// Where the last partition ends, or the area of a GPT for partitions if that ends later, as a byte offset; and
    /// what ends there, in words. None without partitions.
    pub fn end(&self) -> Option<(u64, String)> {
        let last = self.partitions.iter().max_by_key(|partition| partition.bytes.end);
        let last = last.map(|last| (last.bytes.end, last.describe()));
        let area = match &self.kind {
            Kind::Gpt(gpt) => Some((gpt.usable_end(), "the area for partitions".to_owned())),
            _ => None,
        };
        match (last, area) {
            (Some(last), Some(area)) => Some(if last.0 >= area.0 { last } else { area }),
            (last, area) => last.or(area),
        }
    }

    /// The partition that ends furthest beyond the end of an image of this size in bytes, if one does. Such an image
    /// was truncated, or leaves out unused space.
    pub fn beyond(&self, image: u64) -> Option<&Partition> {
        let beyond = self.partitions.iter().filter(|partition| partition.bytes.end > image);
        beyond.max_by_key(|partition| partition.bytes.end)
    }
}

/// A partition of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partition {
    /// Number in the table, from 1. Logical partitions of an MBR begin at 5.
    pub number: u32,
    /// Range of bytes.
    pub bytes: Range<u64>,
    /// Type and identity in a GPT, as they are stored; none in an MBR.
    pub guids: Option<([u8; 16], [u8; 16])>,
    /// Type in an MBR; 0 in a GPT.
    pub mbr_type: u8,
    /// Name in a GPT.
    pub name: String,
    /// Attributes in a GPT (UEFI specification, table 5-8).
    pub attributes: u64,
}

impl Partition {
    /// The partition in words.
    pub fn describe(&self) -> String {
        let name = if self.name.is_empty() { String::new() } else { format!(" ({})", self.name) };
        format!("partition {}{name}", self.number)
    }
}

/// Why an image with this table must not be written to a disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Fault {
    /// The table, or the record by which Linux and firmware find it, is damaged.
    #[error("{reason}; {remedy}")]
    Damaged { reason: String, remedy: String },
    /// The table is made for another block size than the disk has.
    #[error("it is made for blocks of {found} bytes, not {expected} bytes")]
    BlockSize {
        /// Block size of the disk in bytes.
        expected: u64,
        /// Block size of the table in bytes.
        found: u64,
    },
    /// The table uses blocks beyond the end of the disk.
    #[error("it is made for a disk of {needed} bytes or more: {what} ends there")]
    TooLarge {
        /// What ends there, in words: the part of the table that ends furthest.
        what: String,
        needed: u64,
    },
}

impl Fault {
    fn damaged(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Damaged { reason: reason.into(), remedy: remedy.into() }
    }
}

/// The remedy for damage that no program mends.
const MAKE_AGAIN: &str = "download or create the image again";

/// A program that mends a GPT, and what to do in it. Which program repairs which damage was tested with gptfdisk 1.0.9
/// and util-linux 2.38.
type Mend = (&'static str, &'static str);

/// Takes a header or entries with a wrong checksum from the backup, and writes a protective record into a first block
/// without the signature of a boot record.
const MOVE_BACKUP: Mend = ("sgdisk --move-second-header", "");
/// Restores everything from the backup. sgdisk keeps any header with a right checksum, and restores nothing if the
/// first block is a boot record without a protective record.
const RESTORE: Mend = ("gdisk", " (use the GPT if it asks, then `r`, `b`, `c` and `w`)");
/// Writes a protective record into a boot record that has none.
const USE_GPT: Mend = ("gdisk", " (use the GPT, then `w`)");
/// Moves the protective record to block 1. sgdisk leaves the record where it is.
const RELOCATE: Mend = ("sfdisk --relocate gpt-bak-std", "");

/// How to mend a raw image whose GPT counts in blocks of this size. For a file, the programs assume blocks of 512
/// bytes.
fn mend((program, then): Mend, block: u64) -> String {
    match block {
        512 => format!("repair the raw image with `{program} IMAGE`{then}"),
        _ => format!(
            "attach the raw image with `losetup --find --show --sector-size {block} IMAGE`, and repair the device with \
             `{program} DEVICE`{then}"
        ),
    }
}

/// Judges the table of an image. Reads its first blocks, the entries of a GPT, its backup, and the logical partitions
/// of an MBR.
pub fn judge(known: &Known, read: &mut ReadAt<'_>) -> Result<Table, Fault> {
    let mut image = Image { known: *known, read };
    let own = known.block.unwrap_or(512);
    let boot = match image.get(0, BOOT_RECORD) {
        Found::Bytes(bytes) if mbr::lacks_signature(&bytes, own, &image.known) => {
            let reason = "its first block has the records of an MBR, but not the bytes 0x55 0xAA at its end, so \
                          neither Linux nor firmware reads them";
            return Err(Fault::damaged(reason, MAKE_AGAIN));
        }
        Found::Bytes(bytes) => BootRecord::parse(&bytes),
        Found::Absent => return Ok(Table::without_partitions(Kind::None, own)),
        Found::Unknown => return Ok(Table::without_partitions(Kind::Unknown, own)),
    };
    let found = gpt::find(&mut image);
    let is_announced = boot.is_none_or(|boot| boot.has_protective() || !boot.has_partitions());
    if let (Some(expected), gpt::Search::Intact(gpt)) = (known.block, &found)
        && gpt.block() != expected
        && is_announced
    {
        return Err(Fault::BlockSize { expected, found: gpt.block() });
    }
    match (boot, found) {
        (Some(boot), found) if boot.has_protective() => gpt::judge(&boot, found, own, &mut image),
        // Linux and firmware look for a GPT only behind a protective record.
        (Some(boot), gpt::Search::Intact(_)) if boot.has_partitions() => mbr::judge_beside_gpt(&boot, own, &mut image),
        (Some(boot), _) if boot.has_partitions() => mbr::judge(&boot, own, &mut image),
        (_, gpt::Search::Intact(gpt)) => {
            let reason = "its GPT has no protective record in the first block, so neither Linux nor firmware finds it";
            let how = if boot.is_some() { USE_GPT } else { MOVE_BACKUP };
            Err(Fault::damaged(reason, format!("{}, or create it again", mend(how, gpt.block()))))
        }
        (_, gpt::Search::Damaged { block, reason, .. }) => {
            let reason = format!("{reason}, and it has no protective record");
            Err(gpt::damaged(&reason, RESTORE, block, &mut image))
        }
        (Some(boot), _) => match boot.damaged_indicator(own, &image.known) {
            Some(number) => Err(Fault::damaged(
                format!("record {number} of its MBR begins with neither 0x00 nor 0x80, so Linux ignores all of them"),
                MAKE_AGAIN,
            )),
            None if boot.is_file_system => Ok(Table::without_partitions(Kind::BootSector, own)),
            None => without_partitions(Kind::BootSector, own, &mut image),
        },
        (None, _) => without_partitions(Kind::None, own, &mut image),
    }
}

/// Judges an image whose first blocks have no partitions. An image that begins with a file system or other known
/// content is intended to have none.
fn without_partitions(kind: Kind, own: u64, image: &mut Image<'_, '_>) -> Result<Table, Fault> {
    let table = Table::without_partitions(kind, own);
    if content::is_at(0, image) != Some(false) {
        return Ok(table);
    }
    if let Some(block) = BLOCK_SIZES.into_iter().find(|block| gpt::has_whole_backup(*block, image) == Some(true)) {
        let reason = "its GPT is only in the backup at its end, and neither Linux nor firmware finds it there";
        return Err(Fault::damaged(reason, format!("{}, or create it again", mend(RESTORE, block))));
    }
    Ok(table)
}

/// An image that is known only in part.
struct Image<'a, 'b> {
    known: Known,
    read: &'a mut ReadAt<'b>,
}

/// Bytes of an image.
enum Found {
    Bytes(Vec<u8>),
    /// The image ends before these bytes.
    Absent,
    Unknown,
}

impl Image<'_, '_> {
    fn get(&mut self, offset: u64, len: usize) -> Found {
        let is_absent = |size: u64| offset.checked_add(len as u64).is_none_or(|end| end > size);
        if self.known.image.is_some_and(is_absent) {
            return Found::Absent;
        }
        (self.read)(offset, len).map_or(Found::Unknown, Found::Bytes)
    }

    /// Fails if something of the table ends beyond the disk.
    fn within_disk(&self, what: impl FnOnce() -> String, end: u64) -> Result<(), Fault> {
        match self.known.disk {
            Some(disk) if end > disk => Err(Fault::TooLarge { what: what(), needed: end }),
            _ => Ok(()),
        }
    }
}

/// Numbers of the first two partitions that overlap. A partition that begins at byte 0 does not count: it is the ISO
/// 9660 file system of an image that is also for optical discs, which contains the others.
fn overlapping<'a>(partitions: impl Iterator<Item = &'a Partition>) -> Option<String> {
    let mut sorted: Vec<&Partition> = partitions.filter(|partition| partition.bytes.start > 0).collect();
    sorted.sort_by_key(|partition| (partition.bytes.start, partition.bytes.end));
    let pairs = sorted.iter().zip(sorted.iter().skip(1));
    let (one, other) = pairs.into_iter().find(|(one, next)| next.bytes.start < one.bytes.end)?;
    let (first, second) = (one.number.min(other.number), one.number.max(other.number));
    Some(format!("partitions {first} and {second} overlap"))
}

fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn le64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Replaces bytes at an offset. Does nothing if they are not all within the buffer.
fn put(buffer: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = buffer.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}
