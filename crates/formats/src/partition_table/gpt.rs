//! GPT: a header in the second block, entries, and a backup of both at the end of the disk.

mod fit;

use super::mbr::BootRecord;
use super::{
    BLOCK_SIZES, Fault, Found, Image, Kind, MAKE_AGAIN, MOVE_BACKUP, Mend, Partition, RELOCATE, RESTORE, Table, le32,
    le64, mend, overlapping, put,
};
use crate::crc32::crc32;

pub use self::fit::Fitted;

/// Offsets of the fields of a header (UEFI specification, table 5-5).
const SIGNATURE: &[u8] = b"EFI PART";
const REVISION: usize = 8;
const HEADER_SIZE: usize = 12;
const HEADER_SUM: usize = 16;
const OWN_LBA: usize = 24;
const OTHER_LBA: usize = 32;
const FIRST_USABLE: usize = 40;
const LAST_USABLE: usize = 48;
const ENTRIES_LBA: usize = 72;
const ENTRIES_COUNT: usize = 80;
const ENTRY_SIZE: usize = 84;
const ENTRIES_SUM: usize = 88;
const MIN_HEADER: u32 = 92;
/// The only revision of the format, 1.0.
const REVISION_1: u32 = 0x0001_0000;
/// Block of the primary header.
const PRIMARY: u64 = 1;
/// Smallest size of an entry in bytes, and the only one that Linux reads. Others are powers of two.
const USUAL_ENTRY: u32 = 128;
/// Most bytes of entries that Linux reads (KMALLOC_MAX_SIZE).
const MAX_ENTRIES: u64 = 4 << 20;
/// Offsets of the fields of an entry (UEFI specification, table 5-6).
const ENTRY_FIRST: usize = 32;
const ENTRY_LAST: usize = 40;
const ENTRY_ATTRIBUTES: usize = 48;
const ENTRY_NAME: std::ops::Range<usize> = 56..128;

/// An intact header of a GPT, with what is known about the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpt {
    /// The block with the header.
    header: Vec<u8>,
    other_lba: u64,
    first_usable: u64,
    last_usable: u64,
    entries_lba: u64,
    count: u32,
    entry_size: u32,
    entries_sum: u32,
    backup: Backup,
}

/// The backup of a GPT whose primary copy is intact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backup {
    /// The backup is whole, and says the same as the primary copy.
    Whole,
    /// The backup is whole, but says something else than the primary copy.
    Differs,
    /// Header or entries are damaged.
    Damaged,
    /// The backup is not where the primary header says, or the image ends before it.
    Missing,
    /// The part of the image where the backup should be is not known.
    Unknown,
}

/// Result of the search for the primary header.
pub(super) enum Search {
    Intact(Box<Gpt>),
    Damaged { block: u64, reason: String, how: Mend },
    Missing,
    Unknown,
}

/// Why a block has no header that can be used.
enum NoHeader {
    NoSignature,
    /// The reason, and what mends it if the backup is whole.
    Damaged(String, Mend),
}

impl Gpt {
    /// Size in bytes of the blocks in which this GPT counts.
    pub fn block(&self) -> u64 {
        self.header.len() as u64
    }

    /// Block of the backup header.
    pub fn backup_lba(&self) -> u64 {
        self.other_lba
    }

    /// State of its backup.
    pub fn backup(&self) -> Backup {
        self.backup
    }

    /// Where the area for partitions ends, in bytes.
    pub(super) fn usable_end(&self) -> u64 {
        self.last_usable.saturating_add(1).saturating_mul(self.block())
    }

    /// Size of all entries in bytes.
    fn entries_len(&self) -> u64 {
        u64::from(self.count) * u64::from(self.entry_size)
    }

