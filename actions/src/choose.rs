//! From hints to exactly one disk, with the reason in words.

use std::fs;

use slipway_protocol::{Disk, DiskChoice, DiskHints};

use crate::Report;
use crate::error::Error;
use crate::machine::{Candidate, Machine};
use crate::open_disk::{Access, OpenDisk};
use crate::text;

/// Finds the disk of an action on a machine, says which and why, and opens it.
pub(crate) fn open(
    hints: &DiskHints,
    access: Access,
    machine: &dyn Machine,
    report: &mut dyn FnMut(Report),
) -> Result<OpenDisk, Error> {
    let mut hints = hints.clone();
    let candidates = match &mut hints.device {
        Some(device) => {
            let (path, candidates) = with_named(device, machine)?;
            *device = path;
            candidates
        }
        None => machine.disks()?,
    };
    let (disk, reason) = choose(&hints, &candidates).map_err(|reason| Error::ChooseDisk { reason })?;
    report(Report::Note(format!("chose {}: {reason}", describe(disk))));
    OpenDisk::open(&disk.path, access)
}

/// What is at a path given by hand, or why that is no disk.
pub fn named(device: &str, machine: &dyn Machine) -> Result<Candidate, Error> {
    let (path, candidates) = with_named(device, machine)?;
    let found = candidates.iter().find(|candidate| candidate.disk.path == path);
    found.cloned().ok_or_else(|| Error::ChooseDisk { reason: no_disk(&path, &candidates) })
}

/// The path without links, such as those under /dev/disk, and the machine's disks; with the path, if it is a regular file: an
/// image of a disk, when an action is run by hand.
fn with_named(device: &str, machine: &dyn Machine) -> Result<(String, Vec<Candidate>), Error> {
    let mut candidates = machine.disks()?;
    let path = match fs::canonicalize(device) {
        Ok(path) => path.to_string_lossy().into_owned(),
        // A disk may have no node: the machine knows what it has.
        Err(_) if candidates.iter().any(|candidate| candidate.disk.path == device) => device.to_owned(),
        Err(error) => {
            let reason = format!("looking for {device}: {error}; {}", those_there_are(&candidates));
            return Err(Error::ChooseDisk { reason });
        }
    };
    let metadata = fs::metadata(&path).ok().filter(fs::Metadata::is_file);
    candidates.extend(metadata.map(|metadata| {
        let read_only = metadata.permissions().readonly();
        let disk = Disk { path: path.clone(), size: metadata.len(), read_only, ..Disk::default() };
        Candidate { disk, in_use: None, by_name_only: true }
    }));
    Ok((path, candidates))
}

fn no_disk(path: &str, candidates: &[Candidate]) -> String {
    let is_partition_of = |disk: &&str| {
        let number = path.strip_prefix(disk).map(|rest| rest.trim_start_matches('p'));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()))
    };
    let whole = candidates.iter().map(|candidate| candidate.disk.path.as_str()).find(is_partition_of);
    let advice = whole.map_or_else(|| those_there_are(candidates), |whole| format!("did you mean {whole}?"));
    format!("{path} is no whole disk; {advice}")
}

fn those_there_are(candidates: &[Candidate]) -> String {
    let disks: Vec<String> = candidates.iter().map(|candidate| describe(&candidate.disk)).collect();
    if disks.is_empty() {
        return "this machine has no disk".to_owned();
    }
    format!("there is {}", disks.join(", "))
}

