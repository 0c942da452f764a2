//! How a workflow names the disk it means.

use serde::{Deserialize, Serialize};

use crate::{SizeHint, TextHint};

/// Links to disks by where they are attached, which slipway works out by itself.
pub const BY_PATH: &str = "/dev/disk/by-path/";

/// What the wanted disk must be like; every hint given must hold. The keys and operators are those of Ironic's root device
/// hints, and `device`, `min_size`, `choose` and `skip`.
///
/// Without any hint the machine must have exactly one candidate. Disks in use, read-only disks and the medium slipway booted
/// from are never candidates; removable disks and media made to start slipway from only if they are named by device, serial or wwn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DiskHints {
    /// Kernel path, such as `/dev/nvme0n1`, or any link to it under `/dev/disk`; an array, `/dev/md/NAME`; a volume,
    /// `/dev/GROUP/NAME`. By hand also a regular file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Kernel path or link under `/dev/disk/by-path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<TextHint>,
    /// Serial number as the disk reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<TextHint>,
    /// World Wide Name, whole or without its vendor extension, with or without its `0x`, `naa.` or `eui.` prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn: Option<TextHint>,
    /// Whole World Wide Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn_with_extension: Option<TextHint>,
    /// Last 8 bytes of a World Wide Name of 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn_vendor_extension: Option<TextHint>,
    /// Model as the disk reports it, with or without its vendor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<TextHint>,
    /// Vendor as sysfs gives it: `ATA` for every SATA disk, a PCI number for virtio, none for NVMe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<TextHint>,
    /// SCSI address, `host:channel:target:lun`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hctl: Option<TextHint>,
    /// Where it is attached, as its link under `/dev/disk/by-path` says, with or without that folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_path: Option<TextHint>,
    /// Transport: `nvme`, `sata`, `ata`, `sas`, `fc`, `iscsi`, `usb`, `virtio`, `mmc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tran: Option<TextHint>,
    /// Size in whole GiB, rounded down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<SizeHint>,
    /// Smallest size that will do, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_size: Option<u64>,
    /// Whether it spins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotational: Option<bool>,
    /// Disks that match one of these are left out. Without `device`, `choose` and `skip`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(no_recursion))]
    pub skip: Vec<DiskHints>,
    /// What to do when several disks match.
    #[serde(default, skip_serializing_if = "is_default")]
    pub choose: DiskChoice,
}

/// Which of several matching disks is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DiskChoice {
    /// None: more than one match is an error.
    #[default]
    Only,
    /// The smallest; among equals the first by name.
    Smallest,
    /// The largest; among equals the first by name.
    Largest,
    /// Every one; for `erase-disk` and `partition` alone.
    All,
}

fn is_default(choice: &DiskChoice) -> bool {
    *choice == DiskChoice::Only
}

impl DiskHints {
    /// What is wrong with hints that were read, to be said of what they belong to. `several`: whether all matching disks
    /// may be meant.
    pub fn validate(&self, several: bool) -> Vec<String> {
        let mut problems = Vec::new();
        if self.choose == DiskChoice::All && !several {
            problems.push("takes one disk: it cannot choose all".to_owned());
        }
        problems.extend(self.name_problem());
        for skip in &self.skip {
            if *skip == Self::default() {
                problems.push("skips every disk: a hint in skip is empty".to_owned());
            }
            if skip.device.is_some() || skip.choose != DiskChoice::Only || !skip.skip.is_empty() {
                problems.push("has device, choose or skip in a hint in skip; name is for a path".to_owned());
            }
            problems.extend(skip.name_problem());
        }
        problems
    }

    /// Whether several disks may be meant.
    pub fn may_be_several(&self) -> bool {
        self.choose == DiskChoice::All
    }

    /// Only udev knows the other links, and the micro-OS has none: what names a disk by one would never match.
    fn name_problem(&self) -> Option<String> {
        let values = self.name.as_ref()?.values();
        let link = values.iter().find(|value| value.starts_with("/dev/disk/") && !value.starts_with(BY_PATH))?;
        Some(format!("names a disk by {link:?}: name takes kernel paths and links under {BY_PATH}"))
    }
}