    /// Reads the header in block `lba`. Fails for each of the reasons for which Linux ignores a table (is_gpt_valid()).
    fn parse(header: Vec<u8>, lba: u64) -> Result<Self, NoHeader> {
        if !header.starts_with(SIGNATURE) {
            return Err(NoHeader::NoSignature);
        }
        let int = |at| le32(&header, at).unwrap_or_default();
        let long = |at| le64(&header, at).unwrap_or_default();
        let len = int(HEADER_SIZE);
        let checked = header.get(..len as usize).filter(|_| len >= MIN_HEADER);
        let checked = checked.ok_or_else(|| NoHeader::Damaged(format!("it cannot have {len} bytes"), MOVE_BACKUP))?;
        let mut checked = checked.to_vec();
        put(&mut checked, HEADER_SUM, &[0; 4]);
        let gpt = Self {
            other_lba: long(OTHER_LBA),
            first_usable: long(FIRST_USABLE),
            last_usable: long(LAST_USABLE),
            entries_lba: long(ENTRIES_LBA),
            count: int(ENTRIES_COUNT),
            entry_size: int(ENTRY_SIZE),
            entries_sum: int(ENTRIES_SUM),
            backup: Backup::Unknown,
            header: Vec::new(),
        };
        if crc32(&checked) != int(HEADER_SUM) {
            return Err(NoHeader::Damaged("its checksum is wrong".to_owned(), MOVE_BACKUP));
        }
        let reason = match () {
            () if long(OWN_LBA) != lba => format!("it is in block {lba}, but made for block {}", long(OWN_LBA)),
            () if gpt.first_usable > gpt.last_usable => "it has no blocks for partitions".to_owned(),
            () if !gpt.entry_size.is_power_of_two() || gpt.entry_size < USUAL_ENTRY => {
                format!("its entries cannot have {} bytes", gpt.entry_size)
            }
            () if gpt.entries_len() > MAX_ENTRIES || gpt.count == 0 => {
                format!("it cannot have {} entries of {} bytes", gpt.count, gpt.entry_size)
            }
            () if gpt.entries_lba <= PRIMARY => format!("its entries cannot be in block {}", gpt.entries_lba),
            () => return Ok(Self { header, ..gpt }),
        };
        Err(NoHeader::Damaged(reason, RESTORE))
    }

    /// Reads the entries. Fails with the reason and what mends it if they are damaged or outside the image.
    fn entries(&self, image: &mut Image<'_, '_>) -> Result<Found, (&'static str, Mend)> {
        let offset = self.entries_lba.checked_mul(self.block()).ok_or(("lie beyond any disk", RESTORE))?;
        match image.get(offset, self.entries_len() as usize) {
            Found::Bytes(bytes) if crc32(&bytes) != self.entries_sum => Err(("have a wrong checksum", MOVE_BACKUP)),
            Found::Absent => Err(("lie after the end of the image", RESTORE)),
            found => Ok(found),
        }
    }

    /// Whether a partition covers a part of the table. The file system of an image that is also for optical discs
    /// begins at byte 0 and leaves room for the table.
    fn is_covered_by(&self, partition: &Partition) -> bool {
        let block = self.block();
        let entries = self.entries_lba.saturating_mul(block);
        let overlaps = |from: u64, len: u64| {
            partition.bytes.start < from.saturating_add(len) && partition.bytes.end > from && partition.bytes.start > 0
        };
        overlaps(0, (PRIMARY + 1) * block) || overlaps(entries, self.entries_len())
    }

    /// Compares the backup with this primary copy.
    fn find_backup(&self, image: &mut Image<'_, '_>) -> Backup {
        let Some(offset) = self.other_lba.checked_mul(self.block()).filter(|_| self.other_lba != PRIMARY) else {
            return Backup::Missing;
        };
        let header = match image.get(offset, self.header.len()) {
            Found::Bytes(header) => header,
            Found::Absent => return Backup::Missing,
            Found::Unknown => return Backup::Unknown,
        };
        let backup = match Self::parse(header, self.other_lba) {
            Ok(backup) => backup,
            Err(NoHeader::NoSignature) => return Backup::Missing,
            Err(NoHeader::Damaged(..)) => return Backup::Damaged,
        };
        let content = |gpt: &Self| {
            (
                gpt.entries_sum,
                gpt.count,
                gpt.entry_size,
                gpt.first_usable,
                gpt.last_usable,
                gpt.header.get(56..72).map(<[u8]>::to_vec),
            )
        };
        match backup.entries(image) {
            Err(_) => Backup::Damaged,
            Ok(Found::Unknown) => Backup::Unknown,
            Ok(_) if content(self) != content(&backup) || backup.other_lba != PRIMARY => Backup::Differs,
            Ok(_) => Backup::Whole,
        }
    }
}

