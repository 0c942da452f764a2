//! How and where a disk is attached, from the chain of its parent devices in sysfs. The boot image has no udev, so the
//! by-path name that udev would give the disk is computed here (systemd, src/udev/udev-builtin-path_id.c).

use std::fs;
use std::path::{Path, PathBuf};

use super::attribute;

/// A device in sysfs, or a folder that groups devices, which has no subsystem.
struct Device {
    path: PathBuf,
    name: String,
    subsystem: Option<String>,
}

impl Device {
    fn of(path: &Path) -> Option<Self> {
        let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let subsystem = fs::read_link(path.join("subsystem")).ok().and_then(|link| name(&link));
        Some(Self { path: path.to_owned(), name: name(path)?, subsystem })
    }

    fn is_of(&self, subsystem: &str) -> bool {
        self.subsystem.as_deref() == Some(subsystem)
    }
}

/// Returns the device at a path and all its parents.
fn chain(path: &Path) -> Vec<Device> {
    let path = path.canonicalize().unwrap_or_default();
    path.ancestors().filter_map(Device::of).collect()
}

/// Returns the SCSI address, `host:channel:target:lun`.
pub(super) fn hctl(dir: &Path) -> Option<String> {
    let mut entries = fs::read_dir(dir.join("device/scsi_device")).ok()?;
    entries.next()?.ok()?.file_name().into_string().ok()
}

/// Returns the transport as lsblk(8) names it. SCSI over virtio is `virtio` too.
pub(super) fn transport(dir: &Path, name: &str) -> Option<&'static str> {
    for (prefix, transport) in [("nvme", "nvme"), ("mmcblk", "mmc"), ("vd", "virtio")] {
        if name.starts_with(prefix) {
            return Some(transport);
        }
    }
    let chain = chain(dir);
    let path = chain.first()?.path.to_str()?;
    let known = [("/rport-", "fc"), ("/end_device-", "sas"), ("/session", "iscsi"), ("/usb", "usb")];
    if let Some((_, transport)) = known.iter().find(|(part, _)| path.contains(part)) {
        return Some(transport);
    }
    if path.contains("/ata") {
        let (host, _) = host(&chain)?;
        let driver = attribute(&host.path.join("scsi_host").join(&host.name).join("proc_name"))?;
        let is_serial = driver == "ahci" || driver.starts_with("sata");
        return if is_serial { Some("sata") } else { driver.contains("ata").then_some("ata") };
    }
    path.contains("/virtio").then_some("virtio")
}

/// Reads the serial number of the USB device that is the disk, or that the disk is behind. Most of these give none by
/// SCSI.
pub(super) fn usb_serial(dir: &Path) -> Option<String> {
    let chain = chain(dir);
    let interface = chain.iter().position(|device| device.is_of("usb") && device.name.contains(':'))?;
    // The hub and the bus have serial numbers too.
    attribute(&chain.get(interface + 1)?.path.join("serial"))
}

/// Returns the link that udev would create for a disk in /dev/disk/by-path; none if udev would create none, and for
/// iSCSI, IEEE 1394 and Hyper-V. `sys` is the mount point of sysfs.
pub(super) fn by_path(sys: &Path, dir: &Path) -> Option<String> {
    let mut chain = chain(dir);
    // From the disk towards the root.
    let mut parts: Vec<String> = Vec::new();
    // A path only counts if it has a known transport and a parent with its own name.
    let (mut has_transport, mut has_parent) = (false, false);
    let mut at = 0;
    while let Some(device) = chain.get(at) {
        let mut next = at + 1;
        match device.subsystem.as_deref().unwrap_or_default() {
            "scsi" => {
                has_transport = true;
                if is_scsi_device(&device.name) {
                    let place = scsi(sys, chain.get(at..)?)?;
                    parts.push(place.part);
                    has_parent |= place.is_named_by_its_transport;
                    next = at + place.devices;
                }
            }
            "usb" => {
                has_transport = true;
                if let Some((_, port)) = device.name.split_once('-') {
                    // The bus number is left out because it changes between boots.
                    parts.push(format!("usb-0:{port}"));
                    next = past(&chain, at);
                }
            }
            "virtio" => {
                has_transport = true;
                next = past(&chain, at);
            }
            bus @ ("pci" | "platform" | "acpi" | "xen") => {
                parts.push(format!("{bus}-{}", device.name));
                has_parent = true;
                has_transport |= bus == "platform";
                next = past(&chain, at);
            }
            subsystem @ ("nvme" | "nvme-subsystem") => {
                parts.push(format!("nvme-{}", attribute(&dir.join("nsid"))?));
                (has_transport, has_parent) = (true, true);
                next = past(&chain, at);
                if subsystem == "nvme-subsystem" {
                    // With multipath the disk is not below a controller. The disk's name has the number of its first
                    // controller.
                    let number = dir.file_name()?.to_str()?.strip_prefix("nvme")?.split('n').next()?;
                    let controller = sys.join(format!("class/nvme/nvme{number}"));
                    chain = self::chain(&controller);
                    next = past(&chain, 0);
                }
            }
            _ => {}
        }
        at = next;
    }
    parts.reverse();
    (has_transport && has_parent).then(|| format!("{}{}", slipway_protocol::workflow::disk::BY_PATH, parts.join("-")))
}

