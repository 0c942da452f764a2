//! Adapts the partition table of an image to the disk it is written to. This happens in memory, before the table is
//! written.

use std::io::Cursor;
use std::ops::Range;

use gpt::disk::LogicalBlockSize;
use gpt::header::{Header, HeaderBuilder, HeaderError, read_header_from_arbitrary_device};
use gpt::mbr::PartRecord;
use gpt::partition::file_read_partitions;
use slipway_formats::crc32::crc32;

use super::grow::{self, Growth};
use super::{
    ENTRIES_LBA, ENTRY_SIZE, HEADER_LBA, MAX_ENTRIES, MBR_EXTENDED, MBR_PROTECTIVE, MIN_ENTRIES, Partition,
    are_records, in_mbr, records_in, used,
};
use crate::disk::open::OpenDisk;
use crate::error::{Error, ImageError, PartitionError};

const SIGNATURE: &[u8] = b"EFI PART";
/// Size of a GPT header in bytes, and offsets of its fields: checksum, its own block, block of the other header, block
/// of its entries (UEFI specification, table 5-5).
const HEADER_LEN: usize = 92;
const HEADER_SUM: usize = 16;
const HEADER_OWN: usize = 24;
const HEADER_OTHER: usize = 32;
const HEADER_ENTRIES: usize = 72;
/// Offset of the last block in a GPT entry (UEFI specification, table 5-6).
const ENTRY_LAST_LBA: usize = 40;
/// Offset of the records in an MBR, and their size (UEFI specification, tables 5-1 and 5-2).
const MBR_RECORDS: usize = 446;
const MBR_RECORD_SIZE: usize = 16;
/// Offsets in a record of its last block as cylinder, head and sector, and of its number of blocks.
const RECORD_END: usize = 5;
const RECORD_BLOCKS: usize = 12;
/// Cylinder, head and sector of a block that they cannot express.
const BEYOND_CHS: [u8; 3] = [0xFE, 0xFF, 0xFF];

/// What was changed in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Relocation {
    pub(crate) moved: Moved,
    pub(crate) growth: Growth,
}

/// What happened to the backup of a GPT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// It was moved to the end of the disk.
    Yes,
    /// It was there already, or there is no GPT.
    NotNeeded,
    /// It is still at the end of the image, because the table cannot be edited without changing more of it.
    NotPossible,
}

/// A backup GPT to be written.
#[derive(Debug)]
pub(crate) struct Backup {
    /// Whole blocks, and their byte offset on the disk.
    entries: (Vec<u8>, u64),
    header: (Vec<u8>, u64),
    /// Byte offset of the backup header that came with the image.
    old: u64,
}

impl Backup {
    /// The entries, and their byte offset on the disk.
    pub(crate) fn entries(&self) -> (&[u8], u64) {
        (&self.entries.0, self.entries.1)
    }

    /// The block with the header, and its byte offset on the disk.
    pub(crate) fn header(&self) -> (&[u8], u64) {
        (&self.header.0, self.header.1)
    }

    /// The old backup header, if there is one and the new entries do not cover it.
    pub(crate) fn stale(&self, disk: &OpenDisk) -> Result<Option<Range<u64>>, Error> {
        let (entries, start) = self.entries();
        let mut old = vec![0; self.header.0.len()];
        disk.read_at(&mut old, self.old)?;
        let is_covered = (start..start + entries.len() as u64).contains(&self.old);
        Ok((old.starts_with(SIGNATURE) && !is_covered).then(|| self.old..self.old + old.len() as u64))
    }

    /// Erases the old backup header, and writes the entries of the new backup, which may cover the old header.
    pub(crate) fn write_entries(&self, disk: &OpenDisk) -> Result<(), Error> {
        if let Some(stale) = self.stale(disk)? {
            disk.zero(stale)?;
        }
        let (entries, start) = self.entries();
        disk.write_at(entries, start)
    }

    /// Writes the header. The entries must already be on the disk.
    pub(crate) fn write_header(&self, disk: &OpenDisk) -> Result<(), Error> {
        let (header, start) = self.header();
        disk.write_at(header, start)
    }
}

