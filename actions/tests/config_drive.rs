//! A config drive is found by the label of its file system and only read.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::error::Error;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use slipway_actions::{ConfigDrive, ConfigDriveError};

use common::MIB;
use common::disk_image::run;
use common::loop_device;

const FILE: &str = "openstack/latest/meta_data.json";

/// Folders in place of sysfs and devtmpfs, in which block devices are files.
struct Devices(tempfile::TempDir);

impl Devices {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("sys/class/block")).unwrap();
        fs::create_dir_all(folder.path().join("dev")).unwrap();
        fs::create_dir_all(folder.path().join("tree/openstack/latest")).unwrap();
        fs::write(folder.path().join("tree").join(FILE), "{}").unwrap();
        fs::write(folder.path().join("tree/openstack/latest/user_data"), "x".repeat((64 << 10) + 1)).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Adds a device with an ISO 9660 or FAT file system.
    fn add(&self, name: &str, kind: &str, label: &str) {
        let device = self.path(&format!("dev/{name}"));
        match kind {
            "iso9660" => run(Command::new("genisoimage")
                .args(["-quiet", "-R", "-V", label, "-o", &device])
                .arg(self.path("tree"))),
            _ => {
                fs::File::create(&device).unwrap().set_len(4 * MIB as u64).unwrap();
                run(Command::new("mkfs.vfat").args(["-n", label, &device]));
                run(Command::new("mcopy").args(["-s", "-i", &device]).arg(self.path("tree/openstack")).arg("::"))
            }
        };
        self.register(name, fs::metadata(device).unwrap().len() / 512);
    }

    fn register(&self, name: &str, sectors: u64) {
        let folder = self.path(&format!("sys/class/block/{name}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(Path::new(&folder).join("size"), format!("{sectors}\n")).unwrap();
    }

    fn find(&self) -> Result<Option<ConfigDrive>, ConfigDriveError> {
        ConfigDrive::find(Path::new(&self.path("sys")), Path::new(&self.path("dev")))
    }
}

#[test]
fn a_small_device_with_the_label_is_the_config_drive() {
    for (kind, label) in [("iso9660", "config-2"), ("vfat", "CONFIG-2")] {
        let devices = Devices::new();
        devices.add("vda", kind, "CIDATA");
        devices.register("vdb", 0);
        devices.register("vdz", 1000);
        fs::write(devices.path("dev/vdc"), vec![0; MIB]).unwrap();
        devices.register("vdc", 2048);
        assert!(devices.find().unwrap().is_none());
        devices.add("vdd", kind, label);
        // A file is no block device, so the kernel cannot mount it. That shows which one was chosen.
        let error = devices.find().unwrap_err();
        assert_eq!(error.to_string(), format!("reading {kind} on the config drive {}", devices.path("dev/vdd")));
        // A large disk is not opened.
        devices.register("vdd", (512 << 20) / 512 + 1);
        assert!(devices.find().unwrap().is_none());
    }
}

#[test]
fn its_files_are_read_with_a_bound() {
    let Some(_alone) = loop_device::alone() else { return };
    let known = fs::read_to_string("/proc/filesystems").unwrap();
    for (kind, label) in [("iso9660", "config-2"), ("vfat", "CONFIG-2")] {
        if !known.lines().any(|line| line.trim() == kind) {
            eprintln!("not checked: this kernel does not mount {kind}");
            continue;
        }
        let devices = Devices::new();
        devices.add("vda", kind, label);
        let file = devices.path("file");
        fs::rename(devices.path("dev/vda"), &file).unwrap();
        let device = run(Command::new("losetup").args(["--find", "--show", &file]));
        symlink(device.trim(), devices.path("dev/vda")).unwrap();
        let drive = devices.find().unwrap().unwrap();
        assert_eq!(drive.read(FILE).unwrap().as_deref(), Some("{}"));
        assert_eq!(drive.read("openstack/latest/nothing").unwrap(), None);
        let error = drive.read("openstack/latest/user_data").unwrap_err();
        assert!(error.source().unwrap().to_string().contains("larger than"), "{error:?}");
        assert!(drive.read("openstack/latest").is_err(), "a directory");
        drop(drive);
        run(Command::new("losetup").args(["--detach", device.trim()]));
    }
}
