//! Partitions sealed by dm-verity. They are never written to, because every changed byte would be detected. Their hash
//! trees are verified.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use slipway_protocol::workflow::partition_types as types;

use super::verity::{self, Place};
use crate::disk::open::OpenDisk;
use crate::disk::partitions::Partition;
use crate::disk::probe::VERITY_HASHES;
use crate::error::{EncryptError, Error};
use crate::machine::Cancel;
use crate::report::{Report, Tell};
use crate::stream::progress::{Counters, Pace, Watch};
use crate::text;
use tree::{Fault, Superblock};

mod tree;

/// Types of partitions that may be sealed, types of their hash partitions, and whether they are a root.
const SEALED: &[(&str, &str, bool)] = &[
    (types::ROOT_X86_64, types::ROOT_X86_64_VERITY, true),
    (types::USR_X86_64, types::USR_X86_64_VERITY, false),
    (types::ROOT_ARM64, types::ROOT_ARM64_VERITY, true),
    (types::USR_ARM64, types::USR_ARM64_VERITY, false),
];

/// What [`check`] found, if a root file system is sealed by dm-verity.
pub(crate) struct SealedRoots {
    /// Descriptions of the sealed root partitions, at least one.
    pub(crate) names: Vec<String>,
    /// Warnings about what could not be verified.
    pub(crate) warnings: Vec<String>,
}

/// Verifies all sealed partitions of a disk. Returns the roots among them, if there are any.
pub(crate) fn check(disk: &OpenDisk, cancel: &Cancel, report: Tell) -> Result<Option<SealedRoots>, Error> {
    let places = verity::places(disk)?;
    let is_hashes = |place: &&Place| place.1.as_ref().is_some_and(|found| found.kind == VERITY_HASHES);
    if !places.iter().any(|place| is_hashes(&place)) {
        return Ok(None);
    }
    let named = verity::boot_arguments(disk, &places)?;
    let (mut left, mut warnings, mut checked) = (Vec::new(), Vec::new(), Vec::new());
    for (hashes, _) in places.iter().filter(is_hashes) {
        let Some((data, is_root)) = data_of(hashes, &places) else {
            let reason = "its partition type does not say what it seals, and that may be the root; in the image, give \
                          it the type that the Discoverable Partitions Specification defines";
            return Err(EncryptError::Refused { what: hashes.describe(disk), reason: reason.to_owned() }.into());
        };
        let of_kind = if is_root { &named.root } else { &named.usr };
        let (root_hash, warning) = check_one(disk, data, hashes, of_kind, cancel, report)?;
        checked.extend(root_hash.map(|root_hash| (is_root, data.describe(disk), root_hash)));
        warnings.extend(warning);
        if is_root {
            left.push(data.describe(disk));
        }
    }
    is_started(&checked, true, &named.root)?;
    is_started(&checked, false, &named.usr)?;
    if left.is_empty() {
        warnings.into_iter().for_each(|warning| report(Report::Note(warning)));
        return Ok(None);
    }
    Ok(Some(SealedRoots { names: left, warnings }))
}

/// Fails if boot entries name root hashes of this kind (root or not), but none of those found on the disk.
fn is_started(checked: &[(bool, String, String)], is_root: bool, named: &BTreeSet<String>) -> Result<(), Error> {
    let mut found = checked.iter().filter(|(kind, ..)| *kind == is_root).peekable();
    let first = found.peek().copied();
    let (Some((_, what, root_hash)), Some(one)) = (first, named.first()) else { return Ok(()) };
    if found.any(|(_, _, root_hash)| named.contains(root_hash)) {
        return Ok(());
    }
    let reason = format!("its root hash is {root_hash}, but the boot entries name {one}");
    Err(EncryptError::Sealed { what: what.clone(), reason }.into())
}

