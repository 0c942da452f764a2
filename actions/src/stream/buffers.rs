//! What passes between the stages: buffers that are allocated once and go round, and the queues they wait in.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Halt;
use super::progress::Meter;
use crate::machine::Cancel;

/// Direct I/O wants memory aligned to the logical block size, which is at most a page.
const ALIGNMENT: usize = 4096;
/// How often a waiting stage looks whether it should stop.
const STOP_CHECK: Duration = Duration::from_millis(50);

/// Waits until something holds of what others change, which they tell by `changed`; ends early when a stop is asked for.
pub(super) fn wait_until<'a, T>(
    state: &'a Mutex<T>,
    changed: &Condvar,
    stop: &Cancel,
    holds: impl Fn(&T) -> bool,
) -> Result<MutexGuard<'a, T>, Halt> {
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if stop.is_set() {
            return Err(Halt::Stopped);
        }
        if holds(&state) {
            return Ok(state);
        }
        state = changed.wait_timeout(state, STOP_CHECK).unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// A piece of a stream, in memory aligned for direct I/O.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: Vec<u8>,
    /// First aligned byte of the memory.
    base: usize,
    start: usize,
    end: usize,
    len: usize,
    capacity: usize,
    offset: u64,
}

impl Buffer {
    /// An empty buffer that holds up to `capacity` bytes, a multiple of the alignment.
    pub(crate) fn new(capacity: usize) -> Self {
        let memory = vec![0; capacity + ALIGNMENT];
        let base = memory.as_ptr().align_offset(ALIGNMENT);
        Self { memory, base, start: base, end: base + capacity, len: 0, capacity, offset: 0 }
    }

    /// A buffer filled with zeros.
    pub(crate) fn zeroed(capacity: usize) -> Self {
        Self { len: capacity, ..Self::new(capacity) }
    }

    /// Empties it for bytes from an offset of the image on, up to the next multiple of its capacity. What is aligned on the
    /// disk is aligned in memory too, whatever the offset.
    pub(crate) fn place(&mut self, offset: u64) {
        self.start = self.base + (offset % ALIGNMENT as u64) as usize;
        self.end = self.start + self.capacity - (offset % self.capacity as u64) as usize;
        self.end = self.end.min(self.base + self.capacity);
        self.len = 0;
        self.offset = offset;
    }

    /// Offset of its first byte in the image.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The bytes in it.
    pub(crate) fn filled(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    /// The same, to be changed where they are.
    pub(crate) fn filled_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }

    /// The room left in it.
    pub(crate) fn spare(&mut self) -> &mut [u8] {
        &mut self.memory[self.start + self.len..self.end]
    }

    /// The memory from `before` bytes in front of its first byte on, to read whole blocks into, if there is as much.
    pub(crate) fn blocks(&mut self, before: usize, len: usize) -> Option<&mut [u8]> {
        let start = self.start.checked_sub(before).filter(|start| *start >= self.base)?;
        self.memory.get_mut(start..start + len)
    }

    /// Fills the room with what a reader gives, up to the end of either.
    pub(super) fn read_from(&mut self, reader: &mut dyn Read) -> io::Result<()> {
        while !self.spare().is_empty() {
            match reader.read(self.spare()) {
                Ok(0) => break,
                Ok(n) => self.advance(n),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Counts `n` bytes of the room as filled.
    pub(crate) fn advance(&mut self, n: usize) {
        self.len = (self.len + n).min(self.end - self.start);
    }

    fn cleared(mut self) -> Self {
        self.place(0);
        self
    }
}

/// Buffers on their way from one stage to the next. A queue has no bound of its own: there are only as many buffers as
/// its pool has, and a stage that finds the pool empty waits.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    stop: Cancel,
}

#[derive(Debug, Default)]
struct State {
    buffers: VecDeque<Buffer>,
    closed: bool,
}

impl Queue {
    /// An empty queue; waiting in it ends when `stop` is set.
    pub(crate) fn new(stop: &Cancel) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), stop: stop.clone() }
    }

    /// A queue of empty buffers.
    pub(crate) fn pool(stop: &Cancel, count: usize, capacity: usize) -> Self {
        let pool = Self::new(stop);
        pool.lock().buffers.extend((0..count).map(|_| Buffer::new(capacity)));
        pool
    }

    /// What ends the waiting.
    pub(super) fn stop(&self) -> &Cancel {
        &self.stop
    }

    /// Puts a buffer at the end.
    pub(crate) fn send(&self, buffer: Buffer) {
        self.lock().buffers.push_back(buffer);
        self.changed.notify_one();
    }

    /// Puts a buffer back into its pool, emptied.
    pub(crate) fn recycle(&self, buffer: Buffer) {
        self.send(buffer.cleared());
    }

    /// Says that nothing more will come.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// The first buffer, waiting for one; `None` when the queue is closed and empty. The wait is put on the meter.
    pub(crate) fn recv(&self, meter: &Meter) -> Result<Option<Buffer>, Halt> {
        let since = Instant::now();
        let holds = |state: &State| !state.buffers.is_empty() || state.closed;
        let mut state = wait_until(&self.state, &self.changed, &self.stop, holds)?;
        meter.waited(since.elapsed());
        Ok(state.buffers.pop_front())
    }

    /// An empty buffer from a pool, waiting for one.
    pub(crate) fn take(&self, meter: &Meter) -> Result<Buffer, Halt> {
        self.recv(meter)?.ok_or(Halt::Stopped)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
