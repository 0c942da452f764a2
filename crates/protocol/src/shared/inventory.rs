//! The hardware of a machine, for operators to look at and for disk hints to select from.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::printable::{line, size};

/// All hardware that discovery found. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Inventory {
    /// Vendor, model and serial numbers from SMBIOS.
    #[serde(default)]
    pub system: System,
    /// The processors.
    #[serde(default)]
    pub cpu: Cpu,
    /// The usable memory in bytes, `MemTotal` of /proc/meminfo.
    #[serde(default)]
    pub memory: u64,
    /// The whole disks, sorted by name.
    #[serde(default)]
    pub disks: Vec<Disk>,
    /// The network interfaces that have a device, sorted by name.
    #[serde(default)]
    pub nics: Vec<Nic>,
    /// How the machine booted.
    #[serde(default)]
    pub firmware: Firmware,
    /// The URL that the boot image was loaded from. Absent if its loader did not note the URL. systemd's stub notes it,
    /// from version 258 on, if the firmware loaded the image over HTTP or HTTPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded_from: Option<String>,
    /// The network cards and storage controllers on the PCI bus that have no driver or whose driver lacks firmware,
    /// sorted by address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unserved: Vec<UnservedDevice>,
}

/// The system, base board and chassis in SMBIOS types 1, 2 and 3 (DSP0134, 7.2 to 7.4), without placeholder values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Manufacture))]
#[serde(deny_unknown_fields)]
pub struct System {
    /// The manufacturer of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// The product name of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The serial number of the base board.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub board_serial: Option<String>,
    /// The serial number of the chassis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chassis_serial: Option<String>,
    /// The asset tag of the chassis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asset_tag: Option<String>,
}

/// The processors, from /proc/cpuinfo.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// The name of the first processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The number of logical processors online.
    #[serde(default)]
    pub threads: u32,
    /// The machine architecture as uname(2) names it: `x86_64`, `aarch64`.
    #[serde(default)]
    pub arch: String,
}

/// A whole disk, from /sys/block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// The kernel path, such as `/dev/nvme0n1`.
    pub path: String,
    /// The size in bytes.
    pub size: u64,
    /// The logical block size in bytes.
    #[serde(default)]
    pub logical_block: u32,
    /// The vendor and model that the disk reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The serial number that the disk reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// The World Wide Name as sysfs shows it (`naa.5000c500...`, `eui.0025...`, `nvme.1af4-...`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn: Option<String>,
    /// The vendor as sysfs shows it. It may be a bus (`ATA`) or a number (`0x1af4`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// The SCSI address, `host:channel:target:lun`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hctl: Option<String>,
    /// The place where the disk is attached: the link that udev would make under `/dev/disk/by-path`, with that folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_path: Option<String>,
    /// The transport as lsblk(8) names it: `nvme`, `sata`, `ata`, `sas`, `fc`, `iscsi`, `usb`, `virtio` or `mmc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Whether the disk spins.
    #[serde(default)]
    pub rotational: bool,
    /// Whether the medium is removable.
    #[serde(default)]
    pub removable: bool,
    /// Whether the disk is write-protected.
    #[serde(default)]
    pub read_only: bool,
    /// The best path to the same disk, if `path` is another path: for a disk with two ports, or a volume behind two
    /// controllers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_path_to: Option<String>,
}

impl Disk {
    /// Returns the best path to this disk. It is the same for all paths to one disk.
    pub fn best_path(&self) -> &str {
        self.other_path_to.as_deref().unwrap_or(&self.path)
    }

    /// Describes the disk in a line: `Samsung PM9A3, serial number S4XY, 894.3 GiB, /dev/nvme0n1`.
    pub fn in_words(&self) -> String {
        let serial = self.serial.as_ref().map(|serial| format!("serial number {serial}"));
        let parts = [self.model.clone(), serial].into_iter().flatten().chain([size(self.size), self.path.clone()]);
        line(&parts.collect::<Vec<_>>().join(", ")).into_owned()
    }
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// The kernel name.
    pub name: String,
    /// The permanent MAC address, in lower case with colons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// The addresses with prefix length, such as `192.0.2.7/24`.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Whether a cable with a live peer is plugged in.
    #[serde(default)]
    pub carrier: bool,
    /// The speed in Mbit/s, if the driver knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<u32>,
    /// The kernel driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
}

/// The firmware, and how the machine booted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Firmware {
    /// The vendor of the firmware in SMBIOS type 0 (DSP0134, 7.1), without placeholder values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// The version of the firmware in SMBIOS type 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// `true` for UEFI, `false` for BIOS.
    #[serde(default)]
    pub uefi: bool,
    /// Whether Secure Boot is on or off. Absent if unknown: the machine has a BIOS, or the variable cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secure_boot: Option<bool>,
    /// Whether the firmware is in Setup Mode: it has no platform key, and takes any keys for Secure Boot. Absent if
    /// unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup_mode: Option<bool>,
    /// The SHA-256 of the certificate of the platform key, in hexadecimal. It says whose keys the firmware has. Absent
    /// in Setup Mode, or if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform_key: Option<String>,
    /// The major version of the TPM (1 or 2). Absent without a TPM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 255))]
    pub tpm: Option<u8>,
}

/// A network card or storage controller on the PCI bus that has no driver or whose driver lacks firmware.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct UnservedDevice {
    /// What the device is for.
    pub kind: DeviceKind,
    /// The PCI address as sysfs shows it: domain, bus, slot and function, such as `0000:03:00.0`.
    pub address: String,
    /// The PCI vendor in four hexadecimal digits, in lower case.
    pub vendor: String,
    /// The PCI device in four hexadecimal digits, in lower case.
    pub device: String,
    /// The driver that asked for firmware, or that has this device in its table. Absent if no driver of the running
    /// system is for this device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The firmware files that the driver did not find, below `/lib/firmware`, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_firmware: Vec<String>,
}

/// What a device is for: the base class of its PCI class code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// A mass storage controller, base class 01.
    Storage,
    /// A network controller, base class 02.
    Network,
}

impl UnservedDevice {
    /// Returns what the device is and where, for sentences.
    pub fn name(&self) -> String {
        let Self { kind, address, vendor, device, .. } = self;
        let kind = match kind {
            DeviceKind::Storage => "storage controller",
            DeviceKind::Network => "network card",
        };
        format!("{kind} {vendor}:{device} at {address}")
    }
}

/// Writes a sentence for the console.
impl fmt::Display for UnservedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { driver, missing_firmware, .. } = self;
        f.write_str(&self.name())?;
        match (driver, missing_firmware.as_slice()) {
            (None, []) => write!(f, " has no driver in this boot image"),
            (Some(driver), []) => write!(f, " does not work with its driver {driver}: see the kernel log"),
            (driver, files) => {
                let driver = driver.as_deref().unwrap_or("of an unknown name");
                write!(f, ": driver {driver} lacks firmware {}: add it to the boot image", files.join(", "))
            }
        }
    }
}
