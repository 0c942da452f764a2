//! Disks that are not there yet: what the kernel still looks for, from sysfs (kernel documentation, ABI/*/sysfs-*).
//!
//! A driver that is loaded has found its disks when the call that loads it returns: it waits for probes and scans that
//! go on at the same time (`async_synchronize_full` in Linux, kernel/module/main.c). So what remains are buses that
//! find their devices at a pace of their own.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::sys::usb;

/// USB class of storage devices (USB Mass Storage Class Specification Overview, 2).
const USB_STORAGE: &str = "08";
/// SCSI peripheral device types whose logical units are disks (SPC-4, table 138): direct access, simplified, zoned.
const SCSI_DISKS: [&str; 3] = ["0", "14", "20"];
/// `PORT_CONNECTION` of `wPortStatus`.
const CONNECTED: u16 = 1;
/// Link state of `wPortStatus` on hubs of SuperSpeed (USB 3.2, table 10-13): its bits, and Polling, which a link is in
/// while it is trained.
const LINK_STATE: u16 = 0xF << 5;
const POLLING: u16 = 7 << 5;
/// Megabits per second from which a hub is one of SuperSpeed.
const SUPER_SPEED: f64 = 5000.0;
/// States of an NVMe controller in which it will have its namespaces (drivers/nvme/host/sysfs.c).
const NVME_STARTING: [&str; 3] = ["new", "resetting", "connecting"];
/// Buses of which nothing tells whether they have found all that is there: Fibre Channel, iSCSI, and those of Hyper-V
/// and Xen. Slots for memory cards that look empty are the same.
const SILENT: [&str; 4] = ["class/fc_host", "class/iscsi_host", "bus/vmbus/devices", "bus/xen/devices"];
/// How long the list of disks must not change, where each bus tells what it is doing.
const SETTLE: Duration = Duration::from_millis(300);
/// The same where one does not.
const SETTLE_SILENT: Duration = Duration::from_secs(3);

/// What may still bring disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// Each device that is known to come, in words.
    pub devices: Vec<String>,
    /// How long the list of disks must not change before it is complete.
    pub settle: Duration,
}

/// What may still bring disks, on a machine whose drivers are loaded. `sys` and `dev` are the mount points of sysfs and
/// devtmpfs.
pub fn expected_disks(sys: &Path, dev: &Path) -> Expected {
    let status = |hub: &Path, port| {
        let file = OpenOptions::new().read(true).write(true).open(dev.join("bus/usb").join(usb_node(hub)?)).ok()?;
        usb::port_status(&file, port).ok()
    };
    look(sys, &status)
}

/// `status` gives `wPortStatus` of a port of the hub in a folder; none if it cannot be read.
fn look(sys: &Path, status: &dyn Fn(&Path, u16) -> Option<u16>) -> Expected {
    let mut devices = Vec::new();
    for controller in folders(&sys.join("class/nvme")) {
        if attribute(&controller, "state").is_some_and(|state| NVME_STARTING.contains(&state.as_str())) {
            devices.push(format!("the namespaces of {}", name(&controller)));
        }
    }
    for unit in folders(&sys.join("bus/scsi/devices")) {
        // Hosts and targets are in the same folder and have no type.
        let is_disk = attribute(&unit, "type").is_some_and(|kind| SCSI_DISKS.contains(&kind.as_str()));
        if is_disk && folders(&unit.join("block")).is_empty() {
            devices.push(format!("the disk of SCSI device {}", name(&unit)));
        }
    }
    let is_empty = |slot: &PathBuf| !folders(slot).iter().any(|card| name(card).starts_with(name(slot)));
    let mut is_silent = SILENT.iter().any(|bus| !folders(&sys.join(bus)).is_empty());
    is_silent |= folders(&sys.join("class/mmc_host")).iter().any(is_empty);
    for device in folders(&sys.join("bus/usb/devices")) {
        match attribute(&device, "bInterfaceClass") {
            Some(class) => devices.extend(usb_storage(&device, &class)),
            None => is_silent |= !look_at_usb_device(&device, status, &mut devices),
        }
    }
    Expected { devices, settle: if is_silent { SETTLE_SILENT } else { SETTLE } }
}

/// The disk of a USB interface of this class, if a driver has it and has not looked for disks yet.
fn usb_storage(interface: &Path, class: &str) -> Option<String> {
    let hosts = || folders(interface).into_iter().filter(|folder| name(folder).starts_with("host"));
    let has_target = || hosts().any(|host| folders(&host).iter().any(|folder| name(folder).starts_with("target")));
    let is_waiting = class == USB_STORAGE && interface.join("driver").exists() && !has_target();
    is_waiting.then(|| format!("the disk of USB device {}", name(interface)))
}

/// Adds what a USB device still has to become, and what is connected to it if it is a hub. False if nothing tells.
fn look_at_usb_device(device: &Path, status: &dyn Fn(&Path, u16) -> Option<u16>, devices: &mut Vec<String>) -> bool {
    if attribute(device, "bConfigurationValue").is_none() {
        devices.push(format!("USB device {}", name(device)));
    }
    let ports = attribute(device, "maxchild").and_then(|ports| ports.parse().ok()).unwrap_or(0);
    let is_super_speed = attribute(device, "speed").and_then(|speed| speed.parse().ok()).unwrap_or(0.0) >= SUPER_SPEED;
    for port in 1..=ports {
        let Some(bits) = status(device, port) else { return false };
        let is_training = is_super_speed && bits & LINK_STATE == POLLING;
        if (bits & CONNECTED != 0 || is_training) && !device.join(child(device, port)).exists() {
            devices.push(format!("the device at port {port} of USB hub {}", name(device)));
        }
    }
    true
}

