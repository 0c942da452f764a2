//! Mode `discard`: tells the disk that it may discard every block.

use std::ops::Range;
use std::os::unix::fs::FileTypeExt;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use slipway_protocol::EraseMode;

use super::metadata::Places;
use super::worker::Worker;
use super::{Erased, samples, zero};
use crate::disk::open::OpenDisk;
use crate::disk::partitions;
use crate::error::{EraseError, Error};
use crate::{sys, text};

/// Bytes per request, so that progress and cancellation work.
const PIECE: u64 = 4 << 30;
/// Bytes of the first request: as large as the largest logical block.
const FIRST: u64 = 4096;

pub(super) fn erase(worker: &mut Worker<'_>) -> Result<Erased, Error> {
    // The places are found before the partition table is removed.
    let places = Places::find(worker.disk)?;
    let size = worker.disk.size();
    worker.begin(size);
    // The first request shows whether the disk supports discard, before its signatures are removed.
    discard(worker.disk, &(0..FIRST.min(size)))?;
    partitions::wipe_partition_tables(worker.disk)?;
    for piece in zero::pieces(0..size, PIECE) {
        worker.check()?;
        discard(worker.disk, &piece)?;
        worker.reach(piece.end);
    }
    worker.disk.flush()?;
    let method = format!("every block discarded ({})", text::size(size));
    let offset = match samples::are_zero(worker.disk, std::slice::from_ref(&(0..size))) {
        Ok(samples) => return Ok(Erased { method, samples }),
        Err(Error::Erase(EraseError::NotErased { offset, .. })) => offset,
        Err(error) => return Err(error),
    };
    // A disk may ignore a discard.
    let path = worker.disk.path();
    let warning =
        format!("{path} does not read as zeros at byte {offset} after a discard, so its metadata was erased too");
    worker.warnings.push(warning);
    let erased = places.erase(worker)?;
    Ok(Erased { method: format!("{method}, {}", erased.method), samples: erased.samples })
}

fn discard(disk: &OpenDisk, piece: &Range<u64>) -> Result<(), Error> {
    let failed = |source| disk.failed(Error::WriteDisk { disk: disk.path().to_owned(), offset: piece.start, source });
    let (file, len) = (disk.file(), piece.end - piece.start);
    let done = match file.metadata().map_err(failed)?.file_type().is_block_device() {
        true => sys::block::discard(file, piece.start, len),
        false => {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(file, flags, piece.start, len)
        }
    };
    done.map_err(|errno| match errno {
        Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::NOSYS => Error::Erase(EraseError::Refused {
            disk: disk.path().to_owned(),
            mode: EraseMode::Discard,
            reason: format!("it does not support discard ({errno}); use mode zero"),
        }),
        errno => failed(errno.into()),
    })
}
