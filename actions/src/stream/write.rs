//! Last stage: writes the raw blocks. Both ends of the disk, by which firmware and kernels recognise it, are held back
//! until everything else is written and checked.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, PoisonError};

use slipway_formats::bmap::Bmap;
use slipway_formats::image::check_raw;
use slipway_formats::partition_table::Table;
use slipway_protocol::Verify;

use super::halt::Halt;
use super::pipeline::{RAW, Sink};
use super::progress::Counters;
use super::read_back::{Piece, ReadBack};
use crate::disk::grow::Growth;
use crate::disk::open::OpenDisk;
use crate::disk::partitions::{self, Content, Partition};
use crate::disk::relocate::{self, Backup, Relocation};
use crate::disk::{Buffer, is_zero};
use crate::error::{Error, ImageError};

/// Bytes held back at either end of the disk. The head has the protective MBR, the GPT and embedded boot loaders, or
/// the superblock of an image without partitions. The tail has the backup GPT (UEFI specification, 5.3).
const HELD_BACK: u64 = 1 << 20;
/// Size in bytes of the units that are checked for zeros. Shorter runs are not worth their own command.
const ZERO_UNIT: usize = 64 << 10;

/// A disk being written.
pub(crate) struct Target<'a> {
    pub(super) disk: &'a OpenDisk,
    /// The block map of the image. If none, all of the image is written.
    map: Option<&'a Bmap>,
    /// The architecture that the image must be for, if the image indicates one. None accepts any.
    architecture: Option<&'static str>,
    head_end: u64,
    tail_start: u64,
    start: Mutex<Start>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Start {
    /// Whether the old partition table was erased.
    is_begun: bool,
    /// Blocks that arrived before the first one of the image.
    waiting: Vec<Buffer>,
}

struct Held {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl<'a> Target<'a> {
    /// Prepares a disk for an image. If there is a map, only the blocks with data are written.
    pub(crate) fn new(disk: &'a OpenDisk, map: Option<&'a Bmap>) -> Self {
        let head_end = HELD_BACK.min(disk.size());
        let tail_start = disk.size().saturating_sub(HELD_BACK).max(head_end);
        // At the ends of the disk, blocks outside of the map become zeros, so that no old signature remains.
        let zeros = |range: Range<u64>| {
            let end = map.map_or(0, |map| map.image_size.min(range.end));
            vec![0; end.saturating_sub(range.start) as usize]
        };
        let held = Held { head: zeros(0..head_end), tail: zeros(tail_start..disk.size()) };
        Self { disk, map, architecture: None, head_end, tail_start, start: Mutex::default(), held: Mutex::new(held) }
    }

    /// Refuses an image that is for another architecture than this program, as the machine would not start it.
    pub(super) fn for_this_machine(self) -> Self {
        Self { architecture: Some(std::env::consts::ARCH), ..self }
    }

    /// Writes blocks until there are no more. Each writing thread runs it.
    pub(super) fn run(&self, sink: &Sink, read_back: Option<&ReadBack>, counters: &Counters) -> Result<(), Halt> {
        let mut is_end = false;
        while !is_end {
            let blocks;
            (blocks, is_end) = self.next(sink)?;
            for block in blocks {
                self.write_block(&block, read_back)?;
                counters.written.fetch_add(block.filled().len() as u64, Relaxed);
                sink.pool.recycle(block);
            }
        }
        read_back.into_iter().for_each(ReadBack::close);
        Ok(())
    }

    /// Returns the blocks to write next, and whether they are the last ones.
    fn next(&self, sink: &Sink) -> Result<(Vec<Buffer>, bool), Halt> {
        let mut start = lock(&self.start);
        if start.is_begun {
            drop(start);
            let block = sink.queue.recv(sink.meter)?;
            let is_end = block.is_none();
            return Ok((block.into_iter().collect(), is_end));
        }
        // With the lock held, no other thread has a block that is missing in `start`.
        let block = sink.queue.recv(sink.meter)?;
        let is_end = block.is_none();
        Ok((self.begin(&mut start, block, sink.notes)?, is_end))
    }