/// Returns the index after the consecutive devices, from `at`, that have the same subsystem.
fn past(chain: &[Device], at: usize) -> usize {
    let here = chain.get(at).map(|device| &device.subsystem);
    at + chain.iter().skip(at).take_while(|device| Some(&device.subsystem) == here).count()
}

fn is_scsi_device(name: &str) -> bool {
    let numbers: Vec<&str> = name.split(':').collect();
    numbers.len() == 4 && numbers.iter().all(|number| number.parse::<u64>().is_ok())
}

/// The path part of a SCSI device.
struct Place {
    part: String,
    is_named_by_its_transport: bool,
    /// Number of devices in the chain that the part covers.
    devices: usize,
}

/// Returns the path part of the SCSI device with which `chain` starts.
fn scsi(sys: &Path, chain: &[Device]) -> Option<Place> {
    let device = chain.first()?;
    let path = device.path.to_str()?;
    let contains = |part: &str| path.contains(part);
    if contains("/session") || contains("/vmbus_") || contains("/VMBUS") || device.path.join("ieee1394_id").exists() {
        return None;
    }
    let of_transport = |part| Some(Place { part, is_named_by_its_transport: true, devices: 1 });
    if contains("/rport-") {
        return of_transport(fibre_channel(sys, chain)?);
    }
    if contains("/end_device-") {
        return of_transport(sas(sys, chain)?);
    }
    if contains("/ata") {
        return Some(Place { part: ata(sys, chain)?, is_named_by_its_transport: false, devices: 1 });
    }
    let (host, behind) = host(chain)?;
    let first = fs::read_dir(host.path.parent()?).ok()?.flatten();
    let first =
        first.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("host")?.parse::<u64>().ok()).min()?;
    let number: u64 = host.name.strip_prefix("host")?.parse().ok()?;
    let (_, rest) = device.name.split_once(':')?;
    let part = format!("scsi-{}:{rest}", number.checked_sub(first)?);
    Some(Place { part, is_named_by_its_transport: false, devices: behind })
}

/// Finds the SCSI host in a chain, and the index after it.
fn host(chain: &[Device]) -> Option<(&Device, usize)> {
    chain.iter().zip(1..).find(|(device, _)| device.is_of("scsi") && device.name.starts_with("host"))
}

fn ata(sys: &Path, chain: &[Device]) -> Option<String> {
    let mut address = chain.first()?.name.split(':').skip(1);
    let (channel, target) = (address.next()?, address.next()?);
    let (_, behind) = host(chain)?;
    let port = attribute(&sys.join("class/ata_port").join(&chain.get(behind)?.name).join("port_no"))?;
    // Behind a port multiplier, disks differ in their channel. Otherwise, master and slave differ in their target.
    Some(match channel {
        "0" => format!("ata-{port}.{target}"),
        _ => format!("ata-{port}.{channel}.0"),
    })
}

fn fibre_channel(sys: &Path, chain: &[Device]) -> Option<String> {
    let target = chain.get(1)?;
    let port = attribute(&sys.join("class/fc_transport").join(&target.name).join("port_name"))?;
    Some(format!("fc-{port}-{}", lun(chain)?))
}

/// Returns the path part of a SAS disk. The chain is device, target, end device, port, then host or expander.
fn sas(sys: &Path, chain: &[Device]) -> Option<String> {
    let (end, port, above) = (chain.get(2)?, chain.get(3)?, chain.get(4)?);
    let of = |device: &Device, file| attribute(&sys.join("class/sas_device").join(&device.name).join(file));
    let phys = attribute(&sys.join("class/sas_port").join(&port.name).join("num_phys"))?;
    let lun = lun(chain)?;
    if phys != "1" {
        return Some(format!("sas-{}-{lun}", of(end, "sas_address")?));
    }
    let phy = of(end, "phy_identifier")?;
    Some(match of(above, "sas_address") {
        Some(expander) => format!("sas-exp{expander}-phy{phy}-{lun}"),
        None => format!("sas-phy{phy}-{lun}"),
    })
}

/// Formats the logical unit number as in links: flat below 256, else in the format of SAM with the 32 bits that Linux
/// keeps.
fn lun(chain: &[Device]) -> Option<String> {
    let lun: u64 = chain.first()?.name.rsplit(':').next()?.parse().ok()?;
    Some(match lun {
        0..256 => format!("lun-{lun}"),
        _ => format!("lun-0x{:04x}{:04x}00000000", lun & 0xffff, (lun >> 16) & 0xffff),
    })
}

#[cfg(test)]
mod tests;
