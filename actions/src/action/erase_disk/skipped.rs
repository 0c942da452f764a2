//! Matching disks that are skipped, and why.

use std::fs;
use std::path::Path;

use slipway_protocol::{Disk, DiskErasure, DiskHints, Erasure};

use crate::disk::choose;
use crate::machine::Candidate;

/// A disk that is skipped.
pub(super) struct Skipped {
    /// The disk and the reason.
    pub(super) result: DiskErasure,
    /// Whether it stays in the machine, and slipway did not start from it.
    pub(super) stays: bool,
}

/// Returns the disks that hints for all disks match but that must not be written to.
pub(super) fn protected(hints: &DiskHints, candidates: &[Candidate], chosen: &[Disk]) -> Vec<Skipped> {
    let bare = |candidate: &Candidate| Candidate {
        disk: Disk { read_only: false, removable: false, ..candidate.disk.clone() },
        in_use: None,
        boot_medium: None,
        ..candidate.clone()
    };
    let bare: Vec<Candidate> = candidates.iter().map(bare).collect();
    let meant = choose::choose_all(hints, &bare).unwrap_or_default();
    let is_meant = |disk: &Disk| meant.iter().any(|(meant, _)| meant.path == disk.path);
    let is_chosen = |disk: &Disk| chosen.iter().any(|chosen| chosen.best_path() == disk.best_path());
    let left = candidates.iter().filter(|candidate| is_meant(&candidate.disk) && !is_chosen(&candidate.disk));
    left.map(|Candidate { disk, in_use, boot_medium, .. }| {
        let reason = match (in_use, boot_medium) {
            (Some(by), _) => format!("it is in use: {by}"),
            _ if disk.read_only => "it is write-protected".to_owned(),
            (None, Some(mark)) if !disk.removable => {
                format!("it is a boot medium ({mark}), and is not named by device, serial or wwn")
            }
            _ => "it is removable, and is not named by device, serial or wwn".to_owned(),
        };
        let stays = !disk.removable && boot_medium.is_none();
        Skipped { result: skipped(&disk.path, disk.serial.clone(), reason), stays }
    })
    .collect()
}

/// Returns the boot partitions of the eMMC disks among `disks`. The kernel treats them as separate disks (kernel
/// documentation, mmc-dev-parts). They are write-protected unless someone lifts that, and some boards keep their
/// firmware there.
pub(super) fn boot_partitions(sys: &Path, disks: &[Disk]) -> Vec<DiskErasure> {
    let entries = fs::read_dir(sys.join("block")).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    let reason = "it is an eMMC boot partition, which may contain the board's firmware";
    let mut found = Vec::new();
    for disk in disks.iter().filter(|disk| disk.path.starts_with("/dev/mmcblk")) {
        let prefix = format!("{}boot", disk.path.trim_start_matches("/dev/"));
        let boot = names.iter().filter(|name| name.starts_with(&prefix));
        found.extend(boot.map(|name| skipped(&format!("/dev/{name}"), disk.serial.clone(), reason.to_owned())));
    }
    found
}

fn skipped(path: &str, serial: Option<String>, reason: String) -> DiskErasure {
    DiskErasure { path: path.to_owned(), serial, result: Erasure::Skipped { reason } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_partitions_of_the_erased_emmc_are_named() {
        let sys = tempfile::tempdir().expect("a temporary directory");
        for name in ["mmcblk0", "mmcblk0boot0", "mmcblk0boot1", "mmcblk1boot0", "mmcblk0rpmb", "sda"] {
            fs::create_dir_all(sys.path().join("block").join(name)).expect("a directory");
        }
        let disk = |path: &str| Disk { path: path.to_owned(), ..Disk::default() };
        let paths = |disks: &[Disk]| -> Vec<String> {
            boot_partitions(sys.path(), disks).into_iter().map(|skipped| skipped.path).collect()
        };
        assert_eq!(paths(&[disk("/dev/mmcblk0"), disk("/dev/sda")]), ["/dev/mmcblk0boot0", "/dev/mmcblk0boot1"]);
        assert_eq!(paths(&[disk("/dev/sda")]), [""; 0]);
    }
}
