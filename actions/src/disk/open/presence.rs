//! Whether an open disk is still there.

use std::fs;
use std::path::Path;

use rustix::fs::{major, minor};

/// States of a SCSI device (drivers/scsi/scsi_sysfs.c, `sdev_states`) or an NVMe controller (drivers/nvme/host/sysfs.c,
/// `nvme_sysfs_show_state`) that is being removed or no longer responds.
const GONE: &[&str] = &["cancel", "deleted", "offline", "transport-offline", "deleting", "deleting (no IO)", "dead"];

/// Whether the disk with a device number is gone. An open disk keeps its number, but first loses its size and then its
/// entry in sysfs (kernel source, block/genhd.c, `del_gendisk`). `sys` is the mount point of sysfs.
pub(super) fn is_gone(sys: &Path, device: u64) -> bool {
    let numbers = sys.join("dev/block");
    let dir = numbers.join(format!("{}:{}", major(device), minor(device)));
    let is = |file: &str, values: &[&str]| {
        fs::read_to_string(dir.join(file)).is_ok_and(|value| values.contains(&value.trim()))
    };
    (numbers.is_dir() && !dir.exists()) || is("size", &["0"]) || is("device/state", GONE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::makedev;

    fn check(files: &[(&str, &str)], expect: bool) {
        let sys = crate::text::folder(files);
        assert_eq!(is_gone(sys.path(), makedev(8, 16)), expect, "{files:?}");
    }

    #[test]
    fn a_disk_without_bytes_or_entry_or_device_is_gone() {
        let size = ("dev/block/8:16/size", "2048\n");
        check(&[size], false);
        check(&[size, ("dev/block/8:16/device/state", "running\n")], false);
        check(&[size, ("dev/block/8:16/device/state", "live\n")], false);
        check(&[("dev/block/8:16/size", "0\n")], true);
        check(&[("dev/block/8:0/size", "2048\n")], true);
        check(&[size, ("dev/block/8:16/device/state", "offline\n")], true);
        check(&[size, ("dev/block/8:16/device/state", "deleting (no IO)\n")], true);
        // Nothing is known without sysfs.
        check(&[("block/sda/size", "2048\n")], false);
    }
}
