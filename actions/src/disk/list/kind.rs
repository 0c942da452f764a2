//! What a block device is, by the kernel's name (kernel documentation, admin-guide/devices.txt).

use std::path::Path;

use super::{attribute, kernel_folder};

/// Block devices that are built on something else and can be used in place of a disk. Some are disks of another machine
/// or of a pool, so they are only chosen if a hint names them.
const LAYERS: &[&str] =
    &["loop", "dm-", "md", "bcache", "nullb", "ublkb", "nbd", "rbd", "rnbd", "drbd", "zd", "etherd!"];
/// Block devices that are never written to, and what they are.
const NEVER: &[(&str, &str)] = &[
    ("ram", "a disk in memory"),
    ("zram", "a disk in memory"),
    ("sr", "an optical drive"),
    ("fd", "a floppy drive"),
    ("mtdblock", "a flash chip"),
    ("ubiblock", "a flash chip"),
];

/// Whether a device can be used like a disk, but is not a disk of its own.
pub(super) fn is_layer(name: &str) -> bool {
    LAYERS.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns what a device is, if it is never listed, whatever it contains.
pub(super) fn never(name: &str) -> Option<&'static str> {
    if name.starts_with("mmcblk") && (name.contains("boot") || name.ends_with("rpmb")) {
        return Some("an eMMC boot partition, which may contain the board's firmware");
    }
    NEVER.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, what)| *what)
}

/// Returns why there is a block device at a path but no disk; `None` if the kernel has no such device, or lists it as a
/// disk.
pub(crate) fn why_no_disk(sys: &Path, path: &str) -> Option<String> {
    let folder = kernel_folder(sys, path);
    let name = folder.file_name()?.to_str()?;
    let is = |file: &str, value: &str| attribute(&folder.join(file)).as_deref() == Some(value);
    match never(name) {
        _ if !folder.is_dir() => None,
        Some(what) => Some(format!("{what}; slipway never writes to one")),
        None if is("hidden", "1") => {
            Some("one path to an NVMe namespace; give the device of the namespace itself".to_owned())
        }
        None if is("size", "0") && is("removable", "1") => Some("a drive without a medium".to_owned()),
        None if is("size", "0") => Some("a device without a size: nothing is connected to it".to_owned()),
        None => None,
    }
}
