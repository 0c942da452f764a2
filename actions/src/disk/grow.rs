//! Plans the growth of the last partition of an image to the end of a larger disk. A partition that cannot be grown is
//! left as it is. That is not an error, because the image works without it.

use std::ops::Range;

use slipway_protocol::workflow::partition_types as types;

use crate::disk::open::OpenDisk;
use crate::disk::partitions::Partition;
use crate::disk::probe;
use crate::error::Error;

/// Alignment of partition ends in bytes, as partitioning programs use it.
const ALIGNMENT: u64 = 1 << 20;
/// File systems that the kernel can grow while mounted, as the probe calls them.
const GROWABLE: &[&str] = &["ext2", "ext3", "ext4", "xfs", "btrfs"];
/// Types of partitions that are never sealed by another partition.
const UNSEALED_TYPES: &[&str] = &[types::HOME, types::SRV, types::VAR, types::TMP];

/// What happens to the last partition of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// There is no partition, growing was not requested, or the last partition ends at the end of the disk.
    NotNeeded,
    /// The partition is left as it is.
    Left {
        /// The partition, in words.
        partition: String,
        /// The reason.
        reason: String,
    },
    /// The partition is extended to the end of the disk.
    Grown(Grown),
}

/// A partition that is larger than in the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grown {
    /// The partition with its new size.
    pub(crate) partition: Partition,
    /// Previous end of the partition on the disk, in bytes.
    pub(crate) old_end: u64,
    /// The file system in it.
    pub(crate) kind: &'static str,
}

impl Grown {
    /// Returns the byte range at the new end that must be cleared. Some signatures are at the end of their partition,
    /// and an earlier system may have left one there.
    pub(crate) fn stale(&self) -> Range<u64> {
        let end = self.partition.bytes.end;
        self.old_end.max(end - ALIGNMENT)..end
    }
}

/// Plans what happens to the partition with the highest end in a table. Partitions may end at byte `room` at most. The
/// contents of the partitions must be on the disk.
pub(crate) fn plan(disk: &OpenDisk, partitions: &[Partition], room: u64) -> Result<Growth, Error> {
    let Some(last) = partitions.iter().max_by_key(|partition| partition.bytes.end) else {
        return Ok(Growth::NotNeeded);
    };
    let end = room - room % ALIGNMENT;
    if end <= last.bytes.end {
        return Ok(Growth::NotNeeded);
    }
    let mut seals = false;
    for partition in partitions {
        let found = probe::file_system(disk, partition)?;
        seals |= found.is_some_and(|found| found.kind == probe::VERITY_HASHES);
    }
    let kind = probe::file_system(disk, last)?.map(|found| found.kind);
    Ok(match (obstacle(last, partitions, seals), kind.filter(|kind| GROWABLE.contains(kind))) {
        (None, Some(kind)) => {
            let partition = Partition { bytes: last.bytes.start..end, ..last.clone() };
            Growth::Grown(Grown { partition, old_end: last.bytes.end, kind })
        }
        (obstacle, _) => {
            let holds = || kind.map_or("it has no file system".to_owned(), |kind| format!("it contains {kind}"));
            Growth::Left { partition: last.describe(disk), reason: obstacle.map_or_else(holds, str::to_owned) }
        }
    })
}

/// Leaves the partition with the highest end as it is, for a reason in the table.
pub(crate) fn left(disk: &OpenDisk, partitions: &[Partition], room: u64, reason: &str) -> Growth {
    let last = partitions.iter().max_by_key(|partition| partition.bytes.end);
    match last.filter(|last| room - room % ALIGNMENT > last.bytes.end) {
        Some(last) => Growth::Left { partition: last.describe(disk), reason: reason.to_owned() },
        None => Growth::NotNeeded,
    }
}

/// Returns why a partition must not be changed, whatever file system it has. `seals` says whether the table has a
/// partition with dm-verity hashes.
fn obstacle(last: &Partition, partitions: &[Partition], seals: bool) -> Option<&'static str> {
    let len = |partition: &Partition| partition.bytes.end - partition.bytes.start;
    let is_twin = |other: &&Partition| {
        other.number != last.number && other.type_guid == last.type_guid && len(other) == len(last)
    };
    let is_unsealed = last.type_guid.as_deref().is_some_and(|guid| UNSEALED_TYPES.contains(&guid));
    let overlaps =
        |other: &Partition| other.number != last.number && other.bytes.end > last.bytes.start && len(other) > 0;
    if partitions.iter().any(overlaps) {
        Some("another partition overlaps it")
    } else if last.read_only {
        Some("it is marked as read-only")
    } else if seals && !is_unsealed {
        Some("it may be sealed by dm-verity")
    } else if last.type_guid.is_some() && partitions.iter().any(|other| is_twin(&other)) {
        Some("it is one of a pair of partitions that are updated in turn")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_or_one_of_two_is_not_written_to() {
        const ROOT: &str = types::ROOT_X86_64;
        let partition = |number, type_guid: &str, mib: Range<u64>| Partition {
            number,
            bytes: mib.start << 20..mib.end << 20,
            type_guid: Some(type_guid.to_owned()),
            ..Partition::default()
        };
        let check = |last: Partition, others: &[Partition], seals, expect: Option<&str>| {
            assert_eq!(obstacle(&last, others, seals), expect, "{last:?} beside {others:?}, sealed: {seals}");
        };
        let (last, twin) = (partition(2, ROOT, 20..30), partition(1, ROOT, 10..20));
        check(last.clone(), std::slice::from_ref(&last), false, None);
        check(last.clone(), &[partition(1, ROOT, 10..19)], false, None);
        check(last.clone(), &[partition(1, UNSEALED_TYPES[0], 10..20)], false, None);
        let in_turn = "it is one of a pair of partitions that are updated in turn";
        check(last.clone(), std::slice::from_ref(&twin), false, Some(in_turn));
        check(last.clone(), &[partition(1, ROOT, 10..21)], false, Some("another partition overlaps it"));
        check(last.clone(), &[], true, Some("it may be sealed by dm-verity"));
        check(partition(2, UNSEALED_TYPES[2], 20..30), &[], true, None);
        check(Partition { read_only: true, ..last.clone() }, &[], false, Some("it is marked as read-only"));
        let in_mbr = |partition| Partition { type_guid: None, ..partition };
        check(in_mbr(last), &[in_mbr(twin)], false, None);
    }
}
