//! What partitions are for, by their types, names and labels.

use slipway_protocol::partition_types as types;

use crate::disk::partitions::Partition;
use crate::disk::probe::FileSystem;

/// Hashes that seal a root file system.
pub(crate) const ROOT_VERITY: &[&str] = &[types::ROOT_X86_64_VERITY, types::ROOT_ARM64_VERITY];
/// Hashes that seal /usr.
pub(crate) const USR_VERITY: &[&str] = &[types::USR_X86_64_VERITY, types::USR_ARM64_VERITY];
/// Partitions that hold /usr. They are no root, and a mount for writing would break the seal that most of them have.
const USR_TYPES: &[&str] = &[types::USR_X86_64, types::USR_ARM64, types::USR_FLATCAR];
/// Partitions with boot entries.
pub(crate) const BOOT_TYPES: &[&str] = &[types::ESP, types::XBOOTLDR];
const BOOT_LABEL: &str = "boot";
/// Rank of a partition that nothing says to be the root.
pub(crate) const UNMARKED: u8 = 2;

/// Whether a partition is known to be for booting, by its type or its label.
pub(crate) fn is_for_booting(partition: &Partition, found: Option<&FileSystem>) -> bool {
    let is_type = partition.type_guid.as_deref().is_some_and(|guid| BOOT_TYPES.contains(&guid));
    is_type || found.is_some_and(|found| found.label.as_deref() == Some(BOOT_LABEL))
}

/// Whether a partition holds /usr, by its type.
pub(crate) fn is_usr(partition: &Partition) -> bool {
    partition.type_guid.as_deref().is_some_and(|guid| USR_TYPES.contains(&guid))
}

/// How much speaks for a partition to be the root: 0 if its type says so, 1 if its name does, else [`UNMARKED`].
pub(crate) fn rank(partition: &Partition, file_system: Option<&FileSystem>) -> u8 {
    let label = file_system.and_then(|file_system| file_system.label.as_deref()).unwrap_or_default();
    let says_root = |name: &str| name.to_ascii_lowercase().contains("root");
    match partition.type_guid.as_deref() {
        Some(types::ROOT) => 0,
        _ if says_root(&partition.name) || says_root(label) => 1,
        _ => UNMARKED,
    }
}
