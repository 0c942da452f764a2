//! Detects the file system, or similar content, of a disk, a partition or an image: TYPE, UUID and LABEL as the blkid
//! program of util-linux 2.38 prints them with `-p`.
//!
//! Each format has its own file, which names its source. Magic strings alone prove nothing, because disks are often
//! wiped only in part, so everything that libblkid checks is checked here too. If signatures of several file systems
//! are found, none is trusted.

mod area;
mod crypt;
mod exfat;
mod fat;
mod fields;
mod iso9660;
mod linux;
mod ntfs;
mod raid;
mod swap;
mod udf;
mod volume;
mod xfs;
mod zfs;

use std::fs;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use rustix::fs::{major, minor};

use crate::disk::open::{Access, OpenDisk};
use crate::disk::partitions::{self, Partition};
use crate::error::Error;
use area::Area;

pub(crate) use fields::{be16, be32, be64, le32, le64};
pub(crate) use volume::crc as lvm_crc;

/// The kind of a place with signatures of several file systems, of which the older ones should have been wiped.
const AMBIVALENT: &str = "ambivalent";
/// Places up to this size in bytes are treated as empty, such as the boot record at the start of an extended partition.
const MIN_SIZE: u64 = 1024;

/// Kind of a partition with dm-verity hashes, which seal another partition.
pub(crate) const VERITY_HASHES: &str = "DM_verity_hash";

/// A file system, or similar content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileSystem {
    /// Name as the kernel and blkid know it, or `ambivalent`.
    pub(crate) kind: &'static str,
    /// UUID as blkid prints it.
    pub(crate) uuid: Option<String>,
    /// Label, when there is one.
    pub(crate) label: Option<String>,
}

/// How a signature combines with others in the same place (libblkid, superblocks.c).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Part of an array or a volume group. File systems detected in the same place are not its own.
    Raid,
    /// Encrypted or verified. File systems detected in the same place are not its own either.
    Crypto,
    /// Must be the only signature in its place. Otherwise the place is ambivalent.
    Sole,
    /// Format of optical discs. Several of these may be on the same disc.
    Shared,
}

type Probe = fn(&Area) -> Option<FileSystem>;

/// All probes, in the order that libblkid uses.
const PROBES: &[(Class, Probe)] = &[
    (Class::Raid, raid::md_member),
    (Class::Raid, raid::ddf),
    (Class::Raid, raid::isw),
    (Class::Sole, volume::bcache),
    (Class::Sole, volume::bluestore),
    (Class::Raid, raid::drbd),
    (Class::Raid, volume::lvm2),
    (Class::Crypto, crypt::verity),
    (Class::Crypto, crypt::integrity),
    (Class::Crypto, crypt::luks),
    (Class::Sole, volume::vdo),
    (Class::Crypto, crypt::bitlocker),
    (Class::Sole, fat::vfat),
    (Class::Sole, swap::hibernation_image),
    (Class::Sole, swap::swap),
    (Class::Sole, xfs::xfs),
    (Class::Sole, xfs::external_log),
    (Class::Sole, linux::ext4dev),
    (Class::Sole, linux::ext),
    (Class::Shared, udf::udf),
    (Class::Shared, iso9660::iso9660),
    (Class::Sole, zfs::zfs),
    (Class::Sole, ntfs::ntfs),
    (Class::Sole, linux::squashfs),
    (Class::Sole, linux::btrfs),
    (Class::Sole, exfat::exfat),
    (Class::Sole, linux::f2fs),
    (Class::Sole, linux::erofs),
];

/// A partition or a whole disk, and what was found in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the partition, from 1; 0 for the whole disk.
    pub number: u32,
    /// First byte on the disk.
    pub start: u64,
    /// Size in bytes.
    pub size: u64,
    /// Type of its content, as blkid calls it; `ambivalent` if signatures of several file systems are found; none if
    /// nothing is recognised.
    pub kind: Option<&'static str>,
    /// UUID of the content.
    pub uuid: Option<String>,
    /// Label of the content.
    pub label: Option<String>,
    /// UUID of the partition itself.
    pub partuuid: Option<String>,
    /// Name of the partition in a GPT.
    pub partlabel: Option<String>,
}

/// Detects the contents of a disk, a partition or an image file: of the whole, if something is found there or it has no
/// partitions, and of each partition. Only reads. Fails if the disk cannot be opened or read, or has a partition table
/// of a kind that cannot be read.
pub fn probe(path: &str) -> Result<Vec<Place>, Error> {
    first(path, usize::MAX)
}

/// Returns what is wrong with the partition table of a disk or an image file, so that Linux and firmware do not find
/// the partitions that [`probe`] finds. Only reads. None for a partition.
pub fn table_fault(path: &str) -> Result<Option<String>, Error> {
    let disk = OpenDisk::open(path, Access::Read)?;
    if entry_in_table(&disk).is_some() { Ok(None) } else { partitions::fault(&disk) }
}