/// Finds the partition that a hash partition seals, and whether it is a root. If there are several of each type (such
/// as for A/B updates), both have the same position among those of their type.
fn data_of<'a>(hashes: &Partition, places: &'a [Place]) -> Option<(&'a Partition, bool)> {
    let partitions = || places.iter().map(|(partition, _)| partition);
    let of_type = |guid: &'static str| partitions().filter(move |one| one.type_guid.as_deref() == Some(guid));
    let own = hashes.type_guid.as_deref()?;
    let (data, hash, is_root) = SEALED.iter().find(|(_, hash, _)| *hash == own)?;
    let place = of_type(hash).position(|one| one.number == hashes.number)?;
    of_type(data).nth(place).map(|data| (data, *is_root))
}

/// Verifies data by its hashes. Returns the root hash, unless the tree is of a kind that cannot be verified, and a
/// warning if this proves nothing. `named` are the root hashes in boot entries.
fn check_one(
    disk: &OpenDisk,
    data: &Partition,
    hashes: &Partition,
    named: &BTreeSet<String>,
    cancel: &Cancel,
    report: Tell,
) -> Result<(Option<String>, Option<String>), Error> {
    let name = data.describe(disk);
    let damaged = |reason: String| Error::Encrypt(EncryptError::Sealed { what: name.clone(), reason });
    let mut head = [0; tree::SUPERBLOCK];
    disk.read_at(&mut head, hashes.bytes.start)?;
    let [data_len, hash_len] = [data, hashes].map(|partition| partition.bytes.end - partition.bytes.start);
    let superblock = match Superblock::parse(&head, data_len, hash_len) {
        Ok(superblock) => superblock,
        Err(Fault::Unknown(what)) => {
            return Ok((None, Some(format!("the hash tree of {name} was not checked: {what}"))));
        }
        Err(Fault::Damaged(reason)) => return Err(damaged(reason)),
    };
    let counters = Counters::default();
    let total = superblock.data_len();
    let mut watch = Watch::new(&counters, &[], Some(total));
    let mut pace = Pace::new(Instant::now());
    let found = tree::root_hash(&superblock, &mut |which, offset, buffer| {
        let partition = match which {
            tree::Part::Data => data,
            tree::Part::Hashes => hashes,
        };
        cancel.check()?;
        let now = Instant::now();
        if which == tree::Part::Data && pace.is_due(now) {
            counters.written.store(offset, Relaxed);
            report(Report::Progress(watch.look(now)));
        }
        disk.read_at(buffer, partition.bytes.start + offset)
    })?;
    let found = found.map_err(damaged)?;
    if named.contains(&found) || named_by(data, hashes).as_ref() == Some(&found) {
        let size = text::size(total);
        report(Report::Note(format!("{name} ({size}) matches its hash tree and the root hash {found}")));
        return Ok((Some(found), None));
    }
    let warning = format!(
        "{name} matches its hash tree with the root hash {found}, but neither the partitions' UUIDs nor the boot \
         entries name this hash, so nothing shows whether it is the right one"
    );
    Ok((Some(found), Some(warning)))
}

/// Returns the root hash made of the UUIDs of two partitions (Discoverable Partitions Specification, "Verity").
fn named_by(data: &Partition, hashes: &Partition) -> Option<String> {
    Some([data.guid.as_ref()?.as_str(), hashes.guid.as_ref()?].concat().replace('-', ""))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn types_are_what_sfdisk_takes_them_for() {
        let mut sfdisk = Command::new("sfdisk");
        let listed = sfdisk.args(["--list-types", "--label", "gpt"]).env("LC_ALL", "C").output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap().to_ascii_lowercase();
        let name =
            |guid: &str| listed.lines().find_map(|line| line.strip_prefix(guid)).map(str::trim).unwrap_or_default();
        for (index, (data, hashes, is_root)) in SEALED.iter().enumerate() {
            let (what, processor) = (if *is_root { "root" } else { "/usr" }, ["x86-64", "arm-64"][index / 2]);
            assert_eq!(name(data), format!("linux {what} ({processor})"));
            assert_eq!(name(hashes), format!("linux {what} verity ({processor})"));
        }
    }
}