/// Moves the backup GPT of an image to the end of a larger disk, where firmware looks for it. If `grow` is set, extends
/// the last partition up to there, if its content allows that. `head` is the head of the image and is changed in
/// memory; it is not on the disk yet, but the rest of the image is. Fails as [`check`] does.
pub(crate) fn relocate_backup_gpt(
    head: &mut [u8],
    disk: &OpenDisk,
    grow: bool,
) -> Result<(Relocation, Option<Backup>), Error> {
    check(head, disk)?;
    let Some((block_size, primary)) = gpt_in(head, disk)? else {
        let growth = if grow { grow_in_mbr(head, disk)? } else { Growth::NotNeeded };
        return Ok((Relocation { moved: Moved::NotNeeded, growth }, None));
    };
    let block = block_size.as_u64();
    let last = (disk.size() / block).saturating_sub(1);
    let moved = if primary.backup_lba < last { Moved::Yes } else { Moved::NotNeeded };
    let as_it_is = |moved, growth| Ok((Relocation { moved, growth }, None));
    if primary.backup_lba > last {
        return as_it_is(moved, Growth::NotNeeded);
    }
    let not_possible = if moved == Moved::Yes { Moved::NotPossible } else { moved };
    let as_usual = primary.current_lba == HEADER_LBA && primary.part_start == ENTRIES_LBA;
    let entries_start = (ENTRIES_LBA * block) as usize;
    let entries_end = entries_start + (u64::from(primary.num_parts) * u64::from(ENTRY_SIZE)) as usize;
    let editable = as_usual
        && primary.part_size == ENTRY_SIZE
        && primary.num_parts >= MIN_ENTRIES
        && primary.last_usable < primary.backup_lba
        && entries_end <= head.len();
    if !editable {
        return as_it_is(not_possible, Growth::NotNeeded);
    }
    let build = |primary_wanted: bool| {
        let mut builder = HeaderBuilder::from_header(&primary);
        builder.backup_lba(last).primary(primary_wanted).build(block_size).map_err(|error| failed(disk, &error))
    };
    let (mut new_primary, header) = (build(true)?, build(false)?);
    if header.part_start * block + (entries_end - entries_start) as u64 > last * block {
        return as_it_is(not_possible, Growth::NotNeeded);
    }
    let growth = match grow {
        true => grow_in_gpt(head, &primary, block_size, new_primary.last_usable, disk)?,
        false => Growth::NotNeeded,
    };
    if moved == Moved::NotNeeded && !matches!(growth, Growth::Grown(_)) {
        return as_it_is(moved, growth);
    }
    new_primary.write_primary(&mut Cursor::new(&mut *head), block_size).map_err(|error| failed(disk, &error))?;
    let mut entries = head[entries_start..entries_end].to_vec();
    entries.resize(entries.len().next_multiple_of(block as usize), 0);
    let block_of_header = backup_header(&head[block as usize..entries_start], &header);
    let backup = Backup {
        entries: (entries, header.part_start * block),
        header: (block_of_header, last * block),
        old: primary.backup_lba * block,
    };
    Ok((Relocation { moved, growth }, Some(backup)))
}

/// The block with the backup header, derived from the primary one. They differ in their own place and the place of
/// their entries. The gpt crate can only make one on the disk, with a checksum of the entries it finds there.
fn backup_header(primary: &[u8], header: &Header) -> Vec<u8> {
    let mut block = primary.to_vec();
    let places =
        [(HEADER_OWN, header.current_lba), (HEADER_OTHER, header.backup_lba), (HEADER_ENTRIES, header.part_start)];
    for (at, lba) in places {
        block[at..at + 8].copy_from_slice(&lba.to_le_bytes());
    }
    block[HEADER_SUM..HEADER_SUM + 4].fill(0);
    let sum = crc32(&block[..HEADER_LEN]);
    block[HEADER_SUM..HEADER_SUM + 4].copy_from_slice(&sum.to_le_bytes());
    block
}

/// Fails if the table at the start of an image is made for another block size than that of the disk, or for a larger
/// disk: neither firmware nor kernel would find it.
pub(crate) fn check(head: &[u8], disk: &OpenDisk) -> Result<(), Error> {
    let Some((block_size, primary)) = gpt_in(head, disk)? else { return Ok(()) };
    // Linux ignores a table that uses blocks beyond the end of the disk (block/partitions/efi.c, is_gpt_valid()).
    let usable = primary.last_usable.saturating_add(1).saturating_mul(block_size.as_u64());
    let ends = in_head(head, disk)?.into_iter().map(|partition| partition.bytes.end);
    let needed = ends.fold(usable, u64::max);
    if needed > disk.size() {
        return Err(ImageError::TableTooLarge { disk: disk.path().to_owned(), size: disk.size(), needed }.into());
    }
    Ok(())
}

/// The partitions in the head of an image, as far as the table can be read. Logical partitions are not included,
/// because they are not in the table itself.
pub(crate) fn in_head(head: &[u8], disk: &OpenDisk) -> Result<Vec<Partition>, Error> {
    let Some((block_size, primary)) = gpt_in(head, disk)? else {
        return Ok(mbr_in(head, disk).map(|(_, partitions)| partitions).unwrap_or_default());
    };
    if primary.part_size != ENTRY_SIZE || primary.num_parts > MAX_ENTRIES {
        return Ok(Vec::new());
    }
    let entries = file_read_partitions(&mut Cursor::new(head), &primary, block_size).unwrap_or_default();
    Ok(used(&entries, block_size.as_u64()).collect())
}

