//! Adds a partition to an existing GPT. The table is changed in memory, and only written when all of it is right.

use std::io::Cursor;
use std::ops::Range;

use gpt::disk::LogicalBlockSize;
use gpt::header::{Header, HeaderBuilder, HeaderError, read_header_from_arbitrary_device};
use gpt::partition::file_read_partitions;

use super::create::ALIGNMENT;
use super::{Device, ENTRIES_LBA, ENTRY_SIZE, Entries, HEADER_LBA, MAX_ENTRIES, MIN_ENTRIES, Partition, Planned, used};
use crate::disk::open::OpenDisk;
use crate::error::{Error, PartitionError};
use crate::random;

/// A table to be written, with one more partition than the disk has.
#[derive(Debug)]
pub(crate) struct Addition {
    partition: Partition,
    block_size: LogicalBlockSize,
    primary: Header,
    backup: Header,
    /// The first blocks of the disk: protective MBR, header, entries.
    head: Vec<u8>,
}

impl Addition {
    /// Plans a partition of `len` bytes at the end of the last gap that is large enough; none if there is no such gap.
    /// It is put at the end so that the partition before it can still grow. Fails if there is no GPT, or if it is
    /// damaged or has an unusual layout.
    pub(crate) fn plan(disk: &OpenDisk, len: u64, type_guid: &str, name: &str) -> Result<Option<Self>, Error> {
        let block = u64::from(disk.logical_block());
        let block_size = LogicalBlockSize::try_from(block).map_err(|error| failed(disk, error.to_string()))?;
        let (header, mut head) = read(disk, block_size)?;
        let entries = file_read_partitions(&mut Cursor::new(&head), &header, block_size);
        let entries = entries.map_err(|error| failed(disk, error.to_string()))?;
        let taken: Vec<Range<u64>> = used(&entries, block).map(|partition| partition.bytes).collect();
        let usable = header.first_usable * block..(header.last_usable + 1) * block;
        let (Some(bytes), Some(number)) = (last_gap(usable, taken, len), unused_number(&entries, &header)) else {
            return Ok(None);
        };
        let guid = random::uuid_text(&random::uuid()?);
        let planned = Planned { bytes: bytes.clone(), type_guid: type_guid.to_owned(), guid, name: name.to_owned() };
        let entry = planned.entry(block, disk.path())?;
        let place = &mut Cursor::new(head.as_mut_slice());
        entry
            .write_to_device(place, u64::from(number - 1), ENTRIES_LBA, block_size, ENTRY_SIZE)
            .map_err(|error| failed(disk, error.to_string()))?;
        let build = |is_primary| HeaderBuilder::from_header(&header).primary(is_primary).build(block_size);
        let headers = build(true).and_then(|primary| Ok((primary, build(false)?)));
        let (primary, backup) = headers.map_err(|error| failed(disk, error.to_string()))?;
        let (type_guid, guid) = (Some(planned.type_guid), Some(planned.guid));
        let partition = Partition { number, bytes, type_guid, guid, name: planned.name, read_only: false };
        Ok(Some(Self { partition, block_size, primary, backup, head }))
    }

    /// The new partition.
    pub(crate) fn partition(&self) -> &Partition {
        &self.partition
    }

    /// Writes the table. The backup is written first, so that one of the two is intact at any time.
    pub(crate) fn write(mut self, disk: &OpenDisk) -> Result<(), Error> {
        let of_header = |error: HeaderError| failed(disk, error.to_string());
        let (block, at) = (self.block_size.as_u64(), (ENTRIES_LBA * self.block_size.as_u64()) as usize);
        self.primary.write_primary(&mut Cursor::new(self.head.as_mut_slice()), self.block_size).map_err(of_header)?;
        disk.write_at(self.head.split_at(at).1, self.backup.part_start * block)?;
        let mut device = Device { disk, start: 0, at: 0 };
        self.backup.write_backup(&mut device, self.block_size).map_err(of_header)?;
        disk.flush()?;
        let header = HEADER_LBA * block;
        disk.write_at(self.head.split_at(header as usize).1, header)?;
        disk.flush()
    }
}

