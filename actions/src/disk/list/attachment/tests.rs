//! Imitations of sysfs, modelled on machines whose links in /dev/disk/by-path are known.

use std::os::unix::fs::symlink;

use super::*;

/// A sysfs with a disk at this path below `devices`, and other files.
fn sysfs(device: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
    let sys = crate::text::folder(files);
    let mut path = sys.path().join("devices");
    for name in device.split('/') {
        path.push(name);
        fs::create_dir_all(&path).unwrap();
        let subsystem = match name {
            "nvme" | "nvme-subsystem" => None,
            _ if name.starts_with("nvme-subsys") => Some("nvme-subsystem"),
            _ if name.starts_with("nvme") && !name[4..].contains('n') => Some("nvme"),
            _ if name.starts_with("virtio") => Some("virtio"),
            _ if name.starts_with("usb") || (name.contains('-') && name.as_bytes()[0].is_ascii_digit()) => Some("usb"),
            _ if name.ends_with(".mmc") => Some("platform"),
            _ if name.starts_with("host") || name.starts_with("target") || is_scsi_device(name) => Some("scsi"),
            _ if name.contains(':') && name.contains('.') => Some("pci"),
            _ => None,
        };
        if let Some(subsystem) = subsystem {
            symlink(format!("/sys/bus/{subsystem}"), path.join("subsystem")).unwrap();
        }
    }
    fs::create_dir_all(sys.path().join("block")).unwrap();
    symlink(path, sys.path().join("block/disk")).unwrap();
    sys
}

fn check(device: &str, files: &[(&str, &str)], by_path: Option<&str>, transport: Option<&str>) {
    let sys = sysfs(device, files);
    let name = device.rsplit('/').next().unwrap();
    let dir = sys.path().join("block/disk");
    let found = super::by_path(sys.path(), &dir.canonicalize().unwrap());
    assert_eq!(found.as_deref(), by_path.map(|path| format!("/dev/disk/by-path/{path}")).as_deref(), "{device}");
    assert_eq!(super::transport(&dir, name), transport, "{device}");
}

#[test]
fn disks_on_their_own_controllers_have_a_place() {
    check("pci0000:00/0000:00:02.0/virtio1/block/vda", &[], Some("pci-0000:00:02.0"), Some("virtio"));
    let nsid = |path: &'static str| [(path, "1\n")];
    check(
        "pci0000:00/0000:00:1c.4/0000:3c:00.0/nvme/nvme0/nvme0n1",
        &nsid("devices/pci0000:00/0000:00:1c.4/0000:3c:00.0/nvme/nvme0/nvme0n1/nsid"),
        Some("pci-0000:3c:00.0-nvme-1"),
        Some("nvme"),
    );
    // Intel VMD has its own PCI domain.
    check(
        "pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/10000:e1:00.0/nvme/nvme0/nvme0n1",
        &nsid("devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/10000:e1:00.0/nvme/nvme0/nvme0n1/nsid"),
        Some("pci-0000:00:0e.0-pci-10000:e1:00.0-nvme-1"),
        Some("nvme"),
    );
    let device = "platform/fe340000.mmc/mmc_host/mmc1/mmc1:0001/block/mmcblk1";
    check(device, &[], Some("platform-fe340000.mmc"), Some("mmc"));
    check("virtual/block/dm-0", &[], None, None);
}

#[test]
fn a_disk_of_many_controllers_has_the_place_of_the_first() {
    let sys = sysfs("virtual/nvme-subsystem/nvme-subsys0/nvme0n1", &[]);
    let controller = sys.path().join("devices/pci0000:00/0000:3c:00.0/nvme/nvme0");
    fs::create_dir_all(&controller).unwrap();
    for (dir, subsystem) in [(controller.as_path(), "nvme"), (controller.ancestors().nth(2).unwrap(), "pci")] {
        symlink(format!("/sys/class/{subsystem}"), dir.join("subsystem")).unwrap();
    }
    fs::create_dir_all(sys.path().join("class/nvme")).unwrap();
    symlink(&controller, sys.path().join("class/nvme/nvme0")).unwrap();
    let disk = sys.path().join("devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1");
    fs::write(disk.join("nsid"), "2\n").unwrap();
    let found = super::by_path(sys.path(), &disk);
    assert_eq!(found.as_deref(), Some("/dev/disk/by-path/pci-0000:3c:00.0-nvme-2"));
}

