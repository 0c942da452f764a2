//! Remembers which partitions earlier installations had their boot loaders on.
//!
//! A boot entry may point to a partition that no disk has. It may belong to a disk that is only missing at the moment,
//! so slipway remembers which partitions each disk had: within this process since the disk was first looked at, and
//! across restarts in an EFI variable, in which each installation notes the partition of its loader. If such a
//! partition is on no disk any more, it is gone for good. Then the entries for it lead nowhere, whoever made them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use slipway_formats::efi::device_path::{Signature, guid_bytes};
use slipway_protocol::Disk;

use crate::disk::open::{Access, OpenDisk};
use crate::disk::partitions;

/// The EFI variable. A line has a partition's GUID, a space, and the identity of its disk.
pub(crate) const VARIABLE: &str = "SlipwayInstallations-9a1c7a3e-52f5-4e0b-8f64-0d3b6f0f2d7c";
/// Maximum number of lines. The oldest are dropped, because firmware has little room.
const MAX_LINES: usize = 32;

/// The partitions that each disk had when it was first looked at. All clones share them.
#[derive(Clone, Debug, Default)]
pub struct FormerPartitions(Arc<Mutex<BTreeMap<Known, Vec<String>>>>);

/// Path and identity of a disk, because another disk may be plugged in at the same path.
type Known = (String, Option<String>);

impl FormerPartitions {
    /// Remembers the partitions of a disk, unless it was looked at before.
    pub(crate) fn look_at(&self, disk: &Disk) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry((disk.path.clone(), identity(disk))).or_insert_with(|| {
            // A disk that cannot be read counts as having had no partitions, so none is ever considered lost.
            let found = OpenDisk::open(&disk.path, Access::Read).and_then(|disk| partitions::read(&disk));
            found.unwrap_or_default().into_iter().filter_map(|partition| partition.guid).collect()
        });
    }

    /// Returns the GUIDs of the partitions that a disk had.
    pub(crate) fn of(&self, disk: &Disk) -> Vec<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&(disk.path.clone(), identity(disk))).cloned().unwrap_or_default()
    }
}

/// Returns an identity of a disk that outlasts this installation; `None` if the disk reports neither WWN nor serial
/// number.
pub(crate) fn identity(disk: &Disk) -> Option<String> {
    let named = |key: &str, value: &Option<String>| Some(format!("{key}={}", value.as_deref()?));
    let identity = named("wwn", &disk.wwn).or_else(|| named("serial", &disk.serial))?;
    (!identity.chars().any(char::is_control)).then_some(identity)
}

/// Returns the partitions that are noted for a disk.
pub(crate) fn noted(note: &str, disk: &str) -> Vec<Signature> {
    let of_disk =
        |line: &str| line.split_once(' ').filter(|(_, noted)| *noted == disk).map(|(guid, _)| guid.to_owned());
    note.lines().filter_map(of_disk).filter_map(|guid| guid_bytes(&guid)).map(Signature::Guid).collect()
}

/// Returns the note without the partitions that are gone, and with a partition of a disk added at the end.
pub(crate) fn with(note: &str, disk: &str, partition: &str, gone: &[Signature]) -> String {
    let own = format!("{partition} {disk}");
    let is_kept = |line: &&str| {
        let guid = line.split_once(' ').and_then(|(guid, _)| guid_bytes(guid)).map(Signature::Guid);
        *line != own && guid.is_some_and(|guid| !gone.contains(&guid))
    };
    let mut lines: Vec<&str> = note.lines().filter(is_kept).chain([own.as_str()]).collect();
    lines.drain(..lines.len().saturating_sub(MAX_LINES));
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "11111111-1111-1111-1111-111111111111";
    const NEW: &str = "22222222-2222-2222-2222-222222222222";

    fn guid(byte: u8) -> Signature {
        Signature::Guid([byte; 16])
    }

    #[test]
    fn a_partition_is_noted_with_its_disk_and_forgotten_when_it_is_gone() {
        let note = with("", "serial=S 1", OLD, &[]);
        assert_eq!(note, format!("{OLD} serial=S 1\n"));
        assert_eq!(noted(&note, "serial=S 1"), [guid(0x11)]);
        assert_eq!(noted(&note, "serial=S"), []);
        assert_eq!(with(&note, "serial=S 1", OLD, &[]), note, "once");
        let note = with(&note, "serial=S 1", NEW, &[guid(0x11)]);
        assert_eq!(note, format!("{NEW} serial=S 1\n"));
    }

    #[test]
    fn a_note_has_bounds_and_what_is_damaged_goes() {
        assert_eq!(noted("no guid\nserial=S\n\u{0} serial=S\n", "serial=S"), []);
        assert_eq!(with("damaged\nx serial=S\n", "serial=S", OLD, &[]), format!("{OLD} serial=S\n"));
        let full: String = (0..40).map(|n| format!("11111111-1111-1111-1111-{n:012} serial=S\n")).collect();
        let kept = with(&full, "serial=S", NEW, &[]);
        assert_eq!((kept.lines().count(), kept.lines().last()), (32, Some(format!("{NEW} serial=S").as_str())));
    }

    /// A disk with one partition in an MBR.
    fn write_table(path: &std::path::Path, signature: u32) {
        let mut disk = vec![0; 4096];
        disk[440..444].copy_from_slice(&signature.to_le_bytes());
        disk[446 + 4] = 0x83;
        disk[446 + 8..446 + 16].copy_from_slice(&[1, 0, 0, 0, 6, 0, 0, 0]);
        disk[510..512].copy_from_slice(&[0x55, 0xAA]);
        std::fs::write(path, disk).unwrap();
    }

    #[test]
    fn what_a_disk_held_is_what_was_seen_first() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let disk = |serial: &str| Disk {
            path: file.path().to_str().unwrap().to_owned(),
            serial: Some(serial.to_owned()),
            ..Disk::default()
        };
        let former = FormerPartitions::default();
        write_table(file.path(), 0x1234_5678);
        former.look_at(&disk("S1"));
        write_table(file.path(), 0x9ABC_DEF0);
        former.clone().look_at(&disk("S1"));
        former.look_at(&disk("S2"));
        assert_eq!(former.of(&disk("S1")), ["12345678-01"]);
        assert_eq!(former.of(&disk("S2")), ["9abcdef0-01"], "another disk in its place");
        assert_eq!(former.of(&disk("S3")), [""; 0]);
    }

    #[test]
    fn a_disk_that_tells_nothing_has_no_identity() {
        let disk = |wwn: Option<&str>, serial: Option<&str>| {
            let [wwn, serial] = [wwn, serial].map(|text| text.map(str::to_owned));
            identity(&Disk { wwn, serial, ..Disk::default() })
        };
        assert_eq!(disk(Some("0x5"), Some("S")).as_deref(), Some("wwn=0x5"));
        assert_eq!(disk(None, Some("S")).as_deref(), Some("serial=S"));
        assert_eq!(disk(None, Some("S\n1")), None);
        assert_eq!(disk(None, None), None);
    }
}
