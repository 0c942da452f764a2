//! Several paths to one disk: a disk with two ports, or a volume of an array behind two controllers. The kernel shows
//! each path as a disk. The boot image has no mapping over them: while a system is installed, one path is enough.
//!
//! Treating two disks as one would be worse than treating one disk as two: in the first case the wrong disk may be
//! written, in the second the choice is only ambiguous. So paths are joined by names that are unique across makers, and
//! everything else that they report must be equal too. multipath-tools joins by the same names: by default, it uses
//! disks for which udev knows a World Wide Name (multipath.conf(5), `blacklist_exceptions`, `property`).

use std::collections::BTreeMap;
use std::path::Path;

use slipway_protocol::Disk;
use slipway_protocol::workflow::disk::is_of_one_disk;

use super::{attribute, kernel_folder};

/// Transports on which a disk has a single port. If two such disks have the same name, they are two disks, and their
/// maker did not give them unique names.
const ONE_PORT: &[&str] = &["usb", "sata", "ata", "mmc"];
/// The vendor of a SATA disk at a SAS controller (SAT-3, 8.3), which has one port too.
const SATA: &str = "ATA";

/// Notes which disks are other paths to one that is listed, and to which. The disks are sorted by path.
pub(super) fn join(sys: &Path, disks: &mut [Disk]) {
    let mut best: BTreeMap<String, (Rank, String)> = BTreeMap::new();
    for disk in disks.iter() {
        let Some(identity) = identity(disk) else { continue };
        let own = (rank(sys, disk), disk.path.clone());
        let best = best.entry(identity).or_insert_with(|| own.clone());
        *best = own.min(best.clone());
    }
    for disk in disks {
        let found = identity(disk).and_then(|identity| best.get(&identity)).map(|(_, path)| path);
        disk.other_path_to = found.filter(|path| **path != disk.path).cloned();
    }
}

/// Returns what is equal on all paths to a disk, and on no other disk; `None` if nothing is that certain.
fn identity(disk: &Disk) -> Option<String> {
    let name = disk.wwn.as_deref().filter(|name| is_of_one_disk(name))?;
    let has_one_port = disk.transport.as_deref().is_some_and(|transport| ONE_PORT.contains(&transport));
    let is_sata = disk.vendor.as_deref() == Some(SATA);
    let facts = (name, disk.size, disk.logical_block, &disk.vendor, &disk.model, &disk.serial);
    (!has_one_port && !is_sata).then(|| format!("{facts:?}"))
}

/// Rank of a path: the lowest is the best.
type Rank = (bool, u8, bool);

/// Ranks a path by its state, its access to the volume (`access_state`, drivers/scsi/scsi_sysfs.c, of arrays with
/// ALUA), and whether it is write-protected.
fn rank(sys: &Path, disk: &Disk) -> Rank {
    let device = kernel_folder(sys, &disk.path).join("device");
    let state = attribute(&device.join("state"));
    let is_down = state.is_some_and(|state| state != "running" && state != "live");
    let access = match attribute(&device.join("access_state")).as_deref() {
        None | Some("active/optimized") => 0,
        Some("active/non-optimized") => 1,
        Some(_) => 2,
    };
    (is_down, access, disk.read_only)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::folder;

    const NAA: &str = "naa.5000c500a1b2c3d4";

    fn disk(path: &str) -> Disk {
        let text = |text: &str| Some(text.to_owned());
        Disk {
            path: path.to_owned(),
            size: 1 << 40,
            logical_block: 512,
            model: text("ACME Disk"),
            vendor: text("ACME"),
            serial: text("S1"),
            wwn: text(NAA),
            transport: text("sas"),
            ..Disk::default()
        }
    }

    fn joined(sys: &Path, mut disks: Vec<Disk>) -> Vec<Option<String>> {
        join(sys, &mut disks);
        disks.into_iter().map(|disk| disk.other_path_to).collect()
    }

    #[test]
    fn two_paths_are_one_disk_only_if_all_they_report_says_so() {
        let check = |what: &str, change: &dyn Fn(&mut Disk), expect: bool| {
            let mut disks = vec![disk("/dev/sda"), disk("/dev/sdb")];
            disks.iter_mut().for_each(change);
            let found = joined(Path::new("/nowhere"), disks);
            assert_eq!(found, [None, expect.then(|| "/dev/sda".to_owned())], "{what}");
        };
        let text = |text: &str| Some(text.to_owned());
        let is_second = |disk: &Disk| disk.path == "/dev/sdb";
        check("a disk with two ports", &|_| {}, true);
        for (transport, expect) in
            [("fc", true), ("iscsi", true), ("virtio", true), ("nvme", true), ("usb", false), ("sata", false)]
        {
            check(transport, &|disk| disk.transport = text(transport), expect);
        }
        check("a volume of a RAID controller", &|disk| disk.transport = None, true);
        check("a SATA disk at a SAS controller", &|disk| disk.vendor = text("ATA"), false);
        check("a disk without a serial number", &|disk| disk.serial = None, true);
        check("one serial number, no name", &|disk| disk.wwn = None, false);
        check("another serial number", &|disk| disk.serial = text(&disk.path), false);
        check("another size", &|disk| disk.size += u64::from(is_second(disk)), false);
        check("another block size", &|disk| disk.logical_block <<= u32::from(is_second(disk)), false);
        check("another model", &|disk| disk.model = text(&disk.path), false);
        check("another vendor", &|disk| disk.vendor = text(&disk.path), false);
    }

    #[test]
    fn the_path_that_works_best_is_the_disk() {
        let check = |files: &[(&str, &str)], expect: [Option<&str>; 3]| {
            let found = joined(folder(files).path(), ["/dev/sda", "/dev/sdb", "/dev/sdc"].map(disk).to_vec());
            assert_eq!(found, expect.map(|path| path.map(str::to_owned)), "{files:?}");
        };
        check(&[], [None, Some("/dev/sda"), Some("/dev/sda")]);
        let standby = [
            ("block/sda/device/access_state", "standby\n"),
            ("block/sdb/device/access_state", "active/non-optimized\n"),
            ("block/sdc/device/access_state", "active/optimized\n"),
        ];
        check(&standby, [Some("/dev/sdc"), Some("/dev/sdc"), None]);
        let down = [("block/sdc/device/state", "transport-offline\n"), ("block/sda/device/state", "running\n")];
        check(&[&standby[..], &down].concat(), [Some("/dev/sdb"), None, Some("/dev/sdb")]);
    }
}
