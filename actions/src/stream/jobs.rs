//! Hands pieces to the threads that decode them, within the memory limit.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::buffers::wait_until;
use super::halt::{Halt, StopOnPanic};
use crate::machine::Cancel;

/// A piece, and where its content belongs.
pub(super) struct Job {
    /// Offset of its content in the image. In order, it may only be known once all earlier pieces are done; then
    /// [`Turn`] gives it.
    pub(super) at: u64,
    /// Size of its decoded content in bytes, if the piece states it.
    pub(super) content: Option<u64>,
    /// Memory needed to decode it in bytes, including the piece itself.
    pub(super) memory: u64,
    pub(super) bytes: Vec<u8>,
}

/// Jobs in the order of the image, from one thread that splits a stream to several that decode.
pub(super) struct Jobs {
    /// Memory limit for all jobs together, in bytes.
    memory: u64,
    /// Memory in bytes of the buffers into which threads decode ahead. It is free until the first job is sent.
    ahead: u64,
    in_order: bool,
    state: Mutex<State>,
    changed: Condvar,
    stop: Cancel,
}

#[derive(Default)]
struct State {
    /// Each job with the number of jobs before it.
    waiting: VecDeque<(u64, Job)>,
    memory: u64,
    sent: u64,
    done: u64,
    /// The furthest end of passed-on content, as an offset in the image. In order, there are no gaps before it.
    end: u64,
    closed: bool,
    failure: Option<Halt>,
}

/// When a job may pass its content on, if the order matters: once all earlier jobs are done.
pub(super) struct Turn<'a> {
    jobs: &'a Jobs,
    number: u64,
}

impl Turn<'_> {
    pub(super) fn has_come(&self) -> bool {
        self.jobs.lock().done == self.number
    }

    /// Waits for the turn. Returns the offset of the job's content in the image.
    pub(super) fn wait(&self) -> Result<u64, Halt> {
        self.jobs.wait(|state| state.done == self.number).map(|state| state.end)
    }
}

/// Reserved memory, which is released on drop.
pub(super) struct Reserved<'a> {
    jobs: &'a Jobs,
    memory: u64,
}

impl Reserved<'_> {
    /// Also reserves all memory that is not in use now. Returns how many bytes that is.
    pub(super) fn add_the_rest(&mut self) -> u64 {
        let mut state = self.jobs.lock();
        let ahead = if state.sent == 0 { self.jobs.ahead } else { 0 };
        let rest = (self.jobs.memory + ahead).saturating_sub(state.memory);
        state.memory += rest;
        self.memory += rest;
        rest
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.jobs.lock().memory -= self.memory;
        self.jobs.changed.notify_all();
    }
}

impl Jobs {
    /// Starts without jobs. All waiting ends when `stop` is set. `ahead` is `None` if the order does not matter, else
    /// the memory in bytes of the threads that decode ahead.
    pub(super) fn new(memory: u64, ahead: Option<u64>, stop: &Cancel) -> Self {
        let (in_order, ahead) = (ahead.is_some(), ahead.unwrap_or(0));
        Self { memory, ahead, in_order, state: Mutex::default(), changed: Condvar::new(), stop: stop.clone() }
    }

    /// Whether this much memory is within the limit for a job.
    pub(super) fn have_room_for(&self, memory: u64) -> bool {
        memory <= self.memory
    }

    /// Hands a job over once there is enough memory for it.
    pub(super) fn send(&self, job: Job) -> Result<(), Halt> {
        let mut state = self.wait(|state| state.memory + job.memory <= self.memory)?;
        let number = state.sent;
        state.sent += 1;
        state.memory += job.memory;
        state.waiting.push_back((number, job));
        self.changed.notify_all();
        Ok(())
    }

