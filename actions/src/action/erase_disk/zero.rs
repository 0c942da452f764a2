//! Mode `zero`: every byte is written with zeros, by the disk itself where it can.

use std::ops::Range;

use super::worker::Worker;
use super::{Erased, samples};
use crate::disk::partitions;
use crate::error::Error;
use crate::text;

/// Zeros asked for at once, so that progress is seen and a stop is heard.
const PIECE: u64 = 64 << 20;

pub(super) fn erase(worker: &mut Worker<'_>) -> Result<Erased, Error> {
    let size = worker.disk.size();
    let whole = 0..size;
    let all = std::slice::from_ref(&whole);
    write(worker, all)?;
    let samples = samples::are_zero(worker.disk, all)?;
    Ok(Erased { method: format!("every byte written with zeros ({})", text::size(size)), samples })
}

/// Writes zeros to ranges of bytes, and returns once the disk has them.
pub(super) fn write(worker: &mut Worker<'_>, ranges: &[Range<u64>]) -> Result<(), Error> {
    worker.begin(ranges.iter().map(|range| range.end - range.start).sum());
    worker.check()?;
    // What is half erased must not be found any more, whatever happens from here on.
    partitions::forget(worker.disk)?;
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

/// A range in pieces of at most `len` bytes.
pub(super) fn pieces(range: Range<u64>, len: u64) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    std::iter::successors(Some(range.start), move |at| at.checked_add(len))
        .take_while(move |at| *at < end)
        .map(move |at| at..at.saturating_add(len).min(end))
}
