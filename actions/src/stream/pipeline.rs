//! Runs the stages in parallel: threads that pass buffers on, and what they share.
//!
//! ```text
//! fetch -> [digest] -> [decode] -> [digest] -> sink, sink
//! ```

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Instant;

use slipway_formats::image::Format;
use slipway_formats::qcow2;
use slipway_protocol::Stage;

use super::block_io::{Input, Limits, Output};
use super::buffers::{BUFFER, Queue};
use super::halt::{Halt, StopOnPanic};
use super::progress::{Counters, Meter, Pace, REPORT_EVERY, Watch};
use super::{decode, digest, fetch, qcow2_stages};
use crate::error::Error;
use crate::fetch::download::{Download, From};
use crate::fetch::verify::Check;
use crate::machine::{Cancel, Machine};
use crate::report::{Report, Tell};

/// Buffers between network and decoder.
pub(super) const FETCHED: usize = 3;
/// Buffers between decoder and sinks.
pub(super) const RAW: usize = qcow2::BUFFERS;
/// Number of buffers added to [`RAW`] where the decoder leaves memory for them, so that the other stages go on while a
/// disk stalls. They take up less than the pieces that are decoded in parallel.
pub(super) const MORE: usize = 22;

/// How a source is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Once, from start to end.
    Stream,
    /// With random access: for a qcow2 image whose blocks are needed in another order than in the file.
    Ranges,
}

/// What happens to a source on its way to the sinks.
pub(super) struct Plan<'a, 'b> {
    pub(super) from: From<'a, 'b>,
    pub(super) reading: Reading,
    /// Checks of the stream as delivered.
    pub(super) stream_checks: Vec<Check<'a>>,
    /// How the source is decoded. If none, the sinks get the stream as delivered.
    pub(super) decode: Option<Decode<'a>>,
    /// Checks of the decoded stream.
    pub(super) raw_checks: Vec<Check<'a>>,
    /// Bytes that will reach the sinks, if known.
    pub(super) total: Option<u64>,
}

/// How a source is decoded.
pub(super) struct Decode<'a> {
    pub(super) limits: Limits<'a>,
    /// Whether blocks must be passed on in the order of the image.
    pub(super) in_order: bool,
    /// Number of buffers for decoded data.
    pub(super) buffers: usize,
    /// Number of buffers that may be added if the decoder leaves memory for them.
    pub(super) more: usize,
}

/// What a consumer of the data works with.
pub(super) struct Sink<'a> {
    /// The filled buffers.
    pub(super) queue: &'a Queue,
    /// The pool to which the emptied buffers return.
    pub(super) pool: &'a Queue,
    pub(super) meter: &'a Meter,
    /// Notes for the operator.
    pub(super) notes: &'a mpsc::Sender<String>,
}

/// The consumers of the data: `threads` parallel calls of `each`. `beside` runs in parallel to them.
pub(super) struct Sinks<'a, T> {
    pub(super) threads: u64,
    pub(super) each: &'a (dyn Fn(Sink) -> Result<T, Halt> + Sync),
    pub(super) beside: Option<&'a (dyn Fn() -> Result<(), Halt> + Sync)>,
}

/// What the stages share.
pub(super) struct Shared {
    pub(super) stop: Cancel,
    failure: Mutex<Option<Error>>,
}

impl Shared {
    pub(super) fn new(stop: Cancel) -> Self {
        Self { stop, failure: Mutex::new(None) }
    }

    pub(super) fn into_failure(self) -> Option<Error> {
        self.failure.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, error: Error) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.stop.set();
    }
}

/// The result of a pipeline in which all stages succeeded.
pub(super) struct Passed<T> {
    /// What the sinks returned.
    pub(super) values: Vec<T>,
    /// Format of the source, and size of the decoded image in bytes; none if nothing was decoded.
    pub(super) image: Option<(Format, u64)>,
}

