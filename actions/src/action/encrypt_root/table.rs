//! The partition table. It is removed from the disk while the root partition is only partly encrypted.

use std::ops::Range;

use crate::disk::grow::{Grown, Growth};
use crate::disk::open::OpenDisk;
use crate::disk::partitions::{self, Partition};
use crate::disk::relocate::{Backup, relocate_backup_gpt};
use crate::error::Error;

/// A partition table is within this many bytes from the start of the disk.
const HEAD: u64 = 1 << 20;

/// State of the partition table on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Unchanged, as far as is known.
    Untouched,
    /// Removed: no partitions can be found.
    Gone,
    /// Being restored, or restored.
    Back,
}

/// A partition table in memory.
#[derive(Debug)]
pub(super) struct Table {
    /// State of the table on the disk.
    pub(super) state: State,
    /// Why the root partition was not grown although it should have been.
    pub(super) left: Option<String>,
    block: u64,
    /// The start of the disk up to the first partition.
    head: Vec<u8>,
    /// Byte offset and content of the last block of the disk, unless a partition includes it.
    last: Option<(u64, Vec<u8>)>,
    /// The backup of a changed GPT.
    backup: Option<Backup>,
    grown: Option<Grown>,
}

impl Table {
    /// Reads the table of a disk whose partition `root` is to be encrypted. Returns the partition as it will be: with
    /// `grow`, the last partition is extended to the end of the disk.
    pub(super) fn read(disk: &OpenDisk, root: &Partition, grow: bool) -> Result<(Self, Partition), Error> {
        let partitions = partitions::read(disk)?;
        let block = u64::from(disk.logical_block());
        let first = partitions.iter().map(|partition| partition.bytes.start).min().unwrap_or_default();
        let end = partitions.iter().map(|partition| partition.bytes.end).max().unwrap_or_default();
        let read = |range: Range<u64>| {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            disk.read_at(&mut bytes, range.start).map(|()| bytes)
        };
        let mut head = read(0..first.min(HEAD))?;
        let start = (disk.size() / block).saturating_sub(1) * block;
        let last = if end <= start { Some((start, read(start..start + block)?)) } else { None };
        let (relocation, backup) = relocate_backup_gpt(&mut head, disk, grow && root.bytes.end == end)?;
        let (grown, left) = match relocation.growth {
            Growth::Grown(grown) => (Some(grown), None),
            Growth::Left { partition, reason } => (None, Some(format!("{partition} was not grown: {reason}"))),
            Growth::NotNeeded => (None, None),
        };
        let root = grown.as_ref().map_or(root, |grown| &grown.partition).clone();
        Ok((Self { state: State::Untouched, left, block, head, last, backup, grown }, root))
    }

    /// Removes from the disk what firmware and kernels find partitions by: first the first block, then the rest.
    pub(super) fn take_away(&mut self, disk: &OpenDisk) -> Result<(), Error> {
        disk.zero(0..self.block)?;
        disk.flush()?;
        self.state = State::Gone;
        if let Some(header) = self.header() {
            disk.zero(header)?;
        }
        if let Some((start, _)) = &self.last {
            disk.zero(*start..*start + self.block)?;
        }
        if let Some(grown) = &self.grown {
            disk.zero(grown.stale())?;
        }
        disk.flush()
    }

    /// Restores the table in the opposite order, flushing after each part, so that an interruption leaves no table.
    pub(super) fn put_back(&mut self, disk: &OpenDisk) -> Result<(), Error> {
        if let Some(backup) = &self.backup {
            backup.write_entries(disk)?;
        }
        let (first, rest) = self.head.split_at((self.block as usize).min(self.head.len()));
        let (header, entries) = rest.split_at((self.block as usize).min(rest.len()));
        disk.write_at(entries, 2 * self.block)?;
        disk.flush()?;
        match (&mut self.backup, &self.last) {
            (Some(backup), _) => backup.write_header(disk)?,
            (None, Some((start, last))) => disk.write_at(last, *start)?,
            (None, None) => {}
        }
        disk.write_at(header, self.block)?;
        disk.flush()?;
        self.state = State::Back;
        disk.write_at(first, 0)?;
        disk.flush()?;
        disk.verify_at(&self.head, 0)
    }

    /// Returns the byte range of the second block, which holds the header of a GPT, unless a partition includes it.
    fn header(&self) -> Option<Range<u64>> {
        let header = self.block..2 * self.block;
        (self.head.len() as u64 >= header.end).then_some(header)
    }
}
