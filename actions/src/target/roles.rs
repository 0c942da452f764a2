//! Purposes of partitions, by their types, names and labels.

use slipway_formats::fstab::Tags;
use slipway_protocol::partition_types as types;

use crate::disk::partitions::Partition;
use crate::disk::probe::FileSystem;

/// Types of partitions with hashes of a root file system.
pub(crate) const ROOT_VERITY: &[&str] = &[types::ROOT_X86_64_VERITY, types::ROOT_ARM64_VERITY];
/// Types of partitions with hashes of /usr.
pub(crate) const USR_VERITY: &[&str] = &[types::USR_X86_64_VERITY, types::USR_ARM64_VERITY];
/// Types of /usr partitions. They are not a root, and most of them are sealed, so mounting them for writing would break
/// the seal.
const USR_TYPES: &[&str] = &[types::USR_X86_64, types::USR_ARM64, types::USR_FLATCAR];
/// Types of partitions with boot entries.
pub(crate) const BOOT_TYPES: &[&str] = &[types::ESP, types::XBOOTLDR];
const BOOT_LABEL: &str = "boot";
/// Rank of a partition that is not marked as the root.
pub(crate) const UNMARKED: u8 = 2;

/// Whether a partition is marked as a boot partition by its type or label.
pub(crate) fn is_for_booting(partition: &Partition, found: Option<&FileSystem>) -> bool {
    let is_type = partition.type_guid.as_deref().is_some_and(|guid| BOOT_TYPES.contains(&guid));
    is_type || found.is_some_and(|found| found.label.as_deref() == Some(BOOT_LABEL))
}

/// Whether the type of a partition is /usr.
pub(crate) fn is_usr(partition: &Partition) -> bool {
    partition.type_guid.as_deref().is_some_and(|guid| USR_TYPES.contains(&guid))
}

/// What names a partition and its file system in an fstab.
pub(crate) fn tags<'a>(partition: &'a Partition, found: Option<&'a FileSystem>) -> Tags<'a> {
    Tags {
        uuid: found.and_then(|found| found.uuid.as_deref()),
        label: found.and_then(|found| found.label.as_deref()),
        partuuid: partition.guid.as_deref(),
        partlabel: Some(&partition.name),
    }
}

/// How clearly a partition is marked as the root: 0 by its type, 1 by its name or label, else [`UNMARKED`].
pub(crate) fn rank(partition: &Partition, file_system: Option<&FileSystem>) -> u8 {
    let label = file_system.and_then(|file_system| file_system.label.as_deref()).unwrap_or_default();
    let says_root = |name: &str| name.to_ascii_lowercase().contains("root");
    match partition.type_guid.as_deref() {
        Some(types::ROOT) => 0,
        _ if says_root(&partition.name) || says_root(label) => 1,
        _ => UNMARKED,
    }
}
