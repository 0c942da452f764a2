//! Disks that are not there yet: what the kernel still looks for, from sysfs (kernel documentation, ABI/*/sysfs-*).
//!
//! A driver that is loaded has found its disks when the call that loads it returns: it waits for probes and scans that
//! run at the same time (`async_synchronize_full` in Linux, kernel/module/main.c). The exceptions are buses that find
//! their devices in the background, drivers that look for disks in their own queue (mpi3mr, hpsa), and controllers that
//! appear after their driver is loaded, because nothing waits for their scans.

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
/// Link state of `wPortStatus` on hubs of SuperSpeed (USB 3.2, table 10-13): its bits, and the value Polling, which a
/// link has while it is trained.
const LINK_STATE: u16 = 0xF << 5;
const POLLING: u16 = 7 << 5;
/// Minimum speed of a SuperSpeed hub, in megabits per second.
const SUPER_SPEED: f64 = 5000.0;
/// States of an NVMe controller whose namespaces are still to come (drivers/nvme/host/sysfs.c).
const NVME_STARTING: [&str; 3] = ["new", "resetting", "connecting"];
/// Part of the path in sysfs of a SCSI host behind USB. The state of such a host is taken from its USB interface.
const USB_HOST: &str = "/usb";
/// Buses that do not show whether they have found all their devices: Fibre Channel, iSCSI, Hyper-V and Xen. The same
/// holds for slots for memory cards that look empty.
const SILENT: [&str; 4] = ["class/fc_host", "class/iscsi_host", "bus/vmbus/devices", "bus/xen/devices"];
/// How long the list of disks must stay unchanged if every bus tells whether it is still looking for devices.
const SETTLE: Duration = Duration::from_millis(300);
/// The same if a bus does not tell, or if a controller appeared late.
const SETTLE_SILENT: Duration = Duration::from_secs(3);
/// The same if a card is in a slot that has no power yet: five seconds in which it may be pulled out again
/// (drivers/pci/hotplug/pciehp_ctrl.c), and the start of its link. A broken card stays in this state.
const SETTLE_SLOT: Duration = Duration::from_secs(10);

/// What may still bring disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// Each device that is known to come, in words.
    pub devices: Vec<String>,
    /// How long the list of disks must not change before it is complete.
    pub settle: Duration,
    /// The kernel's names of the disk controllers, except those behind USB.
    pub controllers: Vec<String>,
}

impl Expected {
    /// Returns how long the list of disks must not change, if `first` were the controllers when the drivers had been
    /// loaded.
    pub fn settle_after(&self, first: &[String]) -> Duration {
        let is_late = self.controllers.iter().any(|controller| !first.contains(controller));
        if is_late { self.settle.max(SETTLE_SILENT) } else { self.settle }
    }
}

/// Finds the devices and buses where disks may still appear, on a machine whose drivers are loaded. `sys` and `dev` are
/// the mount points of sysfs and devtmpfs.
pub fn expected_disks(sys: &Path, dev: &Path) -> Expected {
    let status = |hub: &Path, port| {
        let file = OpenOptions::new().read(true).write(true).open(dev.join("bus/usb").join(usb_node(hub)?)).ok()?;
        usb::port_status(&file, port).ok()
    };
    look(sys, &status)
}

/// Looks through sysfs. `status` gives `wPortStatus` of a port of the hub in a folder; `None` if it cannot be read.
fn look(sys: &Path, status: &dyn Fn(&Path, u16) -> Option<u16>) -> Expected {
    let (mut devices, mut controllers) = (Vec::new(), Vec::new());
    let mut is_silent = SILENT.iter().any(|bus| !folders(&sys.join(bus)).is_empty());
    for controller in folders(&sys.join("class/nvme")) {
        if attribute(&controller, "state").is_some_and(|state| NVME_STARTING.contains(&state.as_str())) {
            devices.push(format!("the namespaces of {}", name(&controller)));
        }
        // A controller without namespaces may still get its first. With several paths to a namespace, each path has its
        // own entry.
        is_silent |= !folders(&controller).iter().any(|namespace| name(namespace).starts_with(name(&controller)));
        controllers.push(name(&controller).to_owned());
    }
    for host in folders(&sys.join("class/scsi_host")) {
        if fs::canonicalize(&host).is_ok_and(|path| path.to_string_lossy().contains(USB_HOST)) {
            continue;
        }
        // Nothing uses a disk yet, so these commands can only be those of a scan.
        if attribute(&host, "host_busy").is_some_and(|commands| commands != "0") {
            devices.push(format!("an answer to SCSI {}", name(&host)));
        }
        controllers.push(name(&host).to_owned());
    }
    for unit in folders(&sys.join("bus/scsi/devices")) {
        // Hosts and targets are in the same folder and have no type.
        let is_disk = attribute(&unit, "type").is_some_and(|kind| SCSI_DISKS.contains(&kind.as_str()));
        if is_disk && folders(&unit.join("block")).is_empty() {
            devices.push(format!("the disk of SCSI device {}", name(&unit)));
        }
    }
    let is_empty = |slot: &PathBuf| !folders(slot).iter().any(|card| name(card).starts_with(name(slot)));
    is_silent |= folders(&sys.join("class/mmc_host")).iter().any(is_empty);
    for device in folders(&sys.join("bus/usb/devices")) {
        match attribute(&device, "bInterfaceClass") {
            Some(class) => devices.extend(usb_storage(&device, &class)),
            None => is_silent |= !look_at_usb_device(&device, status, &mut devices),
        }
    }
    let settle = match is_silent {
        _ if folders(&sys.join("bus/pci/slots")).iter().any(|slot| is_starting(sys, slot)) => SETTLE_SLOT,
        true => SETTLE_SILENT,
        false => SETTLE,
    };
    Expected { devices, settle, controllers }
}

