//! Detects root file systems that must not be written to. Mounting for writing changes a file system even if no file is
//! changed, and a system sealed by dm-verity does not boot after that. So this is detected without mounting the root.

use std::collections::BTreeSet;

use slipway_formats::boot_config::places;

use super::roles;
use crate::disk::open::OpenDisk;
use crate::disk::partitions::{self, Partition};
use crate::disk::probe::{self, FileSystem};
use crate::error::Error;
use crate::target::mount;
use crate::target::volume::Volume;

/// A partition and its content.
pub(crate) type Place = (Partition, Option<FileSystem>);

/// Read-only file systems.
const READ_ONLY: &[&str] = &["squashfs", "erofs"];
/// Maximum number of root hashes of one kind to keep. A system has a few boot entries.
const MAX_HASHES: usize = 1000;
/// Maximum length of a root hash in characters, that of SHA-512.
const MAX_HASH: usize = 128;

/// Reads the partitions of a disk, with their contents.
pub(crate) fn places(disk: &OpenDisk) -> Result<Vec<Place>, Error> {
    let probed = |partition| mount::probe(disk, &partition).map(|found| (partition, found));
    partitions::read(disk)?.into_iter().map(probed).collect()
}

/// Returns the partitions of a disk, each with the reason, if any, why it must not be mounted. Mounts are for writing.
pub(crate) fn judged(disk: &OpenDisk) -> Result<Vec<(Place, Option<String>)>, Error> {
    let places = places(disk)?;
    let sealed = reason(disk, &places)?;
    let judged = |place: Place| {
        let closed = closed(&place.0, place.1.as_ref(), sealed.as_deref());
        (place, closed)
    };
    Ok(places.into_iter().map(judged).collect())
}

/// Returns why a partition must not be mounted. `sealed` is the reason why the root file system is sealed, if it is.
pub(crate) fn closed(partition: &Partition, found: Option<&FileSystem>, sealed: Option<&str>) -> Option<String> {
    let is_boot = roles::is_for_booting(partition, found) || found.is_some_and(|found| found.kind == "vfat");
    match sealed {
        _ if partition.read_only => Some("it is marked as read-only".to_owned()),
        _ if roles::is_usr(partition) => Some("it contains /usr".to_owned()),
        Some(reason) if !is_boot => {
            Some(format!("it may be the root file system, which must not be changed: {reason}"))
        }
        _ => None,
    }
}

/// Returns why the root file system of a disk must not be written to; none if it may be.
pub(crate) fn reason(disk: &OpenDisk, places: &[Place]) -> Result<Option<String>, Error> {
    let rank = |(partition, found): &Place| roles::rank(partition, found.as_ref());
    let is_root = |place: &&Place| rank(place) < roles::UNMARKED && place.1.is_some();
    if let Some((partition, found)) = places.iter().filter(is_root).min_by_key(|place| rank(place)) {
        let name = partition.describe(disk);
        let kind = found.as_ref().map_or("", |found| found.kind);
        if partition.read_only {
            return Ok(Some(format!("{name} is marked as read-only")));
        }
        if READ_ONLY.contains(&kind) {
            return Ok(Some(format!("{name} is {kind}")));
        }
    } else if let Some((partition, kind)) = alone(places) {
        return Ok(Some(format!("{} is {kind}, and no other file system could be the root", partition.describe(disk))));
    }
    let hashes = hashes(places);
    let arguments = boot_arguments(disk, places)?;
    let sealed = !arguments.root.is_empty() || hashes.root || hashes.unknown && arguments.usr.is_empty();
    Ok(sealed.then(|| "it is sealed by dm-verity".to_owned()))
}

/// Returns the partition with a read-only file system, if no other partition can be the root.
fn alone(places: &[Place]) -> Option<(&Partition, &'static str)> {
    let kinds = || places.iter().filter_map(|(partition, found)| Some((partition, found.as_ref()?.kind)));
    let may_be_root = |kind: &str| mount::is_mountable(kind) && kind != "vfat";
    let has_other = kinds().any(|(_, kind)| may_be_root(kind));
    kinds().find(|(_, kind)| !has_other && READ_ONLY.contains(kind))
}

/// What the hash partitions of a disk seal.
#[derive(Debug, Default, PartialEq, Eq)]
struct Hashes {
    root: bool,
    /// Whether the type of a hash partition does not say what it seals.
    unknown: bool,
}

fn hashes(places: &[Place]) -> Hashes {
    let mut hashes = Hashes::default();
    for (partition, found) in places {
        let is_type = |types: &[&str]| partition.type_guid.as_deref().is_some_and(|guid| types.contains(&guid));
        let is_verity = found.as_ref().is_some_and(|found| found.kind == probe::VERITY_HASHES);
        hashes.root |= is_type(roles::ROOT_VERITY);
        hashes.unknown |= is_verity && !is_type(roles::ROOT_VERITY) && !is_type(roles::USR_VERITY);
    }
    hashes
}

