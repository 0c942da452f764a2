//! Partitions of a disk: GPT (UEFI specification, 5.3), or MBR (5.2.1).

use std::collections::BTreeMap;
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};
use std::ops::Range;

use gpt::disk::LogicalBlockSize;
use gpt::header::{Header, HeaderBuilder, HeaderError, read_header_from_arbitrary_device};
use gpt::mbr::{PartRecord, ProtectiveMBR};
use gpt::partition::file_read_partitions;

use crate::error::Error;
use crate::open_disk::OpenDisk;
use crate::text;

/// A partition, or a whole disk that has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Partition {
    /// Number in the table, from 1; 0 for a whole disk.
    pub(crate) number: u32,
    /// Bytes it covers.
    pub(crate) bytes: Range<u64>,
    /// Type GUID, lower case; none in an MBR.
    pub(crate) type_guid: Option<String>,
    /// Identity of its own, lower case, which Linux calls PARTUUID: a GUID; in an MBR the signature of the disk and the
    /// number, none where the disk has no signature.
    pub(crate) guid: Option<String>,
    /// Name in the table.
    pub(crate) name: String,
}

impl Partition {
    /// The whole of a disk.
    pub(crate) fn whole(disk: &OpenDisk) -> Self {
        Self { number: 0, bytes: 0..disk.size(), type_guid: None, guid: None, name: String::new() }
    }

    /// The partition in words.
    pub(crate) fn describe(&self, disk: &OpenDisk) -> String {
        let name = if self.name.is_empty() { String::new() } else { format!(" ({})", self.name) };
        match self.number {
            0 => disk.path().to_owned(),
            number => format!("partition {number}{name} of {}", disk.path()),
        }
    }
}

/// Extended partitions hold others.
const MBR_EXTENDED: [u8; 3] = [0x05, 0x0F, 0x85];
/// A protective entry covers a GPT.
const MBR_PROTECTIVE: u8 = 0xEE;
/// What a record begins with: this, or zero.
const MBR_ACTIVE: u8 = 0x80;
/// Offset of the disk's signature.
const MBR_SIGNATURE: u64 = 440;
/// Logical partitions are numbered from here, as the kernel does, whatever the four primary ones are.
const MBR_FIRST_LOGICAL: u32 = 5;
/// Links of the chain inside an extended partition that are followed; it may be damaged.
const MBR_MAX_LINKS: usize = 128;
/// The gpt crate writes tables of no fewer entries, which would not fit where a table of fewer is.
const MIN_ENTRIES: u32 = 128;
/// More entries are not read: their number is what the disk says, and they are held in memory.
const MAX_ENTRIES: u32 = 8192;
/// Bytes of an entry. Larger ones are valid (UEFI specification, 5.3.2), but neither Linux nor the gpt crate, which panics,
/// reads them.
const ENTRY_SIZE: u32 = 128;
/// The block after the protective MBR, and the one after it, from which on the entries usually are.
const HEADER_LBA: u64 = 1;
const ENTRIES_LBA: u64 = 2;
const SIGNATURE: &[u8] = b"EFI PART";

type Entries = BTreeMap<u32, gpt::partition::Partition>;

/// The partitions in the order of their numbers; one that is the whole disk where there is no table, or one that is
/// damaged. A table that is whole but cannot be read is an error.
pub(crate) fn read(disk: &OpenDisk) -> Result<Vec<Partition>, Error> {
    let block = u64::from(disk.logical_block());
    let block_size = LogicalBlockSize::try_from(block).map_err(|error| unreadable(disk, error.to_string()))?;
    let last = (disk.size() / block).saturating_sub(1).max(HEADER_LBA);
    let backup = || entries(disk, last, block_size).unwrap_or_default();
    let found = match entries(disk, HEADER_LBA, block_size) {
        Ok(None) => backup(),
        Err(error @ Error::ReadDisk { .. }) => Some(backup().ok_or(error)?),
        other => other?,
    };
    let Some(found) = found else { return without_gpt(disk, block_size) };
    let used = found.iter().filter(|(_, entry)| entry.is_used() && entry.last_lba >= entry.first_lba);
    let partitions = used.map(|(number, entry)| Partition {
        number: *number,
        bytes: entry.first_lba.saturating_mul(block)..entry.last_lba.saturating_add(1).saturating_mul(block),
        type_guid: Some(entry.part_type_guid.guid.to_string().to_ascii_lowercase()),
        guid: Some(entry.part_guid.to_string().to_ascii_lowercase()),
        name: entry.name.clone(),
    });
    Ok(partitions.filter(|partition| partition.bytes.end <= disk.size()).collect())
}

