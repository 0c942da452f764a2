//! Chooses one disk by hints, or all that match, and gives the reason in words.

use std::cmp::Reverse;
use std::path::Path;
use std::{fs, io};

use slipway_protocol::{Disk, DiskChoice, DiskHints};

use crate::disk::list::kind::why_no_disk;
use crate::disk::node;
use crate::disk::open::{Access, OpenDisk};
use crate::disk::partitions::Partition;
use crate::disk::teardown::{Usage, tear_down, tear_down_partition};
use crate::error::Error;
use crate::machine::{Candidate, Machine};
use crate::report::{Report, Tell};
use crate::text;
use judge::{objection, obstacle};

mod judge;

/// Chooses the disk of an action, reports which and why, and opens it.
pub(crate) fn open(hints: &DiskHints, access: Access, machine: &dyn Machine, report: Tell) -> Result<OpenDisk, Error> {
    let disk = one(hints, access, machine, report)?;
    if access != Access::Read {
        tear_down(&disk, machine, report)?;
    }
    OpenDisk::open(&disk.path, access)
}

/// Chooses every disk of an action, reports which and why, and opens them for writing.
pub(crate) fn open_all(hints: &DiskHints, machine: &dyn Machine, report: Tell) -> Result<Vec<OpenDisk>, Error> {
    let (hints, candidates) = resolve(hints, machine)?;
    let chosen = choose_all(&hints, &candidates).map_err(|reason| Error::ChooseDisk { reason })?;
    for (disk, reason) in &chosen {
        report(Report::Note(format!("chose {}: {reason}", describe(disk))));
    }
    // Tear down all disks before opening any, because one mount or array may use several of them.
    for (disk, _) in &chosen {
        tear_down(disk, machine, report)?;
    }
    chosen.iter().map(|(disk, _)| OpenDisk::open(&disk.path, Access::Write)).collect()
}

/// Chooses the disk and the partition of an action, and opens the disk for writing to that partition. Whatever uses the
/// other partitions stays up.
pub(crate) fn open_partition(
    hints: &DiskHints,
    find: impl Fn(&OpenDisk) -> Result<Partition, Error>,
    machine: &dyn Machine,
    report: Tell,
) -> Result<(OpenDisk, Partition), Error> {
    let disk = one(hints, Access::Write, machine, report)?;
    let looked_at = OpenDisk::open(&disk.path, Access::Read)?;
    let partition = find(&looked_at)?;
    let is_part = partition.number > 0 && machine.setup().is_operating_system;
    match is_part.then(|| node::of_partition(&looked_at, &partition)).flatten() {
        Some(node) => tear_down_partition(&disk, &node, machine, report)?,
        None => tear_down(&disk, machine, report)?,
    }
    drop(looked_at);
    let opened = match OpenDisk::open(&disk.path, Access::Write) {
        Err(Error::OpenDisk { source, .. }) if is_part && source.kind() == io::ErrorKind::ResourceBusy => {
            OpenDisk::open(&disk.path, Access::WriteBeside)?
        }
        other => other?,
    };
    Ok((opened, partition))
}

/// Chooses the one disk of an action and reports it.
fn one(hints: &DiskHints, access: Access, machine: &dyn Machine, report: Tell) -> Result<Disk, Error> {
    let (hints, mut candidates) = resolve(hints, machine)?;
    if access == Access::Capture {
        // Nothing is written to the disk, so it may be read-only.
        candidates.iter_mut().for_each(|candidate| candidate.disk.read_only = false);
    }
    let (disk, reason) = choose(&hints, &candidates).map_err(|reason| Error::ChooseDisk { reason })?;
    report(Report::Note(format!("chose {}: {reason}", describe(disk))));
    Ok(disk.clone())
}

/// Returns the hints with `device` as in [`Disk::path`], and the disks to choose from.
pub(crate) fn resolve(hints: &DiskHints, machine: &dyn Machine) -> Result<(DiskHints, Vec<Candidate>), Error> {
    let (device, candidates) = match &hints.device {
        Some(device) => {
            let (path, candidates) = with_named(device, machine)?;
            (Some(path), candidates)
        }
        None => (None, machine.disks()?),
    };
    Ok((DiskHints { device, ..hints.clone() }, candidates))
}

/// A disk, and how the hints apply to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The disk.
    pub disk: Disk,
    /// Why it must not be touched, whatever the hints say.
    pub obstacle: Option<String>,
    /// Why the hints do not select it, or the obstacle if there is one.
    pub objection: Option<String>,
    /// Whether an action with these hints would choose it.
    pub chosen: bool,
}

