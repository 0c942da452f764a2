//! Finds what actions on the installed system work on: its root file system, or a named partition.

use slipway_protocol::NumberOrName;

use crate::disk::open::OpenDisk;
use crate::disk::partitions::{self, Partition};
use crate::disk::probe::FileSystem;
use crate::error::{Error, PartitionError};
use crate::report::{Report, Tell};
use crate::target::mount::{self, MountError, SearchLog, Source};
use crate::target::root::TargetRoot;
use crate::target::{os_release, roles, verity};

/// A mounted file system of the installed system.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) root: TargetRoot,
    pub(crate) partition: Partition,
    /// The partition in words.
    pub(crate) name: String,
    /// File system type.
    pub(crate) kind: &'static str,
    /// The device, from which other subvolumes can be mounted.
    pub(crate) source: Source,
    /// Mount option that chose the subvolume with the root file system, if it is not the default subvolume.
    pub(crate) subvolume: Option<&'static str>,
    /// Partitions that could not be searched.
    pub(crate) warnings: Vec<String>,
}

/// Mounts the named partition, or else the root file system.
pub(crate) fn find(disk: &OpenDisk, partition: Option<&NumberOrName>, report: Tell) -> Result<Target, Error> {
    let Some(wanted) = partition else { return find_root(disk, report) };
    let refused = |reason: String| {
        Error::Partitions(PartitionError::NamedPartition {
            disk: disk.path().to_owned(),
            wanted: wanted.to_string(),
            reason,
        })
    };
    let mut matching = Vec::new();
    let mut others = Vec::new();
    for partition in partitions::read(disk)? {
        let file_system = mount::probe(disk, &partition)?;
        match is_meant(wanted, &partition, file_system.as_ref()) {
            true => matching.push((partition, file_system)),
            false => others.push(partition.describe(disk)),
        }
    }
    let (partition, file_system) = match <[_; 1]>::try_from(matching) {
        Ok([only]) => only,
        Err(none) if none.is_empty() => {
            let there_are = if others.is_empty() { "no partitions".to_owned() } else { others.join(", ") };
            return Err(refused(format!("no partition has that number or name; the disk has {there_are}")));
        }
        Err(several) => {
            let names: Vec<String> = several.iter().map(|(partition, _)| partition.describe(disk)).collect();
            return Err(refused(format!("it could be {}; give the number", names.join(" or "))));
        }
    };
    let name = partition.describe(disk);
    let Some(kind) = file_system.map(|file_system| file_system.kind) else {
        return Err(refused(format!("{name} cannot be mounted: it has no file system")));
    };
    if !mount::is_mountable(kind) {
        return Err(refused(format!("{name} cannot be mounted: it is {kind}")));
    }
    let mut looked_at = SearchLog::default();
    let (source, root, subvolume) = match mounted(disk, &partition, kind) {
        Ok(mounted) => mounted,
        Err(error) => {
            looked_at.refused(&name, &error);
            return Err(looked_at.not_found("the selected file system", disk));
        }
    };
    Ok(Target { root, partition, name, kind, source, subvolume, warnings: Vec::new() })
}

type Mounted = (Source, TargetRoot, Option<&'static str>);

fn mounted(disk: &OpenDisk, partition: &Partition, kind: &'static str) -> Result<Mounted, MountError> {
    let source = mount::source(disk, partition)?;
    let (root, subvolume) = mount::mount_source(&source, kind)?;
    Ok((source, root, subvolume))
}

fn is_meant(wanted: &NumberOrName, partition: &Partition, file_system: Option<&FileSystem>) -> bool {
    match wanted {
        NumberOrName::Number(number) => partition.number == *number,
        NumberOrName::Name(name) => {
            let label = file_system.and_then(|file_system| file_system.label.as_ref());
            !name.is_empty() && (partition.name == *name || label == Some(name))
        }
    }
}

/// Mounts the root file system of the installed system: the partition with a root type, else one with a matching name
/// or label, else the first with an operating system.
pub(crate) fn find_root(disk: &OpenDisk, report: Tell) -> Result<Target, Error> {
    let mut found = verity::judged(disk)?;
    found.sort_by_key(|((partition, file_system), _)| roles::rank(partition, file_system.as_ref()));
    let mut looked_at = SearchLog::default();
    for ((partition, file_system), closed) in found {
        let name = partition.describe(disk);
        if let Some(reason) = closed {
            looked_at.note_miss(format!("{name} is left alone: {reason}"));
            continue;
        }
        let Some(file_system) = file_system else {
            looked_at.note_miss(format!("{name} has no file system"));
            continue;
        };
        let kind = file_system.kind;
        if !mount::is_mountable(kind) || kind == "vfat" {
            looked_at.note_miss(format!("{name} is {kind}"));
            continue;
        }
        let (source, root, subvolume) = match mounted(disk, &partition, kind) {
            Ok(mounted) => mounted,
            Err(error) => {
                looked_at.refused(&name, &error);
                if roles::rank(&partition, Some(&file_system)) == 0 {
                    // This partition was marked as the root. Another system on the disk must not get its files.
                    break;
                }
                continue;
            }
        };
        if os_release::PATHS.iter().any(|path| root.exists(path)) {
            report(Report::Note(format!("the root file system is {kind} on {name}")));
            return Ok(Target { root, partition, name, kind, source, subvolume, warnings: looked_at.refusals });
        }
        looked_at.note_miss(format!("{name} ({kind}) has no /etc/os-release"));
    }
    Err(looked_at.not_found("a root file system", disk))
}