/// Runs the stages until all have ended. The first failure stops the others and sets `stop`.
pub(super) fn run<T: Send>(
    plan: Plan<'_, '_>,
    sinks: &Sinks<'_, T>,
    stop: &Cancel,
    counters: &Counters,
    machine: &dyn Machine,
    report: Tell,
) -> Result<Passed<T>, Error> {
    let Plan { from, reading, stream_checks, decode, raw_checks, total } = plan;
    let shared = Shared::new(stop.clone());
    let (is_checked, is_raw_checked) = (!stream_checks.is_empty(), !raw_checks.is_empty());
    let fetch_meter = Meter::new(Stage::Fetch, 1);
    let stream_meter = Meter::new(Stage::Digest, 1);
    let decode_meter = Meter::new(Stage::Decode, 1);
    let raw_meter = Meter::new(Stage::Digest, 1);
    let sink_meter = Meter::new(Stage::Write, sinks.threads);
    let mut meters = vec![&fetch_meter, &sink_meter];
    meters.extend(decode.is_some().then_some(&decode_meter));
    meters.extend(is_checked.then_some(&stream_meter));
    meters.extend(is_raw_checked.then_some(&raw_meter));

    let (fetched_pool, fetched, checked) = (Queue::pool(stop, FETCHED, BUFFER), Queue::new(stop), Queue::new(stop));
    let raw_buffers = decode.as_ref().map_or(0, |decode| decode.buffers);
    let (raw_pool, raw, raw_checked) = (Queue::pool(stop, raw_buffers, BUFFER), Queue::new(stop), Queue::new(stop));
    let delivered = if is_checked { &checked } else { &fetched };
    let (decoded, pool) = if decode.is_some() { (&raw, &raw_pool) } else { (delivered, &fetched_pool) };
    let to_sinks = if is_raw_checked { &raw_checked } else { decoded };

    let (values, image) = thread::scope(|scope| {
        let (notes, told) = mpsc::channel::<String>();
        let source_notes = notes.clone();
        let note = Box::new(move |text| _ = source_notes.send(text));
        let download = Download::new(from, machine, stop, note);
        let (fetch_meter, decode_meter) = (&fetch_meter, &decode_meter);
        let (fetched_pool, fetched, raw_pool, raw) = (&fetched_pool, &fetched, &raw_pool, &raw);
        let ranges = match reading {
            Reading::Stream => {
                spawn(scope, &shared, &notes, move || {
                    fetch::run(download, counters, fetched_pool, fetched, fetch_meter)
                });
                None
            }
            Reading::Ranges => Some(download),
        };
        if is_checked {
            let (checked, meter) = (&checked, &stream_meter);
            spawn(scope, &shared, &notes, move || digest::run(stream_checks, fetched, checked, meter));
        }
        let decoding = decode.map(|Decode { limits, in_order, more, .. }| {
            spawn(scope, &shared, &notes, move || {
                let (pool, meter) = (raw_pool, decode_meter);
                let output = Output { limits: &limits, pool, more, out: raw, meter, in_order };
                match ranges {
                    Some(download) => qcow2_stages::by_ranges(download, counters, &output),
                    None => {
                        let input = Input::new(delivered, fetched_pool, decode_meter);
                        decode::run(input, &output, || counters.fetch_total())
                    }
                }
            })
        });
        if is_raw_checked {
            let (raw_checked, meter) = (&raw_checked, &raw_meter);
            spawn(scope, &shared, &notes, move || digest::run(raw_checks, raw, raw_checked, meter));
        }
        let sink_meter = &sink_meter;
        let running: Vec<_> = (0..sinks.threads)
            .map(|_| {
                let told = notes.clone();
                let work = move || (sinks.each)(Sink { queue: to_sinks, pool, meter: sink_meter, notes: &told });
                spawn(scope, &shared, &notes, work)
            })
            .collect();
        if let Some(beside) = sinks.beside {
            spawn(scope, &shared, &notes, beside);
        }
        drop(notes);
        watch(&told, Watch::new(counters, &meters, total), machine, &shared, report);
        (running.into_iter().filter_map(joined).collect(), decoding.and_then(joined))
    });
    match shared.into_failure() {
        Some(error) => Err(error),
        None if stop.is_set() => Err(Error::Cancelled),
        None => Ok(Passed { values, image }),
    }
}

/// Starts a stage. If it fails, the others are stopped. It keeps a sender of notes until it ends, for [`watch`].
pub(super) fn spawn<'scope, 'env, T: Send + 'scope>(
    scope: &'scope Scope<'scope, 'env>,
    shared: &'scope Shared,
    notes: &mpsc::Sender<String>,
    work: impl FnOnce() -> Result<T, Halt> + Send + 'scope,
) -> ScopedJoinHandle<'scope, Option<T>> {
    let running = notes.clone();
    scope.spawn(move || {
        let _stop_on_panic = StopOnPanic(&shared.stop);
        let result = work();
        drop(running);
        match result {
            Ok(value) => Some(value),
            Err(Halt::Stopped) => None,
            Err(Halt::Failed(error)) => {
                shared.fail(error);
                None
            }
        }
    })
}

/// Waits for a stage and returns its value. If the stage panicked, the panic continues here, because the scope only
/// does so for threads that were not joined.
pub(super) fn joined<T>(stage: ScopedJoinHandle<'_, Option<T>>) -> Option<T> {
    stage.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Passes notes and progress on until every stage has ended. A stop that was requested before that is a failure, even
/// if the stages had finished without noticing it.
pub(super) fn watch(
    told: &mpsc::Receiver<String>,
    mut watch: Watch,
    machine: &dyn Machine,
    shared: &Shared,
    report: Tell,
) {
    let check_every = REPORT_EVERY / 5;
    let mut pace = Pace::new(Instant::now());
    loop {
        let news = told.recv_timeout(check_every);
        if machine.cancel().is_set() {
            shared.fail(Error::Cancelled);
        }
        match news {
            Ok(note) => report(Report::Note(note)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let now = Instant::now();
        if pace.is_due(now) {
            report(Report::Progress(watch.look(now)));
        }
    }
    report(Report::Progress(watch.look(Instant::now())));
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_stage_that_panics_stops_the_others_and_is_no_request_to_stop() {
        let shared = Shared::new(Cancel::new());
        let (notes, _told) = mpsc::channel();
        let stage = || -> Result<(), Halt> { panic!("a bug") };
        let run = || thread::scope(|scope| joined(spawn(scope, &shared, &notes, stage)));
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        assert!(shared.stop.is_set());
        assert!(shared.into_failure().is_none());
    }
}
