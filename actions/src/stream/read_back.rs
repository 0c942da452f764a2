//! Reads written data back, bypassing the page cache, while the rest is still being written.
//!
//! A disk answers reads of recently written data from its own cache. So a piece is only read after a good deal more was
//! written, or after a flush: at the end, or earlier if the pieces are so small that too many are waiting.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use twox_hash::XxHash3_64;

use super::buffers::wait_until;
use super::halt::Halt;
use crate::disk::open::OpenDisk;
use crate::disk::{Buffer, is_zero};
use crate::error::Error;
use crate::machine::Cancel;

/// A piece is read back once this many further bytes have been written.
const LAG: u64 = 64 << 20;
/// Maximum number of pieces to remember. The writers wait if there are more.
const MAX_PIECES: usize = 1 << 16;

/// Pieces that were written but not yet read back.
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
    /// Number of threads that may still write.
    writers: u64,
}

/// A piece of the disk, at most the size of a buffer, and its expected content.
pub(super) struct Piece {
    offset: u64,
    len: usize,
    /// Hash of the bytes; none for zeros.
    hash: Option<u64>,
    /// Total of bytes written to the disk, right after this piece was written.
    until: u64,
}

impl Piece {
    /// The piece for bytes to be written at an offset.
    pub(super) fn of(bytes: &[u8], offset: u64, is_zero: bool) -> Self {
        let hash = (!is_zero).then(|| XxHash3_64::oneshot(bytes));
        Self { offset, len: bytes.len(), hash, until: 0 }
    }

    /// Whether the disk has to read the piece from the medium. `written` are the bytes written so far, `flushed` those
    /// at the last flush.
    fn can_be_read(&self, written: u64, flushed: u64) -> bool {
        self.until <= flushed || self.until + LAG <= written
    }
}

impl<'a> ReadBack<'a> {
    /// Starts without pieces, for `writers` writing threads.
    pub(super) fn new(disk: &'a OpenDisk, writers: u64, stop: &Cancel) -> Self {
        let state = Mutex::new(State { writers, ..State::default() });
        Self { disk, state, changed: Condvar::new(), stop: stop.clone() }
    }

    /// Records a piece that was written.
    pub(super) fn note(&self, piece: Piece) -> Result<(), Halt> {
        let mut state = self.wait(|state| state.pieces.len() < MAX_PIECES)?;
        state.written += piece.len as u64;
        let until = state.written;
        state.pieces.push_back(Piece { until, ..piece });
        self.changed.notify_all();
        Ok(())
    }

    /// Records that one of the threads will write no more.
    pub(super) fn close(&self) {
        self.lock().writers -= 1;
        self.changed.notify_all();
    }

    /// Reads back and compares every piece until there are no more. `capacity` is the size of the largest piece in
    /// bytes.
    pub(super) fn run(&self, capacity: usize) -> Result<(), Halt> {
        let mut buffer = Buffer::new(capacity);
        // Bytes written before the last flush.
        let mut flushed = 0;
        loop {
            // Writers that wait for space in the queue write nothing more, so the first piece would never be old
            // enough.
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

    /// Does not write, but records this many pieces as written, one after the other, as one writer does. All blocks of
    /// the disk have the same content.
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
        // All of them together are less than what must be written before a piece is old enough.
        let pieces = MAX_PIECES + MAX_PIECES / 2;
        read_back(pieces, |_| [7; BLOCK]).unwrap();
        let wrong = |index: usize| if index == MAX_PIECES + 1 { [8; BLOCK] } else { [7; BLOCK] };
        let result = read_back(pieces, wrong);
        assert!(matches!(result, Err(Halt::Failed(Error::ReadBack { .. }))), "{result:?}");
    }
}