#[test]
fn scsi_disks_have_the_place_their_transport_gives() {
    let device = "pci0000:00/0000:00:01.0/0000:01:00.0/host0/target0:2:0/0:2:0:0/block/sda";
    check(device, &[], Some("pci-0000:01:00.0-scsi-0:2:0:0"), None);
    // Hosts are counted from the first host of their controller.
    let device = "pci0000:00/0000:00:04.0/virtio1/host2/target2:0:0/2:0:0:1/block/sda";
    check(device, &[], Some("pci-0000:00:04.0-scsi-0:0:0:1"), Some("virtio"));
    let device = "pci0000:00/0000:00:05.0/host3/target3:0:0/3:0:0:0/block/sda";
    check(device, &[("devices/pci0000:00/0000:00:05.0/host2/uevent", "")], Some("pci-0000:00:05.0-scsi-1:0:0:0"), None);
    let device = "pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host6/target6:0:0/6:0:0:0/block/sdb";
    check(device, &[], Some("pci-0000:00:14.0-usb-0:1:1.0-scsi-0:0:0:0"), Some("usb"));
    let ahci = |host: &'static str| [("class/ata_port/ata3/port_no", "3\n"), (host, "ahci\n")];
    check(
        "pci0000:00/0000:00:1f.2/ata3/host2/target2:0:0/2:0:0:0/block/sda",
        &ahci("devices/pci0000:00/0000:00:1f.2/ata3/host2/scsi_host/host2/proc_name"),
        Some("pci-0000:00:1f.2-ata-3.0"),
        Some("sata"),
    );
    check(
        "pci0000:00/0000:00:1f.2/ata3/host2/target2:1:0/2:1:0:0/block/sda",
        &ahci("devices/pci0000:00/0000:00:1f.2/ata3/host2/scsi_host/host2/proc_name"),
        Some("pci-0000:00:1f.2-ata-3.1.0"),
        Some("sata"),
    );
    check(
        "pci0000:00/0000:00:01.1/ata1/host0/target0:0:1/0:0:1:0/block/sda",
        &[
            ("class/ata_port/ata1/port_no", "1\n"),
            ("devices/pci0000:00/0000:00:01.1/ata1/host0/scsi_host/host0/proc_name", "ata_piix\n"),
        ],
        Some("pci-0000:00:01.1-ata-1.1"),
        Some("ata"),
    );
}

#[test]
fn a_usb_disk_has_the_serial_number_of_its_device_and_no_hubs_or_bus() {
    let bus = "pci0000:00/0000:00:14.0/usb1";
    let disk = format!("{bus}/1-4/1-4.2/1-4.2:1.0/host10/target10:0:0/10:0:0:0/block/sdh");
    let files = |serials: &[(&str, &str)]| {
        let file = |(at, serial): &(&str, &str)| (format!("devices/{bus}{at}/serial"), format!("{serial}\n"));
        let files: Vec<(String, String)> = serials.iter().map(file).collect();
        let sys =
            sysfs(&disk, &files.iter().map(|(path, serial)| (path.as_str(), serial.as_str())).collect::<Vec<_>>());
        super::usb_serial(&sys.path().join("block/disk"))
    };
    assert_eq!(files(&[("", "0000:00:14.0"), ("/1-4", "HUB"), ("/1-4/1-4.2", "U1")]).as_deref(), Some("U1"));
    assert_eq!(files(&[("", "0000:00:14.0"), ("/1-4", "HUB")]), None);
}

#[test]
fn disks_on_a_fabric_are_named_by_it() {
    let sas = "pci0000:00/0000:18:00.0/host0/port-0:0/end_device-0:0/target0:0:0/0:0:0:0/block/sda";
    let of = |phys: &'static str| {
        [
            ("class/sas_device/end_device-0:0/sas_address", "0x5000c500a1b2c3d5\n"),
            ("class/sas_device/end_device-0:0/phy_identifier", "4\n"),
            ("class/sas_port/port-0:0/num_phys", phys),
        ]
    };
    check(sas, &of("1\n"), Some("pci-0000:18:00.0-sas-phy4-lun-0"), Some("sas"));
    check(sas, &of("2\n"), Some("pci-0000:18:00.0-sas-0x5000c500a1b2c3d5-lun-0"), Some("sas"));
    let expander =
        "pci0000:00/0000:18:00.0/host0/port-0:1/expander-0:1/port-0:1:3/end_device-0:1:3/target0:0:1/0:0:1:0/block/sdb";
    let files = [
        ("class/sas_device/end_device-0:1:3/phy_identifier", "3\n"),
        ("class/sas_device/expander-0:1/sas_address", "0x500304801ef0a4ff\n"),
        ("class/sas_port/port-0:1:3/num_phys", "1\n"),
    ];
    check(expander, &files, Some("pci-0000:18:00.0-sas-exp0x500304801ef0a4ff-phy3-lun-0"), Some("sas"));
    check(
        "pci0000:00/0000:05:00.0/host7/rport-7:0-2/target7:0:0/7:0:0:300/block/sdc",
        &[("class/fc_transport/target7:0:0/port_name", "0x50060e8007e2a1b0\n")],
        Some("pci-0000:05:00.0-fc-0x50060e8007e2a1b0-lun-0x012c000000000000"),
        Some("fc"),
    );
    // A wrong name would be worse than none.
    check("platform/host0/session1/target0:0:0/0:0:0:1/block/sda", &[], None, Some("iscsi"));
    let device = "pci0000:00/0000:18:00.0/host0/port-0:0/end_device-0:0/target0:0:0/0:0:0:0/block/sda";
    check(device, &[], None, Some("sas"));
}
