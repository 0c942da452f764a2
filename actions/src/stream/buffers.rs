//! What connects the stages: buffers, which are allocated once and recycled, and the queues they wait in.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::halt::Halt;
use super::progress::Meter;
use crate::disk::Buffer;
use crate::machine::Cancel;

/// How often a waiting stage checks whether it should stop.
const STOP_CHECK: Duration = Duration::from_millis(50);

/// Waits until `holds` is true for the shared state. Whoever changes the state must notify `changed`. Ends early when a
/// stop is requested.
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

/// Buffers on their way from one stage to the next. A queue has no limit of its own: there are only as many buffers as
/// in its pool, and a stage that finds the pool empty waits.
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
    /// An empty queue. Waiting for it ends when `stop` is set.
    pub(crate) fn new(stop: &Cancel) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), stop: stop.clone() }
    }

    /// A queue of empty buffers.
    pub(crate) fn pool(stop: &Cancel, count: usize, capacity: usize) -> Self {
        let pool = Self::new(stop);
        pool.lock().buffers.extend((0..count).map(|_| Buffer::new(capacity)));
        pool
    }

    /// The handle that ends waiting.
    pub(super) fn stop(&self) -> &Cancel {
        &self.stop
    }

    /// Appends a buffer.
    pub(crate) fn send(&self, buffer: Buffer) {
        self.lock().buffers.push_back(buffer);
        self.changed.notify_one();
    }

    /// Empties a buffer and returns it to its pool.
    pub(crate) fn recycle(&self, buffer: Buffer) {
        self.send(buffer.cleared());
    }

    /// Marks the end: no more buffers will follow.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Waits for the first buffer and removes it; `None` if the queue is closed and empty. The meter counts the time
    /// spent waiting.
    pub(crate) fn recv(&self, meter: &Meter) -> Result<Option<Buffer>, Halt> {
        let since = Instant::now();
        let holds = |state: &State| !state.buffers.is_empty() || state.closed;
        let mut state = wait_until(&self.state, &self.changed, &self.stop, holds)?;
        meter.waited(since.elapsed());
        Ok(state.buffers.pop_front())
    }

    /// Waits for an empty buffer from a pool.
    pub(crate) fn take(&self, meter: &Meter) -> Result<Buffer, Halt> {
        self.recv(meter)?.ok_or(Halt::Stopped)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
