//! A seed in a partition of its own: a file system labelled CIDATA, for cloud-init's NoCloud source.
//!
//! cloud-init prefers such a seed to one in the root file system. So old seeds in partitions must be removed wherever
//! the new seed is put.

use slipway_formats::fat::{File, Kind, Volume};
use slipway_protocol::workflow::partition_types;

use crate::disk::open::{Access, OpenDisk};
use crate::disk::partitions::{Addition, Partition};
use crate::error::{Error, TargetError};
use crate::target::verity::Place;
use crate::{random, text};

const LABEL: &str = "CIDATA";
/// File system types in which cloud-init looks for the label.
const KINDS: &[&str] = &["vfat", "iso9660"];
const MIB: u64 = 1 << 20;
/// Minimum size of a new partition in bytes.
const MIN_LEN: u64 = 4 * MIB;

/// Whether cloud-init would read a seed from this place.
pub(super) fn is_seed((partition, file_system): &Place) -> bool {
    let is_one = |label: &str| label.eq_ignore_ascii_case(LABEL);
    let found = file_system.as_ref().filter(|found| KINDS.contains(&found.kind));
    partition.number > 0 && found.and_then(|found| found.label.as_deref()).is_some_and(is_one)
}

/// Whether a partition was made for a seed: it has the name CIDATA, and no file system of another kind than a seed's.
fn is_meant((partition, file_system): &Place) -> bool {
    let is_free = file_system.as_ref().is_none_or(|found| KINDS.contains(&found.kind));
    partition.number > 0 && is_free && partition.name.eq_ignore_ascii_case(LABEL)
}

/// A seed to write, and where.
#[derive(Debug)]
pub(super) struct Plan {
    partition: Partition,
    /// Description of the partition.
    pub(super) name: String,
    /// The table with the partition, if the partition is new.
    addition: Option<Addition>,
    /// The first bytes of the partition: the file system with the seed.
    volume: Vec<u8>,
}

/// Finds an existing partition for the seed, or room for a new one. Writes nothing.
pub(super) fn plan(disk: &OpenDisk, places: &[Place], files: &[(&str, String)]) -> Result<Plan, Error> {
    let there = places.iter().find(|place| is_seed(place)).or_else(|| places.iter().find(|place| is_meant(place)));
    let (partition, addition) = match there {
        Some((partition, _)) => (partition.clone(), None),
        None => {
            let addition = add(disk, files)?;
            (addition.partition().clone(), Some(addition))
        }
    };
    let (sector, start) = (u64::from(disk.logical_block()), partition.bytes.start);
    let (len, id) = (partition.bytes.end - start, u32::from_le_bytes(random::bytes()?));
    let files: Vec<File> = files.iter().map(|(path, content)| File { path, content: content.as_bytes() }).collect();
    let volume = Volume { kind: Kind::Fat12, sector, len, hidden: start / sector, id, label: LABEL, files: &files };
    let volume = volume.make().map(|made| made.to_bytes()).map_err(|no_room| {
        let [needed, room] = [no_room.needed, no_room.room].map(text::size);
        let reason = format!("the seed needs {needed}, but there is room for {room}");
        TargetError::Seed { disk: disk.path().to_owned(), reason }
    })?;
    Ok(Plan { name: partition.describe(disk), partition, addition, volume })
}

/// Removes every old seed. Returns descriptions of the partitions that had one.
pub(super) fn forget(path: &str, places: &[Place]) -> Result<Vec<String>, Error> {
    let old: Vec<&Partition> = places.iter().filter(|place| is_seed(place)).map(|(partition, _)| partition).collect();
    if old.is_empty() {
        return Ok(Vec::new());
    }
    let disk = OpenDisk::open(path, Access::Write)?;
    for partition in &old {
        clear(&disk, partition)?;
    }
    disk.flush()?;
    Ok(old.iter().map(|partition| partition.describe(&disk)).collect())
}

/// Plans a partition for the seed in free space.
fn add(disk: &OpenDisk, files: &[(&str, String)]) -> Result<Addition, Error> {
    let content: u64 = files.iter().map(|(_, content)| content.len() as u64).sum();
    let len = (content + MIB).next_multiple_of(MIB).max(MIN_LEN);
    Addition::plan(disk, len, partition_types::LINUX, &LABEL.to_ascii_lowercase())?.ok_or_else(|| {
        let reason = format!(
            "there is no partition with the label {LABEL}, and no free {} between or after the others for one: add one \
             to the image, or leave room after its last partition (stream-image with grow: false)",
            text::size(len)
        );
        Error::Target(TargetError::Seed { disk: disk.path().to_owned(), reason })
    })
}

impl Plan {
    /// Writes the seed, and removes seeds from other partitions. A new partition is added to the table last.
    pub(super) fn write(self, path: &str, places: &[Place]) -> Result<(), Error> {
        let disk = OpenDisk::open(path, Access::Write)?;
        self.make(&disk)?;
        for (partition, _) in places.iter().filter(|place| is_seed(place) && place.0.number != self.partition.number) {
            clear(&disk, partition)?;
        }
        if let Some(addition) = self.addition {
            addition.write(&disk)?;
            // A failure does not matter, because code that needs the device node rereads the table.
            _ = disk.reread_partitions();
        }
        Ok(())
    }

    /// Makes the file system. The boot sector, by which it is recognised, is written last.
    fn make(&self, disk: &OpenDisk) -> Result<(), Error> {
        let (sector, start) = (disk.logical_block() as usize, self.partition.bytes.start);
        let (boot_sector, rest) = self.volume.split_at(sector);
        clear(disk, &self.partition)?;
        disk.write_at(rest, start + sector as u64)?;
        disk.flush()?;
        disk.write_at(boot_sector, start)?;
        disk.flush()
    }
}

/// Clears the place of an earlier seed, and the signatures at the end of a partition.
fn clear(disk: &OpenDisk, partition: &Partition) -> Result<(), Error> {
    let bytes = &partition.bytes;
    disk.zero(bytes.start..bytes.end.min(bytes.start + Kind::Fat12.max_len()))?;
    disk.zero(bytes.start.max(bytes.end.saturating_sub(MIB))..bytes.end)?;
    disk.flush()
}
