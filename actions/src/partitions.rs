//! Partitions of a disk: GPT (UEFI specification, 5.3), or MBR (5.2.1).

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;

use gpt::disk::LogicalBlockSize;
use gpt::header::HeaderBuilder;
use gpt::mbr::ProtectiveMBR;
use gpt::{GptConfig, GptError};

use crate::error::Error;
use crate::open_disk::OpenDisk;

/// A partition, or a whole disk that has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Partition {
    /// Number in the table, from 1; 0 for a whole disk.
    pub(crate) number: u32,
    /// Bytes it covers.
    pub(crate) bytes: Range<u64>,
    /// Type GUID, lower case; none in an MBR.
    pub(crate) type_guid: Option<String>,
    /// GUID of its own, lower case; none in an MBR.
    pub(crate) guid: Option<String>,
    /// Name in the table.
    pub(crate) name: String,
}

impl Partition {
    /// The partition in words.
    pub(crate) fn describe(&self, disk: &OpenDisk) -> String {
        let name = if self.name.is_empty() { String::new() } else { format!(" ({})", self.name) };
        match self.number {
            0 => disk.path().to_owned(),
            number => format!("partition {number}{name} of {}", disk.path()),
        }
    }
}

/// Extended partitions hold others; the chain inside is not followed.
const MBR_EXTENDED: [u8; 3] = [0x05, 0x0F, 0x85];
/// A protective entry covers a GPT.
const MBR_PROTECTIVE: u8 = 0xEE;
/// The gpt crate writes tables of no fewer entries, which would not fit where a table of fewer is.
const MIN_ENTRIES: u32 = 128;

/// The partitions in the order of their numbers; one that is the whole disk where there is no table.
pub(crate) fn read(disk: &OpenDisk) -> Result<Vec<Partition>, Error> {
    let block_size = block_size(disk)?;
    let block = u64::from(disk.logical_block());
    match GptConfig::new().logical_block_size(block_size).open_from_device(Device::of(disk)) {
        Ok(table) => Ok(table
            .partitions()
            .iter()
            .filter(|(_, entry)| entry.is_used() && entry.last_lba >= entry.first_lba)
            .map(|(number, entry)| Partition {
                number: *number,
                bytes: entry.first_lba.saturating_mul(block)..entry.last_lba.saturating_add(1).saturating_mul(block),
                type_guid: Some(entry.part_type_guid.guid.to_string().to_ascii_lowercase()),
                guid: Some(entry.part_guid.to_string().to_ascii_lowercase()),
                name: entry.name.clone(),
            })
            .filter(|partition| partition.bytes.end <= disk.size())
            .collect()),
        Err(GptError::Io(source)) if source.kind() != io::ErrorKind::UnexpectedEof => {
            Err(Error::ReadDisk { disk: disk.path().to_owned(), offset: 0, source })
        }
        Err(_) => Ok(without_gpt(disk, block_size)),
    }
}

fn without_gpt(disk: &OpenDisk, block_size: LogicalBlockSize) -> Vec<Partition> {
    let mbr = ProtectiveMBR::from_disk(&mut Device::of(disk), block_size);
    let records =
        mbr.ok().into_iter().flat_map(|mbr| (0..4).filter_map(move |n| Some((n as u32 + 1, mbr.partition(n)?))));
    let block = u64::from(disk.logical_block());
    let partitions: Vec<Partition> = records
        .filter(|(_, record)| record.os_type != 0 && record.os_type != MBR_PROTECTIVE)
        .filter(|(_, record)| !MBR_EXTENDED.contains(&record.os_type))
        .map(|(number, record)| {
            let start = u64::from(record.lb_start) * block;
            let bytes = start..start + u64::from(record.lb_size) * block;
            Partition { number, bytes, type_guid: None, guid: None, name: String::new() }
        })
        .filter(|partition| partition.bytes.start > 0 && partition.bytes.end <= disk.size())
        .collect();
    // The boot sector of a FAT file system on a whole disk looks like an MBR without entries.
    match partitions.is_empty() {
        true => vec![Partition { number: 0, bytes: 0..disk.size(), type_guid: None, guid: None, name: String::new() }],
        false => partitions,
    }
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

/// Moves the backup GPT of an image to the end of the larger disk it was written to, where firmware looks for it. At
/// every moment one of the two tables is whole.
pub(crate) fn move_backup(disk: &OpenDisk) -> Result<Moved, Error> {
    let block_size = block_size(disk)?;
    let block = u64::from(disk.logical_block());
    let failed = |source| Error::PartitionTable { disk: disk.path().to_owned(), source };
    let Ok(table) = GptConfig::new().logical_block_size(block_size).open_from_device(Device::of(disk)) else {
        return Ok(Moved::NotNeeded);
    };
    let Ok(primary) = table.primary_header().cloned() else { return Ok(Moved::NotNeeded) };
    let last = disk.size() / block - 1;
    if primary.backup_lba >= last {
        return Ok(Moved::NotNeeded);
    }
    let entries_len = u64::from(primary.num_parts) * u64::from(primary.part_size);
    if primary.num_parts < MIN_ENTRIES || entries_len > crate::stream::write::HELD_BACK {
        return Ok(Moved::NotPossible);
    }
    let old_backup = primary.backup_lba;
    let build = |primary_wanted: bool| {
        let built = HeaderBuilder::from_header(&primary).backup_lba(last).primary(primary_wanted).build(block_size);
        built.map_err(|error| failed(error.into()))
    };
    let (mut new_primary, mut new_backup) = (build(true)?, build(false)?);
    let mut entries = vec![0; entries_len as usize];
    disk.read_at(&mut entries, primary.part_start * block)?;
    disk.write_at(&entries, new_backup.part_start * block)?;
    new_backup.write_backup(&mut Device::of(disk), block_size).map_err(|error| failed(error.into()))?;
    disk.flush()?;
    new_primary.write_primary(&mut Device::of(disk), block_size).map_err(|error| failed(error.into()))?;
    disk.flush()?;
    disk.zero(old_backup * block..(old_backup + 1) * block)?;
    disk.flush()?;
    Ok(Moved::Yes)
}

fn block_size(disk: &OpenDisk) -> Result<LogicalBlockSize, Error> {
    let failed = |source| Error::PartitionTable { disk: disk.path().to_owned(), source: GptError::Io(source) };
    LogicalBlockSize::try_from(u64::from(disk.logical_block())).map_err(failed)
}

/// An open disk with a position, as the gpt crate wants it. Writes go through the disk's own, bounds and all.
#[derive(Debug)]
struct Device<'a> {
    disk: &'a OpenDisk,
    at: u64,
}

impl<'a> Device<'a> {
    fn of(disk: &'a OpenDisk) -> Self {
        Self { disk, at: 0 }
    }
}

impl Read for Device<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = std::os::unix::fs::FileExt::read_at(self.disk.file(), buffer, self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}

impl Write for Device<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.disk.write_at(bytes, self.at).map_err(io::Error::other)?;
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
            SeekFrom::End(by) => self.disk.size().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
