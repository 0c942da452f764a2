//! Purposes of partitions of a disk ([`slipway_formats::roles`]).

use slipway_formats::fstab::Tags;
use slipway_formats::roles;
use slipway_protocol::workflow::partition_types;

pub(crate) use slipway_formats::roles::{ROOT_VERITY, UNMARKED, USR_VERITY};

use crate::disk::partitions::Partition;
use crate::disk::probe::FileSystem;

/// Whether a partition is marked as a boot partition by its type or label.
pub(crate) fn is_for_booting(partition: &Partition, found: Option<&FileSystem>) -> bool {
    roles::is_for_booting(partition.type_guid.as_deref(), label(found))
}

/// Whether the type of a partition is /usr.
pub(crate) fn is_usr(partition: &Partition) -> bool {
    roles::is_usr(partition.type_guid.as_deref())
}

/// Returns what may name a partition and its file system in an fstab.
pub(crate) fn tags<'a>(partition: &'a Partition, found: Option<&'a FileSystem>) -> Tags<'a> {
    Tags {
        uuid: found.and_then(|found| found.uuid.as_deref()),
        label: label(found),
        partuuid: partition.guid.as_deref(),
        partlabel: Some(&partition.name),
    }
}

/// Ranks how clearly a partition is marked as the root of a system for this machine; 0 is the clearest mark.
pub(crate) fn rank(partition: &Partition, file_system: Option<&FileSystem>) -> u8 {
    let roots = &[partition_types::ROOT];
    roles::rank(roots, partition.type_guid.as_deref(), &partition.name, label(file_system))
}

fn label(found: Option<&FileSystem>) -> Option<&str> {
    found.and_then(|found| found.label.as_deref())
}
