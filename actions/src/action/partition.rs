//! `partition`: replaces the contents of each chosen disk by a new GPT, with arrays and volumes on it.

mod layers;
mod lvm;
mod raid;
mod start;

use std::ops::Range;

use slipway_protocol::Partition;
use slipway_protocol::workflow::new_partition as rules;

use crate::action::Done;
use crate::disk::choose;
use crate::disk::open::OpenDisk;
use crate::disk::partitions::{self, Table};
use crate::error::{Error, PartitionError};
use crate::machine::Machine;
use crate::report::{Report, Tell};
use crate::{random, text};
use layers::Layers;

/// Partitions begin and end at multiples of this many bytes, which suits every disk.
const ALIGNMENT: u64 = 1 << 20;

/// A disk and its new table.
#[derive(Debug)]
struct Planned {
    disk: OpenDisk,
    table: Table,
    /// Byte range of each partition.
    places: Vec<Range<u64>>,
}

pub(crate) fn run(inputs: &Partition, machine: &dyn Machine, report: Tell) -> Result<Done, Error> {
    let disks = choose::open_all(&inputs.disk, machine, report)?;
    let mut disks = disks.into_iter().map(|disk| plan(inputs, disk)).collect::<Result<Vec<_>, _>>()?;
    let layers = Layers::plan(inputs, &disks, machine)?;
    for disk in &disks {
        // With a single disk, its name is not needed.
        let on_disk = if disks.len() > 1 { format!(" of {}", disk.disk.path()) } else { String::new() };
        for (number, (new, bytes)) in (1..).zip(inputs.partitions.iter().zip(&disk.places)) {
            let size = text::size(bytes.end - bytes.start);
            report(Report::Note(format!("partition {number}{on_disk}: {size} of type {}", new.r#type)));
        }
    }
    let built = layers.describe();
    built.iter().for_each(|what| report(Report::Note(what.clone())));
    machine.cancel().check()?;
    disks.iter().try_for_each(clear)?;
    layers.write(&disks)?;
    for disk in &mut disks {
        disk.disk.flush()?;
        disk.table.write(&disk.disk)?;
    }
    let mut warnings = Vec::new();
    for Planned { disk, .. } in &disks {
        if let Err(errno) = disk.reread_partitions() {
            warnings.push(format!("the kernel does not know the new partitions of {} yet: {errno}", disk.path()));
        }
    }
    let paths: Vec<String> = disks.iter().map(|disk| disk.disk.path().to_owned()).collect();
    // The kernel cannot start arrays and volumes on the partitions while the disks are held open.
    drop(disks);
    if machine.setup().is_operating_system {
        layers.start(&paths)?;
    }
    let mut summary = format!("made {} partitions on {}", inputs.partitions.len(), paths.join(", "));
    built.iter().for_each(|what| summary.push_str(&format!("; {what}")));
    Ok(Done::go_on(summary, warnings))
}

/// Plans the table of a disk. Writes nothing.
fn plan(inputs: &Partition, disk: OpenDisk) -> Result<Planned, Error> {
    let refused = |reason| Error::Partitions(PartitionError::Layout { disk: disk.path().to_owned(), reason });
    let mut table = Table::new(&disk)?;
    let sizes: Vec<Option<u64>> =
        inputs.partitions.iter().map(|new| new.size.bytes()).collect::<Result<_, _>>().map_err(refused)?;
    let places = places(&sizes, table.usable()).map_err(refused)?;
    for (new, bytes) in inputs.partitions.iter().zip(&places) {
        let guid = match &new.uuid {
            Some(uuid) => uuid.clone(),
            None => random::uuid_text(&random::uuid()?),
        };
        let type_guid = rules::type_guid(&new.r#type).unwrap_or_default();
        let name = new.label.clone().unwrap_or_default();
        table.add(&partitions::Planned { bytes: bytes.clone(), type_guid, guid, name })?;
    }
    Ok(Planned { disk, table, places })
}

/// Removes the old table, and clears the places where the new partitions begin and end, so that no old file system
/// appears in one of them.
fn clear(planned: &Planned) -> Result<(), Error> {
    let disk = &planned.disk;
    partitions::wipe_partition_tables(disk)?;
    disk.zero(0..ALIGNMENT)?;
    disk.zero(planned.table.usable().end..disk.size() - disk.size() % u64::from(disk.logical_block()))?;
    for bytes in &planned.places {
        disk.zero(bytes.start..bytes.start + ALIGNMENT)?;
        disk.zero(bytes.end - ALIGNMENT..bytes.end)?;
    }
    disk.flush()
}

/// Places partitions of these sizes one after the other in the usable range of a disk. `None` as a size means the space
/// that the others leave.
fn places(sizes: &[Option<u64>], usable: Range<u64>) -> Result<Vec<Range<u64>>, String> {
    let room = usable.end.saturating_sub(usable.start);
    let rounded = |bytes: u64| bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
    let wanted = sizes.iter().flatten().fold(0_u64, |sum, bytes| sum.saturating_add(rounded(*bytes)));
    let left = room.saturating_sub(wanted);
    let needs_rest = sizes.contains(&None);
    if wanted > room || (needs_rest && left == 0) {
        let rest = if needs_rest { " and some space for the rest" } else { "" };
        let (wanted, room) = (text::size(wanted), text::size(room));
        return Err(format!("the partitions need {wanted}{rest}, but there is room for {room}; make them smaller"));
    }
    let mut at = usable.start;
    let place = |bytes: &Option<u64>| {
        let start = at;
        at += bytes.map_or(left, rounded);
        start..at
    };
    Ok(sizes.iter().map(place).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_aligned_one_behind_the_other_and_fit_or_are_refused() {
        const MIB: u64 = 1 << 20;
        let check = |sizes: &[Option<u64>], expect: Option<&[(u64, u64)]>| {
            let found = places(sizes, MIB..10 * MIB);
            let expect = expect.map(|places| places.iter().map(|(start, end)| start * MIB..end * MIB).collect());
            assert_eq!(found.clone().ok(), expect, "{sizes:?}: {found:?}");
        };
        check(&[Some(MIB), Some(2 * MIB)], Some(&[(1, 2), (2, 4)]));
        check(&[Some(1), Some(MIB + 1)], Some(&[(1, 2), (2, 4)]));
        check(&[Some(MIB), None, Some(MIB)], Some(&[(1, 2), (2, 9), (9, 10)]));
        check(&[Some(9 * MIB)], Some(&[(1, 10)]));
        check(&[None], Some(&[(1, 10)]));
        check(&[Some(9 * MIB + 1)], None);
        check(&[Some(9 * MIB), None], None);
        check(&[Some(u64::MAX), Some(u64::MAX)], None);
    }
}
