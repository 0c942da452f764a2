//! How a workflow selects a disk.

mod matching;
mod world_wide_name;

use serde::{Deserialize, Serialize};

use crate::workflow::hint::{SizeHint, TextHint};

pub use world_wide_name::is_of_one_disk;

/// The folder of links that name a disk by where it is attached. slipway works out these links by itself.
pub const BY_PATH: &str = "/dev/disk/by-path/";

/// Hints that select a disk. A disk must match every hint given. The keys and operators are those of Ironic's root
/// device hints. The keys `device`, `min_size`, `choose` and `skip` are additions.
///
/// Without hints, the machine must have exactly one candidate. These disks are never candidates: disks in use,
/// read-only disks, and the medium that slipway booted from. Removable disks and boot media of slipway are candidates
/// only if the hints name them by device, serial or wwn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DiskHints {
    /// Matches one path: a kernel path such as `/dev/nvme0n1`, any link to it under `/dev/disk`, an array as
    /// `/dev/md/NAME`, or a volume as `/dev/GROUP/NAME`. For an action run by hand, it may also be a regular file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Matches a kernel path, or a link under `/dev/disk/by-path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<TextHint>,
    /// Matches the serial number that the disk reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<TextHint>,
    /// Matches the World Wide Name, whole or without its vendor extension. The prefix `0x`, `naa.` or `eui.` may be
    /// left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn: Option<TextHint>,
    /// Matches the whole World Wide Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn_with_extension: Option<TextHint>,
    /// Matches the last 8 bytes of a World Wide Name of 16 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn_vendor_extension: Option<TextHint>,
    /// Matches the model that the disk reports, with or without its vendor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<TextHint>,
    /// Matches the vendor as sysfs shows it: `ATA` for every SATA disk, a PCI number for virtio, nothing for NVMe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<TextHint>,
    /// Matches the SCSI address, `host:channel:target:lun`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hctl: Option<TextHint>,
    /// Matches the place where the disk is attached, as its link under `/dev/disk/by-path` shows it, with or without
    /// that folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_path: Option<TextHint>,
    /// Matches the transport: `nvme`, `sata`, `ata`, `sas`, `fc`, `iscsi`, `usb`, `virtio` or `mmc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tran: Option<TextHint>,
    /// Matches the size in whole GiB, rounded down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<SizeHint>,
    /// Matches disks of at least this size, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_size: Option<u64>,
    /// Matches by whether the disk spins: `true` or `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotational: Option<bool>,
    /// Leaves out disks that match one of these hints. Hints in this list cannot have `device`, `choose` or `skip`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(no_recursion))]
    pub skip: Vec<DiskHints>,
    /// Selects among several matching disks. Default: `only`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub choose: DiskChoice,
}

/// The choice among several matching disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DiskChoice {
    /// Chooses no disk: more than one match is an error.
    #[default]
    Only,
    /// Chooses the smallest disk. Among equals, it chooses the first by name.
    Smallest,
    /// Chooses the largest disk. Among equals, it chooses the first by name.
    Largest,
    /// Chooses every matching disk. Only `erase-disk` and `partition` allow this.
    All,
}

fn is_default(choice: &DiskChoice) -> bool {
    *choice == DiskChoice::Only
}

impl DiskHints {
    /// Hints that select all disks.
    pub fn all() -> Self {
        Self { choose: DiskChoice::All, ..Self::default() }
    }

    /// Returns the problems of hints that were read. Each completes a sentence that begins with the name of the step or
    /// object that has the hints. `several` says whether the hints may select all matching disks.
    pub fn validate(&self, several: bool) -> Vec<String> {
        let mut problems = Vec::new();
        if self.choose == DiskChoice::All && !several {
            problems.push("takes one disk: it cannot choose all".to_owned());
        }
        problems.extend(self.name_problem());
        problems.extend(self.placeholder_problem());
        for skip in &self.skip {
            if skip.is_empty() {
                problems.push("skips every disk: a hint in skip is empty".to_owned());
            }
            if skip.device.is_some() || skip.choose != DiskChoice::Only || !skip.skip.is_empty() {
                problems.push("has device, choose or skip in a hint in skip; to skip a path, use name".to_owned());
            }
            problems.extend(skip.name_problem());
            problems.extend(skip.placeholder_problem());
        }
        problems
    }

    /// Returns whether there is no hint.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether the hints may select several disks.
    pub fn may_be_several(&self) -> bool {
        self.choose == DiskChoice::All
    }

    /// Returns the problem of a `name` that is a link outside `/dev/disk/by-path`. Only udev knows the other links, and
    /// slipway's boot image has no udev. A hint with such a link would never match.
    fn name_problem(&self) -> Option<String> {
        let values = self.name.as_ref()?.values();
        let link = values.iter().find(|value| value.starts_with("/dev/disk/") && !value.starts_with(BY_PATH))?;
        Some(format!("names a disk with {link:?}: name accepts kernel paths and links under {BY_PATH}"))
    }

    /// Returns the problem of a value that is still the variable of a template. No disk has such a value, so a hint in
    /// `skip` would leave out nothing, and `s!=` would match every disk.
    fn placeholder_problem(&self) -> Option<String> {
        let hints = [
            ("name", &self.name),
            ("serial", &self.serial),
            ("wwn", &self.wwn),
            ("wwn_with_extension", &self.wwn_with_extension),
            ("wwn_vendor_extension", &self.wwn_vendor_extension),
            ("model", &self.model),
            ("vendor", &self.vendor),
            ("hctl", &self.hctl),
            ("by_path", &self.by_path),
            ("tran", &self.tran),
        ];
        let values = hints
            .into_iter()
            .flat_map(|(key, hint)| hint.iter().flat_map(TextHint::values).map(move |value| (key, value.as_str())));
        let mut all = values.chain(self.device.iter().map(|device| ("device", device.as_str())));
        let (key, value) = all.find(|(_, value)| is_placeholder(value))?;
        Some(format!("has {value:?} as its {key}: this is a variable of a template that was not filled in"))
    }
}

/// Whether a text has a variable in the form of common templates: Jinja and Go (`{{ x }}`, `{% x %}`), the shell and
/// Terraform (`${x}`, `$(x)`, `$x`), or ERB (`<%= x %>`).
fn is_placeholder(text: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphabetic() || c == '_';
    ["{{", "{%", "${", "$(", "<%"].iter().any(|start| text.contains(start))
        || text.strip_prefix('$').is_some_and(|rest| rest.starts_with(is_name))
}
