//! `erase-disk`: erases disks, and verifies that the data is gone. One file per method.

mod ata;
mod discard;
mod emmc;
mod metadata;
mod nvme;
mod samples;
mod secure;
mod skipped;
mod worker;
mod zero;

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Instant;

use slipway_protocol::{Disk, DiskChoice, DiskErasure, EraseDisk, EraseMode, Erasure, Outcome};

use crate::action::{Done, Next};
use crate::disk::choose;
use crate::disk::open::{Access, OpenDisk};
use crate::disk::teardown::tear_down;
use crate::error::{EraseError, Error};
use crate::machine::Machine;
use crate::report::{Report, Tell};
use crate::stream::progress::{Counters, Watch};
use crate::text;
use worker::{Share, Worker};

/// The result of a method.
#[derive(Debug)]
struct Erased {
    /// Description of the method.
    method: String,
    /// Number of places read back.
    samples: u64,
}

/// The result for a disk, and warnings for the operator.
type Erasing = Result<(Erasure, Vec<String>), Error>;

pub(crate) fn run(inputs: &EraseDisk, machine: &dyn Machine, report: Tell) -> Result<Done, Error> {
    let (disks, skipped) = find(inputs, machine, report)?;
    let mut opened = Vec::new();
    for disk in &disks {
        // One after the other, because the layers to take down may span several disks.
        opened.push(tear_down(disk, machine, report).and_then(|()| OpenDisk::open(&disk.path, Access::Write)));
    }
    let results = erase_all(inputs, opened, machine, report);
    let mut outcome = Outcome { disks: skipped, ..Outcome::default() };
    let mut failed = Vec::new();
    for (disk, result) in disks.iter().zip(results) {
        match result {
            Ok((result, warnings)) => {
                outcome.warnings.extend(warnings);
                let (path, serial) = (disk.path.clone(), disk.serial.clone());
                outcome.disks.push(DiskErasure { path, serial, result });
            }
            Err(Error::Cancelled) => return Err(Error::Cancelled),
            Err(error) => failed.push(error),
        }
    }
    match (failed.len(), disks.len()) {
        (0, _) => {}
        (1, 1) => return Err(failed.remove(0)),
        (_, count) => {
            // A failed step has no outcome, so the error includes the results of the other disks.
            let others = outcome.disks.iter().map(|disk| told(&disk.path, &disk.result));
            return Err(EraseError::SomeNotErased {
                count,
                failed: failed.iter().map(|error| text::chain(error)).collect(),
                others: others.chain(outcome.warnings.iter().cloned()).collect(),
            }
            .into());
        }
    }
    outcome.summary = summary(&outcome.disks);
    Ok(Done { outcome, next: Next::Continue })
}

/// Describes the result for a disk.
fn told(path: &str, result: &Erasure) -> String {
    match result {
        Erasure::Erased { method, millis, samples } => {
            format!("erased {path}: {method}, in {millis} ms, read back at {samples} places")
        }
        Erasure::Skipped { reason } => format!("skipped {path}: {reason}"),
    }
}

fn summary(disks: &[DiskErasure]) -> String {
    let erased = disks.iter().filter_map(|disk| match &disk.result {
        Erasure::Erased { method, .. } => Some(format!("{}: {method}", disk.path)),
        Erasure::Skipped { .. } => None,
    });
    let erased: Vec<String> = erased.collect();
    match disks.len() - erased.len() {
        0 => format!("erased {}", erased.join("; ")),
        skipped => format!("erased {}; skipped {skipped}", erased.join("; ")),
    }
}

/// Finds the chosen disks, and those that match but are skipped. Each is reported with the reason.
fn find(inputs: &EraseDisk, machine: &dyn Machine, report: Tell) -> Result<(Vec<Disk>, Vec<DiskErasure>), Error> {
    let (hints, candidates) = choose::resolve(&inputs.disk, machine)?;
    let chosen = choose::choose_all(&hints, &candidates).map_err(|reason| Error::ChooseDisk { reason })?;
    for (disk, reason) in &chosen {
        report(Report::Note(format!("chose {}: {reason}", choose::describe(disk))));
    }
    let disks: Vec<Disk> = chosen.into_iter().map(|(disk, _)| disk.clone()).collect();
    let protected = match hints.choose {
        DiskChoice::All => skipped::protected(&hints, &candidates, &disks),
        _ => Vec::new(),
    };
    let kept = protected.iter().filter(|disk| inputs.strict && disk.stays);
    let kept: Vec<String> = kept.map(|disk| disk.result.in_words()).collect();
    if !kept.is_empty() {
        return Err(EraseError::Incomplete { disks: kept }.into());
    }
    let mut skipped: Vec<DiskErasure> = protected.into_iter().map(|disk| disk.result).collect();
    skipped.extend(skipped::boot_partitions("/sys".as_ref(), &disks));
    for disk in &skipped {
        if let Erasure::Skipped { reason } = &disk.result {
            report(Report::Note(format!("skipping {}: {reason}", disk.path)));
        }
    }
    Ok((disks, skipped))
}

