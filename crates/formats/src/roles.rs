//! Purposes of partitions, by their types, names and labels. A type is the text of a GUID in lower case; an MBR has
//! none.

use slipway_protocol::workflow::partition_types as types;

/// Types of partitions with hashes of a root file system.
pub const ROOT_VERITY: &[&str] = &[types::ROOT_X86_64_VERITY, types::ROOT_ARM64_VERITY];
/// Types of partitions with hashes of /usr.
pub const USR_VERITY: &[&str] = &[types::USR_X86_64_VERITY, types::USR_ARM64_VERITY];
/// Types of /usr partitions. They are not a root, and most of them are sealed, so mounting them for writing would break
/// the seal.
const USR_TYPES: &[&str] = &[types::USR_X86_64, types::USR_ARM64, types::USR_FLATCAR];
/// Types of partitions with boot entries.
pub const BOOT_TYPES: &[&str] = &[types::ESP, types::XBOOTLDR];
const BOOT_LABEL: &str = "boot";
/// Rank of a partition that is not marked as the root.
pub const UNMARKED: u8 = 2;
/// Paths of the file that identifies an installed system (os-release(5)). Only a root file system has one.
pub const OS_RELEASE: &[&str] = &["etc/os-release", "usr/lib/os-release"];

/// Whether a partition is marked as a boot partition by its type or by the label of its file system.
pub fn is_for_booting(kind: Option<&str>, label: Option<&str>) -> bool {
    kind.is_some_and(|kind| BOOT_TYPES.contains(&kind)) || label == Some(BOOT_LABEL)
}

/// Whether the type of a partition is /usr.
pub fn is_usr(kind: Option<&str>) -> bool {
    kind.is_some_and(|kind| USR_TYPES.contains(&kind))
}

/// How clearly a partition is marked as the root: 0 by its type, which is one of `roots`, 1 by its name or label, else
/// [`UNMARKED`]. Of several, the first with an [`OS_RELEASE`] is the root.
pub fn rank(roots: &[&str], kind: Option<&str>, name: &str, label: Option<&str>) -> u8 {
    let says_root = |name: &str| name.to_ascii_lowercase().contains("root");
    match kind {
        Some(kind) if roots.contains(&kind) => 0,
        _ if says_root(name) || says_root(label.unwrap_or_default()) => 1,
        _ => UNMARKED,
    }
}