/// Looks for the primary header: for the block size of the disk first, then for the others.
pub(super) fn find(image: &mut Image<'_, '_>) -> Search {
    let own = image.known.block;
    let others = BLOCK_SIZES.into_iter().filter(|size| Some(*size) != own);
    let mut found = Search::Missing;
    for block in own.into_iter().chain(others) {
        let parsed = match image.get(PRIMARY * block, block as usize) {
            Found::Bytes(header) => Gpt::parse(header, PRIMARY),
            Found::Absent => continue,
            Found::Unknown => {
                found = if matches!(found, Search::Missing) { Search::Unknown } else { found };
                continue;
            }
        };
        match parsed {
            Ok(gpt) => return Search::Intact(Box::new(gpt)),
            Err(NoHeader::Damaged(reason, how)) if !matches!(found, Search::Damaged { .. }) => {
                let reason = format!("the header of its GPT is damaged: {reason}");
                found = Search::Damaged { block, reason, how };
            }
            Err(_) => {}
        }
    }
    found
}

/// Judges a GPT that is announced by a protective record.
pub(super) fn judge(boot: &BootRecord, found: Search, own: u64, image: &mut Image<'_, '_>) -> Result<Table, Fault> {
    let mut gpt = match found {
        Search::Intact(gpt) => gpt,
        Search::Damaged { block, reason, how } => return Err(damaged(&reason, how, block, image)),
        Search::Missing => {
            let reason = "its first block announces a GPT, but there is no header";
            return Err(damaged(reason, MOVE_BACKUP, own, image));
        }
        Search::Unknown => return Ok(Table::without_partitions(Kind::Unknown, own)),
    };
    if let Some(start) = boot.misplaced_protective() {
        let reason = format!("the protective record of its GPT begins at block {start} and not at block 1");
        return Err(Fault::damaged(
            format!("{reason}, so neither Linux nor firmware finds the GPT"),
            format!("{}, or create it again", mend(RELOCATE, gpt.block())),
        ));
    }
    if gpt.entry_size != USUAL_ENTRY {
        let reason = format!("the entries of its GPT have {} bytes, and Linux reads only those of 128", gpt.entry_size);
        return Err(Fault::damaged(reason, "create the image again with entries of 128 bytes"));
    }
    let block = gpt.block();
    let entries = match gpt.entries(image) {
        Ok(Found::Bytes(entries)) => Some(entries),
        Ok(_) => None,
        Err((reason, how)) => return Err(damaged(&format!("the entries of its GPT {reason}"), how, block, image)),
    };
    let mut table = Table { block_is_certain: true, ..Table::without_partitions(Kind::Unknown, block) };
    for (number, entry) in (1..).zip(entries.as_deref().unwrap_or_default().chunks(USUAL_ENTRY as usize)) {
        table.partitions.extend(partition(number, entry, block)?);
    }
    if let Some(over) = table.partitions.iter().find(|partition| gpt.is_covered_by(partition)) {
        let reason = format!("{} of its GPT lies over the table itself", over.describe());
        return Err(Fault::damaged(reason, MAKE_AGAIN));
    }
    gpt.backup = gpt.find_backup(image);
    table.remarks = remarks(&gpt, &table, image.known.image);
    if entries.is_some() && table.partitions.is_empty() {
        table.remarks.push("it has no partitions".to_owned());
    }
    table.remarks.extend(boot.beside(&table.partitions, block));
    table.kind = Kind::Gpt(gpt);
    // Linux ignores a table that uses blocks beyond the end of the disk.
    if let Some((end, what)) = table.end() {
        image.within_disk(|| what, end)?;
    }
    Ok(table)
}

/// The partition of an entry; none if it is not used.
fn partition(number: u32, entry: &[u8], block: u64) -> Result<Option<Partition>, Fault> {
    let guid = |at: usize| entry.get(at..).and_then(|rest| rest.first_chunk::<16>().copied());
    let (Some(kind), Some(guid)) = (guid(0).filter(|kind| *kind != [0; 16]), guid(16)) else { return Ok(None) };
    let long = |at| le64(entry, at).unwrap_or_default();
    let units = entry.get(ENTRY_NAME).unwrap_or_default().as_chunks().0.iter().map(|unit| u16::from_le_bytes(*unit));
    let name = String::from_utf16_lossy(&units.take_while(|unit| *unit != 0).collect::<Vec<u16>>());
    let (first, last) = (long(ENTRY_FIRST), long(ENTRY_LAST));
    let end = last.checked_add(1).and_then(|end| end.checked_mul(block));
    let bytes = first.saturating_mul(block)..end.unwrap_or(u64::MAX);
    let attributes = long(ENTRY_ATTRIBUTES);
    let partition = Partition { number, bytes, guids: Some((kind, guid)), mbr_type: 0, name, attributes };
    let wrong = |what| Fault::damaged(format!("{} of its GPT {what}", partition.describe()), MAKE_AGAIN);
    match () {
        () if last < first => Err(wrong("ends before it begins")),
        () if end.is_none() => Err(wrong("ends after any disk")),
        () => Ok(Some(partition)),
    }
}