/// The entries of the GPT whose header is in a block; none where there is no header or either is damaged.
fn entries(disk: &OpenDisk, lba: u64, block_size: LogicalBlockSize) -> Result<Option<Entries>, Error> {
    let offset = lba * block_size.as_u64();
    let not_read = |source: io::Error| match source.raw_os_error() {
        Some(_) => Err(Error::ReadDisk { disk: disk.path().to_owned(), offset, source }),
        None => Ok(None),
    };
    // The crate looks for a header in the second block of what it is given.
    let mut device = Device { disk, start: offset - block_size.as_u64(), at: 0 };
    let header = match read_header_from_arbitrary_device(&mut device, block_size) {
        Ok(header) => header,
        Err(HeaderError::Io(source)) => return not_read(source),
        Err(_) => return Ok(None),
    };
    if header.part_size != ENTRY_SIZE || header.num_parts > MAX_ENTRIES {
        let found = format!("it has {} entries of {} bytes", header.num_parts, header.part_size);
        return Err(unreadable(disk, format!("{found}, and at most {MAX_ENTRIES} of {ENTRY_SIZE} bytes can be read")));
    }
    let mut device = Device { disk, start: 0, at: 0 };
    file_read_partitions(&mut device, &header, block_size).map(Some).or_else(not_read)
}

fn without_gpt(disk: &OpenDisk, block_size: LogicalBlockSize) -> Result<Vec<Partition>, Error> {
    let mut found = Vec::new();
    let mut first_logical = MBR_FIRST_LOGICAL;
    let records = mbr_records(disk, 0, block_size)?;
    // The boot sector of a FAT or NTFS file system on a whole disk has code in place of records. The kernel tells it by this.
    if !records.iter().all(|record| matches!(record.boot_indicator, 0 | MBR_ACTIVE)) {
        return Ok(vec![Partition::whole(disk)]);
    }
    let signature = if records.is_empty() { None } else { mbr_signature(disk)? };
    for (number, record) in (1..).zip(records) {
        let start = u64::from(record.lb_start);
        if MBR_EXTENDED.contains(&record.os_type) {
            let logical = logical_partitions(disk, start, block_size)?;
            let numbered = (first_logical..).zip(logical);
            found.extend(numbered.map(|(number, (start, record))| (number, start, record)));
            first_logical = found.iter().map(|(number, ..)| number + 1).fold(first_logical, u32::max);
        } else if record.os_type != 0 && record.os_type != MBR_PROTECTIVE {
            found.push((number, start, record));
        }
    }
    found.sort_by_key(|(number, ..)| *number);
    let block = block_size.as_u64();
    let partitions = found.iter().map(|(number, start, record)| {
        let bytes = start * block..(start + u64::from(record.lb_size)) * block;
        let guid = signature.map(|signature| format!("{signature:08x}-{number:02x}"));
        Partition { number: *number, bytes, type_guid: None, guid, name: String::new() }
    });
    let partitions: Vec<Partition> =
        partitions.filter(|partition| partition.bytes.start > 0 && partition.bytes.end <= disk.size()).collect();
    Ok(if partitions.is_empty() { vec![Partition::whole(disk)] } else { partitions })
}

/// The partitions inside an extended one: a chain of boot records, each with one partition, counted from that record, and
/// the next record, counted from the extended partition.
fn logical_partitions(
    disk: &OpenDisk,
    extended: u64,
    block_size: LogicalBlockSize,
) -> Result<Vec<(u64, PartRecord)>, Error> {
    let mut found = Vec::new();
    let mut seen = Vec::new();
    let mut next = Some(extended);
    while let Some(link) = next.filter(|link| !seen.contains(link) && seen.len() < MBR_MAX_LINKS) {
        seen.push(link);
        let records = mbr_records(disk, link, block_size)?;
        let is_extended = |record: &&PartRecord| MBR_EXTENDED.contains(&record.os_type);
        next = records.iter().find(is_extended).map(|record| extended + u64::from(record.lb_start));
        let partition = records.iter().find(|record| record.os_type != 0 && !is_extended(record));
        found.extend(partition.map(|record| (link + u64::from(record.lb_start), *record)));
    }
    Ok(found)
}

/// The four records of the boot record in a block; none where there is no boot record.
fn mbr_records(disk: &OpenDisk, lba: u64, block_size: LogicalBlockSize) -> Result<Vec<PartRecord>, Error> {
    let offset = lba * block_size.as_u64();
    if offset + block_size.as_u64() > disk.size() {
        return Ok(Vec::new());
    }
    let mut block = vec![0; block_size.as_usize()];
    disk.read_at(&mut block, offset)?;
    let Ok(mbr) = ProtectiveMBR::from_bytes(&block, block_size) else { return Ok(Vec::new()) };
    Ok((0..4).filter_map(|index| mbr.partition(index)).collect())
}

fn mbr_signature(disk: &OpenDisk) -> Result<Option<u32>, Error> {
    let mut bytes = [0; 4];
    disk.read_at(&mut bytes, MBR_SIGNATURE)?;
    Ok(Some(u32::from_le_bytes(bytes)).filter(|signature| *signature != 0))
}

fn unreadable(disk: &OpenDisk, reason: String) -> Error {
    Error::PartitionTable { operation: "reading", disk: disk.path().to_owned(), reason }
}