/// The header of a GPT, and the first blocks of its disk up to the end of the entries.
fn read(disk: &OpenDisk, block_size: LogicalBlockSize) -> Result<(Header, Vec<u8>), Error> {
    let block = block_size.as_u64();
    let last = (disk.size() / block).saturating_sub(1);
    let header = read_header_from_arbitrary_device(&mut Device { disk, start: 0, at: 0 }, block_size);
    let header = header.map_err(|error| failed(disk, format!("it is not a complete GPT ({error})")))?;
    let as_usual = header.current_lba == HEADER_LBA
        && header.part_start == ENTRIES_LBA
        && header.part_size == ENTRY_SIZE
        && (MIN_ENTRIES..=MAX_ENTRIES).contains(&header.num_parts);
    let entries = u64::from(header.num_parts) * u64::from(ENTRY_SIZE);
    let end = (ENTRIES_LBA * block + entries).next_multiple_of(block);
    let in_place = header.backup_lba == last
        && header.first_usable <= header.last_usable
        && header.first_usable.checked_mul(block).is_some_and(|first| end <= first)
        && header.last_usable < last.saturating_sub(entries.div_ceil(block));
    if !as_usual || !in_place {
        let reason = "its parts are not in their usual places, such as the backup at the end of the disk".to_owned();
        return Err(failed(disk, reason));
    }
    let mut head = vec![0; end as usize];
    disk.read_at(&mut head, 0)?;
    let mut found = header.clone();
    let sum = found.write_primary(&mut Cursor::new(head.clone()), block_size).map(|_| found.crc32_parts);
    match sum {
        Ok(sum) if sum == header.crc32_parts => Ok((header, head)),
        _ => Err(failed(disk, "its entries are damaged".to_owned())),
    }
}

/// The last `len` bytes of the last gap that is large enough, aligned.
fn last_gap(usable: Range<u64>, mut taken: Vec<Range<u64>>, len: u64) -> Option<Range<u64>> {
    taken.sort_by_key(|range| range.end);
    let mut end = usable.end;
    let first = usable.start.max(ALIGNMENT);
    for range in taken.iter().rev().chain([&(0..first)]) {
        let aligned = end - end % ALIGNMENT;
        let start = aligned.saturating_sub(len);
        if start >= range.end.max(first) {
            return Some(start..aligned);
        }
        end = end.min(range.start);
    }
    None
}

fn unused_number(entries: &Entries, header: &Header) -> Option<u32> {
    (1..=header.num_parts).find(|number| entries.get(number).is_none_or(|entry| !entry.is_used()))
}

fn failed(disk: &OpenDisk, reason: String) -> Error {
    Error::Partitions(PartitionError::Table { operation: "adding to", disk: disk.path().to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_gap_that_is_large_enough_is_taken_at_its_end() {
        let check = |taken: &[(u64, u64)], expect: Option<(u64, u64)>| {
            let mib = |(start, end): (u64, u64)| start << 20..end << 20;
            let found = last_gap(17408..(100 << 20) - 16896, taken.iter().copied().map(mib).collect(), 4 << 20);
            assert_eq!(found, expect.map(mib), "{taken:?}");
        };
        check(&[], Some((95, 99)));
        check(&[(1, 50)], Some((95, 99)));
        check(&[(1, 95)], Some((95, 99)));
        check(&[(1, 96)], None);
        check(&[(5, 96)], Some((1, 5)));
        check(&[(4, 96)], None);
        check(&[(50, 97), (1, 40)], Some((46, 50)));
        check(&[(1, 99)], None);
        // Overlapping partitions, which a damaged table may have.
        check(&[(1, 96), (20, 30), (10, 90)], None);
    }
}