/// The partitions in the table of a disk, without a look at their contents.
pub(crate) fn in_table(path: &str) -> Result<Vec<Place>, Error> {
    let partitions = partitions::read(&OpenDisk::open(path, Access::Read)?)?;
    Ok(partitions.into_iter().map(|partition| place(partition, None)).collect())
}

/// Like [`probe`], for at most this many partitions.
pub(crate) fn first(path: &str, most: usize) -> Result<Vec<Place>, Error> {
    let disk = OpenDisk::open(path, Access::Read)?;
    let whole = Partition::whole(&disk);
    if let Some(entry) = entry_in_table(&disk) {
        return Ok(vec![place(entry, identify(&disk, &whole, None)?)]);
    }
    let partitions: Vec<_> = partitions::read(&disk)?.into_iter().filter(|partition| partition.number > 0).collect();
    let covered: Vec<_> = partitions.iter().map(|partition| partition.bytes.clone()).collect();
    let on_whole = identify(&disk, &whole, Some(&covered))?;
    // The partitions of an array also appear on its members, where they must not be used.
    let is_member = on_whole.as_ref().is_some_and(|(class, _)| *class == Class::Raid);
    let mut found = Vec::new();
    if on_whole.is_some() || partitions.is_empty() {
        found.push(place(whole, on_whole));
    }
    for partition in partitions.into_iter().filter(|_| !is_member).take(most) {
        let on_partition = identify(&disk, &partition, None)?;
        found.push(place(partition, on_partition));
    }
    Ok(found)
}

/// Returns the table entry of a partition that was itself opened; `None` for a disk or a file.
fn entry_in_table(partition: &OpenDisk) -> Option<Partition> {
    let device = partition.file().metadata().ok().filter(|file| file.file_type().is_block_device())?.rdev();
    let dir = fs::canonicalize(format!("/sys/dev/block/{}:{}", major(device), minor(device))).ok()?;
    let number: u32 = fs::read_to_string(dir.join("partition")).ok()?.trim().parse().ok()?;
    let name = dir.parent()?.file_name()?.to_str()?.replace('!', "/");
    let disk = OpenDisk::open(&format!("/dev/{name}"), Access::Read).ok()?;
    partitions::read(&disk).ok()?.into_iter().find(|entry| entry.number == number)
}

fn place(partition: Partition, found: Option<(Class, FileSystem)>) -> Place {
    let (kind, uuid, label) = match found {
        Some((_, found)) => (Some(found.kind), found.uuid, found.label),
        None => (None, None, None),
    };
    Place {
        number: partition.number,
        start: partition.bytes.start,
        size: partition.bytes.end - partition.bytes.start,
        kind,
        uuid,
        label,
        partuuid: partition.guid,
        partlabel: Some(partition.name).filter(|name| !name.is_empty()),
    }
}

/// The file system of a partition, if it has one.
pub(crate) fn file_system(disk: &OpenDisk, partition: &Partition) -> Result<Option<FileSystem>, Error> {
    let covered: Option<&[Range<u64>]> = (partition.number == 0).then_some(&[]);
    Ok(identify(disk, partition, covered)?.map(|(_, found)| found))
}

/// Detects the content of a partition or a whole disk. `covered` lists the partitions of a whole disk.
fn identify(
    disk: &OpenDisk,
    partition: &Partition,
    covered: Option<&[Range<u64>]>,
) -> Result<Option<(Class, FileSystem)>, Error> {
    let start = partition.bytes.start;
    let read = |buffer: &mut [u8], offset: u64| disk.read_at(buffer, start + offset);
    let area = Area::new(partition.bytes.end - start, disk.logical_block(), covered, &read);
    let found = what_is_in(&area);
    area.into_failure().map_or(Ok(found), Err)
}

/// Detects the content of an area. It has no side effects but reads by the area's callback.
fn what_is_in(area: &Area) -> Option<(Class, FileSystem)> {
    if area.size() <= MIN_SIZE {
        return None;
    }
    let mut found: Vec<(Class, FileSystem)> = Vec::new();
    for (class, probe) in PROBES {
        if *class == Class::Raid && area.is_tiny() {
            continue;
        }
        found.extend(probe(area).map(|file_system| (*class, file_system)));
        if !found.is_empty() && (area.is_tiny() || matches!(found.last(), Some((Class::Raid | Class::Crypto, _)))) {
            break;
        }
    }
    let is_ambivalent = found.len() > 1 && found.iter().any(|(class, _)| *class == Class::Sole);
    match found.into_iter().next() {
        Some((class, _)) if is_ambivalent => Some((class, FileSystem::of_kind(AMBIVALENT))),
        first => first,
    }
}

impl FileSystem {
    /// A file system without UUID and label.
    fn of_kind(kind: &'static str) -> Self {
        Self { kind, uuid: None, label: None }
    }
}
