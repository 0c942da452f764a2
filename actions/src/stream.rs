//! The image pipeline: blocking threads joined by queues of buffers that go round.
//!
//! ```text
//! fetch -> [digest] -> decode -> [digest] -> write, write
//! ```
//!
//! Memory is what the two pools hold and what the decoder keeps of its past, whatever the size of the image. The first
//! failure stops every stage; only when all have ended well is the head of the disk written.

pub(crate) mod buffers;
pub(crate) mod capture;
mod decode;
pub(crate) mod digest;
mod fetch;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod in_memory;
mod jobs;
pub(crate) mod measure;
mod parallel;
mod pieces;
pub(crate) mod progress;
mod qcow2_stages;
pub(crate) mod read;
mod read_back;
mod resume;
pub(crate) mod write;
mod xz;
mod zstd;

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use slipway_protocol::{Stage, StreamImage, Verify};

use self::buffers::Queue;
use self::progress::{Counters, Meter, Pace, Watch};
use self::qcow2_stages::Ranges;
use self::read_back::ReadBack;
use self::resume::Resume;
use self::write::Target;
use crate::disk::open::OpenDisk;
use crate::disk::partitions::Fitted;
use crate::error::Error;
use crate::fetch::ranges::RangeCheck;
use crate::fetch::retry;
use crate::fetch::source::Source;
use crate::fetch::verify::Check;
use crate::machine::{Cancel, Machine};
use crate::report::Report;
use crate::text;

/// Size of every buffer. Two threads that write as much at a time are as fast as with more (docs/performance.md).
const BUFFER: usize = 1 << 20;
/// Buffers between network and decoder.
const FETCHED: usize = 3;
/// Buffers between decoder and disk.
const RAW: usize = 6;
/// Direct writes by two threads keep a disk busy that one leaves idle half of the time.
const WRITERS: u64 = 2;
/// Time between two reports of progress, at least.
pub(crate) const REPORT_EVERY: Duration = Duration::from_millis(500);

/// How a stage ends early.
#[derive(Debug)]
pub(crate) enum Halt {
    /// Because another stage failed or a stop was asked for.
    Stopped,
    /// Because of this.
    Failed(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Halt::Failed(error)
    }
}

/// How a source is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Once, from its beginning to its end.
    Stream,
    /// Here and there: a qcow2 image whose blocks are needed in another order than they have in the file.
    Ranges,
}

/// What was written.
#[derive(Debug)]
pub(crate) struct Written {
    /// Compression of the source.
    pub(crate) format: &'static str,
    /// Size of the raw image in bytes.
    pub(crate) raw_size: u64,
    /// Bytes received.
    pub(crate) fetched: u64,
    /// The partition, in words, that ends furthest behind the end of the image, if one does.
    pub(crate) beyond: Option<String>,
}

/// What the stages share.
struct Shared {
    stop: Cancel,
    failure: Mutex<Option<Error>>,
}

impl Shared {
    fn new() -> Self {
        Self { stop: Cancel::new(), failure: Mutex::new(None) }
    }

    fn into_failure(self) -> Option<Error> {
        self.failure.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, error: Error) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.stop.set();
    }
}

/// Writes an image to a disk, and the head of the disk only after everything was written and checked and the backup of its
/// partition table is where it belongs. After an error the disk is as it was, or has no partition table.
pub(crate) fn run(
    image: &StreamImage,
    source: &mut Source<'_>,
    reading: Reading,
    disk: &OpenDisk,
    machine: &dyn Machine,
    report: &mut dyn FnMut(Report),
) -> Result<(Written, Fitted), Error> {
    let map = source.map.clone();
    let target = Target::new(disk, map.as_deref());
    let written = stages(image, source, reading, disk, &target, machine, report).and_then(|written| {
        let beyond = target.beyond(written.raw_size)?;
        Ok((Written { beyond, ..written }, target.commit(image.grow, image.verify)?))
    });
    if written.is_err() {
        match target.abandon() {
            Ok(true) => report(Report::Note(format!("{} has no partition table now and will not boot", disk.path()))),
            Ok(false) => {}
            Err(error) => {
                let reason = text::chain(&error);
                report(Report::Note(format!("the head of {} could not be cleared again: {reason}", disk.path())));
            }
        }
    }
    written
}

