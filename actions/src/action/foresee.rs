//! Judges a whole run before its first step, so that a disk is not erased for a run that cannot end well.

mod hasty;
mod image;

use slipway_protocol::workflow::Location;
use slipway_protocol::workflow::foresee::{self, Foreseen, Need};
use slipway_protocol::{Action, Disk, DiskHints, Step};

use self::hasty::Hasty;
use crate::disk::choose;
use crate::fetch::shown;
use crate::machine::{Machine, Request};
use crate::text;

/// Finds the first problem that the steps are known to have on this machine. Nothing is written. Temporary problems,
/// such as a server that does not answer, are left to the step, which waits.
pub fn foresee(steps: &[Step], machine: &dyn Machine) -> Option<Foreseen> {
    let machine: &dyn Machine = &Hasty::new(machine);
    foresee::too_small(steps, |image| image.raw_size, |hints| disk(hints, machine))
        .or_else(|| missing(steps, machine))
        .or_else(|| unsuitable(steps, machine))
        .or_else(|| foresee::without_partition(steps, |stream| image::numbers(stream, machine)))
}

/// Finds the first image that cannot be installed on this machine or the disk of its step. Skips steps up to the first
/// that destroys data, because these check their images themselves before. From the first step that makes partitions
/// on, disks are not judged, because they will have changed.
fn unsuitable(steps: &[Step], machine: &dyn Machine) -> Option<Foreseen> {
    let first = steps.iter().position(|step| step.action.destroys())?;
    let made = steps.iter().position(|step| matches!(step.action, Action::Partition(_))).unwrap_or(steps.len());
    steps.iter().enumerate().skip(first + 1).find_map(|(step, of)| {
        let Action::StreamImage(image) = &of.action else { return None };
        let disk = (step < made).then(|| disk(&image.disk, machine)).flatten();
        let problem = image::problem(image, disk.as_ref(), machine)?;
        Some(Foreseen { step, problem })
    })
}

/// Whether every step names a disk that is present, and no disk that appears later can match. Then there is no need to
/// wait for other disks.
pub fn names_present_disks(steps: &[Step], machine: &dyn Machine) -> bool {
    let mut all: Vec<&DiskHints> = steps.iter().filter_map(|step| step.action.disk()).collect();
    // Most steps of a workflow have the same hints.
    all.dedup();
    all.into_iter().all(|hints| disk(hints, machine).is_some_and(|disk| hints.is_certain(&disk)))
}

/// Returns the disk that a step with these hints would choose now.
fn disk(hints: &DiskHints, machine: &dyn Machine) -> Option<Disk> {
    let (hints, candidates) = choose::resolve(hints, machine).ok()?;
    choose::choose(&hints, &candidates).ok().map(|(disk, _)| disk.clone())
}

/// Finds the first file that is missing at all its URLs and is fetched after a disk's data is destroyed. A step that
/// fetches before anything is destroyed reports a missing file itself.
fn missing(steps: &[Step], machine: &dyn Machine) -> Option<Foreseen> {
    let first = steps.iter().position(|step| step.action.destroys())?;
    steps.iter().enumerate().skip(first + 1).find_map(|(index, step)| {
        let needs = step.action.needs();
        let problem = needs.iter().find_map(|need| nowhere(need, machine))?;
        Some(Foreseen { step: index, problem })
    })
}

/// Returns why a file is at none of its URLs, if that is certain.
fn nowhere(need: &Need<'_>, machine: &dyn Machine) -> Option<String> {
    let mut failed = Vec::new();
    for url in &need.urls {
        if machine.cancel().is_set() || !Location::is_plain(url) {
            return None;
        }
        match machine.fetch(&Request::new(url, need.ca), machine.cancel()) {
            Err(error) if !error.is_transient() => failed.push(format!("{}: {}", shown(url), text::chain(&error))),
            _ => return None,
        }
    }
    Some(format!("the {} cannot be fetched: {}", need.what, failed.join("; ")))
}
