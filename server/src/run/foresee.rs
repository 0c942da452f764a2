//! Checks a whole run before its first step: when an operator starts it, and when its machine fetches it. The machine
//! checks it again (`actions::foresee`) with what only the machine knows.

mod image;
mod inside;

use std::collections::HashMap;

use slipway_protocol::workflow::Foreseen;
use slipway_protocol::workflow::foresee::{Need, too_small, without_partition};
use slipway_protocol::{Action, Digest, Disk, DiskChoice, DiskHints, Step, StreamImage};

use crate::base::objects::Seen;
use crate::image::stored;
use crate::run::compose::images::image_at;
use crate::run::facts::{Facts, Stored};

pub use self::image::{contradiction, foreign, other_architecture, unusable};
pub use self::inside::unmet;

/// What is certain about the machine that will run the steps. By default nothing is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Machine<'a> {
    /// Architecture, as in uname(2). Empty if unknown.
    pub arch: &'a str,
    /// The machine's disks. Empty if they may be different later.
    pub disks: &'a [Disk],
}

/// Returns the first problem that the steps are known to have on this machine. `seen` has what is seen of the files of
/// images. Uses only what was loaded.
pub fn foresee(seen: &HashMap<Digest, Seen>, facts: &Facts, machine: Machine<'_>, steps: &[Step]) -> Option<Foreseen> {
    let numbers = |step: &StreamImage| image::of(step, facts)?.made_for()?.numbers.clone();
    let raw_size = |step: &StreamImage| step.raw_size.or_else(|| image::of(step, facts)?.image.raw_size);
    let largest = |hints: &DiskHints| possible(hints, machine.disks).into_iter().max_by_key(|disk| disk.size).cloned();
    let as_reported = |problem| {
        format!(
            "{problem} (disks are as the machine reported them when it last enrolled; if they were changed since then, \
             start slipway on the machine and let it in first)"
        )
    };
    missing(seen, facts, steps)
        .or_else(|| on_no_machine(machine.arch, facts, steps))
        .or_else(|| without_partition(steps, numbers))
        .or_else(|| inside::lacking(facts, steps))
        .or_else(|| {
            let foreseen = too_small(steps, raw_size, largest).or_else(|| on_no_disk(steps, facts, machine.disks))?;
            Some(Foreseen { problem: as_reported(foreseen.problem), ..foreseen })
        })
}

/// Returns the digests of the images and other files that steps fetch, as far as this server may have them.
pub fn images_of(steps: &[Step]) -> Vec<Digest> {
    let of_step = |step: &Step| {
        let image = match &step.action {
            Action::StreamImage(image) => image.digest.clone(),
            _ => None,
        };
        let needs = step.action.needs();
        let urls = needs.iter().flat_map(|need| &need.urls).filter_map(|url| image_at(url));
        image.into_iter().chain(urls).collect::<Vec<_>>()
    };
    steps.iter().flat_map(of_step).collect()
}

/// Returns the first image that no machine can install, that contradicts its step, or that is for another architecture.
fn on_no_machine(arch: &str, facts: &Facts, steps: &[Step]) -> Option<Foreseen> {
    streams(steps).find_map(|(step, stream)| {
        let stored = image::of(stream, facts)?;
        let problem = contradiction(stream, &stored.image).or_else(|| stored.problem(stream, arch))?;
        Some(Foreseen { step, problem })
    })
}

/// Returns the first image whose partition table fits no disk that its step may choose. Steps after a `partition` step
/// are left out, because the disks have changed by then.
fn on_no_disk(steps: &[Step], facts: &Facts, disks: &[Disk]) -> Option<Foreseen> {
    let made = steps.iter().position(|step| matches!(step.action, Action::Partition(_))).unwrap_or(steps.len());
    streams(steps).take_while(|(step, _)| *step < made).find_map(|(step, stream)| {
        let made_for = image::of(stream, facts)?.made_for()?;
        let disks = possible(&stream.disk, disks).into_iter();
        let problems: Option<Vec<String>> =
            disks.map(|disk| made_for.mismatch(&disk.path, disk.size, disk.logical_block.into())).collect();
        Some(Foreseen { step, problem: problems?.into_iter().next()? })
    })
}

fn streams(steps: &[Step]) -> impl Iterator<Item = (usize, &StreamImage)> {
    steps.iter().enumerate().filter_map(|(index, step)| match &step.action {
        Action::StreamImage(image) => Some((index, image)),
        _ => None,
    })
}

