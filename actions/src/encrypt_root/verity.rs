//! Partitions sealed by dm-verity, which are never written to: a changed byte would be found out. Their hash tree is checked.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::error::{EncryptError, Error};
use crate::machine::Cancel;
use crate::open_disk::OpenDisk;
use crate::partitions::{self, Partition};
use crate::stream::progress::{Counters, Pace, Watch};
use crate::{Done, Report, probe, text};
use tree::{Fault, Superblock};

mod tree;

/// Hashes, as the probe calls them.
const HASHES: &str = "DM_verity_hash";
/// Types of partitions that may be sealed and of those with their hashes (Discoverable Partitions Specification), and whether they
/// are a root: root and /usr of x86-64, root and /usr of arm64.
const SEALED: &[(&str, &str, bool)] = &[
    ("4f68bce3-e8cd-4db1-96e7-fbcaf984b709", "2c7357ed-ebd2-46d9-aec1-23d437ec2bf5", true),
    ("8484680c-9521-48c6-9c11-b0720656f69e", "77ff5f63-e7b6-4633-acf4-1538b864e5b8", false),
    ("b921b045-1df0-41c3-af44-4c6f280d3fae", "df3300ce-d69f-4c92-978c-9bfb0f38d820", true),
    ("b0e01050-ee5f-4390-949a-9101b17104e9", "6e11a4e7-fbca-4ded-b9e9-e1a512bb664e", false),
];

/// Checks whatever of a disk is sealed. What the step comes to where that is the root, which stays as it is.
pub(super) fn leave_intact(
    disk: &OpenDisk,
    cancel: &Cancel,
    report: &mut dyn FnMut(Report),
) -> Result<Option<Done>, Error> {
    let partitions = partitions::read(disk)?;
    let mut left = Vec::new();
    let mut warnings = Vec::new();
    for hashes in &partitions {
        if probe::file_system(disk, hashes)?.is_none_or(|found| found.kind != HASHES) {
            continue;
        }
        let Some((data, is_root)) = data_of(hashes, &partitions) else {
            let reason = "its type does not say what it seals, which may be the root; give it the type of the Discoverable \
                          Partitions Specification in the image";
            return Err(EncryptError::Refused { what: hashes.describe(disk), reason: reason.to_owned() }.into());
        };
        warnings.extend(check(disk, data, hashes, cancel, report)?);
        if is_root {
            left.push(data.describe(disk));
        }
    }
    if left.is_empty() {
        warnings.into_iter().for_each(|warning| report(Report::Note(warning)));
        return Ok(None);
    }
    let summary = format!("left {} as it is, sealed by dm-verity and not encrypted", left.join(" and "));
    Ok(Some(Done::go_on(summary, warnings)))
}

/// The partition that hashes are of, and whether it is a root. Of several of its type (such as are updated in turn), the one whose
/// place in their order is the same.
fn data_of<'a>(hashes: &Partition, partitions: &'a [Partition]) -> Option<(&'a Partition, bool)> {
    let of_type = |guid: &'static str| partitions.iter().filter(move |one| one.type_guid.as_deref() == Some(guid));
    let own = hashes.type_guid.as_deref()?;
    let (data, hash, is_root) = SEALED.iter().find(|(_, hash, _)| *hash == own)?;
    let place = of_type(hash).position(|one| one.number == hashes.number)?;
    of_type(data).nth(place).map(|data| (data, *is_root))
}

/// Checks that data is what the hashes are of. A warning where that proves nothing.
fn check(
    disk: &OpenDisk,
    data: &Partition,
    hashes: &Partition,
    cancel: &Cancel,
    report: &mut dyn FnMut(Report),
) -> Result<Option<String>, Error> {
    let name = data.describe(disk);
    let damaged = |reason: String| Error::Encrypt(EncryptError::Sealed { what: name.clone(), reason });
    let mut head = [0; tree::SUPERBLOCK];
    disk.read_at(&mut head, hashes.bytes.start)?;
    let [data_len, hash_len] = [data, hashes].map(|partition| partition.bytes.end - partition.bytes.start);
    let superblock = match Superblock::parse(&head, data_len, hash_len) {
        Ok(superblock) => superblock,
        Err(Fault::Unknown(what)) => return Ok(Some(format!("the hash tree of {name} was not checked: {what}"))),
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
    Ok(match named_by(data, hashes) {
        Some(named) if named == found => {
            report(Report::Note(format!(
                "{name} ({}) is as its hash tree and root hash {found} say",
                text::size(total)
            )));
            None
        }
        _ => Some(format!(
            "{name} is as its hash tree says, whose root hash is {found}; the partitions' UUIDs are not that, so nothing says \
             whether it is the right one"
        )),
    })
}

/// The root hash that the identities of two partitions are the halves of (Discoverable Partitions Specification, "Verity").
fn named_by(data: &Partition, hashes: &Partition) -> Option<String> {
    Some([data.guid.as_ref()?.as_str(), hashes.guid.as_ref()?].concat().replace('-', ""))
}
