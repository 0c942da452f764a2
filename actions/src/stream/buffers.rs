//! What passes between the stages: buffers that are allocated once and go round, and the queues they wait in.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::halt::Halt;
use super::progress::Meter;
use crate::disk::Buffer;
use crate::machine::Cancel;

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
