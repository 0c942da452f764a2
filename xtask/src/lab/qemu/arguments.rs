//! The command line of QEMU for a machine.

use std::path::Path;

use anyhow::Result;
use slipway_parts::Arch;

use crate::host::packages;

use super::firmware::Release;
use super::{Boot, MachineConfig, escape_commas, firmware};

/// Name of QEMU's program.
pub(super) fn program(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "qemu-system-x86_64",
        Arch::Aarch64 => "qemu-system-aarch64",
    }
}

/// The Debian packages with QEMU and the firmware.
pub(super) fn packages(arch: Arch) -> &'static [&'static str] {
    match arch {
        Arch::X86_64 => packages::QEMU,
        Arch::Aarch64 => packages::QEMU_ARM64,
    }
}

/// The board, which QEMU calls machine.
pub(super) fn board(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "q35",
        Arch::Aarch64 => "virt",
    }
}

/// Returns QEMU's arguments for a machine.
pub(super) fn of(
    config: &MachineConfig,
    accel: [&str; 4],
    variables: &Path,
    log: &Path,
    sockets: &Path,
) -> Result<Vec<String>> {
    let mut arguments: Vec<String> = accel.map(str::to_owned).to_vec();
    let mut add = |words: &[&str]| arguments.extend(words.iter().map(|word| (*word).to_owned()));
    // One processor, because under TCG firmware and kernel are slower with two.
    add(&[
        "-machine",
        &if config.secure_boot { format!("{},smm=on", board(config.arch)) } else { board(config.arch).to_owned() },
        "-smp",
        "1",
        "-m",
        &config.memory_mib.to_string(),
        "-nodefaults",
        "-display",
        "none",
    ]);
    add(&[
        "-uuid",
        &config.uuid,
        "-smbios",
        &format!("type=1,manufacturer=QEMU,product=slipway,serial={}", config.serial),
    ]);
    let (console, log) = (escape_commas(&sockets.join("console")), escape_commas(log));
    add(&["-chardev", &format!("socket,id=console,path={console},server=on,wait=off,logfile={log},logappend=on")]);
    add(&[
        "-serial",
        "chardev:console",
        "-qmp",
        &format!("unix:{},server=on,wait=off", escape_commas(&sockets.join("qmp"))),
    ]);
    add(&["-device", "virtio-rng-pci"]);
    if config.secure_boot {
        // Only firmware in system management mode may write its variables.
        add(&["-global", "driver=cfi.pflash01,property=secure,value=on"]);
    }
    // AAVMF would wait five seconds for a key before booting. OVMF does not.
    if config.arch == Arch::Aarch64 {
        add(&["-boot", "menu=on,splash-time=0"]);
    }
    match &config.boot {
        Boot::Uefi { .. } | Boot::NewerUefi { .. } => {
            let release = match config.boot {
                Boot::NewerUefi { .. } => Release::Newer,
                _ => Release::of_host(config.secure_boot),
            };
            add(&firmware::drives(variables, config.arch, release)?.each_ref().map(String::as_str));
            // Nothing answers PXE on this network, and waiting for an answer would take a minute.
            for protocol in ["IPv4PXESupport", "IPv6PXESupport"] {
                add(&["-fw_cfg", &format!("name=opt/org.tianocore/{protocol},string=n")]);
            }
        }
        Boot::UefiPxe => {
            let release = Release::of_host(config.secure_boot);
            add(&firmware::drives(variables, config.arch, release)?.each_ref().map(String::as_str));
            add(&["-fw_cfg", "name=opt/org.tianocore/IPv6PXESupport,string=n"]);
        }
        Boot::BiosPxe => add(&["-boot", "n"]),
        Boot::Kernel { vmlinuz, initramfs, cmdline } => {
            add(&["-kernel", &vmlinuz.to_string_lossy(), "-initrd", &initramfs.to_string_lossy(), "-append", cmdline]);
        }
    }
    for (index, disk) in config.disks.iter().enumerate() {
        add(&[
            "-drive",
            &format!("if=none,id=disk{index},format=raw,discard=unmap,file={}", escape_commas(&disk.path)),
        ]);
        add(&["-device", &format!("virtio-blk-pci,drive=disk{index},serial={}", disk.serial)]);
    }
    for (index, nic) in config.nics.iter().enumerate() {
        let bootfile = nic.bootfile.as_ref().map(|url| format!(",bootfile={}", url.replace(',', ",,")));
        add(&["-netdev", &format!("user,id=net{index}{}", bootfile.unwrap_or_default())]);
        // No option ROM: Debian's QEMU would load one from 2019, and the firmware has its own drivers.
        add(&["-device", &format!("virtio-net-pci,id=nic{index},netdev=net{index},mac={},romfile=", nic.mac)]);
    }
    arguments.extend(config.extra.iter().cloned());
    Ok(arguments)
}
