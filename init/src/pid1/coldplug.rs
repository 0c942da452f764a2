//! Drivers for the devices that are there, and for those that come later.
//!
//! The kernel announces each device by a uevent with the device's modalias (Documentation/driver-api/driver-model). Those
//! that were there before anybody listened are read from sysfs. Loading a driver may take seconds, so it has a thread of its
//! own.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with, sockopt};

use super::kmsg::{Kmsg, Level};
use super::{DRIVERS_LOADED, mounts};
use crate::drivers::Drivers;

/// Large enough for a burst of a few thousand devices.
const SOCKET_BUFFER: usize = 4 << 20;
/// `UEVENT_BUFFER_SIZE` of the kernel and the header before it.
const LONGEST_UEVENT: usize = 8192;
/// The multicast group of the kernel's own events; 2 is udev's.
const KERNEL_GROUP: u32 = 1;

/// Starts the thread that loads drivers, now and whenever a device appears.
pub fn start(log: Kmsg) {
    // Bound before sysfs is read, so that no device falls between the two.
    let socket = match listen() {
        Ok(socket) => Some(socket),
        Err(error) => {
            log.write(Level::Error, &format!("listening for devices that appear later: {error}"));
            None
        }
    };
    let for_thread = log.clone();
    let spawned = std::thread::Builder::new().name("drivers".to_owned()).spawn(move || load(socket, &for_thread));
    if let Err(error) = spawned {
        log.write(Level::Error, &format!("starting the thread that loads drivers: {error}"));
    }
}

fn listen() -> rustix::io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(KOBJECT_UEVENT))?;
    // Larger than net.core.rmem_max only for root, which PID 1 is.
    let _ = sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER);
    bind(&socket, &SocketAddrNetlink::new(0, KERNEL_GROUP))?;
    Ok(socket)
}

fn load(socket: Option<OwnedFd>, log: &Kmsg) {
    let drivers = match Drivers::of_running_kernel() {
        Ok(drivers) => drivers,
        Err(error) => {
            log.write(Level::Error, &format!("no driver can be loaded: {error}"));
            tell_loaded(log);
            return;
        }
    };
    let mut seen = BTreeSet::new();
    load_present(&drivers, &mut seen, log);
    tell_loaded(log);
    if let Err(error) = mounts::mount_efivars() {
        log.write(Level::Warning, &error);
    }
    let Some(socket) = socket else { return };
    let mut buffer = vec![0u8; LONGEST_UEVENT];
    loop {
        match recv(&socket, buffer.as_mut_slice(), RecvFlags::empty()) {
            Ok((_, length)) => {
                if let Some(alias) = modalias(buffer.get(..length).unwrap_or_default()) {
                    load_alias(&drivers, alias, &mut seen, log);
                }
            }
            // The kernel dropped events because they came faster than drivers load: look at everything again.
            Err(rustix::io::Errno::NOBUFS) => load_present(&drivers, &mut seen, log),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                log.write(Level::Error, &format!("listening for devices that appear later: {error}"));
                return;
            }
        }
    }
}

fn tell_loaded(log: &Kmsg) {
    let folder = Path::new(DRIVERS_LOADED).parent().unwrap_or(Path::new("/run"));
    if let Err(error) = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(DRIVERS_LOADED, "")) {
        log.write(Level::Error, &format!("creating {DRIVERS_LOADED}: {error}"));
    }
}

/// Loads what the devices now in sysfs ask for.
fn load_present(drivers: &Drivers, seen: &mut BTreeSet<String>, log: &Kmsg) {
    let mut folders = vec![Path::new("/sys/devices").to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            // Links lead back into the tree and are not followed.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            } else if entry.file_name() == "modalias"
                && let Ok(alias) = std::fs::read_to_string(entry.path())
            {
                load_alias(drivers, alias.trim(), seen, log);
            }
        }
    }
}

fn load_alias(drivers: &Drivers, alias: &str, seen: &mut BTreeSet<String>, log: &Kmsg) {
    if alias.is_empty() || !seen.insert(alias.to_owned()) {
        return;
    }
    for (module, result) in drivers.load(alias) {
        match result {
            Ok(true) => log.write(Level::Info, &format!("loaded {module} for {alias}")),
            Ok(false) => {}
            Err(error) => log.write(Level::Error, &format!("loading {module} for {alias}: {error}")),
        }
    }
}

/// The modalias of an `add` event: `ACTION@DEVPATH`, then `KEY=VALUE`, each ended by NUL.
fn modalias(event: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(event).ok()?;
    let mut fields = text.split('\0');
    fields.next()?.starts_with("add@").then_some(())?;
    fields.find_map(|field| field.strip_prefix("MODALIAS="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_device_names_its_driver() {
        let event = b"add@/devices/pci0/1\0ACTION=add\0MODALIAS=pci:v00001AF4d00001000\0SEQNUM=1\0";
        assert_eq!(modalias(event), Some("pci:v00001AF4d00001000"));
        assert_eq!(modalias(b"remove@/devices/x\0MODALIAS=pci:v1\0"), None);
        assert_eq!(modalias(b"add@/devices/x\0SUBSYSTEM=net\0"), None);
        assert_eq!(modalias(b"\xff\xfe"), None);
        assert_eq!(modalias(b""), None);
    }
}