fn stages(
    image: &StreamImage,
    source: &mut Source<'_>,
    reading: Reading,
    disk: &OpenDisk,
    target: &Target,
    machine: &dyn Machine,
    report: &mut dyn FnMut(Report),
) -> Result<Written, Error> {
    let shared = Shared::new();
    let stop = &shared.stop;
    let stream_checks = source.checks()?;
    let is_checked = !stream_checks.is_empty();
    let mut raw_checks: Vec<Check> =
        image.raw_digest.iter().map(|digest| Check::digest("the raw image", digest)).collect();
    raw_checks.extend(source.map.as_deref().and_then(RangeCheck::new).map(Check::Ranges));
    let is_raw_checked = !raw_checks.is_empty();
    let counters = Counters::default();
    let fetch_meter = Meter::new(Stage::Fetch, 1);
    let stream_meter = Meter::new(Stage::Digest, 1);
    let decode_meter = Meter::new(Stage::Decode, 1);
    let raw_meter = Meter::new(Stage::Digest, 1);
    let write_meter = Meter::new(Stage::Write, WRITERS);
    let mut meters = vec![&fetch_meter, &decode_meter, &write_meter];
    meters.extend(is_checked.then_some(&stream_meter));
    meters.extend(is_raw_checked.then_some(&raw_meter));

    let (fetched_pool, fetched, checked) = (Queue::pool(stop, FETCHED, BUFFER), Queue::new(stop), Queue::new(stop));
    let (raw_pool, raw, raw_checked) = (Queue::pool(stop, RAW, BUFFER), Queue::new(stop), Queue::new(stop));
    let to_decode = if is_checked { &checked } else { &fetched };
    let read_back = (image.verify == Verify::Readback).then(|| ReadBack::new(disk, WRITERS, stop));
    let to_write = if is_raw_checked { &raw_checked } else { &raw };

    let raw_size = source.raw_size;
    let (ca, mirrors, registries) = (source.ca, &mut source.mirrors, source.registries.as_mut_slice());
    let decoded = thread::scope(|scope| {
        let (notes, told) = mpsc::channel::<String>();
        let (counters, fetch_meter) = (&counters, &fetch_meter);
        let (fetched_pool, fetched, raw_pool, raw) = (&fetched_pool, &fetched, &raw_pool, &raw);
        let source_notes = notes.clone();
        let note = Box::new(move |text| _ = source_notes.send(text));
        // By ranges nothing is checked but the raw image.
        let verified = is_checked || (reading == Reading::Ranges && image.raw_digest.is_some());
        let resume = Resume { mirrors, verified, note, pause: retry::pause, patience: machine.patience() };
        let ranges = match reading {
            Reading::Stream => {
                spawn(scope, &shared, &notes, move || {
                    let (whole, meter) = (image.is_verified() || raw_size.is_some(), fetch_meter);
                    fetch::Fetch { machine, resume, registries, ca, whole, counters, meter, stop }
                        .run(fetched_pool, fetched)
                });
                None
            }
            Reading::Ranges => Some(Ranges::new(machine, resume, ca, counters, stop)),
        };
        if is_checked {
            let (checked, meter) = (&checked, &stream_meter);
            spawn(scope, &shared, &notes, move || digest::run(stream_checks, fetched, checked, meter));
        }
        let decode_meter = &decode_meter;
        let decoded = spawn(scope, &shared, &notes, move || {
            let limits = decode::Limits { url: &image.url, disk: disk.path(), disk_size: disk.size(), raw_size };
            let (meter, in_order) = (decode_meter, is_raw_checked);
            let output = decode::Output { limits: &limits, pool: raw_pool, out: raw, meter, in_order };
            match ranges {
                Some(ranges) => qcow2_stages::by_ranges(ranges, &output),
                None => {
                    let input = decode::Input::new(to_decode, fetched_pool, decode_meter);
                    decode::run(input, &output, || counters.fetch_total())
                }
            }
        });
        if is_raw_checked {
            let (raw_checked, meter) = (&raw_checked, &raw_meter);
            spawn(scope, &shared, &notes, move || digest::run(raw_checks, raw, raw_checked, meter));
        }
        let read_back = read_back.as_ref();
        for _ in 0..WRITERS {
            let write_meter = &write_meter;
            spawn(scope, &shared, &notes, move || target.run(to_write, raw_pool, read_back, counters, write_meter));
        }
        if let Some(read_back) = read_back {
            spawn(scope, &shared, &notes, || read_back.run(BUFFER));
        }
        drop(notes);
        watch(&told, Watch::new(counters, &meters, raw_size), machine, &shared, report);
        decoded.join().ok().flatten()
    });
    if let Some(error) = shared.into_failure() {
        return Err(error);
    }
    let (format, raw_size) = decoded.ok_or(Error::Cancelled)?;
    Ok(Written { format: format.name(), raw_size, fetched: counters.fetched.into_inner(), beyond: None })
}

/// Starts a stage. Its failure stops the others; it holds a sender of notes for as long as it runs.
fn spawn<'scope, 'env, T: Send + 'scope>(
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

/// Lets the other stages end when one panics; the scope then passes the panic on.
struct StopOnPanic<'a>(&'a Cancel);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.set();
        }
    }
}

/// Passes notes and progress on until every stage has ended. A stop asked for by then is a failure, even of stages that were
/// done before they heard of it.
fn watch(
    told: &mpsc::Receiver<String>,
    mut watch: Watch,
    machine: &dyn Machine,
    shared: &Shared,
    report: &mut dyn FnMut(Report),
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