    /// Takes a block, or none at the end, and returns the blocks to write now. Before the first byte is written, the
    /// old partition table and signatures are erased. Before that, the first block must have arrived, and must belong
    /// to an image made for such a disk. In a qcow2 file, other blocks may come first: they wait while there is a
    /// buffer left for the first block. Without such a buffer, the image is refused, because nothing is erased unseen.
    fn begin(&self, start: &mut Start, block: Option<Buffer>, notes: &Sender<String>) -> Result<Vec<Buffer>, Error> {
        let is_end = block.is_none();
        start.waiting.extend(block);
        if !start.waiting.is_empty() {
            match start.waiting.iter().find(|block| block.offset() == 0) {
                Some(first) => {
                    check_raw(first.filled()).map_err(|format| ImageError::NotRaw { format })?;
                    let size = self.map.map(|map| map.image_size);
                    let table = partitions::of_first(first.filled(), size, self.architecture, self.disk)?;
                    if let Some(lack) = table.lacks_partitions() {
                        // Nobody listens once the step has failed.
                        _ = notes.send(format!("warning: the image {lack}"));
                    }
                }
                None if !is_end && start.waiting.len() < RAW => return Ok(Vec::new()),
                None => return Err(ImageError::FirstBlockLate.into()),
            }
            start.is_begun = true;
            partitions::wipe_partition_tables(self.disk)?;
            self.blank()?;
        }
        Ok(std::mem::take(&mut start.waiting))
    }

    #[allow(clippy::indexing_slicing, reason = "a map names parts of the bytes that it is asked for")]
    fn write_block(&self, block: &Buffer, read_back: Option<&ReadBack>) -> Result<(), Halt> {
        let bytes = block.offset()..block.offset() + block.filled().len() as u64;
        let whole = self.map.is_none().then_some(bytes.clone());
        let mapped = self.map.into_iter().flat_map(|map| map.mapped(bytes.clone()));
        for part in whole.into_iter().chain(mapped) {
            let within = (part.start - bytes.start) as usize..(part.end - bytes.start) as usize;
            self.write(&block.filled()[within], part.start, read_back)?;
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8], offset: u64, read_back: Option<&ReadBack>) -> Result<(), Halt> {
        let end = offset + bytes.len() as u64;
        let cut = |at: u64| (at.clamp(offset, end) - offset) as usize;
        let (head, rest) = bytes.split_at(cut(self.head_end));
        let (middle, tail) = rest.split_at(cut(self.tail_start) - head.len());
        if !(head.is_empty() && tail.is_empty()) {
            let mut held = lock(&self.held);
            place(&mut held.head, offset, head);
            place(&mut held.tail, end - tail.len() as u64 - self.tail_start.min(end), tail);
        }
        let mut at = offset + head.len() as u64;
        for (run, is_zero) in runs(middle, at) {
            // Computed before the bytes are written, so that memory damaged in the meantime is detected.
            let piece = read_back.map(|read_back| (read_back, Piece::of(run, at, is_zero)));
            match is_zero {
                true => self.disk.zero(at..at + run.len() as u64)?,
                false => self.disk.write_at(run, at)?,
            }
            piece.map_or(Ok(()), |(read_back, piece)| read_back.note(piece))?;
            at += run.len() as u64;
        }
        Ok(())
    }

