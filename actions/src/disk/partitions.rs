//! Partitions of a disk: GPT (UEFI specification, 5.3), or MBR (5.2.1).

mod add;
mod create;
mod judged;

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;

use gpt::disk::LogicalBlockSize;
use gpt::header::{HeaderError, read_header_from_arbitrary_device};
use gpt::mbr::{PartRecord, ProtectiveMBR};
use gpt::partition::file_read_partitions;
use slipway_formats::efi::device_path::{HardDrive, Signature, guid_bytes};

use crate::disk::open::OpenDisk;
use crate::error::{Error, PartitionError};
use crate::text;

pub(crate) use add::Addition;
pub(crate) use create::{Planned, Table};
pub(crate) use judged::{Content, fault, of_disk, of_first, of_image, partition as of_entry, partitions as of_table};

/// A partition, or a whole disk without partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Partition {
    /// Number in the table, from 1; 0 for a whole disk.
    pub(crate) number: u32,
    /// Range of bytes on the disk.
    pub(crate) bytes: Range<u64>,
    /// Type GUID in lower case; none in an MBR.
    pub(crate) type_guid: Option<String>,
    /// Unique identity in lower case, which Linux calls PARTUUID: a GUID in a GPT, the disk's signature and the number
    /// in an MBR; `None` if the disk has no signature.
    pub(crate) guid: Option<String>,
    /// Name in a GPT; empty if there is none.
    pub(crate) name: String,
    /// Must not be written to when mounted (Discoverable Partitions Specification, partition flags).
    pub(crate) read_only: bool,
}

impl Partition {
    /// Makes the partition that is a whole disk.
    pub(crate) fn whole(disk: &OpenDisk) -> Self {
        Self { bytes: 0..disk.size(), ..Self::default() }
    }

    /// Describes the partition.
    pub(crate) fn describe(&self, disk: &OpenDisk) -> String {
        let name = if self.name.is_empty() { String::new() } else { format!(" ({})", self.name) };
        match self.number {
            0 => disk.path().to_owned(),
            number => format!("partition {number}{name} of {}", disk.path()),
        }
    }

    /// Returns the device path node by which firmware finds the partition on a disk with this block size; none if
    /// nothing identifies it.
    pub(crate) fn hard_drive(&self, block: u64) -> Option<HardDrive> {
        let guid = self.guid.as_ref()?;
        let signature = match self.type_guid {
            Some(_) => Signature::Guid(guid_bytes(guid)?),
            None => Signature::Mbr(u32::from_str_radix(guid.split('-').next()?, 16).ok()?),
        };
        let start = self.bytes.start.checked_div(block)?;
        let blocks = (self.bytes.end - self.bytes.start).checked_div(block)?;
        Some(HardDrive { number: self.number, start, blocks, signature })
    }
}

/// Types of extended partitions, which contain other partitions.
const MBR_EXTENDED: [u8; 3] = [0x05, 0x0F, 0x85];
/// Type of the protective entry of a disk with a GPT.
const MBR_PROTECTIVE: u8 = 0xEE;
/// First byte of the record of an active partition. It is zero in other records.
const MBR_ACTIVE: u8 = 0x80;
/// Offset of the disk's signature in bytes.
const MBR_SIGNATURE: u64 = 440;
/// Number of the first logical partition, as in the kernel, whatever the four primary ones are.
const MBR_FIRST_LOGICAL: u32 = 5;
/// Maximum number of links followed in the chain inside an extended partition, which may be damaged.
const MBR_MAX_LINKS: usize = 128;
/// Smallest number of entries in tables that the gpt crate writes. They would not fit in place of a smaller table.
const MIN_ENTRIES: u32 = 128;
/// Maximum number of entries to read. The number comes from the disk, and the entries are held in memory.
const MAX_ENTRIES: u32 = 8192;
/// Size of an entry in bytes. Larger ones are valid (UEFI specification, 5.3.2), but Linux does not read them, and the
/// gpt crate panics on them.
const ENTRY_SIZE: u32 = 128;
/// Number of the block with the header, after the protective MBR, and of the block in which the entries usually begin.
const HEADER_LBA: u64 = 1;
const ENTRIES_LBA: u64 = 2;
/// Attribute bit of an entry: read-only.
const READ_ONLY: u64 = 1 << 60;

type Entries = BTreeMap<u32, gpt::partition::Partition>;

/// Reads the partitions, sorted by number. If there is no intact table, returns one partition that is the whole disk.
/// Fails if an intact table cannot be read.
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
    Ok(used(&found, block).filter(|partition| partition.bytes.end <= disk.size()).collect())
}

/// Returns the partitions of a GPT.
fn used(entries: &Entries, block: u64) -> impl Iterator<Item = Partition> {
    let used = entries.iter().filter(|(_, entry)| entry.is_used() && entry.last_lba >= entry.first_lba);
    used.map(move |(number, entry)| Partition {
        number: *number,
        bytes: entry.first_lba.saturating_mul(block)..entry.last_lba.saturating_add(1).saturating_mul(block),
        type_guid: Some(entry.part_type_guid.guid.to_string().to_ascii_lowercase()),
        guid: Some(entry.part_guid.to_string().to_ascii_lowercase()),
        name: entry.name.clone(),
        read_only: entry.flags & READ_ONLY != 0,
    })
}

