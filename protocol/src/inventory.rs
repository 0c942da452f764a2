//! What is inside the machine, for the operator to look at and for later rules to choose by.

use serde::{Deserialize, Serialize};

/// Everything discovery found. Sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Inventory {
    /// Vendor, model and serials from SMBIOS.
    #[serde(default)]
    pub system: System,
    /// Processors.
    #[serde(default)]
    pub cpu: Cpu,
    /// Usable memory in bytes, `MemTotal` of /proc/meminfo.
    #[serde(default)]
    pub memory: u64,
    /// Whole disks, sorted by name.
    #[serde(default)]
    pub disks: Vec<Disk>,
    /// Network interfaces with a device behind them, sorted by name.
    #[serde(default)]
    pub nics: Vec<Nic>,
    /// How the machine booted.
    #[serde(default)]
    pub firmware: Firmware,
}

/// SMBIOS types 1, 2 and 3 (DSP0134, 7.2 to 7.4); fillers left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Manufacture))]
#[serde(deny_unknown_fields)]
pub struct System {
    /// Manufacturer of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// Product name of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Serial number of the base board.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub board_serial: Option<String>,
    /// Serial number of the chassis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chassis_serial: Option<String>,
    /// Asset tag of the chassis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asset_tag: Option<String>,
}

/// Processors, from /proc/cpuinfo.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// Name of the first processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Logical processors online.
    #[serde(default)]
    pub threads: u32,
    /// Machine architecture as uname(2) names it: `x86_64`, `aarch64`.
    #[serde(default)]
    pub arch: String,
}

/// A whole disk, from /sys/block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Kernel path, such as `/dev/nvme0n1`.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// Logical block size in bytes.
    #[serde(default)]
    pub logical_block: u32,
    /// Vendor and model as reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Serial number as reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// World Wide Name as sysfs gives it (`naa.5000c500...`, `eui.0025...`, `nvme.1af4-...`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn: Option<String>,
    /// Vendor as sysfs gives it, which may be a bus (`ATA`) or a number (`0x1af4`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// SCSI address, `host:channel:target:lun`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hctl: Option<String>,
    /// Where it is attached: what udev would link it by under `/dev/disk/by-path`, that folder included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_path: Option<String>,
    /// `nvme`, `sata`, `ata`, `sas`, `fc`, `iscsi`, `usb`, `virtio` or `mmc`, as lsblk(8) names them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Spinning rust.
    #[serde(default)]
    pub rotational: bool,
    /// Removable medium.
    #[serde(default)]
    pub removable: bool,
    /// Write-protected.
    #[serde(default)]
    pub read_only: bool,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// Kernel name.
    pub name: String,
    /// Permanent MAC address, lower case with colons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Addresses with prefix length, `192.0.2.7/24`.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// A cable with a living peer is plugged in.
    #[serde(default)]
    pub carrier: bool,
    /// Speed in Mbit/s, when the driver knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<u32>,
    /// Kernel driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
}

/// How the machine booted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Firmware {
    /// True for UEFI, false for BIOS.
    #[serde(default)]
    pub uefi: bool,
    /// Secure Boot: on, off, or unknown (BIOS, or the variable cannot be read).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secure_boot: Option<bool>,
    /// Major version of the TPM (1 or 2), absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpm: Option<u8>,
}