/// The GPT in a head, if it is made for this disk. Another block size is an error.
fn gpt_in(head: &[u8], disk: &OpenDisk) -> Result<Option<(LogicalBlockSize, Header)>, Error> {
    let block = u64::from(disk.logical_block());
    let header = |size: LogicalBlockSize| read_header_from_arbitrary_device(&mut Cursor::new(head), size).ok();
    let own_size = LogicalBlockSize::try_from(block).ok();
    if let Some(found) = own_size.and_then(|size| Some((size, header(size)?))) {
        return Ok(Some(found));
    }
    match [LogicalBlockSize::Lb512, LogicalBlockSize::Lb4096].into_iter().find(|size| header(*size).is_some()) {
        Some(found) => {
            Err(ImageError::BlockSize { disk: disk.path().to_owned(), expected: block, found: found.as_u64() }.into())
        }
        None => Ok(None),
    }
}

/// Extends the last partition of a GPT to the last usable block.
fn grow_in_gpt(
    head: &mut [u8],
    primary: &Header,
    block_size: LogicalBlockSize,
    last_usable: u64,
    disk: &OpenDisk,
) -> Result<Growth, Error> {
    let block = block_size.as_u64();
    let entries = file_read_partitions(&mut Cursor::new(&head), primary, block_size);
    let entries = entries.map_err(|error| failed(disk, &HeaderError::Io(error)))?;
    let partitions: Vec<Partition> = used(&entries, block).collect();
    if partitions.iter().any(|partition| partition.bytes.end > (primary.last_usable + 1) * block) {
        return Ok(Growth::NotNeeded);
    }
    let growth = grow::plan(disk, &partitions, (last_usable + 1) * block)?;
    if let Growth::Grown(grown) = &growth {
        let entry = (ENTRIES_LBA * block) as usize + (grown.partition.number - 1) as usize * ENTRY_SIZE as usize;
        let last = grown.partition.bytes.end / block - 1;
        head[entry + ENTRY_LAST_LBA..][..8].copy_from_slice(&last.to_le_bytes());
    }
    Ok(growth)
}

/// Extends the last primary partition of an MBR to the end of the disk, or to the maximum number of blocks that a
/// record can have.
fn grow_in_mbr(head: &mut [u8], disk: &OpenDisk) -> Result<Growth, Error> {
    let block = u64::from(disk.logical_block());
    let Some((records, partitions)) = mbr_in(head, disk) else { return Ok(Growth::NotNeeded) };
    let start = partitions.iter().max_by_key(|partition| partition.bytes.end).map_or(0, |last| last.bytes.start);
    let room = disk.size().min(start + u64::from(u32::MAX) * block);
    let growth = grow::plan(disk, &partitions, room)?;
    let Growth::Grown(grown) = &growth else { return Ok(growth) };
    let index = (grown.partition.number - 1) as usize;
    if MBR_EXTENDED.contains(&records[index].os_type) {
        return Ok(Growth::Left {
            partition: grown.partition.describe(disk),
            reason: "it contains other partitions".to_owned(),
        });
    }
    let blocks = u32::try_from((grown.partition.bytes.end - grown.partition.bytes.start) / block).unwrap_or(u32::MAX);
    let record = &mut head[MBR_RECORDS + index * MBR_RECORD_SIZE..][..MBR_RECORD_SIZE];
    record[RECORD_END..][..3].copy_from_slice(&BEYOND_CHS);
    record[RECORD_BLOCKS..].copy_from_slice(&blocks.to_le_bytes());
    Ok(growth)
}

/// The records of the MBR in a head, and its partitions; none if there is no MBR, or it is not for this disk.
fn mbr_in(head: &[u8], disk: &OpenDisk) -> Option<(Vec<PartRecord>, Vec<Partition>)> {
    let block = u64::from(disk.logical_block());
    let block_size = LogicalBlockSize::try_from(block).ok()?;
    let records = records_in(head.get(..block_size.as_usize())?, block_size);
    let is_damaged = |record: &PartRecord| {
        let end = (u64::from(record.lb_start) + u64::from(record.lb_size)) * block;
        record.os_type == MBR_PROTECTIVE || record.os_type != 0 && (record.lb_start == 0 || end > disk.size())
    };
    if !are_records(&records) || records.iter().any(is_damaged) {
        return None;
    }
    let used = (1..).zip(&records).filter(|(_, record)| record.os_type != 0 && record.lb_size > 0);
    let partitions = used.map(|(number, record)| in_mbr(number, u64::from(record.lb_start), record, block)).collect();
    Some((records, partitions))
}

fn failed(disk: &OpenDisk, error: &HeaderError) -> Error {
    Error::Partitions(PartitionError::Table {
        operation: "fitting",
        disk: disk.path().to_owned(),
        reason: error.to_string(),
    })
}
