//! `erase-disk`: takes away what is on a disk, and checks that it is gone.

use std::ops::Range;
use std::time::Instant;

use slipway_protocol::{EraseDisk, EraseMode, Stage};

use crate::error::Error;
use crate::machine::Machine;
use crate::open_disk::{Access, OpenDisk};
use crate::partitions::{self, Partition};
use crate::stream::progress::{Counters, Meter, Watch};
use crate::{Done, Report, choose, text};

/// Erased at the head of the disk and of each partition. LUKS2 keeps its key slots in the first 16 MiB (LUKS2 On-Disk Format,
/// 2.1): without them its data is lost for good. Everything else that sits at a head is smaller: file systems, LVM, ZFS
/// labels, MD 1.1 and 1.2, boot loaders before the first partition.
const HEAD: u64 = 16 << 20;
/// Erased at the tail of both: backup GPT (33 blocks), ZFS labels (512 KiB), MD 0.90 and 1.0 and firmware RAID (128 KiB).
const TAIL: u64 = 1 << 20;
/// Copies of the btrfs superblock (fs/btrfs/disk-io.h, btrfs_sb_offset).
const BTRFS_COPIES: [u64; 2] = [64 << 20, 256 << 30];
const BTRFS_COPY: u64 = 4096;
/// Zeros asked for at once, so that progress is seen and a stop is heard.
const PIECE: u64 = 64 << 20;
/// Places read back after the whole disk was zeroed.
const SAMPLES: u64 = 256;
const SAMPLE: u64 = 4096;

pub(crate) fn run(inputs: &EraseDisk, machine: &dyn Machine, report: &mut dyn FnMut(Report)) -> Result<Done, Error> {
    let disk = choose::open(&inputs.disk, Access::Write, machine, report)?;
    let mut warnings = Vec::new();
    let partitions = match inputs.mode {
        EraseMode::Metadata => known_partitions(&disk, &mut warnings)?,
        EraseMode::Zero => Vec::new(),
    };
    let ranges = match inputs.mode {
        EraseMode::Metadata => metadata_ranges(disk.size(), &partitions),
        EraseMode::Zero => std::iter::once(0..disk.size()).collect(),
    };
    erase(&disk, &ranges, machine, report)?;
    disk.flush()?;
    verify(&disk, &ranges)?;
    if let Err(errno) = disk.reread_partitions() {
        warnings.push(format!("the kernel still knows the old partitions of {}: {errno}", disk.path()));
    }
    let erased: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    let what = match (inputs.mode, partitions.iter().filter(|partition| partition.number > 0).count()) {
        (EraseMode::Zero, _) => "every byte".to_owned(),
        (EraseMode::Metadata, 0) => "head and tail".to_owned(),
        (EraseMode::Metadata, n) => format!("head, tail and the ends of {n} partitions"),
    };
    Ok(Done::go_on(format!("erased {what} of {} ({})", disk.path(), text::size(erased)), warnings))
}

/// The partitions whose ends must go too. A disk whose table cannot be read must still be erasable.
fn known_partitions(disk: &OpenDisk, warnings: &mut Vec<String>) -> Result<Vec<Partition>, Error> {
    partitions::read(disk).or_else(|error| match error {
        Error::PartitionTable { .. } => {
            warnings
                .push(format!("only head and tail of the disk were erased: {error}; use mode zero to erase all of it"));
            Ok(Vec::new())
        }
        error => Err(error),
    })
}

fn erase(
    disk: &OpenDisk,
    ranges: &[Range<u64>],
    machine: &dyn Machine,
    report: &mut dyn FnMut(Report),
) -> Result<(), Error> {
    let counters = Counters::default();
    let meter = Meter::new(Stage::Write, 1);
    let meters = [&meter];
    let total = ranges.iter().map(|range| range.end - range.start).sum();
    let mut watch = Watch::new(&counters, &meters, Some(total));
    let mut reported = Instant::now();
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            machine.cancel().check()?;
            let end = (at + PIECE).min(range.end);
            disk.zero(at..end)?;
            counters.written.fetch_add(end - at, std::sync::atomic::Ordering::Relaxed);
            at = end;
            if reported.elapsed() >= crate::stream::REPORT_EVERY {
                reported = Instant::now();
                report(Report::Progress(watch.look(reported)));
            }
        }
    }
    report(Report::Progress(watch.look(Instant::now())));
    Ok(())
}

/// What must go so that nothing recognises the disk or a partition of it, in order and without overlap.
fn metadata_ranges(disk_size: u64, partitions: &[Partition]) -> Vec<Range<u64>> {
    let whole = 0..disk_size;
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for bytes in partitions.iter().map(|partition| &partition.bytes).chain([&whole]) {
        ranges.push(bytes.start..bytes.start + HEAD);
        ranges.push(bytes.end.saturating_sub(TAIL).max(bytes.start)..bytes.end);
        ranges.extend(BTRFS_COPIES.map(|copy| bytes.start + copy..bytes.start + copy + BTRFS_COPY));
        for range in ranges.iter_mut().rev().take(2 + BTRFS_COPIES.len()) {
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

/// Reads back both ends of every range, and places spread over it.
fn verify(disk: &OpenDisk, ranges: &[Range<u64>]) -> Result<(), Error> {
    let mut buffer = vec![0; SAMPLE as usize];
    for range in ranges {
        let room = (range.end - range.start).saturating_sub(SAMPLE);
        let samples = (room / SAMPLE).clamp(1, SAMPLES);
        for sample in 0..=samples {
            let offset = range.start + (u128::from(room) * u128::from(sample) / u128::from(samples)) as u64;
            let len = SAMPLE.min(range.end - offset) as usize;
            disk.read_at(&mut buffer[..len], offset)?;
            if let Some(at) = buffer[..len].iter().position(|byte| *byte != 0) {
                return Err(Error::NotErased { disk: disk.path().to_owned(), offset: offset + at as u64 });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn check(disk_mib: u64, partitions_mib: &[(u64, u64)], expect: &[Range<u64>]) {
        let partition = |&(from, to): &(u64, u64)| Partition {
            number: 1,
            bytes: from * MIB..to * MIB,
            type_guid: None,
            guid: None,
            name: String::new(),
        };
        let partitions: Vec<Partition> = partitions_mib.iter().map(partition).collect();
        assert_eq!(metadata_ranges(disk_mib * MIB, &partitions), expect, "{disk_mib} MiB, {partitions_mib:?}");
    }

    #[test]
    fn metadata_is_at_the_ends_and_where_btrfs_keeps_copies() {
        let copy = |at: u64| at * MIB..at * MIB + 4096;
        check(40, &[], &[0..16 * MIB, 39 * MIB..40 * MIB]);
        check(20, &[(1, 19)], &[0..17 * MIB, 18 * MIB..20 * MIB]);
        check(100, &[], &[0..16 * MIB, copy(64), 99 * MIB..100 * MIB]);
        check(60, &[(1, 30)], &[0..17 * MIB, 29 * MIB..30 * MIB, 59 * MIB..60 * MIB]);
        check(60, &[(1, 20), (20, 59)], &[0..17 * MIB, 19 * MIB..36 * MIB, 58 * MIB..60 * MIB]);
        let last = (300_u64 << 10) * MIB;
        let tail = last - MIB..last;
        check(300 << 10, &[], &[0..16 * MIB, copy(64), copy(256 << 10), tail]);
    }
}