/// Takes away what firmware and kernels find partitions by: the MBR, then the headers of the GPT. Flushed in between, so that for
/// as long as the old system is found, it is whole.
pub(crate) fn forget(disk: &OpenDisk) -> Result<(), Error> {
    let block = u64::from(disk.logical_block());
    let blocks = disk.size() / block;
    let zero = |lba: u64| if lba < blocks { disk.zero(lba * block..(lba + 1) * block) } else { Ok(()) };
    zero(0)?;
    disk.flush()?;
    zero(HEADER_LBA)?;
    zero(blocks.saturating_sub(1))?;
    disk.flush()
}

/// What [`move_backup`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// The backup is at the end of the disk now.
    Yes,
    /// It was there, or there is no GPT.
    NotNeeded,
    /// The table cannot be edited without changing more of it.
    NotPossible,
}

/// Moves the backup GPT of an image to the end of the larger disk it was written to, where firmware looks for it. `head` is
/// the head of the image, which is not on the disk yet, while all the rest is: it is changed in memory, so that nothing is
/// left to do once the disk has it. Fails if the table is made for blocks of another size than the disk's, because
/// neither firmware nor kernel would find it.
pub(crate) fn move_backup(head: &mut [u8], disk: &OpenDisk) -> Result<Moved, Error> {
    let block = u64::from(disk.logical_block());
    let own_size = LogicalBlockSize::try_from(block).ok();
    let Some((block_size, primary)) = own_size.and_then(|size| Some((size, header_in(head, size)?))) else {
        let known = [LogicalBlockSize::Lb512, LogicalBlockSize::Lb4096];
        return match known.into_iter().find(|size| header_in(head, *size).is_some()) {
            Some(found) => {
                Err(Error::BlockSize { disk: disk.path().to_owned(), expected: block, found: found.as_u64() })
            }
            None => Ok(Moved::NotNeeded),
        };
    };
    let last = (disk.size() / block).saturating_sub(1);
    if primary.backup_lba >= last {
        return Ok(Moved::NotNeeded);
    }
    let old_backup = primary.backup_lba;
    let as_usual = primary.current_lba == HEADER_LBA && primary.part_start == ENTRIES_LBA;
    let entries_len = u64::from(primary.num_parts) * u64::from(primary.part_size);
    let after_header = head.get((ENTRIES_LBA * block) as usize..);
    let entries = after_header.and_then(|rest| rest.get(..entries_len as usize)).map(<[u8]>::to_vec);
    let editable = as_usual && primary.part_size == ENTRY_SIZE && primary.last_usable < old_backup;
    let Some(entries) = entries.filter(|_| editable && primary.num_parts >= MIN_ENTRIES) else {
        return Ok(Moved::NotPossible);
    };
    let failed = |error: HeaderError| Error::PartitionTable {
        operation: "fitting",
        disk: disk.path().to_owned(),
        reason: error.to_string(),
    };
    let build = |primary_wanted: bool| {
        HeaderBuilder::from_header(&primary).backup_lba(last).primary(primary_wanted).build(block_size).map_err(failed)
    };
    let (mut new_primary, mut new_backup) = (build(true)?, build(false)?);
    if new_backup.part_start * block + entries_len > last * block {
        return Ok(Moved::NotPossible);
    }
    // Before the new one is written, which may cover the place.
    let mut old = vec![0; block as usize];
    disk.read_at(&mut old, old_backup * block)?;
    if old.starts_with(SIGNATURE) {
        disk.zero(old_backup * block..(old_backup + 1) * block)?;
    }
    disk.write_at(&entries, new_backup.part_start * block)?;
    new_backup.write_backup(&mut Device { disk, start: 0, at: 0 }, block_size).map_err(failed)?;
    new_primary.write_primary(&mut Cursor::new(head), block_size).map_err(failed)?;
    Ok(Moved::Yes)
}

/// The GPT header in the head of a disk with blocks of this size.
fn header_in(head: &[u8], block_size: LogicalBlockSize) -> Option<Header> {
    read_header_from_arbitrary_device(&mut Cursor::new(head), block_size).ok()
}

/// An open disk with a position, as the gpt crate wants it. Writes go through the disk's own, bounds and all.
#[derive(Debug)]
struct Device<'a> {
    disk: &'a OpenDisk,
    /// Where on the disk it begins, in bytes.
    start: u64,
    at: u64,
}

impl Read for Device<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // A position beyond what a file can have would be an error of the system, and not of the table that names it.
        let Some(at) = self.start.checked_add(self.at).filter(|at| *at < self.disk.size()) else { return Ok(0) };
        let n = std::os::unix::fs::FileExt::read_at(self.disk.file(), buffer, at)?;
        self.at += n as u64;
        Ok(n)
    }
}

impl Write for Device<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.disk.write_at(bytes, self.start + self.at);
        written.map_err(|error| io::Error::other(text::chain(&error)))?;
        self.at += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Device<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.disk.size().saturating_sub(self.start).checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