/// The name of the device at a port: `1-2` at a root hub, `1-2.3` at another (Linux, drivers/usb/core/usb.c,
/// usb_alloc_dev).
fn child(hub: &Path, port: u16) -> String {
    match name(hub).strip_prefix("usb") {
        Some(bus) => format!("{bus}-{port}"),
        None => format!("{}.{port}", name(hub)),
    }
}

/// The device node below /dev/bus/usb.
fn usb_node(device: &Path) -> Option<PathBuf> {
    let number = |attribute_name| attribute(device, attribute_name)?.parse::<u16>().ok();
    Some(format!("{:03}/{:03}", number("busnum")?, number("devnum")?).into())
}

/// The folders in a folder, sorted; links to folders too. None if there is no such folder.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    found.sort();
    found
}

fn name(folder: &Path) -> &str {
    folder.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn attribute(folder: &Path, file: &str) -> Option<String> {
    let text = fs::read_to_string(folder.join(file)).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes attributes of devices: path and content.
    fn sysfs(files: &[(&str, &str)]) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = sys.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        sys
    }

    const HUB: [(&str, &str); 3] = [
        ("bus/usb/devices/usb2/bConfigurationValue", "1\n"),
        ("bus/usb/devices/usb2/maxchild", "2\n"),
        ("bus/usb/devices/usb2/speed", "5000\n"),
    ];

    #[test]
    fn a_device_is_waited_for_while_it_is_known_to_come() {
        let no_ports = |_: &Path, _| Some(0);
        for (files, expect) in [
            (&[][..], &[][..]),
            (&[("class/nvme/nvme0/state", "live\n")], &[]),
            (&[("class/nvme/nvme0/state", "dead\n")], &[]),
            (&[("class/nvme/nvme0/state", "connecting\n")], &["the namespaces of nvme0"]),
            (&[("bus/scsi/devices/0:0:0:0/type", "0\n")], &["the disk of SCSI device 0:0:0:0"]),
            (&[("bus/scsi/devices/0:0:0:0/type", "5\n")], &[]),
            (&[("bus/scsi/devices/0:0:0:0/type", "0\n"), ("bus/scsi/devices/0:0:0:0/block/sda/size", "1\n")], &[]),
            (&[("bus/usb/devices/1-2/idVendor", "46f4\n")], &["USB device 1-2"]),
            (
                &[("bus/usb/devices/1-2:1.0/bInterfaceClass", "08\n"), ("bus/usb/devices/1-2:1.0/driver/x", "")],
                &["the disk of USB device 1-2:1.0"],
            ),
            // Without a driver in the image there will be none.
            (&[("bus/usb/devices/1-2:1.0/bInterfaceClass", "08\n")], &[]),
            (&[("bus/usb/devices/1-2:1.0/bInterfaceClass", "03\n"), ("bus/usb/devices/1-2:1.0/driver/x", "")], &[]),
            (
                &[
                    ("bus/usb/devices/1-2:1.0/bInterfaceClass", "08\n"),
                    ("bus/usb/devices/1-2:1.0/driver/x", ""),
                    ("bus/usb/devices/1-2:1.0/host3/target3:0:0/x", ""),
                ],
                &[],
            ),
        ] {
            let sys = sysfs(files);
            assert_eq!(look(sys.path(), &no_ports), Expected { devices: texts(expect), settle: SETTLE }, "{files:?}");
        }
    }

    #[test]
    fn a_usb_port_with_something_connected_is_waited_for_until_its_device_is_there() {
        let sys = sysfs(&HUB);
        let ports = |first: u16| move |_: &Path, port| Some(if port == 1 { first } else { 0 });
        let expect = ["the device at port 1 of USB hub usb2"];
        // Connected; a link that is trained; nothing there (RxDetect).
        for (bits, expect) in [(0x203, &expect[..]), (0x2E0, &expect), (0x2A0, &[])] {
            assert_eq!(look(sys.path(), &ports(bits)).devices, texts(expect), "{bits:#x}");
        }
        fs::create_dir_all(sys.path().join("bus/usb/devices/usb2/2-1")).unwrap();
        assert_eq!(look(sys.path(), &ports(0x203)).devices, texts(&[]));
    }

    #[test]
    fn a_bus_that_does_not_tell_gets_more_time() {
        let unknown = |_: &Path, _| None;
        assert_eq!(look(sysfs(&HUB).path(), &unknown).settle, SETTLE_SILENT);
        for bus in ["class/mmc_host/mmc0/x", "class/fc_host/host1/x", "bus/vmbus/devices/a/x"] {
            assert_eq!(look(sysfs(&[(bus, "")]).path(), &unknown).settle, SETTLE_SILENT, "{bus}");
        }
        for files in [&[][..], &[("class/mmc_host/mmc0/mmc0:0001/x", "")]] {
            assert_eq!(look(sysfs(files).path(), &unknown).settle, SETTLE);
        }
    }

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }
}
