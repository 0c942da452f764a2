//! Parsers of untrusted input, only for the fuzz targets in `fuzz/`.

use std::io::Read;
use std::ops::Range;
use std::os::fd::OwnedFd;

use crate::action::unpack_archive::staging::Staging;
use crate::action::unpack_archive::{self, Unpacked};
use crate::disk::open::{Access, OpenDisk};
use crate::disk::{partitions, relocate};
use crate::error::Error;

pub use crate::stream::in_memory::decode;

/// Bytes at the start of an image that are held back from the disk.
const HEAD: u64 = 1 << 20;

/// Returns the number and the range of bytes of each partition of a disk.
pub fn partitions(disk: &str) -> Result<Vec<(u32, Range<u64>)>, Error> {
    let disk = OpenDisk::open(disk, Access::Read)?;
    Ok(partitions::read(&disk)?.into_iter().map(|partition| (partition.number, partition.bytes)).collect())
}

/// Adapts the partition table on a disk to the size of the disk, like the table of an image written to the disk.
pub fn relocate_backup_gpt(disk: &str, grow: bool) -> Result<(), Error> {
    let disk = OpenDisk::open(disk, Access::Write)?;
    let mut head = vec![0; disk.size().min(HEAD) as usize];
    disk.read_at(&mut head, 0)?;
    if let (_, Some(backup)) = relocate::relocate_backup_gpt(&mut head, &disk, grow)? {
        backup.write_entries(&disk)?;
        disk.write_at(&head, 0)?;
        backup.write_header(&disk)?;
    }
    Ok(())
}

/// Unpacks an archive in a directory; returns the number of its entries.
pub fn unpack(archive: &mut dyn Read, directory: OwnedFd, keeps_owners: bool) -> Result<u64, Error> {
    let mut staging = Staging::new(directory, keeps_owners, false);
    let Unpacked { entries, .. } = unpack_archive::read_entries(archive, &mut staging)?;
    Ok(entries)
}