/// Erases disks in parallel, each on its own thread. Returns the results in the order of the disks.
fn erase_all(
    inputs: &EraseDisk,
    disks: Vec<Result<OpenDisk, Error>>,
    machine: &dyn Machine,
    report: Tell,
) -> Vec<Erasing> {
    let shares: Vec<Share> = disks.iter().map(|_| Share::default()).collect();
    let (notes, noted) = mpsc::channel();
    thread::scope(|scope| {
        let erase = |(disk, share): (Result<OpenDisk, Error>, _)| {
            let notes = notes.clone();
            scope.spawn(move || {
                let result = disk.and_then(|disk| erase(inputs, Worker::new(&disk, machine.cancel(), share, &notes)));
                if let Err(error) = &result {
                    notes.send(text::chain(error)).ok();
                }
                result
            })
        };
        let threads: Vec<_> = disks.into_iter().zip(&shares).map(erase).collect();
        drop(notes);
        report_until_done(&noted, &shares, report);
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Passes on the notes of the threads until the last has ended. Reports no progress before one of the threads has begun
/// a task.
fn report_until_done(noted: &mpsc::Receiver<String>, shares: &[Share], report: Tell) {
    let counters = Counters::default();
    let mut watch = Watch::new(&counters, &[], None);
    let mut look = || {
        let (done, goal) = shares.iter().map(Share::look).fold((0, 0), |sum, share| (sum.0 + share.0, sum.1 + share.1));
        counters.written.store(done, std::sync::atomic::Ordering::Relaxed);
        watch.total = Some(goal);
        (goal > 0).then(|| Report::Progress(watch.look(Instant::now())))
    };
    let mut reported = Instant::now();
    loop {
        let left = crate::stream::progress::REPORT_EVERY.saturating_sub(reported.elapsed());
        match noted.recv_timeout(left) {
            Ok(note) => report(Report::Note(note)),
            Err(RecvTimeoutError::Timeout) => {
                look().into_iter().for_each(&mut *report);
                reported = Instant::now();
            }
            Err(RecvTimeoutError::Disconnected) => return look().into_iter().for_each(report),
        }
    }
}

/// Erases one disk by the requested mode. If the disk refuses that mode and can be used as before, tries the allowed
/// fallbacks in order.
fn erase(inputs: &EraseDisk, mut worker: Worker<'_>) -> Erasing {
    let began = Instant::now();
    let mut mode = inputs.mode;
    let mut fallback = inputs.fallback.iter();
    let erased = loop {
        let error = match erase_by(mode, &mut worker) {
            Err(error @ Error::Erase(EraseError::Refused { .. })) => error,
            ended => break ended?,
        };
        let Some(next) = fallback.next() else { return Err(error) };
        let warning = format!("{}; falling back to {next}", text::chain(&error));
        worker.note(warning.clone());
        worker.warnings.push(warning);
        mode = *next;
    };
    if let Err(errno) = worker.disk.reread_partitions() {
        worker.warnings.push(format!("the kernel still knows the old partitions of {}: {errno}", worker.disk.path()));
    }
    let millis = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let Erased { method, samples } = erased;
    let result = Erasure::Erased { method, millis, samples };
    worker.note(told(worker.disk.path(), &result));
    Ok((result, worker.warnings))
}

fn erase_by(mode: EraseMode, worker: &mut Worker<'_>) -> Result<Erased, Error> {
    match mode {
        EraseMode::Metadata => metadata::erase(worker),
        EraseMode::Discard => discard::erase(worker),
        EraseMode::Zero => zero::erase(worker),
        EraseMode::Secure => secure::erase(worker),
    }
}
