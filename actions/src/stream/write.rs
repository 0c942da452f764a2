//! Last stage: writes the raw blocks. The ends of the disk, by which firmware and kernels know it, are held back until
//! everything else is written and checked.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Halt;
use super::buffers::Queue;
use super::progress::{Counters, Meter};
use crate::error::Error;
use crate::open_disk::OpenDisk;
use crate::partitions::{self, Moved};

/// Held back at either end of the disk. At the head: protective MBR, GPT, and what boot loaders embed before the first
/// partition, or the superblock of an image without partitions. At the tail: the backup GPT (UEFI specification, 5.3).
const HELD_BACK: u64 = 1 << 20;
/// The very first bytes are written after all others: they hold the MBR and the primary GPT header, each a block of at most
/// 4096 bytes.
const LAST_PIECE: usize = 8192;

/// A disk being written.
pub(crate) struct Target<'a> {
    disk: &'a OpenDisk,
    head_end: u64,
    tail_start: u64,
    /// Whether the old partition table was taken away.
    begun: Mutex<bool>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl<'a> Target<'a> {
    pub(crate) fn new(disk: &'a OpenDisk) -> Self {
        let head_end = HELD_BACK.min(disk.size());
        let tail_start = disk.size().saturating_sub(HELD_BACK).max(head_end);
        Self { disk, head_end, tail_start, begun: Mutex::new(false), held: Mutex::default() }
    }

    /// Writes blocks until there are no more. Run by each of the writing threads.
    pub(super) fn run(&self, input: &Queue, pool: &Queue, counters: &Counters, meter: &Meter) -> Result<(), Halt> {
        while let Some(block) = input.recv(meter)? {
            self.begin()?;
            self.write(block.filled(), block.offset)?;
            counters.written.fetch_add(block.filled().len() as u64, Relaxed);
            pool.recycle(block);
        }
        Ok(())
    }

    /// Before the first byte is written, takes away what the disk was known by.
    fn begin(&self) -> Result<(), Error> {
        let mut begun = lock(&self.begun);
        if !*begun {
            *begun = true;
            self.blank()?;
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        let end = offset + bytes.len() as u64;
        let cut = |at: u64| (at.clamp(offset, end) - offset) as usize;
        let (head, rest) = bytes.split_at(cut(self.head_end));
        let (middle, tail) = rest.split_at(cut(self.tail_start) - head.len());
        if !(head.is_empty() && tail.is_empty()) {
            let mut held = lock(&self.held);
            place(&mut held.head, offset, head);
            place(&mut held.tail, end - tail.len() as u64 - self.tail_start.min(end), tail);
        }
        self.disk.write_at(middle, offset + head.len() as u64)
    }

    /// Writes what was held back, in an order that makes a cut at any point leave either no partition table or all of it.
    /// Everything that can be wrong with the table is found before its first bytes are written.
    pub(crate) fn commit(&self) -> Result<Moved, Error> {
        let mut held = lock(&self.held);
        self.disk.write_at(&held.tail, self.tail_start)?;
        let moved = partitions::move_backup(&mut held.head, self.disk)?;
        let (first, rest) = held.head.split_at(LAST_PIECE.min(held.head.len()));
        self.disk.write_at(rest, first.len() as u64)?;
        self.disk.flush()?;
        self.disk.write_at(first, 0)?;
        self.disk.flush()?;
        Ok(moved)
    }

    /// Makes sure a disk that was written to, and not to the end, is known by nothing. True if there was anything to do.
    pub(crate) fn abandon(&self) -> Result<bool, Error> {
        let begun = *lock(&self.begun);
        if begun {
            self.blank()?;
        }
        Ok(begun)
    }

    fn blank(&self) -> Result<(), Error> {
        self.disk.zero(0..self.head_end)?;
        self.disk.zero(self.tail_start..self.disk.size())?;
        self.disk.flush()
    }
}

/// Copies bytes to an offset of a piece held back; blocks may arrive in any order.
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
