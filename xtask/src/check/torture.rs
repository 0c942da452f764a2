//! Power cut tests. Wherever the power fails while a disk is written, firmware must find the whole old system, the
//! whole new system, or nothing.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::host::{files, packages};
use crate::lab::power_cut::{self, Dice};
use crate::lab::tables::{self, Place, Table};
use crate::lab::write_log::{self, Request};

mod boot;
mod growing;
mod record;
mod tally;

pub use boot::boot;
use growing::Growing;
pub use record::{Run, record};
pub use tally::Tally;

/// The initial content of a disk, and all requests to it.
pub struct Recording {
    before: Vec<u8>,
    requests: Vec<Request>,
    runs: Vec<Run>,
    /// For each run, how the kernel grows a file system afterwards, if it does.
    growing: Vec<Option<Growing>>,
}

/// One power cut.
#[derive(Clone, Debug)]
pub struct Cut {
    /// Number of this cut in the sequence of its seed.
    pub trial: u64,
    run: usize,
    /// Number of requests done before the cut.
    at: usize,
    /// Number of flushes in the same run before the cut.
    flushes: usize,
    dice: Dice,
}

/// What firmware finds on a disk after a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Found {
    /// No partition table, so that firmware starts nothing.
    Nothing,
    /// The whole old system.
    Old,
    /// The whole verified image.
    New,
    /// A table that refers to something else than a whole system.
    Unverified {
        /// Where the table is.
        place: Place,
        /// Whether firmware based on EDK2 uses the table. Only other firmware uses a GPT without a protective MBR.
        by_edk2: bool,
    },
}

impl Found {
    /// A description in words, such as "the old system".
    pub fn describe(self) -> String {
        match self {
            Found::Nothing => "nothing".to_owned(),
            Found::Old => "the old system".to_owned(),
            Found::New => "the new system".to_owned(),
            Found::Unverified { place, by_edk2: true } => format!("UNVERIFIED, by the table {place:?}"),
            Found::Unverified { place, by_edk2: false } => {
                format!("UNVERIFIED, by the table {place:?}, if no protective MBR is required")
            }
        }
    }
}

impl Recording {
    /// Reads the files of [`record()`] in a folder, and checks that they describe everything that happened to the disk.
    pub fn load(folder: &Path) -> Result<Self> {
        packages::ensure(packages::TORTURE)?;
        let read = |name: &str| files::read(&folder.join(name));
        let requests = write_log::read(&mut record::open(&folder.join(record::LOG))?)?;
        let runs = serde_json::from_slice(&read(record::RUNS)?).context("reading the list of runs")?;
        let mut recording = Self { before: read(record::BEFORE)?, requests, runs, growing: Vec::new() };
        let mut disk = recording.before.clone();
        for run in 0..recording.runs.len() {
            let (all, begins) = (recording.requests_of(run), disk.clone());
            let requests = &recording.requests[all.clone()];
            requests.iter().for_each(|request| power_cut::apply(&mut disk, request));
            if requests.last() != Some(&Request::Flush) {
                bail!("replaying the recording in {}: run {run} does not end with a flush", folder.display());
            }
            let grows = recording.runs[run].grows;
            recording.growing.push(match grows {
                true => Some(Growing::find(&begins, requests, all.start)?),
                false => None,
            });
        }
        if disk != read(record::DISK)? {
            bail!("replaying the recording in {}: the resulting disk differs from the recorded one", folder.display());
        }
        Ok(recording)
    }

