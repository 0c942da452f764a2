//! Reads what was written again, past the page cache, while the rest is still being written.
//!
//! A disk answers from its own memory what it was given a moment ago, so a piece is read only when a good deal was written after
//! it, or at the end, after a flush.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use twox_hash::XxHash3_64;

use super::Halt;
use super::buffers::{Buffer, wait_until};
use super::write::is_zero;
use crate::error::Error;
use crate::machine::Cancel;
use crate::open_disk::OpenDisk;

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
        let mut is_flushed = false;
        loop {
            let ready = |state: &State| {
                state.writers == 0 || state.pieces.front().is_some_and(|piece| piece.until + LAG <= state.written)
            };
            let mut state = self.wait(ready)?;
            let is_end = state.writers == 0;
            let Some(piece) = state.pieces.pop_front() else { return Ok(()) };
            drop(state);
            self.changed.notify_all();
            if is_end && !is_flushed {
                self.disk.flush()?;
                is_flushed = true;
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
