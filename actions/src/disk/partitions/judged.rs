//! Judges the table of an image with [`slipway_formats::partition_table`], for the disk that the image is for.

use std::ops::Range;

use slipway_formats::architecture;
use slipway_formats::bmap::Bmap;
use slipway_formats::efi::device_path::guid_text;
use slipway_formats::partition_table::{self, Fault, Known, Table};

use super::{Partition, READ_ONLY};
use crate::disk::open::OpenDisk;
use crate::error::{Error, ImageError, PartitionError};
use crate::text;

/// An image that was written to a disk, except for its ends, which are held in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content<'a> {
    pub(crate) head: &'a [u8],
    /// The tail of the image, and its byte offset.
    pub(crate) tail: (&'a [u8], u64),
    /// Which blocks hold data. The others are zeros in the image, and anything on the disk. `None` if all were written.
    pub(crate) map: Option<&'a Bmap>,
    /// Size of the image in bytes.
    pub(crate) size: u64,
}

impl Content<'_> {
    /// Returns the parts of a range that were not written.
    fn holes(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        self.map.into_iter().flat_map(move |map| map.unmapped(range.clone()))
    }

    /// Reads bytes of the image; `None` beyond the end of the disk.
    fn read(&self, disk: &OpenDisk, offset: u64, len: usize) -> Result<Option<Vec<u8>>, Error> {
        let end = offset.saturating_add(len as u64);
        if end > disk.size() {
            return Ok(None);
        }
        let mut bytes = vec![0; len];
        disk.read_at(&mut bytes, offset)?;
        let within = |range: &Range<u64>, start: u64| (range.start - start) as usize..(range.end - start) as usize;
        for hole in self.holes(offset..end) {
            let Some(hole) = bytes.get_mut(within(&hole, offset)) else { return Ok(None) };
            hole.fill(0);
        }
        for (held, at) in [(self.head, 0), self.tail] {
            let common = offset.max(at)..end.min(at + held.len() as u64);
            if !common.is_empty() {
                let parts = held.get(within(&common, at)).zip(bytes.get_mut(within(&common, offset)));
                let Some((from, to)) = parts else { return Ok(None) };
                to.copy_from_slice(from);
            }
        }
        Ok(Some(bytes))
    }
}

/// Judges what the first bytes of an image show about its table. `size` is the size of the image, if it is known, and
/// `machine` the architecture of the machine that must start it, if it matters. Fails if the image must not be written
/// to this disk.
pub(crate) fn of_first(
    first: &[u8],
    size: Option<u64>,
    machine: Option<&str>,
    disk: &OpenDisk,
) -> Result<Table, Error> {
    let mut read = |offset: u64, len: usize| {
        let start = usize::try_from(offset).ok()?;
        first.get(start..start.checked_add(len)?).map(<[u8]>::to_vec)
    };
    let known = Known { image: size, ..known(disk) };
    let table = partition_table::judge(&known, &mut read).map_err(|fault| refused(fault, disk))?;
    let evidence = architecture::evidence(&table, &mut read);
    match machine.and_then(|machine| architecture::mismatch(&evidence, machine)) {
        Some(reason) => Err(ImageError::MadeForOther { reason }.into()),
        None => Ok(table),
    }
}

/// Judges the table of a whole image. Fails if its partitions cannot be found on this disk.
pub(crate) fn of_image(content: &Content<'_>, disk: &OpenDisk) -> Result<Table, Error> {
    of_content(content, disk)?.map_err(|fault| refused(fault, disk))
}

/// Judges the table of a disk with this head.
pub(crate) fn of_disk(head: &[u8], disk: &OpenDisk) -> Result<Table, Error> {
    let content = Content { head, tail: (&[], 0), map: None, size: disk.size() };
    of_content(&content, disk)?.map_err(|fault| {
        let (operation, disk) = ("fitting", disk.path().to_owned());
        Error::Partitions(PartitionError::Table { operation, disk, reason: fault.to_string() })
    })
}

/// Returns what is damaged in the table of a disk; `None` if nothing is.
pub(crate) fn fault(disk: &OpenDisk) -> Result<Option<String>, Error> {
    let content = Content { head: &[], tail: (&[], 0), map: None, size: disk.size() };
    Ok(match of_content(&content, disk)? {
        Err(Fault::Damaged { reason, .. }) => Some(reason),
        _ => None,
    })
}

fn of_content(content: &Content<'_>, disk: &OpenDisk) -> Result<Result<Table, Fault>, Error> {
    let mut failure = None;
    let known = Known { image: Some(content.size), ..known(disk) };
    let judged = partition_table::judge(&known, &mut |offset, len| {
        let read = content.read(disk, offset, len);
        read.unwrap_or_else(|error| {
            failure.get_or_insert(error);
            None
        })
    });
    failure.map_or(Ok(judged), Err)
}

fn known(disk: &OpenDisk) -> Known {
    Known { block: Some(disk.logical_block().into()), disk: Some(disk.size()), image: None }
}

/// The partitions of an image's table, as the type for a disk's partitions.
pub(crate) fn partitions(table: &Table) -> Vec<Partition> {
    table.partitions.iter().map(partition).collect()
}

pub(crate) fn partition(found: &partition_table::Partition) -> Partition {
    let guids = found.guids.as_ref();
    Partition {
        number: found.number,
        bytes: found.bytes.clone(),
        type_guid: guids.map(|(kind, _)| guid_text(kind)),
        guid: guids.map(|(_, guid)| guid_text(guid)),
        name: found.name.clone(),
        read_only: found.attributes & READ_ONLY != 0,
    }
}

fn refused(fault: Fault, disk: &OpenDisk) -> Error {
    let path = disk.path().to_owned();
    let error = match fault {
        Fault::Damaged { reason, remedy } => ImageError::TableDamaged { reason, remedy },
        Fault::BlockSize { expected, found } => ImageError::BlockSize { disk: path, expected, found },
        Fault::TooLarge { what, needed } => {
            let (size, needed) = text::two_sizes(disk.size(), needed);
            ImageError::TableTooLarge { disk: path, size, needed, what }
        }
    };
    error.into()
}
