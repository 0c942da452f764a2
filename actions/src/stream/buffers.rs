//! What connects the stages: buffers, which are allocated once and recycled, and the queues they wait in.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use slipway_formats::qcow2;

use super::halt::Halt;
use super::progress::Meter;
use crate::disk::Buffer;
use crate::machine::Cancel;

/// Size of every buffer. With writes of this size, two threads are as fast as more (docs/performance.md).
pub(super) const BUFFER: usize = qcow2::BUFFER;
/// How often a waiting stage checks whether it should stop.
const STOP_CHECK: Duration = Duration::from_millis(50);

/// Waits until `holds` is true for the shared state. Whoever changes the state must notify `changed`. Ends early when a
/// stop is requested.
pub(super) fn wait_until<'a, T>(
    state: &'a Mutex<T>,
    changed: &Condvar,
    stop: &Cancel,
    mut holds: impl FnMut(&T) -> bool,
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
        pool.add(count, capacity);
        pool
    }

    /// Adds empty buffers to a pool. They take up memory only once they are used.
    pub(super) fn add(&self, count: usize, capacity: usize) {
        self.lock().buffers.extend((0..count).map(|_| Buffer::new(capacity)));
        self.changed.notify_all();
    }

    /// Adds empty buffers to a pool for a while.
    pub(super) fn lend(&self, count: usize, capacity: usize) -> Lent<'_> {
        self.add(count, capacity);
        Lent { pool: self, count }
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
        Ok(self.filled(|time| meter.waited(time))?.buffers.pop_front())
    }

    /// Waits for an empty buffer from a pool. Takes the buffer used last, which the processor's cache may still have.
    /// Where a few are enough, the others are never used.
    pub(crate) fn take(&self, meter: &Meter) -> Result<Buffer, Halt> {
        self.filled(|time| meter.waited(time))?.buffers.pop_back().ok_or(Halt::Stopped)
    }

    /// Waits until there is a buffer or no more will follow, and repeatedly passes the time waited to `waited`.
    fn filled(&self, mut waited: impl FnMut(Duration)) -> Result<MutexGuard<'_, State>, Halt> {
        let mut since = Instant::now();
        wait_until(&self.state, &self.changed, &self.stop, |state| {
            let now = Instant::now();
            waited(now - std::mem::replace(&mut since, now));
            !state.buffers.is_empty() || state.closed
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Buffers that were added to a pool for a while. Dropping this takes as many out again, and waits for them.
pub(super) struct Lent<'a> {
    pool: &'a Queue,
    count: usize,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        for _ in 0..self.count {
            // All waiting ends when the pipeline stops.
            let Ok(mut state) = self.pool.filled(|_| {}) else { return };
            state.buffers.pop_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use slipway_protocol::Stage;

    use super::*;
    use crate::stream::progress::{Counters, Watch};

    const SIZE: usize = 4096;

    #[test]
    fn a_pool_gives_what_was_used_last_and_only_for_a_while_what_is_lent() {
        let (stop, meter) = (Cancel::new(), Meter::new(Stage::Write, 1));
        let pool = Queue::pool(&stop, 2, SIZE);
        let lent = pool.lend(3, SIZE);
        let mut used: Vec<Buffer> = (0..5).map(|_| pool.take(&meter).unwrap()).collect();
        let address = |buffer: &Buffer| buffer.filled().as_ptr().addr();
        let last = address(&used[4]);
        pool.recycle(used.remove(0));
        pool.recycle(used.remove(3));
        let again = pool.take(&meter).unwrap();
        assert_eq!(address(&again), last);
        used.push(again);
        std::thread::scope(|scope| {
            let freed = scope.spawn(|| drop(lent));
            // It is freed when three of the five are back.
            used.drain(..2).for_each(|buffer| pool.recycle(buffer));
            freed.join().unwrap();
        });
        assert!(pool.lock().buffers.is_empty());
        used.into_iter().for_each(|buffer| pool.recycle(buffer));
        assert_eq!(pool.lock().buffers.len(), 2);
    }

    #[test]
    fn a_stage_that_still_waits_is_not_the_one_waited_for() {
        let (stop, counters) = (Cancel::new(), Counters::default());
        let [write, fetch] = [Stage::Write, Stage::Fetch].map(|stage| Meter::new(stage, 1));
        let meters = [&write, &fetch];
        let queue = Queue::new(&stop);
        std::thread::scope(|scope| {
            scope.spawn(|| queue.recv(&write));
            let mut watch = Watch::new(&counters, &meters, None);
            while watch.look(Instant::now()).waiting_for != Some(Stage::Fetch) {
                std::thread::yield_now();
            }
            queue.close();
        });
    }

    #[test]
    fn a_stop_ends_the_wait_for_what_is_lent() {
        let (stop, meter) = (Cancel::new(), Meter::new(Stage::Write, 1));
        let pool = Queue::pool(&stop, 0, SIZE);
        let lent = pool.lend(1, SIZE);
        let _used = pool.take(&meter).unwrap();
        stop.set();
        drop(lent);
    }
}