    /// The recorded runs in order.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    fn requests_of(&self, run: usize) -> Range<usize> {
        let start = run.checked_sub(1).map_or(0, |earlier| self.runs[earlier].end);
        start..self.runs[run].end
    }

    /// Chooses the cut with this number. Half of the cuts are after random requests. The others are spread over the
    /// periods between flushes, often at their ends, because the shortest periods are the most critical and the most
    /// can go wrong at their ends.
    fn cut(&self, seed: u64, trial: u64) -> Cut {
        let mut dice = Dice::new(seed, trial);
        let run = dice.below(self.runs.len());
        let requests = self.requests_of(run);
        let flushed = |at: &usize| self.requests[*at] == Request::Flush;
        let flushes: Vec<usize> = requests.clone().filter(flushed).collect();
        let at = if flushes.is_empty() || dice.below(2) == 0 {
            requests.start + dice.below(requests.len() + 1)
        } else {
            let index = dice.below(flushes.len());
            let start = index.checked_sub(1).map_or(requests.start, |earlier| flushes[earlier] + 1);
            let length = flushes[index] - start + 1;
            start + if dice.below(2) == 0 { length - 1 } else { dice.below(length) }
        };
        let flushes = flushes.iter().filter(|flush| **flush < at).count();
        Cut { trial, run, at, flushes, dice }
    }

    /// Computes the content of the disk after a cut.
    pub fn disk_after(&self, cut: &Cut) -> Vec<u8> {
        let durable = self.flushed_before(cut.at);
        let mut disk = self.before.clone();
        self.requests[..durable].iter().for_each(|request| power_cut::apply(&mut disk, request));
        self.survive(&mut disk, durable, cut);
        disk
    }

    /// Applies the requests that survive the cut. Request number `flushed` is the first after the last flush.
    fn survive(&self, disk: &mut [u8], flushed: usize, cut: &Cut) {
        let is_growing = self.growing[cut.run].as_ref().is_some_and(|growing| growing.has_begun(cut.at));
        let whole = if is_growing { growing::WHOLE } else { write_log::SECTOR };
        power_cut::survive(disk, &self.requests[flushed..cut.at], whole, &mut cut.dice.clone());
    }

    /// Returns the number of requests up to and including the last flush before request `at`.
    fn flushed_before(&self, at: usize) -> usize {
        self.requests[..at].iter().rposition(|request| *request == Request::Flush).map_or(0, |flush| flush + 1)
    }

    /// Checks the disk after each of the first `cuts` cuts of a seed, and calls `tell` with the results so far.
    pub fn judge(&self, seed: u64, cuts: u64, mut tell: impl FnMut(&Tally)) -> Result<Tally> {
        let mut tally = Tally::default();
        let mut cuts: Vec<Cut> = (0..cuts).map(|trial| self.cut(seed, trial)).collect();
        // Sorted by time, so that each request is applied only once.
        cuts.sort_by_key(|cut| cut.at);
        let mut old = self.before.clone();
        for (run, Run { installs, .. }) in self.runs.iter().enumerate() {
            let requests = self.requests_of(run);
            let mut left = old.clone();
            self.requests[requests.clone()].iter().for_each(|request| power_cut::apply(&mut left, request));
            let growing = self.growing[run].as_ref();
            let new = growing.map_or(&left, |growing| &growing.before);
            let (mut durable, mut done, mut disk) = (old.clone(), requests.start, old.clone());
            for cut in cuts.iter().filter(|cut| cut.run == run) {
                let flushed = self.flushed_before(cut.at).max(requests.start);
                self.requests[done..flushed].iter().for_each(|request| power_cut::apply(&mut durable, request));
                done = flushed;
                disk.copy_from_slice(&durable);
                self.survive(&mut disk, flushed, cut);
                let is_whole = growing.map_or(Ok(true), |growing| growing.undo(&mut disk, cut.at))?;
                tally.add(cut, found(&disk, &old, (*installs && is_whole).then_some(new)));
                tell(&tally);
            }
            old = left;
        }
        Ok(tally)
    }
}

/// Says what firmware finds. A system is whole if its table and everything the table refers to are unchanged.
fn found(disk: &[u8], old: &[u8], new: Option<&Vec<u8>>) -> Found {
    let mut found = Found::Nothing;
    let (old_tables, new_tables) = (tables::find(old), new.map_or(Vec::new(), |new| tables::find(new)));
    for table in tables::find(disk) {
        let whole = |tables: &[Table], system: &[u8]| {
            let known = tables.iter().any(|known| known.reaches == table.reaches);
            known && table.reaches.iter().all(|bytes| disk[bytes.clone()] == system[bytes.clone()])
        };
        found = match table.place {
            _ if new.is_some_and(|new| whole(&new_tables, new)) => found.max(Found::New),
            _ if whole(&old_tables, old) => found.max(Found::Old),
            place => {
                let by_edk2 = place == Place::Mbr || tables::is_protected(disk);
                found.max(Found::Unverified { place, by_edk2 })
            }
        };
    }
    found
}
