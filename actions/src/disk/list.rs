//! The whole disks of this machine, from sysfs (kernel documentation, ABI/stable/sysfs-block).

use std::fs;
use std::path::{Path, PathBuf};

use slipway_protocol::Disk;
use slipway_protocol::workflow::raid_lvm;

mod attachment;
pub(crate) mod kind;
mod paths;

/// `size` counts sectors of this many bytes, whatever the disk's own block size.
const SECTOR: u64 = 512;
/// Vendor strings that name a bus, not a manufacturer.
const EMPTY_VENDORS: &[&str] = &["ATA", "NVMe"];

/// Lists every whole disk with a size, sorted by path. A disk with several paths is listed once for each path. `sys` is
/// the mount point of sysfs. Disks that cannot be read are left out, because a disk may vanish at any time.
pub fn list_disks(sys: &Path) -> Vec<Disk> {
    block_devices(sys).into_iter().filter(|disk| !is_layer(disk)).collect()
}

/// Like [`list_disks`], with the devices that can be used in place of a disk.
pub(super) fn block_devices(sys: &Path) -> Vec<Disk> {
    let Ok(entries) = fs::read_dir(sys.join("block")) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut disks: Vec<Disk> =
        names.filter(|name| kind::never(name).is_none()).filter_map(|name| disk(sys, &name)).collect();
    disks.sort_by(|a, b| a.path.cmp(&b.path));
    paths::join(sys, &mut disks);
    disks
}

/// Returns all paths to the disk at `path`, beginning with `path`.
pub(crate) fn paths_to(sys: &Path, path: &str) -> Vec<String> {
    let disks = list_disks(sys);
    let own = disks.iter().find(|disk| disk.path == path).map(Disk::best_path);
    let others = disks.iter().filter(|disk| disk.path != path && own == Some(disk.best_path()));
    std::iter::once(path.to_owned()).chain(others.map(|disk| disk.path.clone())).collect()
}

pub(super) fn is_layer(disk: &Disk) -> bool {
    kind::is_layer(&kernel_name(&disk.path))
}

/// Returns the kernel's name of a device, with a slash written as an exclamation mark (cciss!c0d0).
pub(super) fn kernel_name(path: &str) -> String {
    path.strip_prefix("/dev/").unwrap_or(path).replace('/', "!")
}

/// Returns the folder in sysfs of the block device at a path.
fn kernel_folder(sys: &Path, path: &str) -> PathBuf {
    sys.join("block").join(kernel_name(path))
}

fn disk(sys: &Path, name: &str) -> Option<Disk> {
    let dir = &sys.join("block").join(name);
    let text = |file: &str| attribute(&dir.join(file));
    let flag = |file: &str| text(file).as_deref() == Some("1");
    let size = text("size")?.parse::<u64>().ok()? * SECTOR;
    // A hidden disk is one path of a multipath NVMe namespace. The namespace has its own node.
    if size == 0 || flag("hidden") {
        return None;
    }
    Some(Disk {
        path: format!("/dev/{}", name.replace('!', "/")),
        size,
        logical_block: text("queue/logical_block_size").and_then(|size| size.parse().ok()).unwrap_or_default(),
        model: model(dir),
        serial: text("device/serial")
            .or_else(|| text("serial"))
            .or_else(|| scsi_serial(dir))
            .or_else(|| attachment::usb_serial(dir)),
        wwn: text("wwid").or_else(|| text("device/wwid")),
        vendor: text("device/vendor"),
        hctl: attachment::hctl(dir),
        by_path: attachment::by_path(sys, dir).or_else(|| layer_link(name, text("dm/name"), text("dm/uuid"))),
        transport: attachment::transport(dir, name).map(str::to_owned),
        rotational: flag("queue/rotational"),
        removable: flag("removable"),
        read_only: flag("ro"),
        other_path_to: None,
    })
}

/// Returns the link that udev creates for an array or a mapping, by its name.
fn layer_link(name: &str, mapping: Option<String>, uuid: Option<String>) -> Option<String> {
    let Some(mapping) = mapping else { return Some(format!("/dev/md/{}", name.strip_prefix("md_")?)) };
    let volume = uuid.filter(|uuid| uuid.starts_with("LVM-")).and_then(|_| raid_lvm::parse_mapping_name(&mapping));
    Some(volume.map_or_else(|| format!("/dev/mapper/{mapping}"), |(group, volume)| format!("/dev/{group}/{volume}")))
}