    /// Writes the parts that were held back. If it is interrupted at any point, the disk has either no partition table,
    /// or a complete one and everything that it refers to. A disk may tear a write at any block and reorder writes
    /// between two flushes. So the head and the tail are written after everything else. Once they are on the disk, the
    /// two headers of a GPT follow, and last the MBR, which firmware and kernels read first. The table is adapted to
    /// the disk in memory, and errors in it are found before any header is written. With `grow` its last partition is
    /// extended. `raw_size` is the size of the image in bytes. Also returns what an operator should know about the
    /// table.
    pub(crate) fn commit(&self, raw_size: u64, grow: bool, verify: Verify) -> Result<(Relocation, Vec<String>), Error> {
        let check = |bytes: &[u8], offset: u64| match verify {
            Verify::Readback => self.disk.verify_at(bytes, offset),
            Verify::None => Ok(()),
        };
        let mut held = lock(&self.held);
        let Held { head, tail } = &mut *held;
        let table = self.judge(head, tail, raw_size)?;
        let partitions = partitions::of_table(&table);
        self.edges(&partitions, |edge| self.disk.zero(edge))?;
        let block = u64::from(self.disk.logical_block());
        let header_end = (2 * block as usize).min(head.len());
        let header_start = (block as usize).min(head.len());
        let backup_header = self.disk.size().saturating_sub(block).max(self.tail_start);
        let (tail, last) = tail.split_at(((backup_header - self.tail_start) as usize).min(tail.len()));
        self.disk.flush()?;
        self.disk.write_at(tail, self.tail_start)?;
        if verify == Verify::Readback {
            self.verify_ends(&partitions, head, tail)?;
        }
        let (relocation, backup) = relocate::fit(&table, head, self.disk, grow)?;
        let mut emptied = Vec::new();
        if let Growth::Grown(grown) = &relocation.growth {
            self.disk.zero(grown.stale())?;
            emptied.push(grown.stale());
        }
        if let Some(backup) = &backup {
            emptied.extend(backup.stale(self.disk)?);
            backup.write_entries(self.disk)?;
        }
        let (before, entries) = head.split_at(header_end);
        let (mbr, header) = before.split_at(header_start);
        self.disk.write_at(entries, header_end as u64)?;
        self.disk.flush()?;
        check(entries, header_end as u64)?;
        if verify == Verify::Readback {
            emptied.into_iter().try_for_each(|range| self.verify_zero(range))?;
        }
        let (entries, entries_at) = backup.as_ref().map_or((&[][..], 0), Backup::entries);
        check(entries, entries_at)?;
        let (last, last_at) = backup.as_ref().map_or((last, backup_header), Backup::header);
        self.disk.write_at(last, last_at)?;
        self.disk.write_at(header, header_start as u64)?;
        self.disk.flush()?;
        check(last, last_at)?;
        check(header, header_start as u64)?;
        self.disk.write_at(mbr, 0)?;
        self.disk.flush()?;
        check(mbr, 0)?;
        Ok((relocation, self.remarks(&table, raw_size)))
    }

    /// Judges the table of the image, of which all but the ends is on the disk.
    fn judge(&self, head: &[u8], tail: &[u8], raw_size: u64) -> Result<Table, Error> {
        partitions::of_image(&Content { head, tail: (tail, self.tail_start), map: self.map, size: raw_size }, self.disk)
    }

    /// Returns what an operator should know about the table of an image of this size in bytes.
    fn remarks(&self, table: &Table, raw_size: u64) -> Vec<String> {
        let of_table = table.remarks.iter().map(|remark| format!("the partition table of the image: {remark}"));
        let beyond = table.beyond(raw_size).map(|partition| {
            let name = partition.describe();
            format!("{name} of {} ends after the end of the image, which may be truncated", self.disk.path())
        });
        of_table.chain(beyond).collect()
    }

    /// Reads back the ends of the disk before a moved table covers a part of them: the tail, and zeros around it,
    /// after the head and at the edges of partitions.
    fn verify_ends(&self, partitions: &[Partition], head: &[u8], tail: &[u8]) -> Result<(), Error> {
        self.disk.flush()?;
        self.edges(partitions, |edge| self.verify_zero(edge))?;
        self.disk.verify_at(tail, self.tail_start)?;
        self.verify_zero(self.tail_start + tail.len() as u64..self.disk.size())?;
        self.verify_zero(head.len() as u64..self.head_end)
    }

