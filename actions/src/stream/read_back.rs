//! Reads what was written again, past the page cache, while the rest is still being written.
//!
//! A disk answers from its own memory what it was given a moment ago, so a piece is read only when a good deal was written after
//! it, or after a flush: at the end, and where pieces are so small that there are too many of them before.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use twox_hash::XxHash3_64;

use super::buffers::wait_until;
use super::halt::Halt;
use crate::disk::open::OpenDisk;
use crate::disk::{Buffer, is_zero};
use crate::error::Error;
use crate::machine::Cancel;

/// Bytes written after a piece before it is read.
const LAG: u64 = 64 << 20;
/// Pieces remembered; the writers wait when there are more to be read.
const MAX_PIECES: usize = 1 << 16;

/// Pieces that were written and not read yet.
pub(super) struct ReadBack<'a> {
    disk: &'a OpenDisk,
    state: Mutex<State>,
    changed: Condvar,
    stop: Cancel,
}

#[derive(Default)]
struct State {
    pieces: VecDeque<Piece>,
    /// Bytes written so far.
    written: u64,
    /// How many threads may still write.
    writers: u64,
}

/// A piece of the disk, not larger than a buffer, and what it must hold.
pub(super) struct Piece {
    offset: u64,
    len: usize,
    /// Of its bytes; none for zeros.
    hash: Option<u64>,
    /// Bytes written until then.
    until: u64,
}

impl Piece {
    /// Of bytes that are to be written at an offset.
    pub(super) fn of(bytes: &[u8], offset: u64, is_zero: bool) -> Self {
        let hash = (!is_zero).then(|| XxHash3_64::oneshot(bytes));
        Self { offset, len: bytes.len(), hash, until: 0 }
    }

    /// Whether the disk has to look for it, when so many bytes are written, and so many were at the last flush.
    fn can_be_read(&self, written: u64, flushed: u64) -> bool {
        self.until <= flushed || self.until + LAG <= written
    }
}

impl<'a> ReadBack<'a> {
    /// Nothing yet, from so many threads.
    pub(super) fn new(disk: &'a OpenDisk, writers: u64, stop: &Cancel) -> Self {
        let state = Mutex::new(State { writers, ..State::default() });
        Self { disk, state, changed: Condvar::new(), stop: stop.clone() }
    }

    /// Notes a piece that was written.
    pub(super) fn note(&self, piece: Piece) -> Result<(), Halt> {
        let mut state = self.wait(|state| state.pieces.len() < MAX_PIECES)?;
        state.written += piece.len as u64;
        let until = state.written;
        state.pieces.push_back(Piece { until, ..piece });
        self.changed.notify_all();
        Ok(())
    }

    /// Says that one of the threads will write no more.
    pub(super) fn close(&self) {
        self.lock().writers -= 1;
        self.changed.notify_all();
    }

    /// Reads every piece and compares, until there are no more. `capacity` is the size of the largest in bytes.
    pub(super) fn run(&self, capacity: usize) -> Result<(), Halt> {
        let mut buffer = Buffer::new(capacity);
        // Bytes written before the last flush.
        let mut flushed = 0;
        loop {
            // Writers that wait for room write nothing more, so that the first piece would never be old enough.
            let ready = move |state: &State| {
                state.writers == 0
                    || state.pieces.len() >= MAX_PIECES
                    || state.pieces.front().is_some_and(|piece| piece.can_be_read(state.written, flushed))
            };
            let mut state = self.wait(ready)?;
            let Some(piece) = state.pieces.pop_front() else { return Ok(()) };
            let written = state.written;
            drop(state);
            self.changed.notify_all();
            if !piece.can_be_read(written, flushed) {
                self.disk.flush()?;
                flushed = written;
            }
            buffer.place(piece.offset);
            self.disk.read_past_cache(&mut buffer, piece.len)?;
            let is_same = match piece.hash {
                Some(hash) => XxHash3_64::oneshot(buffer.filled()) == hash,
                None => is_zero(buffer.filled()),
            };
            if !is_same {
                let (disk, offset, len) = (self.disk.path().to_owned(), piece.offset, piece.len as u64);
                return Err(Halt::Failed(Error::ReadBack { disk, offset, len }));
            }
        }
    }

    fn wait(&self, until: impl Fn(&State) -> bool) -> Result<MutexGuard<'_, State>, Halt> {
        wait_until(&self.state, &self.changed, &self.stop, until)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::open::Access;
    use std::fs;
    use std::thread;

    const BLOCK: usize = 512;

    /// Writes nothing, but says of so many pieces that they were: one after the other, as one writer does. The disk has the same in
    /// each of its blocks.
    fn read_back(pieces: usize, noted: impl Fn(usize) -> [u8; BLOCK] + Sync) -> Result<(), Halt> {
        const BLOCKS: usize = 8;
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), [7; BLOCKS * BLOCK]).unwrap();
        let disk = OpenDisk::open(file.path().to_str().unwrap(), Access::Read).unwrap();
        let stop = Cancel::new();
        let read_back = ReadBack::new(&disk, 1, &stop);
        thread::scope(|scope| {
            scope.spawn(|| {
                for index in 0..pieces {
                    let offset = (index % BLOCKS * BLOCK) as u64;
                    if read_back.note(Piece::of(&noted(index), offset, false)).is_err() {
                        return;
                    }
                }
                read_back.close();
            });
            let result = read_back.run(4096);
            // A reader that failed reads no more, and the writer must not wait for it.
            stop.set();
            result
        })
    }

    #[test]
    fn more_small_pieces_than_are_remembered_are_read_before_much_is_written() {
        // All of them are less than what is written before a piece is old enough.
        let pieces = MAX_PIECES + MAX_PIECES / 2;
        read_back(pieces, |_| [7; BLOCK]).unwrap();
        let wrong = |index: usize| if index == MAX_PIECES + 1 { [8; BLOCK] } else { [7; BLOCK] };
        let result = read_back(pieces, wrong);
        assert!(matches!(result, Err(Halt::Failed(Error::ReadBack { .. }))), "{result:?}");
    }
}