    /// Reserves memory for something that is not a job. If it exceeds the limit or must be done in order, it waits
    /// until no other memory is in use.
    pub(super) fn reserve(&self, memory: u64) -> Result<Reserved<'_>, Halt> {
        let fits = |state: &State| state.memory == 0 || (!self.in_order && state.memory + memory <= self.memory);
        self.wait(fits)?.memory += memory;
        Ok(Reserved { jobs: self, memory })
    }

    /// Whether jobs are passed on in the order of the image.
    pub(super) fn are_in_order(&self) -> bool {
        self.in_order
    }

    /// Returns the offset in the image at which the next content belongs: in order, the end of what was passed on so
    /// far, else the given offset.
    pub(super) fn place(&self, offset: u64) -> u64 {
        if self.in_order { self.lock().end } else { offset }
    }

    /// Records that content outside of a job was passed on up to this offset.
    pub(super) fn passed_on(&self, end: u64) {
        let mut state = self.lock();
        state.end = state.end.max(end);
    }

    /// Waits, unless this offset in the image is 0, until the beginning of the image was passed on. The image is judged
    /// by its first block before anything on the disk is erased, and later content must not take all buffers before
    /// that.
    pub(super) fn wait_for_beginning(&self, at: u64) -> Result<(), Halt> {
        self.wait(|state| at == 0 || state.end > 0).map(drop)
    }

    /// Marks the end: no more jobs will follow.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Decodes jobs until there are no more or one fails. `decode` returns the offset of the end of the content.
    pub(super) fn work(&self, mut decode: impl FnMut(Job, Turn) -> Result<u64, Halt>) {
        let _stop_on_panic = StopOnPanic(&self.stop);
        while let Ok(mut state) = self.wait(|state| !state.waiting.is_empty() || state.closed) {
            let Some((number, job)) = state.waiting.pop_front() else { return };
            drop(state);
            let memory = job.memory;
            let result = decode(job, Turn { jobs: self, number });
            let mut state = self.lock();
            state.memory -= memory;
            state.done += 1;
            match result {
                Ok(end) => state.end = state.end.max(end),
                Err(halt) => {
                    state.failure.get_or_insert(halt);
                }
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Fails if a job failed. Otherwise returns the furthest end of content that was passed on.
    pub(super) fn finish(self) -> Result<u64, Halt> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        state.failure.map_or(Ok(state.end), Err)
    }

    /// Waits until the condition is true. Fails if a job has failed, because then waiting is pointless.
    fn wait(&self, until: impl Fn(&State) -> bool) -> Result<MutexGuard<'_, State>, Halt> {
        let holds = |state: &State| state.failure.is_some() || until(state);
        let state = wait_until(&self.state, &self.changed, &self.stop, holds)?;
        if state.failure.is_some() { Err(Halt::Stopped) } else { Ok(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::error::{Error, ImageError};

    const MEMORY: u64 = 10;

    fn job(at: u64, memory: u64) -> Job {
        Job { at, content: None, memory, bytes: Vec::new() }
    }

    /// Runs two jobs at the same time in two threads.
    fn both(decode: impl Fn(Job, Turn) -> Result<u64, Halt> + Sync) -> Result<u64, Halt> {
        let jobs = Jobs::new(MEMORY, Some(0), &Cancel::new());
        let met = Barrier::new(2);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    jobs.work(|job, turn| {
                        met.wait();
                        decode(job, turn)
                    });
                });
            }
            (0..2).for_each(|at| jobs.send(job(at, MEMORY / 2)).unwrap());
            jobs.close();
        });
        jobs.finish()
    }

    #[test]
    fn jobs_are_decoded_at_the_same_time_and_passed_on_in_their_order() {
        let passed_on = Mutex::new(Vec::new());
        let end = both(|job, turn| {
            assert!(job.at == 1 || turn.has_come());
            let at = turn.wait()?;
            passed_on.lock().unwrap().push((job.at, at));
            Ok(at + 7)
        });
        assert_eq!(end.unwrap(), 14);
        assert_eq!(*passed_on.lock().unwrap(), [(0, 0), (1, 7)]);
    }

    #[test]
    fn nothing_is_passed_on_before_the_beginning_of_the_image() {
        let jobs = Jobs::new(MEMORY, None, &Cancel::new());
        let passed_on = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let work = |wait_first: bool| {
                let (jobs, passed_on) = (&jobs, &passed_on);
                scope.spawn(move || {
                    jobs.work(|job, _| {
                        if wait_first && job.at == 0 {
                            thread::sleep(std::time::Duration::from_millis(20));
                        }
                        jobs.wait_for_beginning(job.at)?;
                        passed_on.lock().unwrap().push((job.at, job.memory));
                        // The first has no content, as a frame that is skipped.
                        Ok(if job.memory == 1 { 0 } else { job.at + 7 })
                    });
                })
            };
            let _threads = [work(true), work(true), work(true)];
            for (at, memory) in [(0, 1), (0, 2), (7, 2), (14, 2)] {
                jobs.send(job(at, memory)).unwrap();
            }
            jobs.close();
        });
        assert_eq!(jobs.finish().unwrap(), 21);
        let order = passed_on.into_inner().unwrap();
        let first = order.iter().position(|passed| *passed == (0, 2));
        assert!(first < order.iter().position(|(at, _)| *at > 0), "{order:?}");
    }

    #[test]
    fn the_rest_has_the_memory_for_what_is_decoded_ahead_only_before_there_are_jobs() {
        let jobs = Jobs::new(MEMORY, Some(6), &Cancel::new());
        let rest = || jobs.reserve(4).unwrap().add_the_rest();
        assert_eq!(rest(), 12);
        assert_eq!(rest(), 12);
        jobs.send(job(0, MEMORY)).unwrap();
        jobs.close();
        jobs.work(|_, _| Ok(0));
        assert_eq!(rest(), 6);
        assert_eq!(jobs.reserve(MEMORY + 1).unwrap().add_the_rest(), 0);
    }

    #[test]
    fn a_failure_ends_the_wait_of_those_behind_it() {
        let failure = both(|job, turn| match job.at {
            0 => Err(Halt::Failed(Error::Image(ImageError::NotRaw { format: "first" }))),
            _ => {
                assert!(matches!(turn.wait(), Err(Halt::Stopped)));
                Err(Halt::Failed(Error::Image(ImageError::NotRaw { format: "second" })))
            }
        });
        assert!(
            matches!(&failure, Err(Halt::Failed(Error::Image(ImageError::NotRaw { format: "first" })))),
            "{failure:?}"
        );
    }

    #[test]
    fn a_panic_ends_every_wait() {
        let stop = Cancel::new();
        let jobs = Jobs::new(MEMORY, Some(0), &stop);
        thread::scope(|scope| {
            let worker = scope.spawn(|| jobs.work(|_, _| panic!("as it should")));
            jobs.send(job(0, MEMORY)).unwrap();
            assert!(matches!(jobs.send(job(1, MEMORY)), Err(Halt::Stopped)));
            assert!(matches!(jobs.reserve(MEMORY), Err(Halt::Stopped)));
            assert!(worker.join().is_err());
        });
        assert!(stop.is_set());
    }
}