/// The root hashes on kernel command lines, by what they seal.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Arguments {
    pub(crate) root: BTreeSet<String>,
    pub(crate) usr: BTreeSet<String>,
}

impl Arguments {
    fn read(&mut self, text: &str) {
        for word in text.split_whitespace().map(|word| word.trim_matches(['"', '\''])) {
            let (hashes, hash) = match word.strip_prefix("roothash=") {
                Some(hash) => (&mut self.root, hash),
                None => match word.strip_prefix("verity.").unwrap_or(word).strip_prefix("usrhash=") {
                    Some(hash) => (&mut self.usr, hash),
                    None => continue,
                },
            };
            if hashes.len() < MAX_HASHES {
                hashes.insert(hash.chars().take(MAX_HASH).collect::<String>().to_ascii_lowercase());
            }
        }
    }
}

/// Reads the arguments in boot entries and unified kernel images on partitions marked as boot partitions. A partition
/// that cannot be mounted is skipped.
pub(crate) fn boot_arguments(disk: &OpenDisk, places: &[Place]) -> Result<Arguments, Error> {
    let mut arguments = Arguments::default();
    for (partition, found) in places {
        let Some(found) = found else { continue };
        let is_boot = roles::is_for_booting(partition, Some(found));
        let may_be_mounted = is_boot && !partition.read_only && mount::is_mountable(found.kind);
        if let Some(Ok(root)) = may_be_mounted.then(|| mount::mount(disk, partition, found.kind)) {
            let name = partition.describe(disk);
            let volume = Volume::new(name, partition.clone(), found.clone(), root);
            places::texts(&volume)?.iter().for_each(|found| arguments.read(&found.text));
        }
    }
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_says_what_is_sealed() {
        let check = |text: &str, root: &[&str], usr: &[&str]| {
            let mut arguments = Arguments::default();
            arguments.read(text);
            let [root, usr] = [root, usr].map(|hashes| hashes.iter().map(|hash| (*hash).to_owned()).collect());
            assert_eq!(arguments, Arguments { root, usr }, "{text:?}");
        };
        check("options root=/dev/sda2 ro", &[], &[]);
        check("title x\noptions ro roothash=0A1b\n", &["0a1b"], &[]);
        check("linux /v mount.usr=/dev/mapper/usr verity.usrhash=0a", &[], &["0a"]);
        check("options \"usrhash=0a\"", &[], &["0a"]);
        check("options xroothash=1", &[], &[]);
        check("linux /a roothash=1\nlinux /b roothash=2\nlinux /c roothash=1", &["1", "2"], &[]);
    }

    #[test]
    fn of_a_sealed_system_only_what_is_for_booting_is_mounted() {
        let check = |type_guid: &str, kind, label: Option<&str>, read_only, sealed: Option<&str>, expect: bool| {
            let type_guid = Some(type_guid.to_owned());
            let partition = Partition { type_guid, read_only, ..Partition::default() };
            let found = FileSystem { kind, uuid: None, label: label.map(str::to_owned) };
            assert_eq!(closed(&partition, Some(&found), sealed).is_some(), expect, "{partition:?} {found:?}");
        };
        for sealed in [None, Some("it is sealed by dm-verity")] {
            check(slipway_formats::roles::BOOT_TYPES[0], "vfat", None, false, sealed, false);
            check(slipway_formats::roles::BOOT_TYPES[1], "ext4", None, false, sealed, false);
            check("x", "ext4", Some("boot"), false, sealed, false);
            check("x", "ext4", Some("root"), false, sealed, sealed.is_some());
            check("x", "ext4", None, false, sealed, sealed.is_some());
            check("x", "vfat", None, true, sealed, true);
            check("8484680c-9521-48c6-9c11-b0720656f69e", "ext4", None, false, sealed, true);
        }
    }

    #[test]
    fn hashes_seal_what_their_partition_is_for() {
        let place = |type_guid: &str, kind: Option<&'static str>| {
            let type_guid = Some(type_guid.to_owned());
            let found = kind.map(|kind| FileSystem { kind, uuid: None, label: None });
            (Partition { type_guid, ..Partition::default() }, found)
        };
        let check = |places: &[Place], root: bool, unknown: bool| assert_eq!(hashes(places), Hashes { root, unknown });
        check(&[place("x", Some("ext4"))], false, false);
        check(&[place("x", Some(probe::VERITY_HASHES))], false, true);
        check(&[place(roles::ROOT_VERITY[0], Some(probe::VERITY_HASHES))], true, false);
        check(&[place(roles::ROOT_VERITY[1], None)], true, false);
        check(&[place(roles::USR_VERITY[0], Some(probe::VERITY_HASHES))], false, false);
    }
}
