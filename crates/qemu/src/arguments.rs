//! The command line of QEMU for a machine.

use std::path::Path;
use std::process::Command;

use slipway_parts::Arch;

use crate::config::{Boot, MachineConfig};
use crate::escape;

/// Name of QEMU's program.
pub(super) fn program(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "qemu-system-x86_64",
        Arch::Aarch64 => "qemu-system-aarch64",
    }
}

/// A command that starts QEMU, whose messages are English.
pub(super) fn command(arch: Arch) -> Command {
    let mut command = Command::new(program(arch));
    command.env("LC_ALL", "C.UTF-8").env_remove("LANGUAGE");
    command
}

/// What is said if QEMU cannot be started.
pub(super) fn missing(arch: Arch) -> String {
    let package = match arch {
        Arch::X86_64 => "qemu-system-x86",
        Arch::Aarch64 => "qemu-system-arm",
    };
    format!("starting {}, which is in Debian's package {package}", program(arch))
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
) -> Vec<String> {
    let mut arguments: Vec<String> = accel.map(str::to_owned).to_vec();
    let mut add = |words: &[&str]| arguments.extend(words.iter().map(|word| (*word).to_owned()));
    add(&[
        "-machine",
        &if config.secure_boot { format!("{},smm=on", board(config.arch)) } else { board(config.arch).to_owned() },
        "-smp",
        &config.cpus.to_string(),
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
        &format!("type=1,manufacturer=QEMU,product=slipway,serial={}", config.serial.replace(',', ",,")),
    ]);
    let (console, log) = (escape::commas(&sockets.join("console")), escape::commas(log));
    add(&["-chardev", &format!("socket,id=console,path={console},server=on,wait=off,logfile={log},logappend=on")]);
    add(&[
        "-serial",
        "chardev:console",
        "-qmp",
        &format!("unix:{},server=on,wait=off", escape::commas(&sockets.join("qmp"))),
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
        Boot::Uefi { firmware, pxe } => {
            add(&firmware.drives(variables).each_ref().map(String::as_str));
            // Where nothing answers PXE, waiting for an answer takes a minute.
            let off: &[&str] = if *pxe { &["IPv6PXESupport"] } else { &["IPv4PXESupport", "IPv6PXESupport"] };
            for protocol in off {
                add(&["-fw_cfg", &format!("name=opt/org.tianocore/{protocol},string=n")]);
            }
        }
        Boot::Bios { pxe } => add(&["-boot", if *pxe { "order=c,once=n" } else { "order=c" }]),
        Boot::Kernel { vmlinuz, initramfs, cmdline } => {
            add(&["-kernel", &vmlinuz.to_string_lossy(), "-initrd", &initramfs.to_string_lossy(), "-append", cmdline]);
        }
    }
    for (index, disk) in config.disks.iter().enumerate() {
        add(&[
            "-drive",
            &format!("if=none,id=disk{index},format=raw,discard=unmap,file={}", escape::commas(&disk.path)),
        ]);
        add(&["-device", &format!("virtio-blk-pci,drive=disk{index},serial={}", disk.serial)]);
    }
    for (index, nic) in config.nics.iter().enumerate() {
        let bootfile = nic.bootfile.as_ref().map(|url| format!(",bootfile={}", url.replace(',', ",,")));
        add(&["-netdev", &format!("user,id=net{index}{}", bootfile.unwrap_or_default())]);
        // UEFI firmware has its own drivers, and would load an option ROM of Debian's QEMU that is from 2019.
        let rom = if matches!(config.boot, Boot::Bios { pxe: true }) { "" } else { ",romfile=" };
        add(&["-device", &format!("virtio-net-pci,id=nic{index},netdev=net{index},mac={}{rom}", nic.mac)]);
    }
    arguments.extend(config.extra.iter().cloned());
    arguments
}