/// Returns the first file that this server should have for a step, but does not have.
fn missing(seen: &HashMap<Digest, Seen>, facts: &Facts, steps: &[Step]) -> Option<Foreseen> {
    let is_here = |url: &str| facts.server.as_ref().is_some_and(|server| url.starts_with(&format!("{server}/images/")));
    // `None` if the URL is another server's, or if the file is in order.
    let problem = |url: &str| {
        let digest: Digest = image_at(url)?;
        match facts.image(&digest) {
            Some(Stored { image, finding }) => {
                Some(stored::sentence(image, stored::problem(*seen.get(&digest)?, image, finding.as_ref())?))
            }
            None if is_here(url) => Some(format!("there is no image {digest} on this server; {}", stored::ADD_AGAIN)),
            None => None,
        }
    };
    let nowhere = |need: &Need<'_>| {
        let problems: Option<Vec<String>> = need.urls.iter().map(|url| problem(url)).collect();
        problems.and_then(|problems| problems.into_iter().next())
    };
    let of_step = |(step, of): (usize, &Step)| {
        let problem = of.action.needs().iter().find_map(nowhere)?;
        Some(Foreseen { step, problem })
    };
    steps.iter().enumerate().find_map(of_step)
}

/// Returns the reported disks that a machine may choose by these hints.
pub fn possible<'a>(hints: &DiskHints, disks: &'a [Disk]) -> Vec<&'a Disk> {
    let is_named = |disk: &Disk| match &hints.device {
        Some(device) => disk.path == *device || disk.by_path.as_ref() == Some(device),
        None => true,
    };
    let may_be = |disk: &&Disk| {
        let is_usable = !disk.read_only && (!disk.removable || hints.names_one_disk());
        is_usable && is_named(disk) && hints.mismatch(disk).is_none()
    };
    let found: Vec<&Disk> = disks.iter().filter(may_be).collect();
    // The boot medium may look like a disk here, but the machine never chooses it.
    let has_medium = found.iter().any(|disk| disk.transport.as_deref() == Some("usb"));
    match hints.choose {
        DiskChoice::Smallest if !has_medium => found.into_iter().min_by_key(|disk| disk.size).into_iter().collect(),
        _ => found,
    }
}

/// What is known of the disks that a step destroys, before its machine chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Erased<'a> {
    /// The machine has not reported its disks.
    Unknown,
    /// The machine has not reported a disk with this path. It may be an array or a mapping.
    Path(&'a str),
    /// No reported disk fits.
    None,
    /// One fits.
    One(&'a Disk),
    /// Several fit. The text says which of them is erased, before a list of them.
    Several(&'static str, Vec<&'a Disk>),
}

/// Returns what is known of the disks that a step with these hints destroys, of those that were reported.
pub fn erased<'a>(hints: &'a DiskHints, disks: &'a [Disk]) -> Erased<'a> {
    let found = possible(hints, disks);
    match (found.as_slice(), &hints.device) {
        _ if disks.is_empty() => Erased::Unknown,
        ([], Some(path)) => Erased::Path(path),
        ([], None) => Erased::None,
        ([disk], _) => Erased::One(disk),
        _ => Erased::Several(
            match hints.choose {
                DiskChoice::All => "all of these disks",
                DiskChoice::Smallest => "the smallest of these disks, without the boot medium",
                DiskChoice::Largest => "the largest of these disks, without the boot medium",
                DiskChoice::Only => "one of these disks, unless several are left: then the run fails before it writes",
            },
            found,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disks_of_hints_are_known_as_far_as_the_inventory_goes() {
        let disk = |path: &str, size| Disk { path: path.to_owned(), size, ..Disk::default() };
        let usb = Disk { transport: Some("usb".to_owned()), ..disk("/dev/sdc", 1) };
        let card = Disk { removable: true, ..disk("/dev/sdd", 9) };
        let locked = Disk { read_only: true, ..disk("/dev/sde", 8) };
        let serial = Disk { serial: Some("S1".to_owned()), ..disk("/dev/sda", 5) };
        let without_usb = [serial.clone(), disk("/dev/sdb", 7), card, locked];
        let with_usb = [&without_usb[..], &[usb]].concat();
        let hints = |json: &str| serde_json::from_str::<DiskHints>(json).expect(json);
        let table = [
            ("{}", &with_usb[..], &["/dev/sda", "/dev/sdb", "/dev/sdc"][..]),
            (r#"{"serial": "S1"}"#, &with_usb, &["/dev/sda"]),
            (r#"{"device": "/dev/sda"}"#, &with_usb, &["/dev/sda"]),
            (r#"{"device": "/dev/md/root"}"#, &with_usb, &[]),
            (r#"{"choose": "smallest"}"#, &without_usb, &["/dev/sda"]),
            (r#"{"choose": "smallest"}"#, &with_usb, &["/dev/sda", "/dev/sdb", "/dev/sdc"]),
            (r#"{"serial": "S2"}"#, &with_usb, &[]),
            ("{}", &[], &[]),
        ];
        for (text, disks, expect) in table {
            let found: Vec<&str> = possible(&hints(text), disks).iter().map(|disk| disk.path.as_str()).collect();
            assert_eq!(found, expect, "{text}");
        }
    }
}