/// Whether a slot for hot-plugging has a card that does not yet show as a PCI device (kernel documentation,
/// ABI/testing/sysfs-bus-pci, and drivers/pci/hotplug/pci_hotplug_core.c).
fn is_starting(sys: &Path, slot: &Path) -> bool {
    let has_card = attribute(slot, "adapter").as_deref() == Some("1");
    let address = attribute(slot, "address").map(|address| format!("{address}."));
    let devices = || folders(&sys.join("bus/pci/devices"));
    has_card && address.is_some_and(|address| !devices().iter().any(|device| name(device).starts_with(&address)))
}

/// Names the disk of a USB interface of this class, if a driver is bound to it but has not looked for disks yet.
fn usb_storage(interface: &Path, class: &str) -> Option<String> {
    let hosts = || folders(interface).into_iter().filter(|folder| name(folder).starts_with("host"));
    let has_target = || hosts().any(|host| folders(&host).iter().any(|folder| name(folder).starts_with("target")));
    let is_waiting = class == USB_STORAGE && interface.join("driver").exists() && !has_target();
    is_waiting.then(|| format!("the disk of USB device {}", name(interface)))
}

/// Adds a USB device if it may still become a disk, and what is connected to it if it is a hub. Returns false if the
/// state of a port is unknown.
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

/// Returns the name of the device at a port: `1-2` at a root hub, `1-2.3` at another (Linux, drivers/usb/core/usb.c,
/// usb_alloc_dev).
fn child(hub: &Path, port: u16) -> String {
    match name(hub).strip_prefix("usb") {
        Some(bus) => format!("{bus}-{port}"),
        None => format!("{}.{port}", name(hub)),
    }
}

/// Returns the path of the device node below /dev/bus/usb.
fn usb_node(device: &Path) -> Option<PathBuf> {
    let number = |attribute_name| attribute(device, attribute_name)?.parse::<u16>().ok();
    Some(format!("{:03}/{:03}", number("busnum")?, number("devnum")?).into())
}

/// Lists the folders in a folder, sorted, and links to folders too. The list is empty if there is no such folder.
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
            (&[("class/scsi_host/host0/host_busy", "0\n")], &[]),
            (&[("class/scsi_host/host0/host_busy", "1\n")], &["an answer to SCSI host0"]),
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
            let found = look(sys.path(), &no_ports);
            assert_eq!((found.devices, found.settle), (texts(expect), SETTLE), "{files:?}");
        }
    }

    #[test]
    fn an_nvme_controller_is_waited_for_until_it_has_a_namespace() {
        let check = |files: &[(&str, &str)], expect: (&[&str], Duration)| {
            let found = look(sysfs(files).path(), &|_, _| None);
            assert_eq!((found.devices, found.settle), (texts(expect.0), expect.1), "{files:?}");
            assert_eq!(found.controllers, ["nvme0"]);
        };
        check(&[("class/nvme/nvme0/state", "connecting\n")], (&["the namespaces of nvme0"], SETTLE_SILENT));
        check(&[("class/nvme/nvme0/state", "dead\n")], (&[], SETTLE_SILENT));
        check(&[("class/nvme/nvme0/state", "live\n"), ("class/nvme/nvme0/ng0n1/x", "")], (&[], SETTLE_SILENT));
        for namespace in ["class/nvme/nvme0/nvme0n1/x", "class/nvme/nvme0/nvme0c0n1/x"] {
            check(&[("class/nvme/nvme0/state", "live\n"), (namespace, "")], (&[], SETTLE));
        }
    }

    #[test]
    fn a_controller_that_comes_late_and_a_slot_that_starts_get_more_time() {
        let slot = [("bus/pci/slots/3/adapter", "1\n"), ("bus/pci/slots/3/address", "0000:01:00\n")];
        let card = ("bus/pci/devices/0000:01:00.0/x", "");
        let settle = |files: &[(&str, &str)]| look(sysfs(files).path(), &|_, _| None).settle;
        assert_eq!(settle(&slot), SETTLE_SLOT);
        assert_eq!(settle(&[slot[0], slot[1], card]), SETTLE);
        assert_eq!(settle(&[("bus/pci/slots/3/adapter", "0\n"), slot[1]]), SETTLE);
        // A slot that nothing can be plugged into while the machine runs.
        assert_eq!(settle(&[slot[1]]), SETTLE);

        let hosts = [("class/scsi_host/host0/x", ""), ("class/scsi_host/host1/x", "")];
        let found = look(sysfs(&hosts).path(), &|_, _| None);
        assert_eq!(found.settle_after(&texts(&["host0", "host1", "nvme0"])), SETTLE);
        assert_eq!(found.settle_after(&texts(&["host0"])), SETTLE_SILENT);
        let starting = look(sysfs(&[&hosts[..], &slot].concat()).path(), &|_, _| None);
        assert_eq!(starting.settle_after(&[]), SETTLE_SLOT);
    }

    #[test]
    fn a_host_behind_usb_is_no_controller_because_its_interface_tells() {
        let host = "devices/pci0/usb1/1-2/1-2:1.0/host3";
        let sys = sysfs(&[(&format!("{host}/scsi_host/host3/host_busy"), "1\n")]);
        fs::create_dir_all(sys.path().join("class/scsi_host")).unwrap();
        let link = sys.path().join("class/scsi_host/host3");
        std::os::unix::fs::symlink(sys.path().join(host).join("scsi_host/host3"), link).unwrap();
        assert_eq!(look(sys.path(), &|_, _| None), Expected { settle: SETTLE, ..Expected::default() });
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