fn model(dir: &Path) -> Option<String> {
    let model = attribute(&dir.join("device/model")).or_else(|| attribute(&dir.join("device/name")))?;
    // virtio and NVMe give the PCI vendor number instead.
    let vendor = attribute(&dir.join("device/vendor"))
        .filter(|vendor| !vendor.starts_with("0x") && !EMPTY_VENDORS.contains(&vendor.as_str()));
    Some(vendor.map_or(model.clone(), |vendor| format!("{vendor} {model}")))
}

/// Reads the Unit Serial Number page of a SCSI disk (SPC-4, 7.8.15). It has a header of four bytes, with the length in
/// the last two.
fn scsi_serial(dir: &Path) -> Option<String> {
    let page = fs::read(dir.join("device/vpd_pg80")).ok()?;
    let serial = page.get(4..)?;
    let serial = String::from_utf8_lossy(serial).trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned();
    (!serial.is_empty()).then_some(serial)
}

fn attribute(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&bytes).trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::folder;

    #[test]
    fn disks_are_described_and_what_is_no_disk_is_skipped() {
        let sys = folder(&[
            ("block/nvme0n1/size", "1953525168\n"),
            ("block/nvme0n1/queue/logical_block_size", "4096\n"),
            ("block/nvme0n1/queue/rotational", "0\n"),
            ("block/nvme0n1/device/model", "Fast Disk 1TB                 \n"),
            ("block/nvme0n1/device/serial", "S1\n"),
            ("block/nvme0n1/wwid", "eui.0025385b\n"),
            ("block/sda/size", "2097152\n"),
            ("block/sda/removable", "1\n"),
            ("block/sda/ro", "1\n"),
            ("block/sda/queue/rotational", "1\n"),
            ("block/sda/device/vendor", "SEAGATE \n"),
            ("block/sda/device/model", "ST1\n"),
            ("block/sda/device/vpd_pg80", "\0\u{1}\0\u{4}  Z9 "),
            ("block/sda/device/scsi_device/2:0:1:0/uevent", ""),
            ("block/vda/size", "2048\n"),
            ("block/vda/serial", "virtio-serial"),
            ("block/vda/device/vendor", "0x1af4\n"),
            ("block/mmcblk0/size", "2048\n"),
            ("block/mmcblk0/device/name", "EMMC\n"),
            ("block/mmcblk0boot0/size", "8\n"),
            ("block/nvme0c0n1/size", "8\n"),
            ("block/nvme0c0n1/hidden", "1\n"),
            ("block/sdz/size", "0\n"),
            ("block/loop0/size", "8\n"),
            ("block/sr0/size", "8\n"),
            ("block/dm-0/size", "8\n"),
            ("block/md127/size", "8\n"),
            ("block/zram0/size", "8\n"),
        ]);
        let disks = list_disks(sys.path());
        let paths: Vec<&str> = disks.iter().map(|disk| disk.path.as_str()).collect();
        assert_eq!(paths, ["/dev/mmcblk0", "/dev/nvme0n1", "/dev/sda", "/dev/vda"]);
        let nvme = Disk {
            path: "/dev/nvme0n1".to_owned(),
            size: 1_000_204_886_016,
            logical_block: 4096,
            model: Some("Fast Disk 1TB".to_owned()),
            serial: Some("S1".to_owned()),
            wwn: Some("eui.0025385b".to_owned()),
            transport: Some("nvme".to_owned()),
            ..Disk::default()
        };
        assert_eq!(disks[1], nvme);
        assert_eq!(disks[0].model.as_deref(), Some("EMMC"));
        assert_eq!((disks[2].model.as_deref(), disks[2].serial.as_deref()), (Some("SEAGATE ST1"), Some("Z9")));
        assert_eq!((disks[2].vendor.as_deref(), disks[2].hctl.as_deref()), (Some("SEAGATE"), Some("2:0:1:0")));
        assert!(disks[2].removable && disks[2].read_only && disks[2].rotational);
        assert_eq!((disks[3].model.as_deref(), disks[3].serial.as_deref()), (None, Some("virtio-serial")));
    }

    #[test]
    fn arrays_and_volumes_have_their_names() {
        let check = |name, mapping: Option<&str>, uuid: Option<&str>, expect: Option<&str>| {
            let found = layer_link(name, mapping.map(str::to_owned), uuid.map(str::to_owned));
            assert_eq!(found.as_deref(), expect);
        };
        check("md_system", None, None, Some("/dev/md/system"));
        check("dm-0", Some("vg0-my--root"), Some("LVM-0123"), Some("/dev/vg0/my-root"));
        check("dm-0", Some("vg0-root"), Some("CRYPT-LUKS2-0123"), Some("/dev/mapper/vg0-root"));
        check("dm-0", Some("plain"), None, Some("/dev/mapper/plain"));
        check("md127", None, None, None);
        check("sda", None, None, None);
    }
}
