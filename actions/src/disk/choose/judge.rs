//! Whether hints select a disk, and whether it may be touched at all.

use slipway_protocol::DiskHints;

use crate::machine::Candidate;

/// Returns why a disk must not be touched, whatever the hints say.
pub(super) fn obstacle(candidate: &Candidate) -> Option<String> {
    match &candidate.in_use {
        Some(reason) => Some(format!("is in use: {reason}")),
        None => candidate.disk.read_only.then(|| "is write-protected".to_owned()),
    }
}

/// Returns why a disk is not selected or must not be touched.
pub(super) fn objection(hints: &DiskHints, candidate: &Candidate) -> Option<String> {
    let disk = &candidate.disk;
    if let Some(device) = hints.device.as_ref().filter(|device| **device != disk.path) {
        return Some(format!("is not {device}"));
    }
    if candidate.by_name_only && hints.device.is_none() {
        return Some("is not a disk of its own, and is not named by device".to_owned());
    }
    if let Some(obstacle) = obstacle(candidate) {
        return Some(obstacle);
    }
    // A removable disk, such as a card in a reader, is only chosen if it is named.
    if disk.removable && !hints.names_one_disk() {
        return Some("is removable, and is not named by device, serial or wwn".to_owned());
    }
    if let Some(mark) = candidate.boot_medium.as_ref().filter(|_| !hints.names_one_disk()) {
        return Some(format!("is a boot medium ({mark}), and is not named by device, serial or wwn"));
    }
    hints.mismatch(disk)
}
