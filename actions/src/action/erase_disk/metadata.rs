//! Mode `metadata`: overwrites with zeros everything by which data on a disk is recognised.

use std::ops::Range;

use super::worker::Worker;
use super::{Erased, samples, zero};
use crate::disk::open::OpenDisk;
use crate::disk::partitions::{self, Partition};
use crate::error::{Error, PartitionError};
use crate::text;

/// Bytes erased at the start of the disk and of each partition. LUKS2 keeps its key slots in the first 16 MiB (LUKS2
/// On-Disk Format, 2.1): without them its data is lost for good. Everything else at the start is smaller: file systems,
/// LVM, ZFS labels, MD 1.1 and 1.2, boot loaders before the first partition.
const HEAD: u64 = 16 << 20;
/// Bytes erased at the end of the disk and of each partition: backup GPT (33 blocks), ZFS labels (512 KiB), MD 0.90 and
/// 1.0 and firmware RAID (128 KiB).
const TAIL: u64 = 1 << 20;
/// Offsets of copies of superblocks: of btrfs (fs/btrfs/disk-io.h, btrfs_sb_offset), and of the label of Ceph's
/// `BlueStore` (src/os/bluestore/BlueStore.cc, bdev_label_positions), which Ceph uses if the first label is gone.
const COPIES: [u64; 6] = [64 << 20, 256 << 30, 1 << 30, 10 << 30, 100 << 30, 1000 << 30];
const COPY: u64 = 4096;

pub(super) fn erase(worker: &mut Worker<'_>) -> Result<Erased, Error> {
    Places::find(worker.disk)?.erase(worker)
}

/// Places of a disk's metadata.
#[derive(Debug)]
pub(super) struct Places {
    ranges: Vec<Range<u64>>,
    /// Number of partitions on the disk.
    partitions: usize,
    /// Why the partitions are not known.
    warning: Option<String>,
}

impl Places {
    /// Finds the places. The disk must not have been changed yet.
    pub(super) fn find(disk: &OpenDisk) -> Result<Self, Error> {
        let (partitions, warning) = known_partitions(disk)?;
        let ranges = metadata_ranges(disk.size(), &partitions);
        let partitions = partitions.iter().filter(|partition| partition.number > 0).count();
        Ok(Self { ranges, partitions, warning })
    }

    /// Overwrites the places with zeros.
    pub(super) fn erase(self, worker: &mut Worker<'_>) -> Result<Erased, Error> {
        worker.warnings.extend(self.warning);
        zero::write(worker, &self.ranges)?;
        let samples = samples::are_zero(worker.disk, &self.ranges)?;
        let size = text::size(self.ranges.iter().map(|range| range.end - range.start).sum());
        let method = match self.partitions {
            0 => format!("head and tail ({size})"),
            n => format!("head, tail and the ends of {n} partitions ({size})"),
        };
        Ok(Erased { method, samples })
    }
}

/// The partitions whose ends must be erased too. A disk with an unreadable table must still be erasable, with a
/// warning.
fn known_partitions(disk: &OpenDisk) -> Result<(Vec<Partition>, Option<String>), Error> {
    match partitions::read(disk) {
        Ok(partitions) => Ok((partitions, None)),
        Err(error @ Error::Partitions(PartitionError::Table { .. })) => {
            let warning =
                format!("only head and tail of the disk were erased: {error}; use mode zero to erase all of it");
            Ok((Vec::new(), Some(warning)))
        }
        Err(error) => Err(error),
    }
}

/// Ranges to erase so that nothing recognises the disk or a partition of it, in order and without overlap.
fn metadata_ranges(disk_size: u64, partitions: &[Partition]) -> Vec<Range<u64>> {
    let whole = 0..disk_size;
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for bytes in partitions.iter().map(|partition| &partition.bytes).chain([&whole]) {
        ranges.push(bytes.start..bytes.start + HEAD);
        ranges.push(bytes.end.saturating_sub(TAIL).max(bytes.start)..bytes.end);
        ranges.extend(COPIES.map(|copy| bytes.start + copy..bytes.start + copy + COPY));
        for range in ranges.iter_mut().rev().take(2 + COPIES.len()) {
            range.end = range.end.min(bytes.end);
        }
    }
    ranges.retain(|range| range.start < range.end);
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn check(disk_mib: u64, partitions_mib: &[(u64, u64)], expect: &[Range<u64>]) {
        let partition = |&(from, to): &(u64, u64)| Partition { bytes: from * MIB..to * MIB, ..Partition::default() };
        let partitions: Vec<Partition> = partitions_mib.iter().map(partition).collect();
        assert_eq!(metadata_ranges(disk_mib * MIB, &partitions), expect, "{disk_mib} MiB, {partitions_mib:?}");
    }

    #[test]
    fn metadata_is_at_the_ends_and_where_copies_are_kept() {
        let copy = |at: u64| at * MIB..at * MIB + 4096;
        check(40, &[], &[0..16 * MIB, 39 * MIB..40 * MIB]);
        check(20, &[(1, 19)], &[0..17 * MIB, 18 * MIB..20 * MIB]);
        check(100, &[], &[0..16 * MIB, copy(64), 99 * MIB..100 * MIB]);
        check(60, &[(1, 30)], &[0..17 * MIB, 29 * MIB..30 * MIB, 59 * MIB..60 * MIB]);
        check(60, &[(1, 20), (20, 59)], &[0..17 * MIB, 19 * MIB..36 * MIB, 58 * MIB..60 * MIB]);
        let last = (300_u64 << 10) * MIB;
        let tail = last - MIB..last;
        let [first, second, third, fourth, fifth] = [64, 1 << 10, 10 << 10, 100 << 10, 256 << 10].map(copy);
        check(300 << 10, &[], &[0..16 * MIB, first, second, third, fourth, fifth, tail]);
        let of_partition =
            [0..17 * MIB, copy(64), copy(65), copy(1 << 10), copy((1 << 10) + 1), 1099 * MIB..1101 * MIB];
        check(1101, &[(1, 1100)], &of_partition);
    }
}
