//! Whole machines in QEMU as tests use them, with packages that are installed if they are missing, and firmware of
//! releases that the host does not have.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use slipway_parts::Arch;

use crate::host::cache::{self, Key};
use crate::host::{files, packages};

pub mod firmware;

pub use slipway_qemu::accel::Accel;
pub use slipway_qemu::{Disk, Machine, Nic, create_disk, drive};

use firmware::Release;
use slipway_qemu::accel;

/// How a machine starts.
#[derive(Clone, Debug)]
pub enum Boot {
    /// By UEFI firmware. The machine's folder keeps its variables. With a `uri`, the first boot is from that URI and
    /// later boots are from disk.
    Uefi {
        /// HTTP or HTTPS URL of an EFI program, for the first boot.
        uri: Option<String>,
    },
    /// Like `Uefi`, with a newer release of the firmware.
    NewerUefi {
        /// HTTP or HTTPS URL of an EFI program, for the first boot.
        uri: Option<String>,
    },
    /// By UEFI firmware, from the network by PXE.
    UefiPxe,
    /// By a BIOS, from the network by PXE. The card must have an option ROM.
    BiosPxe,
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

/// The configuration of a machine.
pub type MachineConfig = slipway_qemu::MachineConfig<Boot>;

/// Starts a machine. Its folder keeps the firmware's variables and `console.log`, to which restarts append.
pub fn start(config: &MachineConfig, folder: &Path) -> Result<Machine> {
    ensure(config.arch)?;
    files::create_dir(folder)?;
    let by_firmware = |release, uri: Option<&String>, pxe| -> Result<slipway_qemu::Boot> {
        firmware::variables(&folder.join("vars.fd"), config.arch, release, uri.map(String::as_str))?;
        Ok(slipway_qemu::Boot::Uefi { firmware: firmware::of(config.arch, release)?, pxe })
    };
    let of_host = Release::of_host(config.secure_boot);
    let boot = match &config.boot {
        Boot::Uefi { uri } => by_firmware(of_host, uri.as_ref(), false)?,
        Boot::NewerUefi { uri } => by_firmware(Release::Newer, uri.as_ref(), false)?,
        Boot::UefiPxe => by_firmware(of_host, None, true)?,
        Boot::BiosPxe => slipway_qemu::Boot::Bios { pxe: true },
        Boot::Kernel { vmlinuz, initramfs, cmdline } => {
            let (vmlinuz, initramfs) = (vmlinuz.clone(), initramfs.clone());
            slipway_qemu::Boot::Kernel { vmlinuz, initramfs, cmdline: cmdline.clone() }
        }
    };
    Machine::start(&config.with_boot(boot), accelerator(config.arch)?, folder)
}

/// Installs QEMU, firmware and a network boot loader.
fn ensure(arch: Arch) -> Result<()> {
    packages::ensure(match arch {
        Arch::X86_64 => packages::QEMU,
        Arch::Aarch64 => packages::QEMU_ARM64,
    })
}

/// Chooses the value of `SLIPWAY_ACCEL` (`kvm` or `tcg`) if it is set, else KVM if a guest runs under it, else TCG. The
/// answer is kept in the cache.
pub fn accelerator(arch: Arch) -> Result<Accel> {
    if let Some(known) = accel::known(arch)? {
        return Ok(known);
    }
    let key = accel::host(arch)?.into_iter().fold(Key::new("accel-3"), |key, (name, value)| key.with(name, value));
    let folder = cache::keyed("accel", key, |folder| {
        let is_kvm = accel::try_kvm(arch, &firmware::of(arch, Release::Host)?)? == Accel::Kvm;
        let answer = if is_kvm { "kvm" } else { "tcg" };
        eprintln!("guests run under {answer}");
        fs::write(folder.join("answer"), answer).context("writing the answer")
    })?;
    let answer = fs::read_to_string(folder.join("answer")).context("reading the answer")?;
    Ok(if answer == "kvm" { Accel::Kvm } else { Accel::Tcg })
}
