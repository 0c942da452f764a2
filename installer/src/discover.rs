//! Identifies the machine and lists its hardware, as the kernel reports them.
//!
//! Nothing here fails. What cannot be read is left out and noted, because a machine with a broken SMBIOS table must
//! still start and report it. All reads are limited in size. Values may contain anything, because most come from
//! firmware.

mod cpu;
mod devices;
mod files;
mod firmware;
mod links;
mod loader;
mod memory;
mod nics;
pub mod oem_strings;
mod partitions;
mod smbios;
pub mod tpm;

use std::collections::BTreeMap;
use std::path::PathBuf;

use slipway_protocol::{Disk, Identity, Inventory, UnservedDevice};

use files::Notes;
use links::Link;

/// Mount points of the kernel's file systems. Netlink always asks the running kernel; its interfaces are matched by
/// name with those in `sys`.
#[derive(Clone, Debug)]
pub struct Roots {
    /// sysfs, including efivarfs at its usual place.
    pub sys: PathBuf,
    /// procfs.
    pub proc: PathBuf,
    /// devtmpfs, for the kernel log.
    pub dev: PathBuf,
    /// Folder of the kernel's modules, with a subfolder for each release.
    pub modules: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { sys: "/sys".into(), proc: "/proc".into(), dev: "/dev".into(), modules: "/lib/modules".into() }
    }
}

/// Returns the identifiers by which an operator registers the machine. Identifiers that are absent, placeholders or
/// unreadable are left out. The notes of [`inventory`] say which could not be read.
pub fn identity(roots: &Roots) -> Identity {
    identify(roots, &ask_links(&mut Vec::new()), &mut Vec::new())
}

/// Returns the machine's hardware, and one sentence for each value that could not be read, identity included. The
/// caller passes the disks, because the code that writes to disks also lists them.
pub fn inventory(roots: &Roots, disks: Vec<Disk>) -> (Inventory, Vec<String>) {
    let mut notes = Notes::new();
    let links = ask_links(&mut notes);
    let inventory = take_stock(roots, &links, disks, &mut notes);
    (inventory, notes)
}

/// Returns the network cards and storage controllers that have no driver or whose driver lacks firmware. Call this
/// function after drivers were loaded; note that a driver may load firmware only when its interface is brought up.
pub fn unserved(roots: &Roots) -> Vec<UnservedDevice> {
    devices::unserved(roots, &mut Vec::new())
}

/// Returns the devices of [`unserved`] for which the running system has no driver, each with its modalias.
pub fn without_driver(roots: &Roots) -> Vec<(UnservedDevice, String)> {
    devices::without_driver(roots, &mut Vec::new())
}

/// Returns the server that the boot image was loaded from over TLS, as `https://HOST[:PORT]`, if recorded.
pub fn server_of_loader(roots: &Roots) -> Option<String> {
    loader::server(&roots.sys)
}

/// Whether a built-in disk has partitions, so that the machine may have a system to boot.
pub fn has_partitions(roots: &Roots) -> bool {
    partitions::is_there(&roots.sys)
}

fn ask_links(notes: &mut Notes) -> BTreeMap<String, Link> {
    links::links(notes).unwrap_or_else(|error| {
        notes.push(format!("asking the kernel for network interfaces: {error}"));
        BTreeMap::new()
    })
}

fn identify(roots: &Roots, links: &BTreeMap<String, Link>, notes: &mut Notes) -> Identity {
    Identity {
        uuid: smbios::uuid(roots, notes),
        serial: smbios::serial(roots, notes),
        macs: nics::identifying_macs(&nics::nics(&roots.sys, links, notes)),
    }
}

fn take_stock(roots: &Roots, links: &BTreeMap<String, Link>, mut disks: Vec<Disk>, notes: &mut Notes) -> Inventory {
    let Identity { uuid, serial, macs } = identify(roots, links, notes);
    if uuid.is_none() && serial.is_none() {
        let left = if macs.is_empty() { "cannot be identified" } else { "can be identified only by its MAC addresses" };
        notes.push(format!("the firmware gives neither UUID nor serial number: the machine {left}"));
    }
    disks.sort_by(|a, b| a.path.cmp(&b.path));
    Inventory {
        system: smbios::system(roots, notes),
        cpu: cpu::cpu(roots, notes),
        memory: memory::total(&roots.proc, notes),
        disks,
        // Errors were already noted with the identity.
        nics: nics::nics(&roots.sys, links, &mut Vec::new()),
        firmware: firmware::firmware(&roots.sys, notes),
        loaded_from: loader::loaded_from(&roots.sys, notes),
        unserved: devices::unserved(roots, notes),
    }
}

#[cfg(test)]
mod tests;
