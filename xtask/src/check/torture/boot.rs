//! Boots a disk in real firmware.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use slipway_parts::Arch;

use crate::host::files;
use crate::lab::qemu::{self, Boot, Disk, MachineConfig};
use crate::lab::tables::{self, Place};

/// What the program on the recorded systems prints.
const GREETING: &str = "iPXE initialising devices";
/// Printed by the firmware's shell, which starts when nothing else does.
const SHELL: &str = "UEFI Interactive Shell";
const LIMIT: Duration = Duration::from_secs(180);

/// Boots a disk in UEFI firmware. Returns whether something on the disk was started. Fails if that contradicts the
/// disk's tables.
pub fn boot(disk: &[u8], folder: &Path) -> Result<bool> {
    files::empty_dir(folder)?;
    let path = folder.join("disk");
    files::write(&path, disk)?;
    let config = MachineConfig {
        arch: Arch::X86_64,
        boot: Boot::Uefi { uri: None },
        secure_boot: false,
        cpus: 1,
        memory_mib: 256,
        uuid: "3f0b8a51-96a7-4c1e-8a6f-52c1d0e7b302".to_owned(),
        serial: "TORTURE002".to_owned(),
        disks: vec![Disk { path, serial: "torture-disk-1".to_owned() }],
        nics: Vec::new(),
        extra: Vec::new(),
        detached: false,
    };
    let mut machine = qemu::start(&config, folder)?;
    machine.wait_for_console(SHELL, LIMIT)?;
    let started = machine.console()?.contains(GREETING);
    let of_a_gpt = |table: &tables::Table| table.place != Place::Mbr;
    let expected = tables::is_protected(disk) && tables::find(disk).iter().any(of_a_gpt);
    if started != expected {
        bail!("booting the disk in {}: a system started: {started}; its tables predict: {expected}", folder.display());
    }
    Ok(started)
}
