//! From hints to exactly one disk, with the reason in words.

use std::fs;
use std::os::unix::fs::FileTypeExt;

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
    let mut candidates = machine.disks()?;
    let mut hints = hints.clone();
    if let Some(device) = &mut hints.device {
        // A link under /dev/disk, or a regular file when the action is run by hand.
        if let Ok(path) = fs::canonicalize(&*device) {
            *device = path.to_string_lossy().into_owned();
        }
        candidates.extend(file_candidate(device));
    }
    let (disk, reason) = choose(&hints, &candidates).map_err(|reason| Error::ChooseDisk { reason })?;
    report(Report::Note(format!("chose {}: {reason}", describe(disk))));
    OpenDisk::open(&disk.path, access)
}

fn file_candidate(path: &str) -> Option<Candidate> {
    let metadata = fs::metadata(path).ok()?;
    if metadata.file_type().is_block_device() || !metadata.is_file() {
        return None;
    }
    let read_only = metadata.permissions().readonly();
    let disk = Disk { path: path.to_owned(), size: metadata.len(), read_only, ..Disk::default() };
    Some(Candidate { disk, in_use: None })
}

/// The one disk the hints mean and why it is that one, or why there is none, disk by disk. `hints.device` must be a path
/// as in [`Disk::path`].
pub fn choose<'a>(hints: &DiskHints, candidates: &'a [Candidate]) -> Result<(&'a Disk, String), String> {
    let judged: Vec<(&Disk, Option<String>)> =
        candidates.iter().map(|candidate| (&candidate.disk, objection(hints, candidate))).collect();
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
    if hints.device.as_ref().is_some_and(|device| *device != disk.path) {
        return Some("is another device".to_owned());
    }
    if let Some(reason) = &candidate.in_use {
        return Some(format!("is in use: {reason}"));
    }
    if disk.removable {
        return Some("is removable".to_owned());
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
        let free = |disk| Candidate { disk, in_use: None };
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
            Candidate { disk: disk("/dev/sde", 500), in_use: Some("/dev/sde1 is mounted at /".to_owned()) },
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
        check(DiskHints { serial: text("S9"), ..hints() }, Err("/dev/sdc is removable"));
        check(DiskHints { device: text("/dev/sdd"), ..hints() }, Err("/dev/sdd is write-protected"));
        check(DiskHints { device: text("/dev/sde"), ..hints() }, Err("/dev/sde is in use: /dev/sde1 is mounted at /"));
        check(DiskHints { min_size: Some(300 << 30), ..hints() }, Err("/dev/sda has 10 GiB, less than 300 GiB"));
        assert_eq!(choose(&hints(), &[]), Err("a disk is wanted, and this machine has no disk".to_owned()));
    }

    #[test]
    fn several_matches_are_an_error_unless_a_rule_is_given() {
        check(DiskHints::default(), Err("there are 3: /dev/nvme0n1 (Fast, serial S1, 100 GiB), /dev/sda"));
        check(DiskHints { model: text("Slow"), ..DiskHints::default() }, Err("there are 2"));
    }
}