/// Reads the entries of the GPT whose header is in this block; `None` if header or entries are missing or damaged.
fn entries(disk: &OpenDisk, lba: u64, block_size: LogicalBlockSize) -> Result<Option<Entries>, Error> {
    let offset = lba * block_size.as_u64();
    let not_read = |source: io::Error| match source.raw_os_error() {
        Some(_) => Err(disk.failed(Error::ReadDisk { disk: disk.path().to_owned(), offset, source })),
        None => Ok(None),
    };
    // The gpt crate expects the header in the second block of the device.
    let mut device = Device { disk, start: offset - block_size.as_u64(), at: 0 };
    let header = match read_header_from_arbitrary_device(&mut device, block_size) {
        Ok(header) => header,
        Err(HeaderError::Io(source)) => return not_read(source),
        Err(_) => return Ok(None),
    };
    if header.part_size != ENTRY_SIZE || header.num_parts > MAX_ENTRIES {
        let found = format!("it has {} entries of {} bytes", header.num_parts, header.part_size);
        let reason = format!("{found}, but only up to {MAX_ENTRIES} entries of {ENTRY_SIZE} bytes are supported");
        return Err(unreadable(disk, reason));
    }
    let mut device = Device { disk, start: 0, at: 0 };
    file_read_partitions(&mut device, &header, block_size).map(Some).or_else(not_read)
}

fn without_gpt(disk: &OpenDisk, block_size: LogicalBlockSize) -> Result<Vec<Partition>, Error> {
    let mut found = Vec::new();
    let mut first_logical = MBR_FIRST_LOGICAL;
    let records = mbr_records(disk, 0, block_size)?;
    if !are_records(&records) {
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
        } else if is_used(&record) && record.os_type != MBR_PROTECTIVE {
            found.push((number, start, record));
        }
    }
    found.sort_by_key(|(number, ..)| *number);
    let block = block_size.as_u64();
    let partitions = found.iter().map(|(number, start, record)| {
        let guid = signature.map(|signature| format!("{signature:08x}-{number:02x}"));
        Partition { guid, ..in_mbr(*number, *start, record, block) }
    });
    let partitions: Vec<Partition> =
        partitions.filter(|partition| partition.bytes.start > 0 && partition.bytes.end <= disk.size()).collect();
    Ok(if partitions.is_empty() { vec![Partition::whole(disk)] } else { partitions })
}

/// Whether these are partition records. The boot sector of a FAT or NTFS file system on a whole disk has code in their
/// place. The kernel uses the same test.
fn are_records(records: &[PartRecord]) -> bool {
    records.iter().all(|record| matches!(record.boot_indicator, 0 | MBR_ACTIVE))
}

/// Whether a record is in use. Like the kernel, counts a record of type 0 if it has blocks.
fn is_used(record: &PartRecord) -> bool {
    record.os_type != 0 || record.lb_size > 0
}

/// Returns the partition of a record that starts at block `start`, on a disk with blocks of `block` bytes.
fn in_mbr(number: u32, start: u64, record: &PartRecord, block: u64) -> Partition {
    let bytes = start * block..(start + u64::from(record.lb_size)) * block;
    Partition { number, bytes, ..Partition::default() }
}

/// Reads the partitions inside an extended one: a chain of boot records. Each record has one partition, counted from
/// that record, and a link to the next record, counted from the extended partition.
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
        let partition = records.iter().find(|record| is_used(record) && !is_extended(record));
        found.extend(partition.map(|record| (link + u64::from(record.lb_start), *record)));
    }
    Ok(found)
}

/// Reads the four records of the boot record in a block; none if there is no boot record.
fn mbr_records(disk: &OpenDisk, lba: u64, block_size: LogicalBlockSize) -> Result<Vec<PartRecord>, Error> {
    let offset = lba * block_size.as_u64();
    if offset + block_size.as_u64() > disk.size() {
        return Ok(Vec::new());
    }
    let mut block = vec![0; block_size.as_usize()];
    disk.read_at(&mut block, offset)?;
    Ok(records_in(&block, block_size))
}

/// The four records of a boot record; none if it is not a boot record.
fn records_in(block: &[u8], block_size: LogicalBlockSize) -> Vec<PartRecord> {
    let Ok(mbr) = ProtectiveMBR::from_bytes(block, block_size) else { return Vec::new() };
    (0..4).filter_map(|index| mbr.partition(index)).collect()
}

fn mbr_signature(disk: &OpenDisk) -> Result<Option<u32>, Error> {
    let mut bytes = [0; 4];
    disk.read_at(&mut bytes, MBR_SIGNATURE)?;
    Ok(Some(u32::from_le_bytes(bytes)).filter(|signature| *signature != 0))
}

fn unreadable(disk: &OpenDisk, reason: String) -> Error {
    Error::Partitions(PartitionError::Table { operation: "reading", disk: disk.path().to_owned(), reason })
}

/// Erases what firmware and kernels find partitions by: first the MBR, then the GPT headers. The disk is flushed in
/// between, so that the old system is intact for as long as it can be found.
pub(crate) fn wipe_partition_tables(disk: &OpenDisk) -> Result<(), Error> {
    let block = u64::from(disk.logical_block());
    let blocks = disk.size() / block;
    let zero = |lba: u64| if lba < blocks { disk.zero(lba * block..(lba + 1) * block) } else { Ok(()) };
    zero(0)?;
    disk.flush()?;
    zero(HEADER_LBA)?;
    zero(blocks.saturating_sub(1))?;
    disk.flush()
}

/// An open disk with a position, as the gpt crate needs it. Writes go through [`OpenDisk`], with its bounds checks.
#[derive(Debug)]
struct Device<'a> {
    disk: &'a OpenDisk,
    /// Offset of the device on the disk, in bytes.
    start: u64,
    at: u64,
}

impl Read for Device<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // A position beyond the maximum file size would cause a system error. Here the table is wrong, not the system.
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
