//! Adapts the partition table of an image to the disk it is written to. This happens in memory, before the table is
//! written.

use std::ops::Range;

use slipway_formats::partition_table::{self, Backup as State, Kind, Table};

use super::grow::{self, Growth};
use super::partitions::{self, Partition};
use crate::disk::open::OpenDisk;
use crate::error::Error;

const SIGNATURE: &[u8] = b"EFI PART";
/// Number of primary partitions in an MBR.
const MBR_PRIMARY: u32 = 4;
/// Offset of the records in an MBR, and their size (UEFI specification, tables 5-1 and 5-2).
const MBR_RECORDS: usize = 446;
const MBR_RECORD_SIZE: usize = 16;
/// Offsets in a record of its last block as cylinder, head and sector, and of its number of blocks.
const RECORD_END: usize = 5;
const RECORD_BLOCKS: usize = 12;
/// Bytes of cylinder, head and sector for a block beyond their range.
const BEYOND_CHS: [u8; 3] = [0xFE, 0xFF, 0xFF];

/// What was changed in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Relocation {
    pub(crate) moved: Moved,
    pub(crate) growth: Growth,
}

/// What happened to the backup of a GPT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// It was moved to the end of the disk, or written again there.
    Yes,
    /// It was there already, or there is no GPT.
    NotNeeded,
    /// It is still at the end of the image, for this reason.
    NotPossible(String),
}

/// A backup GPT to be written.
#[derive(Debug)]
pub(crate) struct Backup {
    /// Whole blocks, and their byte offset on the disk.
    entries: (Vec<u8>, u64),
    header: (Vec<u8>, u64),
    /// Byte offset of the backup header that came with the image, unless a partition includes it.
    old: Option<u64>,
}

impl Backup {
    /// Returns the entries, and their byte offset on the disk.
    pub(crate) fn entries(&self) -> (&[u8], u64) {
        (&self.entries.0, self.entries.1)
    }

    /// Returns the block with the header, and its byte offset on the disk.
    pub(crate) fn header(&self) -> (&[u8], u64) {
        (&self.header.0, self.header.1)
    }

    /// Returns the byte range of the old backup header, if there is one and the new entries do not cover it.
    pub(crate) fn stale(&self, disk: &OpenDisk) -> Result<Option<Range<u64>>, Error> {
        let (entries, start) = self.entries();
        let Some(at) = self.old.filter(|old| !(start..start + entries.len() as u64).contains(old)) else {
            return Ok(None);
        };
        let mut old = vec![0; self.header.0.len()];
        disk.read_at(&mut old, at)?;
        Ok(old.starts_with(SIGNATURE).then(|| at..at + old.len() as u64))
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

/// Moves the backup GPT of a disk to its end, where firmware looks for it, and writes it again if it does not match the
/// primary copy. If `grow` is set, extends the last partition up to there, if its content allows that. `head` is the
/// head of the disk and is changed in memory. Fails if the table is damaged or is not for this disk.
pub(crate) fn relocate_backup_gpt(
    head: &mut [u8],
    disk: &OpenDisk,
    grow: bool,
) -> Result<(Relocation, Option<Backup>), Error> {
    let table = partitions::of_disk(head, disk)?;
    fit(&table, head, disk, grow)
}

/// Like [`relocate_backup_gpt`], fits a table to a disk to which all of the image but its head was written.
pub(crate) fn fit(
    table: &Table,
    head: &mut [u8],
    disk: &OpenDisk,
    grow: bool,
) -> Result<(Relocation, Option<Backup>), Error> {
    let as_it_is = |moved, growth| Ok((Relocation { moved, growth }, None));
    let partitions = partitions::of_table(table);
    let gpt = match &table.kind {
        Kind::Gpt(gpt) => gpt,
        Kind::Mbr if grow => return as_it_is(Moved::NotNeeded, grow_in_mbr(table, head, disk)?),
        _ => return as_it_is(Moved::NotNeeded, Growth::NotNeeded),
    };
    let block = table.block;
    let last = (disk.size() / block).saturating_sub(1);
    let is_elsewhere = gpt.backup_lba() != last;
    let fitted = match gpt.fit(last + 1, &table.partitions, head) {
        Ok(fitted) => fitted,
        Err(reason) => {
            let growth = if grow { grow::left(disk, &partitions, last * block, &reason) } else { Growth::NotNeeded };
            return as_it_is(if is_elsewhere { Moved::NotPossible(reason) } else { Moved::NotNeeded }, growth);
        }
    };
    let growth = if grow { grow::plan(disk, &partitions, fitted.usable_end())? } else { Growth::NotNeeded };
    let is_whole = !is_elsewhere && matches!(gpt.backup(), State::Whole | State::Unknown);
    let grown = match &growth {
        Growth::Grown(grown) => Some((grown.partition.number, grown.partition.bytes.end)),
        _ if is_whole => return as_it_is(Moved::NotNeeded, growth),
        _ => None,
    };
    let (entries, header) = fitted.write(head, grown);
    let (entries_at, header_at) = fitted.backup_at();
    let old = gpt.backup_lba().checked_mul(block).filter(|old| {
        let is_used = partitions.iter().any(|partition| partition.bytes.contains(old));
        *old >= head.len() as u64 && *old <= disk.size() - block && !is_used
    });
    let moved = if is_whole { Moved::NotNeeded } else { Moved::Yes };
    let backup = Backup { entries: (entries, entries_at), header: (header, header_at), old };
    Ok((Relocation { moved, growth }, Some(backup)))
}

/// Extends the last primary partition of an MBR to the end of the disk, or to the maximum number of blocks that a
/// record can have.
fn grow_in_mbr(table: &Table, head: &mut [u8], disk: &OpenDisk) -> Result<Growth, Error> {
    let primary: Vec<_> = table.partitions.iter().filter(|partition| partition.number <= MBR_PRIMARY).collect();
    if primary.iter().any(|partition| partition.bytes.start == 0) {
        return Ok(Growth::NotNeeded);
    }
    let Some(last) = primary.iter().max_by_key(|partition| partition.bytes.end) else { return Ok(Growth::NotNeeded) };
    let room = disk.size().min(last.bytes.start + u64::from(u32::MAX) * table.block);
    let partitions: Vec<Partition> = primary.iter().map(|partition| partitions::of_entry(partition)).collect();
    if partition_table::is_extended(last.mbr_type) {
        return Ok(grow::left(disk, &partitions, room, "it contains other partitions"));
    }
    let growth = grow::plan(disk, &partitions, room)?;
    let Growth::Grown(grown) = &growth else { return Ok(growth) };
    let index = (grown.partition.number - 1) as usize;
    let blocks = (grown.partition.bytes.end - grown.partition.bytes.start) / table.block;
    let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
    let records = head.get_mut(MBR_RECORDS..).unwrap_or_default().as_chunks_mut::<MBR_RECORD_SIZE>().0;
    let Some(record) = records.get_mut(index) else {
        return Ok(grow::left(disk, &partitions, room, "its record is not in the first block"));
    };
    record[RECORD_END..RECORD_END + 3].copy_from_slice(&BEYOND_CHS);
    record[RECORD_BLOCKS..].copy_from_slice(&blocks.to_le_bytes());
    Ok(growth)
}