/// The one disk the hints mean and why it is that one, or why there is none, disk by disk. `hints.device` must be a path
/// as in [`Disk::path`].
pub fn choose<'a>(hints: &DiskHints, candidates: &'a [Candidate]) -> Result<(&'a Disk, String), String> {
    let judged: Vec<&Candidate> = match &hints.device {
        Some(device) => candidates.iter().filter(|candidate| candidate.disk.path == *device).collect(),
        None => candidates.iter().collect(),
    };
    if let (Some(device), []) = (&hints.device, judged.as_slice()) {
        return Err(no_disk(device, candidates));
    }
    let judged: Vec<(&Disk, Option<String>)> =
        judged.into_iter().map(|candidate| (&candidate.disk, objection(hints, candidate))).collect();
    let mut matching: Vec<&Disk> = judged.iter().filter(|(_, no)| no.is_none()).map(|(disk, _)| *disk).collect();
    matching.sort_by(|a, b| a.path.cmp(&b.path));
    let wanted = wanted(hints);
    match (matching.as_slice(), hints.choose) {
        ([], _) => {
            let objections: Vec<String> = judged
                .iter()
                .map(|(disk, no)| format!("{} {}", disk.path, no.as_deref().unwrap_or_default()))
                .collect();
            Err(match objections.is_empty() {
                true => format!("{wanted} is wanted, and this machine has no disk"),
                false => format!("{wanted} is wanted, and {}", objections.join("; ")),
            })
        }
        ([only], _) if hints.device.is_some() => Ok((only, "it is named by device".to_owned())),
        ([only], _) => Ok((only, format!("{wanted} is wanted, and it is the only one"))),
        (several, DiskChoice::Only) => {
            let list: Vec<String> = several.iter().map(|disk| describe(disk)).collect();
            let hint = "name one by serial, wwn or device, or choose smallest or largest";
            Err(format!("{wanted} is wanted, and there are {}: {}; {hint}", several.len(), list.join(", ")))
        }
        (several, DiskChoice::Smallest) => {
            let least = several.iter().min_by_key(|disk| disk.size).copied();
            least
                .map(|disk| (disk, format!("{wanted} is wanted, and it is the smallest of {}", several.len())))
                .ok_or(wanted)
        }
        (several, DiskChoice::Largest) => {
            // `max_by_key` gives the last of equals; the first by name is wanted.
            let most = several.iter().rev().max_by_key(|disk| disk.size).copied();
            most.map(|disk| (disk, format!("{wanted} is wanted, and it is the largest of {}", several.len())))
                .ok_or(wanted)
        }
    }
}

/// Why a disk is not meant or must not be touched.
fn objection(hints: &DiskHints, candidate: &Candidate) -> Option<String> {
    let disk = &candidate.disk;
    let differs = |wanted: &Option<String>, found: &Option<String>, what: &str| {
        let wanted = wanted.as_ref().filter(|wanted| found.as_ref().map(|text| text.trim()) != Some(wanted.trim()))?;
        let found = found.as_ref().map_or_else(|| "none".to_owned(), |found| format!("{found:?}"));
        Some(format!("has {what} {found}, not {wanted:?}"))
    };
    if candidate.by_name_only && hints.device.is_none() {
        return Some("is no disk of its own, and is not named by device".to_owned());
    }
    if let Some(reason) = &candidate.in_use {
        return Some(format!("is in use: {reason}"));
    }
    // A card in a reader is what somebody names who wants it written; nobody means it who names nothing.
    if disk.removable && hints.device.is_none() && hints.serial.is_none() && hints.wwn.is_none() {
        return Some("is removable, and is not named by device, serial or wwn".to_owned());
    }
    if disk.read_only {
        return Some("is write-protected".to_owned());
    }
    differs(&hints.serial, &disk.serial, "serial")
        .or_else(|| differs(&hints.wwn.as_deref().map(bare_wwn), &disk.wwn.as_deref().map(bare_wwn), "wwn"))
        .or_else(|| differs(&hints.model, &disk.model, "model"))
        .or_else(|| {
            let least = hints.min_size.filter(|least| disk.size < *least)?;
            Some(format!("has {}, less than {}", text::size(disk.size), text::size(least)))
        })
}

/// A World Wide Name in lower case without its prefix.
fn bare_wwn(wwn: &str) -> String {
    let wwn = wwn.trim().to_ascii_lowercase();
    let bare = ["naa.", "eui.", "uuid.", "nvme.", "0x"].iter().find_map(|prefix| wwn.strip_prefix(prefix));
    bare.map_or(wwn.clone(), str::to_owned)
}

fn wanted(hints: &DiskHints) -> String {
    let hint = |name: &str, value: &Option<String>| value.as_ref().map(|value| format!("{name} {value}"));
    let hints: Vec<String> = [
        hint("device", &hints.device),
        hint("serial", &hints.serial),
        hint("wwn", &hints.wwn),
        hint("model", &hints.model),
        hints.min_size.map(|size| format!("at least {}", text::size(size))),
    ]
    .into_iter()
    .flatten()
    .collect();
    if hints.is_empty() { "a disk".to_owned() } else { format!("a disk with {}", hints.join(" and ")) }
}

