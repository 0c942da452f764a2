//! Which machine this is and what hardware it has, as the kernel reports it.
//!
//! Nothing here fails. What cannot be read is left out and noted, because a machine with a broken SMBIOS table must
//! still start and report it. All reads are bounded in size. The content may be anything, because firmware writes most
//! of it.

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

/// Where the kernel's file systems are mounted. Netlink is asked on the running kernel, and its interfaces are matched
/// by name with those found in `sys`.
#[derive(Clone, Debug)]
pub struct Roots {
    /// sysfs, with efivarfs in its usual place below it.
    pub sys: PathBuf,
    /// procfs.
    pub proc: PathBuf,
    /// devtmpfs, for the kernel log.
    pub dev: PathBuf,
    /// The folder with the kernel's modules, by release.
    pub modules: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { sys: "/sys".into(), proc: "/proc".into(), dev: "/dev".into(), modules: "/lib/modules".into() }
    }
}

/// The keys by which an operator registers the machine. A key that is absent, a filler or unreadable is left out. The
/// notes of [`inventory`] say which could not be read.
pub fn identity(roots: &Roots) -> Identity {
    identify(roots, &ask_links(&mut Vec::new()), &mut Vec::new())
}

/// The machine's hardware, and a sentence for each thing that could not be read, identity included. The caller gives
/// the disks, which are listed by the code that also writes to them.
pub fn inventory(roots: &Roots, disks: Vec<Disk>) -> (Inventory, Vec<String>) {
    let mut notes = Notes::new();
    let links = ask_links(&mut notes);
    let inventory = take_stock(roots, &links, disks, &mut notes);
    (inventory, notes)
}

/// The network cards and storage controllers that have no driver or whose driver lacks firmware. Drivers must have been
/// loaded, and a driver may ask for firmware only when its interface is brought up.
pub fn unserved(roots: &Roots) -> Vec<UnservedDevice> {
    devices::unserved(roots, &mut Vec::new())
}

/// The devices of [`unserved`] for which the running system has no driver, each with the modalias that the kernel gives it.
pub fn without_driver(roots: &Roots) -> Vec<(UnservedDevice, String)> {
    devices::without_driver(roots, &mut Vec::new())
}

/// The server that the boot image was loaded from over TLS, as its loader noted, as `https://HOST[:PORT]`.
pub fn server_of_loader(roots: &Roots) -> Option<String> {
    loader::server(&roots.sys)
}

/// Whether a disk that is built in has partitions, so that the machine may have a system to start.
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
        // Their errors were noted with the identity.
        nics: nics::nics(&roots.sys, links, &mut Vec::new()),
        firmware: firmware::firmware(&roots.sys, notes),
        loaded_from: loader::loaded_from(&roots.sys, notes),
        unserved: devices::unserved(roots, notes),
    }
}

#[cfg(test)]
mod tests;