fn remarks(gpt: &Gpt, table: &Table, image: Option<u64>) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(revision) = le32(&gpt.header, REVISION).filter(|revision| *revision != REVISION_1) {
        remarks.push(format!("its header has revision {}.{}, not 1.0", revision >> 16, revision & 0xFFFF));
    }
    let block = gpt.block();
    let usable = gpt.first_usable.saturating_mul(block)..gpt.last_usable.saturating_add(1).saturating_mul(block);
    let is_outside = |partition: &&Partition| partition.bytes.start < usable.start || partition.bytes.end > usable.end;
    if let Some(outside) = table.partitions.iter().find(is_outside) {
        let name = outside.describe();
        remarks.push(format!("{name} is not within the area for partitions, so UEFI firmware ignores it"));
    }
    let entries_end = gpt.entries_lba.saturating_add(gpt.entries_len().div_ceil(block));
    if gpt.first_usable < entries_end {
        remarks.push("its area for partitions begins before its entries end".to_owned());
    }
    let backup = gpt.other_lba.saturating_mul(block);
    let over = table.partitions.iter().find(|partition| partition.bytes.contains(&backup));
    if let Some(over) = over.filter(|_| gpt.backup != Backup::Missing) {
        remarks.push(format!("{} lies over the backup of its GPT", over.describe()));
    }
    remarks.extend(overlapping(table.partitions.iter()));
    remarks.extend(namesakes(&table.partitions));
    let is_cut = image.is_some_and(|image| table.beyond(image).is_some());
    match gpt.backup {
        Backup::Damaged => remarks.push("the backup of its GPT is damaged".to_owned()),
        Backup::Differs => remarks.push("the backup of its GPT differs from the primary GPT".to_owned()),
        // If partitions end after the image, the backup is missing for the same reason.
        Backup::Missing if !is_cut => remarks.push("the backup of its GPT is missing".to_owned()),
        Backup::Missing | Backup::Whole | Backup::Unknown => {}
    }
    remarks
}

/// The first two partitions with the same GUID, by which Linux names them.
fn namesakes(partitions: &[Partition]) -> Option<String> {
    let guid = |partition: &Partition| partition.guids.map(|(_, guid)| guid);
    let mut known = std::collections::BTreeMap::new();
    let twins = |partition: &Partition| Some((known.insert(guid(partition)?, partition.number)?, partition.number));
    let (first, second) = partitions.iter().find_map(twins)?;
    Some(format!("partitions {first} and {second} have the same GUID, so PARTUUID= may find either"))
}

/// Whether the last block of the image has a backup that is whole. None if too little of the image is known.
pub(super) fn has_whole_backup(block: u64, image: &mut Image<'_, '_>) -> Option<bool> {
    let last = (image.known.image? / block).checked_sub(1)?;
    match image.get(last * block, block as usize) {
        Found::Bytes(header) => match Gpt::parse(header, last).map(|backup| backup.entries(image)) {
            Ok(Ok(Found::Bytes(_))) => Some(true),
            Ok(Ok(_)) => None,
            Ok(Err(_)) | Err(_) => Some(false),
        },
        Found::Absent => Some(false),
        Found::Unknown => None,
    }
}

/// A fault of the primary copy. What can be done depends on the backup in the last block of the image.
pub(super) fn damaged(reason: &str, how: Mend, block: u64, image: &mut Image<'_, '_>) -> Fault {
    let mend = mend(how, block);
    let remedy = match has_whole_backup(block, image) {
        Some(true) => format!("its backup at the end of the image is whole: {mend}, which takes the table from there"),
        Some(false) => format!("its backup at the end of the image is not whole, either: {MAKE_AGAIN}"),
        None => format!(
            "if its backup at the end of the image is whole, {mend}, which takes the table from there; if not, \
             {MAKE_AGAIN}"
        ),
    };
    Fault::damaged(reason, remedy)
}
