//! Whether a disk of the machine may have a system on it. Uses only what sysfs shows, without opening a disk.

use std::fs;
use std::path::Path;

/// Whether the kernel found a partition on a built-in disk. USB sticks and cards are ignored, because slipway may have
/// booted from them.
pub(super) fn is_there(sys: &Path) -> bool {
    let entries = fs::read_dir(sys.join("class/block")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|device| is_built_in(&device))
}

/// Whether a device is a partition of a built-in disk. A partition's folder is inside its disk's folder (Linux,
/// block/partitions/core.c).
fn is_built_in(partition: &Path) -> bool {
    let Ok(place) = fs::canonicalize(partition) else { return false };
    let disk = place.parent().unwrap_or(&place);
    let is_removable = fs::read_to_string(disk.join("removable")).is_ok_and(|text| text.trim() == "1");
    let is_usb = place.components().any(|part| part.as_os_str().to_string_lossy().starts_with("usb"));
    place.join("partition").exists() && !is_removable && !is_usb
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_partition_counts_on_a_disk_that_is_built_in() {
        for (disk, removable, expect) in [
            ("pci0/ata1/block/sda", "0", true),
            ("pci0/usb1/1-1/block/sdb", "0", false),
            ("pci0/ata2/block/sdc", "1", false),
        ] {
            let sys = tempfile::tempdir().expect("a folder");
            let place = sys.path().join("devices").join(disk);
            let name = place.file_name().expect("a name").to_string_lossy().into_owned() + "1";
            let partition = place.join(&name);
            fs::create_dir_all(&partition).expect("a folder");
            fs::create_dir_all(sys.path().join("class/block")).expect("a folder");
            fs::write(place.join("removable"), removable).expect("a file");
            symlink(&partition, sys.path().join("class/block").join(&name)).expect("a link");
            assert!(!is_there(sys.path()), "{disk}: a disk without partitions");
            fs::write(partition.join("partition"), "1").expect("a file");
            assert_eq!(is_there(sys.path()), expect, "{disk}");
        }
    }
}
