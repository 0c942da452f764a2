//! `make-filesystem`: makes a file system in a partition. One file per kind.

mod ext4;
mod program;
mod swap;
pub(super) mod vfat;
mod xfs;

use slipway_protocol::{FileSystemKind, MakeFileSystem, PartitionChoice};

use crate::action::Done;
use crate::disk::choose;
use crate::disk::open::OpenDisk;
use crate::disk::partitions::{self, Partition};
use crate::error::{Error, PartitionError};
use crate::machine::Machine;
use crate::report::{Report, Tell};
use crate::text;

/// This many bytes are cleared at both ends of a partition.
const ENDS: u64 = 1 << 20;

pub(crate) fn run(inputs: &MakeFileSystem, machine: &dyn Machine, report: Tell) -> Result<Done, Error> {
    let find = |disk: &OpenDisk| find(disk, inputs.partition.as_ref());
    let (disk, partition) = choose::open_partition(&inputs.disk, find, machine, report)?;
    let name = partition.describe(&disk);
    let (kind, len) = (inputs.kind.name(), partition.bytes.end - partition.bytes.start);
    report(Report::Note(format!("making {kind} in {name} of {}", text::size(len))));
    machine.cancel().check()?;
    let refused = |reason| Error::Partitions(PartitionError::MakeFileSystem { kind, partition: name.clone(), reason });
    match inputs.kind {
        FileSystemKind::Vfat => {
            let layout = vfat::layout(len, disk.logical_block().into()).map_err(refused)?;
            vfat::make(&disk, &partition, &layout, inputs)?;
        }
        FileSystemKind::Swap => {
            let pages = swap::pages(len).map_err(refused)?;
            swap::make(&disk, &partition, pages, inputs)?;
        }
        FileSystemKind::Ext4 => {
            let program = program::find("mke2fs", "e2fsprogs").map_err(refused)?;
            clear(&disk, &partition)?;
            let made = ext4::make(&program, disk, &partition, inputs, machine.cancel());
            machine.cancel().check()?;
            made.map_err(refused)?;
        }
        FileSystemKind::Xfs => {
            xfs::check_size(len).map_err(refused)?;
            let program = program::find("mkfs.xfs", "xfsprogs").map_err(refused)?;
            clear(&disk, &partition)?;
            let made = xfs::make(&program, disk, &partition, inputs, machine.cancel());
            machine.cancel().check()?;
            made.map_err(refused)?;
        }
    }
    Ok(Done::go_on(format!("made {kind} in {name}"), Vec::new()))
}

/// Finds the chosen partition. Without a choice, takes the whole disk, which must not have partitions.
fn find(disk: &OpenDisk, choice: Option<&PartitionChoice>) -> Result<Partition, Error> {
    let all = partitions::read(disk)?;
    let is_meant = |partition: &&Partition| match choice {
        None => partition.number == 0,
        Some(PartitionChoice::Number(number)) => partition.number == *number,
        Some(PartitionChoice::Label(label)) => partition.number > 0 && partition.name == *label,
    };
    let found: Vec<&Partition> = all.iter().filter(is_meant).collect();
    match found[..] {
        [one] => Ok(one.clone()),
        _ => {
            let reason = instead(choice, found.len(), &all, disk);
            let choice = match choice {
                None => "a device without partitions".to_owned(),
                Some(PartitionChoice::Number(number)) => format!("partition {number}"),
                Some(PartitionChoice::Label(label)) => format!("a partition with the label {label:?}"),
            };
            Err(PartitionError::ChoosePartition { disk: disk.path().to_owned(), choice, reason }.into())
        }
    }
}

/// Describes what was found instead of exactly one matching partition.
fn instead(choice: Option<&PartitionChoice>, found: usize, all: &[Partition], disk: &OpenDisk) -> String {
    let all = || all.iter().filter(|partition| partition.number > 0);
    let there: Vec<String> = all().map(|partition| partition.describe(disk)).collect();
    let there = there.join("; ");
    match (choice, found) {
        (_, _) if all().next().is_none() => "it has no partitions; make them first".to_owned(),
        (None, _) => format!("it has partitions, so name one of them: {there}"),
        (Some(_), 0) => format!("there is none; the partitions are: {there}"),
        (Some(_), several) => format!("there are {several}, so give the number of one: {there}"),
    }
}

/// Removes the signatures by which the old contents of a partition are recognised.
fn clear(disk: &OpenDisk, partition: &Partition) -> Result<(), Error> {
    let bytes = &partition.bytes;
    disk.zero(bytes.start..bytes.end.min(bytes.start + ENDS))?;
    disk.zero(bytes.start.max(bytes.end.saturating_sub(ENDS))..bytes.end)?;
    disk.flush()
}