fn describe(disk: &Disk) -> String {
    let model = disk.model.iter().cloned();
    let serial = disk.serial.iter().map(|serial| format!("serial {serial}"));
    let details: Vec<String> = model.chain(serial).chain([text::size(disk.size)]).collect();
    format!("{} ({})", disk.path, details.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Vec<Candidate> {
        let disk = |path: &str, gib: u64| Disk { path: path.to_owned(), size: gib << 30, ..Disk::default() };
        let free = |disk| Candidate { disk, in_use: None, by_name_only: false };
        vec![
            free(Disk {
                serial: Some("S1".to_owned()),
                wwn: Some("naa.5000C500AB".to_owned()),
                model: Some("Fast".to_owned()),
                ..disk("/dev/nvme0n1", 100)
            }),
            free(Disk { serial: Some("S2".to_owned()), model: Some("Slow".to_owned()), ..disk("/dev/sda", 10) }),
            free(Disk { model: Some("Slow".to_owned()), ..disk("/dev/sdb", 10) }),
            free(Disk { removable: true, ..disk("/dev/sdc", 5) }),
            free(Disk { read_only: true, ..disk("/dev/sdd", 200) }),
            Candidate { in_use: Some("/dev/sde1 is mounted at /".to_owned()), ..free(disk("/dev/sde", 500)) },
            Candidate { by_name_only: true, ..free(disk("/dev/loop0", 900)) },
        ]
    }

    fn check(hints: DiskHints, expect: Result<&str, &str>) {
        let machine = machine();
        match (choose(&hints, &machine), expect) {
            (Ok((disk, _)), Ok(path)) => assert_eq!(disk.path, path),
            (Err(found), Err(part)) => assert!(found.contains(part), "{found:?} lacks {part:?}"),
            (found, expect) => panic!("{hints:?} gave {found:?}, expected {expect:?}"),
        }
    }

    fn text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn hints_lead_to_one_disk() {
        let hints = DiskHints::default;
        check(DiskHints { serial: text("S2"), ..hints() }, Ok("/dev/sda"));
        check(DiskHints { device: text("/dev/sdb"), ..hints() }, Ok("/dev/sdb"));
        check(DiskHints { device: text("/dev/sdc"), ..hints() }, Ok("/dev/sdc"));
        check(DiskHints { device: text("/dev/loop0"), ..hints() }, Ok("/dev/loop0"));
        check(DiskHints { model: text("Fast"), ..hints() }, Ok("/dev/nvme0n1"));
        check(DiskHints { min_size: Some(50 << 30), ..hints() }, Ok("/dev/nvme0n1"));
        for wwn in ["naa.5000c500ab", "0x5000C500AB", "5000c500ab"] {
            check(DiskHints { wwn: text(wwn), ..hints() }, Ok("/dev/nvme0n1"));
        }
        check(DiskHints { choose: DiskChoice::Smallest, ..hints() }, Ok("/dev/sda"));
        check(DiskHints { choose: DiskChoice::Largest, ..hints() }, Ok("/dev/nvme0n1"));
        check(DiskHints { choose: DiskChoice::Largest, model: text("Slow"), ..hints() }, Ok("/dev/sda"));
    }

    #[test]
    fn no_match_says_why_for_each_disk() {
        let hints = DiskHints::default;
        check(DiskHints { serial: text("S9"), ..hints() }, Err("a disk with serial S9 is wanted"));
        check(DiskHints { serial: text("S9"), ..hints() }, Err("/dev/sda has serial \"S2\", not \"S9\""));
        check(DiskHints { serial: text("S9"), ..hints() }, Err("/dev/sdb has serial none, not \"S9\""));
        check(DiskHints { model: text("none"), ..hints() }, Err("/dev/sdc is removable, and is not named"));
        check(DiskHints { serial: text("S9"), ..hints() }, Err("/dev/loop0 is no disk of its own"));
        check(DiskHints { device: text("/dev/sda1"), ..hints() }, Err("no whole disk; did you mean /dev/sda?"));
        check(
            DiskHints { device: text("/dev/null"), ..hints() },
            Err("/dev/null is no whole disk; there is /dev/nvme0n1"),
        );
        check(DiskHints { device: text("/dev/sdd"), ..hints() }, Err("/dev/sdd is write-protected"));
        check(DiskHints { device: text("/dev/sde"), ..hints() }, Err("/dev/sde is in use: /dev/sde1 is mounted at /"));
        check(DiskHints { min_size: Some(300 << 30), ..hints() }, Err("/dev/sda has 10 GiB, less than 300 GiB"));
        check(DiskHints { serial: text("S1"), model: text("Slow"), ..hints() }, Err("has model \"Fast\""));
        assert_eq!(choose(&hints(), &[]), Err("a disk is wanted, and this machine has no disk".to_owned()));
    }

    #[test]
    fn several_matches_are_an_error_unless_a_rule_is_given() {
        check(DiskHints::default(), Err("there are 3: /dev/nvme0n1 (Fast, serial S1, 100 GiB), /dev/sda"));
        check(DiskHints { model: text("Slow"), ..DiskHints::default() }, Err("there are 2"));
    }
}
