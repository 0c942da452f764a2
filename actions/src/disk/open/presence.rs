//! Whether a disk that is open is still there.

use std::fs;
use std::path::Path;

use rustix::fs::{major, minor};

/// What a SCSI device (drivers/scsi/scsi_sysfs.c, `sdev_states`) or an NVMe controller (drivers/nvme/host/sysfs.c,
/// `nvme_sysfs_show_state`) is in while it is taken away, or when it has stopped to answer.
const GONE: &[&str] = &["cancel", "deleted", "offline", "transport-offline", "deleting", "deleting (no IO)", "dead"];

/// Whether the disk of a device number is gone. What is open keeps its number, but loses its bytes first and then its entry in
/// sysfs, which is mounted at `sys` (kernel source, block/genhd.c, `del_gendisk`).
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
        let sys = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = sys.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
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
        // Without sysfs nothing is known.
        check(&[("block/sda/size", "2048\n")], false);
    }
}