/// Returns how hints apply to each disk of a machine, by path, and the error with which an action with these hints
/// would fail. Loop devices, arrays and mappings are left out unless they are named.
pub fn survey(hints: &DiskHints, machine: &dyn Machine) -> Result<(Vec<Verdict>, Option<Error>), Error> {
    let (hints, mut candidates) = resolve(hints, machine)?;
    candidates.retain(|candidate| !candidate.by_name_only || hints.device.as_ref() == Some(&candidate.disk.path));
    candidates.sort_by(|a, b| a.disk.path.cmp(&b.disk.path));
    let chosen = choose_all(&hints, &candidates);
    let is_chosen = |disk: &Disk| chosen.as_ref().is_ok_and(|chosen| chosen.iter().any(|(one, _)| *one == disk));
    let verdict = |candidate: &Candidate| {
        let disk = &candidate.disk;
        let chosen = is_chosen(disk);
        let other = disk.other_path_to.as_ref().filter(|_| !chosen);
        let objection = objection(&hints, candidate).or_else(|| Some(format!("is another path to {}", other?)));
        Verdict { disk: disk.clone(), obstacle: obstacle(candidate), objection, chosen }
    };
    let verdicts = candidates.iter().map(verdict).collect();
    Ok((verdicts, chosen.err().map(|reason| Error::ChooseDisk { reason })))
}

/// Finds the disk at a path given by hand, or says why there is no disk.
pub fn named(device: &str, machine: &dyn Machine) -> Result<Candidate, Error> {
    let (path, candidates) = with_named(device, machine)?;
    let found = candidates.iter().find(|candidate| candidate.disk.path == path);
    found.cloned().ok_or_else(|| Error::ChooseDisk { reason: no_disk(&path, &candidates) })
}

/// Returns the path with links resolved, such as those in /dev/disk, and the disks of the machine. If the path is a
/// regular file, it is added as a disk: an image, when an action is run by hand.
fn with_named(device: &str, machine: &dyn Machine) -> Result<(String, Vec<Candidate>), Error> {
    let mut candidates = machine.disks()?;
    let path = match fs::canonicalize(device) {
        Ok(path) => path.to_string_lossy().into_owned(),
        // A disk may have no node, and nothing creates links in the boot image, so the machine's list of disks is
        // searched.
        Err(error) => known_as(device, &candidates).ok_or_else(|| {
            let reason = match why_no_disk(Path::new("/sys"), device) {
                Some(what) => format!("{device} is {what}; {}", those_there_are(&candidates)),
                None => format!("looking for {device}: {error}; {}", those_there_are(&candidates)),
            };
            Error::ChooseDisk { reason }
        })?,
    };
    let metadata = fs::metadata(&path).ok().filter(fs::Metadata::is_file);
    candidates.extend(metadata.map(|metadata| {
        let read_only = metadata.permissions().readonly();
        let disk = Disk { path: path.clone(), size: metadata.len(), read_only, ..Disk::default() };
        let is_own = machine.setup().is_operating_system;
        let usage = (!is_own).then(|| Usage::read(Path::new("/sys"), Path::new("/proc")));
        let in_use = usage.and_then(|usage| usage.of_file(&path));
        Candidate { disk, in_use, by_name_only: true, boot_medium: None }
    }));
    Ok((path, candidates))
}

/// Returns the path of the only disk with this path or this by-path link.
fn known_as(device: &str, candidates: &[Candidate]) -> Option<String> {
    let is_known = |disk: &&Disk| disk.path == device || disk.by_path.as_deref() == Some(device);
    let mut known = candidates.iter().map(|candidate| &candidate.disk).filter(is_known);
    let first = known.next()?;
    known.next().is_none().then(|| first.path.clone())
}

fn no_disk(path: &str, candidates: &[Candidate]) -> String {
    let is_partition_of = |disk: &&str| {
        let number = path.strip_prefix(disk).map(|rest| rest.trim_start_matches('p'));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()))
    };
    let whole = candidates.iter().map(|candidate| candidate.disk.path.as_str()).find(is_partition_of);
    let advice = whole.map_or_else(|| those_there_are(candidates), |whole| format!("did you mean {whole}?"));
    let what = why_no_disk(Path::new("/sys"), path).unwrap_or_else(|| "not a whole disk".to_owned());
    format!("{path} is {what}; {advice}")
}

fn those_there_are(candidates: &[Candidate]) -> String {
    let disks: Vec<String> = candidates.iter().map(|candidate| describe(&candidate.disk)).collect();
    if disks.is_empty() {
        return "this machine has no disk".to_owned();
    }
    format!("this machine has {}", disks.join(", "))
}

/// Returns the one disk that the hints select and the reason, or why there is none, disk by disk. `hints.device` must
/// be a path as in [`Disk::path`].
pub fn choose<'a>(hints: &DiskHints, candidates: &'a [Candidate]) -> Result<(&'a Disk, String), String> {
    let mut chosen = choose_all(hints, candidates)?;
    match (chosen.pop(), chosen.len()) {
        (Some(only), 0) => Ok(only),
        (_, others) => Err(format!("{} disks are chosen, but this action needs exactly one", others + 1)),
    }
}

