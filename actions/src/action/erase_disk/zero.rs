//! Mode `zero`: writes zeros to every byte, by a command of the disk if it has one.

use std::ops::Range;

use super::worker::Worker;
use super::{Erased, samples};
use crate::disk::partitions;
use crate::error::Error;
use crate::text;

/// Bytes per request, so that progress and cancellation work.
const PIECE: u64 = 64 << 20;

pub(super) fn erase(worker: &mut Worker<'_>) -> Result<Erased, Error> {
    let size = worker.disk.size();
    let whole = 0..size;
    let all = std::slice::from_ref(&whole);
    write(worker, all)?;
    let samples = samples::are_zero(worker.disk, all)?;
    Ok(Erased { method: format!("every byte overwritten with zeros ({})", text::size(size)), samples })
}

/// Writes zeros to ranges of bytes, and returns once they are on the disk.
pub(super) fn write(worker: &mut Worker<'_>, ranges: &[Range<u64>]) -> Result<(), Error> {
    worker.begin(ranges.iter().map(|range| range.end - range.start).sum());
    worker.check()?;
    // A half-erased disk must not be recognised any more, whatever happens later.
    partitions::wipe_partition_tables(worker.disk)?;
    let mut done = 0;
    for range in ranges {
        for piece in pieces(range.clone(), PIECE) {
            worker.check()?;
            done += piece.end - piece.start;
            worker.disk.zero(piece)?;
            worker.reach(done);
        }
    }
    worker.disk.flush()
}

/// Splits a range into pieces of at most `len` bytes.
pub(super) fn pieces(range: Range<u64>, len: u64) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    std::iter::successors(Some(range.start), move |at| at.checked_add(len))
        .take_while(move |at| *at < end)
        .map(move |at| at..at.saturating_add(len).min(end))
}
