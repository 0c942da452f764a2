//! Makes a new GPT in memory. The GPT is only written when all of it is right.

use std::io::Cursor;
use std::ops::Range;

use gpt::disk::LogicalBlockSize;
use gpt::header::{Header, HeaderBuilder, HeaderError};
use gpt::mbr::ProtectiveMBR;
use gpt::partition_types::{OperatingSystem, Type};

use super::{Device, ENTRIES_LBA, ENTRY_SIZE, HEADER_LBA, MIN_ENTRIES};
use crate::disk::open::OpenDisk;
use crate::error::{Error, PartitionError};

/// Alignment of the start and end of partitions, in bytes.
pub(super) const ALIGNMENT: u64 = 1 << 20;

/// A partition that is planned for a table.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) bytes: Range<u64>,
    pub(crate) type_guid: String,
    pub(crate) guid: String,
    pub(crate) name: String,
}

impl Planned {
    /// The table entry on a disk with this block size in bytes.
    pub(super) fn entry(&self, block: u64, path: &str) -> Result<gpt::partition::Partition, Error> {
        let guid_error = |text: &str| failed(path, format!("{text:?} is not a GUID"));
        let guid = self.type_guid.parse().map_err(|_| guid_error(&self.type_guid))?;
        Ok(gpt::partition::Partition {
            part_type_guid: Type { guid, os: OperatingSystem::None },
            part_guid: self.guid.parse().map_err(|_| guid_error(&self.guid))?,
            first_lba: self.bytes.start / block,
            last_lba: self.bytes.end / block - 1,
            flags: 0,
            name: self.name.clone(),
        })
    }
}

/// A table to be written.
#[derive(Debug)]
pub(crate) struct Table {
    block_size: LogicalBlockSize,
    primary: Header,
    backup: Header,
    /// The first blocks of the disk: protective MBR, header, entries.
    head: Vec<u8>,
    added: u64,
    path: String,
}

impl Table {
    /// An empty table for a disk. Fails if the disk is too small for it.
    pub(crate) fn new(disk: &OpenDisk) -> Result<Self, Error> {
        let path = disk.path().to_owned();
        let block = u64::from(disk.logical_block());
        let block_size = LogicalBlockSize::try_from(block).map_err(|error| failed(&path, error.to_string()))?;
        let last = (disk.size() / block).saturating_sub(1);
        if disk.size() < 4 * ALIGNMENT {
            let reason = format!("the disk has {} bytes, but a partition table needs 4 MiB", disk.size());
            return Err(failed(&path, reason));
        }
        let mut builder = HeaderBuilder::new();
        let mut build = |primary| builder.backup_lba(last).primary(primary).build(block_size);
        let (primary, backup) =
            build(true).and_then(|primary| Ok((primary, build(false)?))).map_err(of_header(&path))?;
        // The field has 32 bits. For a larger disk it has its maximum (UEFI specification, table 5-4).
        let mut head = ProtectiveMBR::with_lb_size(u32::try_from(last).unwrap_or(u32::MAX)).to_bytes().to_vec();
        head.resize((ENTRIES_LBA * block) as usize + (MIN_ENTRIES * ENTRY_SIZE) as usize, 0);
        Ok(Self { block_size, primary, backup, head, added: 0, path })
    }

    /// The bytes that partitions may use.
    pub(crate) fn usable(&self) -> Range<u64> {
        let end = (self.primary.last_usable + 1) * self.block_size.as_u64();
        ALIGNMENT..end - end % ALIGNMENT
    }

    /// Adds a partition, which must be aligned and must not overlap another.
    pub(crate) fn add(&mut self, planned: &Planned) -> Result<(), Error> {
        let entry = planned.entry(self.block_size.as_u64(), &self.path)?;
        let head = &mut Cursor::new(self.head.as_mut_slice());
        entry
            .write_to_device(head, self.added, ENTRIES_LBA, self.block_size, ENTRY_SIZE)
            .map_err(|error| failed(&self.path, error.to_string()))?;
        self.added += 1;
        Ok(())
    }

    /// Writes the table to a disk that has none: first the entries, then the headers, then the MBR, by which firmware
    /// and kernels recognise a GPT. The disk is flushed in between, so that a table that is found is complete.
    pub(crate) fn write(&mut self, disk: &OpenDisk) -> Result<(), Error> {
        let block = self.block_size.as_usize();
        let (header_at, entries_at) = (HEADER_LBA as usize * block, ENTRIES_LBA as usize * block);
        let head = &mut Cursor::new(self.head.as_mut_slice());
        self.primary.write_primary(head, self.block_size).map_err(of_header(&self.path))?;
        let (before, entries) = self.head.split_at(entries_at);
        let (mbr, header) = before.split_at(header_at);
        disk.write_at(entries, entries_at as u64)?;
        disk.write_at(entries, self.backup.part_start * block as u64)?;
        disk.flush()?;
        let mut device = Device { disk, start: 0, at: 0 };
        self.backup.write_backup(&mut device, self.block_size).map_err(of_header(&self.path))?;
        disk.write_at(header, header_at as u64)?;
        disk.flush()?;
        disk.write_at(mbr, 0)?;
        disk.flush()
    }
}

fn of_header(path: &str) -> impl Fn(HeaderError) -> Error {
    let path = path.to_owned();
    move |error| failed(&path, error.to_string())
}

fn failed(disk: &str, reason: String) -> Error {
    Error::Partitions(PartitionError::Table { operation: "making", disk: disk.to_owned(), reason })
}