/// Returns every disk that the hints select, at least one, each with the reason. There are several only if the hints
/// choose all disks.
pub(crate) fn choose_all<'a>(hints: &DiskHints, all: &'a [Candidate]) -> Result<Vec<(&'a Disk, String)>, String> {
    let mut judged: Vec<&Candidate> = all.iter().collect();
    if let Some(device) = &hints.device {
        judged.retain(|candidate| candidate.disk.path == *device);
        if judged.is_empty() {
            return Err(no_disk(device, all));
        }
    }
    judged.sort_by(|a, b| a.disk.path.cmp(&b.disk.path));
    let judged: Vec<(&Disk, Option<String>)> =
        judged.into_iter().map(|candidate| (&candidate.disk, objection(hints, candidate))).collect();
    let mut matching = one_path_each(judged.iter().filter(|(_, no)| no.is_none()).map(|(disk, _)| *disk).collect());
    // The sort is stable: equal disks stay in the order of their paths.
    match hints.choose {
        DiskChoice::Smallest => matching.sort_by_key(|disk| disk.size),
        DiskChoice::Largest => matching.sort_by_key(|disk| Reverse(disk.size)),
        DiskChoice::Only | DiskChoice::All => {}
    }
    let wanted = hints.wanted();
    let because = |what: &str| match *hints == DiskHints::default() {
        true => format!("no hint was given, and this is {what}"),
        false => format!("{wanted} is wanted, and this is {what}"),
    };
    let because = |disk: &Disk, what: &str| format!("{}{}", because(what), other_paths(disk, all));
    let many = matching.len();
    match (matching.as_slice(), hints.choose) {
        ([], _) if hints.device.is_some() => Err(objections(&judged)),
        ([], _) => Err(none_matches(&wanted, &judged)),
        ([only], _) if hints.device.is_some() => {
            Ok(vec![(*only, format!("it is named by device{}", other_paths(only, all)))])
        }
        ([only], _) => Ok(vec![(*only, because(only, "the only one"))]),
        ([first, ..], DiskChoice::Smallest) => Ok(vec![(*first, because(first, &format!("the smallest of {many}")))]),
        ([first, ..], DiskChoice::Largest) => Ok(vec![(*first, because(first, &format!("the largest of {many}")))]),
        (each, DiskChoice::All) => {
            Ok(each.iter().map(|disk| (*disk, because(disk, &format!("one of {many}")))).collect())
        }
        (several, DiskChoice::Only) => {
            let list: Vec<String> = several.iter().map(|disk| describe(disk)).collect();
            let hint = "name one by serial, wwn or device, or choose smallest or largest: in `disk` of a workflow's \
                        steps, or with --disk-serial and similar options for the node (`node set`), the run (`run \
                        start`) or the operating system (`os add`)";
            Err(format!("{wanted} is wanted, but there are {many}: {}; {hint}", list.join(", ")))
        }
    }
}

/// Keeps the best path to each disk. The order of the disks stays.
fn one_path_each(matching: Vec<&Disk>) -> Vec<&Disk> {
    let is_best = |disk: &Disk| {
        let mut same = matching.iter().filter(|other| other.best_path() == disk.best_path());
        // If the best path itself does not match, the first of the others is as good as any.
        let best = same.clone().find(|other| other.other_path_to.is_none()).or_else(|| same.next());
        best.is_some_and(|best| best.path == disk.path)
    };
    matching.iter().copied().filter(|disk| is_best(disk)).collect()
}

/// Names the other paths to a disk, to be appended to a reason.
fn other_paths(disk: &Disk, all: &[Candidate]) -> String {
    let others = all.iter().map(|other| &other.disk).filter(|other| other.path != disk.path);
    let others = others.filter(|other| other.best_path() == disk.best_path());
    let mut others: Vec<&str> = others.map(|other| other.path.as_str()).collect();
    others.sort_unstable();
    match others.as_slice() {
        [] => String::new(),
        [only] => format!(" ({only} is another path to it)"),
        many => format!(" ({} are other paths to it)", many.join(", ")),
    }
}

fn none_matches(wanted: &str, judged: &[(&Disk, Option<String>)]) -> String {
    if judged.is_empty() {
        return format!("{wanted} is wanted, but this machine has no disk");
    }
    format!("{wanted} is wanted, but {}", objections(judged))
}

fn objections(judged: &[(&Disk, Option<String>)]) -> String {
    let each = judged.iter().map(|(disk, no)| format!("{} {}", disk.path, no.as_deref().unwrap_or_default()));
    each.collect::<Vec<String>>().join("; ")
}

pub(crate) fn describe(disk: &Disk) -> String {
    let model = disk.model.iter().cloned();
    let serial = disk.serial.iter().map(|serial| format!("serial {serial}"));
    let details: Vec<String> = model.chain(serial).chain([text::size(disk.size)]).collect();
    format!("{} ({})", disk.path, details.join(", "))
}

#[cfg(test)]
mod tests;
