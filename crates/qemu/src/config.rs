//! What a machine consists of.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use slipway_parts::Arch;

use crate::firmware::Firmware;

/// How a machine starts.
#[derive(Clone, Debug)]
pub enum Boot {
    /// By UEFI firmware. The machine's folder keeps its variables, `vars.fd`, which are made if they are missing.
    Uefi {
        /// The firmware.
        firmware: Firmware,
        /// Whether it looks for an answer to PXE in the network.
        pxe: bool,
    },
    /// By a BIOS.
    Bios {
        /// Whether the first boot is from the network, by PXE. Then the cards have option ROMs.
        pxe: bool,
    },
    /// By a kernel that QEMU loads into memory. Saves seconds in tests that are not about booting.
    Kernel {
        /// Path of the kernel.
        vmlinuz: PathBuf,
        /// Path of the initramfs.
        initramfs: PathBuf,
        /// The kernel's command line.
        cmdline: String,
    },
}

/// A virtio disk.
#[derive(Clone, Debug)]
pub struct Disk {
    /// File with the raw content.
    pub path: PathBuf,
    /// Serial number, at most 20 characters.
    pub serial: String,
}

/// A virtio network card on its own network.
#[derive(Clone, Debug)]
pub struct Nic {
    /// MAC address.
    pub mac: String,
    /// Boot file URL that DHCP announces, if it announces one.
    pub bootfile: Option<String>,
}

/// The configuration of a machine. `B` says how it boots: a caller may have words of its own for that.
#[derive(Clone, Debug)]
pub struct MachineConfig<B = Boot> {
    /// Processor architecture.
    pub arch: Arch,
    /// How the machine boots.
    pub boot: B,
    /// Whether the UEFI firmware supports Secure Boot. Without keys it is in Setup Mode.
    pub secure_boot: bool,
    /// Processors. Without KVM, firmware and kernel are slower with two than with one.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// SMBIOS system UUID.
    pub uuid: String,
    /// SMBIOS system serial number.
    pub serial: String,
    /// Disks, in the order the guest sees them.
    pub disks: Vec<Disk>,
    /// Network cards; their QEMU ids are `nic0`, `nic1` and so on.
    pub nics: Vec<Nic>,
    /// Additional arguments for QEMU.
    pub extra: Vec<String>,
    /// Whether the machine keeps running when the terminal closes: it gets neither hang-up nor ctrl-c.
    pub detached: bool,
}

impl<B> MachineConfig<B> {
    /// The same machine with another way to boot.
    pub fn with_boot<C>(&self, boot: C) -> MachineConfig<C> {
        let Self { arch, secure_boot, cpus, memory_mib, detached, .. } = *self;
        let (uuid, serial) = (self.uuid.clone(), self.serial.clone());
        let (disks, nics, extra) = (self.disks.clone(), self.nics.clone(), self.extra.clone());
        MachineConfig { arch, boot, secure_boot, cpus, memory_mib, uuid, serial, disks, nics, extra, detached }
    }
}

/// Makes an empty disk of `size` bytes: a sparse file that reads as zeros. Replaces an existing one. If that fails,
/// nothing is changed.
pub fn create_disk(path: &Path, size: u64) -> Result<()> {
    let fresh = path.with_extension("fresh");
    let created = File::create(&fresh).and_then(|file| file.set_len(size)).and_then(|()| fs::rename(&fresh, path));
    if created.is_err() {
        // It may not be there.
        let _ = fs::remove_file(&fresh);
    }
    created.with_context(|| format!("creating {}", path.display()))
}