    /// Reads back zeros. The range is at most as long as the part held back at either end.
    fn verify_zero(&self, range: Range<u64>) -> Result<(), Error> {
        self.disk.verify_at(&vec![0; (range.end - range.start) as usize], range.start)
    }

    /// Passes to `each` the ranges outside of the map at either end of each partition, which have to be zeroed. An
    /// earlier system may have left a signature of a file system or an array there.
    fn edges(
        &self,
        partitions: &[Partition],
        mut each: impl FnMut(Range<u64>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some(map) = self.map else { return Ok(()) };
        let within = |at: u64| at.clamp(self.head_end, self.tail_start);
        for Range { start, end } in partitions.iter().map(|partition| partition.bytes.clone()) {
            let (head_end, tail_start) = (start.saturating_add(HELD_BACK), end.saturating_sub(HELD_BACK));
            for edge in [start..head_end.min(end), tail_start.max(start)..end] {
                map.unmapped(within(edge.start)..within(edge.end)).try_for_each(&mut each)?;
            }
        }
        Ok(())
    }

    /// Makes sure that a disk that was only written in part is not recognised as anything. True if there was anything
    /// to do.
    pub(crate) fn wipe_partial_write(&self) -> Result<bool, Error> {
        let is_begun = lock(&self.start).is_begun;
        if is_begun {
            // A disk that fails one request may still accept the others.
            let wiped = partitions::wipe_partition_tables(self.disk);
            self.blank().and(wiped)?;
        }
        Ok(is_begun)
    }

    fn blank(&self) -> Result<(), Error> {
        self.disk.zero(0..self.head_end)?;
        self.disk.zero(self.tail_start..self.disk.size())?;
        self.disk.flush()
    }
}

/// Splits bytes at an offset into runs of zeros, in aligned units, and runs of other data.
fn runs(mut bytes: &[u8], mut offset: u64) -> impl Iterator<Item = (&[u8], bool)> {
    std::iter::from_fn(move || {
        let mut len = 0;
        let mut kind = None;
        while let Some(rest) = bytes.get(len..).filter(|rest| !rest.is_empty()) {
            let unit = ZERO_UNIT - ((offset + len as u64) % ZERO_UNIT as u64) as usize;
            let unit = rest.get(..unit).unwrap_or(rest);
            let is_zero = unit.len() == ZERO_UNIT && is_zero(unit);
            if *kind.get_or_insert(is_zero) != is_zero {
                break;
            }
            len += unit.len();
        }
        let (run, rest) = bytes.split_at(len);
        (bytes, offset) = (rest, offset + len as u64);
        kind.map(|is_zero| (run, is_zero))
    })
}

/// Copies bytes into the buffer of a part of the disk that is written last. Blocks may arrive in any order.
#[allow(clippy::indexing_slicing, reason = "the buffer was just made as long as needed")]
fn place(held: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let end = offset as usize + bytes.len();
    if held.len() < end {
        held.resize(end, 0);
    }
    held[offset as usize..end].copy_from_slice(bytes);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_found_in_whole_aligned_units() {
        let unit = ZERO_UNIT;
        let check = |offset: usize, len: usize, ones: &[usize], expect: &[(usize, bool)]| {
            let mut bytes = vec![0; len];
            for at in ones {
                bytes[*at] = 1;
            }
            let found: Vec<(usize, bool)> = runs(&bytes, offset as u64).map(|(run, zero)| (run.len(), zero)).collect();
            assert_eq!(found, expect, "{len} bytes at {offset}, ones at {ones:?}");
        };
        check(0, 0, &[], &[]);
        check(0, 4 * unit, &[], &[(4 * unit, true)]);
        check(0, 4 * unit, &[0], &[(unit, false), (3 * unit, true)]);
        check(0, 4 * unit, &[2 * unit - 1, 2 * unit], &[(unit, true), (2 * unit, false), (unit, true)]);
        check(5 * unit + 512, 2 * unit, &[], &[(unit - 512, false), (unit, true), (512, false)]);
        check(0, unit - 1, &[], &[(unit - 1, false)]);
    }
}
