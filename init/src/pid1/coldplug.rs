//! Loads drivers for devices that are present and for devices that appear later.
//!
//! The kernel announces each device by a uevent with its modalias (Documentation/driver-api/driver-model). Devices
//! announced before the socket was open are read from sysfs. Loading a driver may take seconds, so it is done in a
//! separate thread.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with, sockopt};

use slipway_protocol::shared::printable::size;

use super::kmsg::{Kmsg, Level};
use super::{DRIVERS_LOADED, UEVENTS_HANDLED, mounts};
use crate::drivers::Drivers;

/// Size of the socket's buffer in bytes, enough for a burst of a few thousand uevents.
const SOCKET_BUFFER: usize = 4 << 20;
/// Maximum size of a uevent in bytes: the kernel's `UEVENT_BUFFER_SIZE` and the header before it.
const LONGEST_UEVENT: usize = 8192;
/// Multicast group of the kernel's events. Group 2 is udev's.
const KERNEL_GROUP: u32 = 1;
/// With less memory than this, in bytes, drivers for absent network cards are removed to free 23 MB.
const LITTLE_MEMORY: u64 = 512 << 20;
/// Folder of network card drivers. No other module in the image depends on them.
const NETWORK_CARDS: &str = "kernel/drivers/net/ethernet/";

/// Number of a uevent after all others. Written as the last handled one if no events can be received.
const NOTHING_MORE: u64 = u64::MAX;
/// File with the number of the newest uevent, in decimal (kernel documentation,
/// ABI/testing/sysfs-kernel-uevent_seqnum).
const LAST_UEVENT: &str = "/sys/kernel/uevent_seqnum";

/// Starts the thread that loads drivers, now and whenever a device appears.
pub fn start(log: Kmsg) {
    // Bound before sysfs is read, so that no device is missed in between.
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
    // Only root may exceed net.core.rmem_max, and PID 1 is root.
    let _ = sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER);
    bind(&socket, &SocketAddrNetlink::new(0, KERNEL_GROUP))?;
    Ok(socket)
}

fn load(socket: Option<OwnedFd>, log: &Kmsg) {
    let drivers = match Drivers::of_running_kernel() {
        Ok(drivers) => drivers,
        Err(error) => {
            log.write(Level::Error, &format!("no driver can be loaded: {error}"));
            tell_handled(&mut 0, NOTHING_MORE, log);
            tell_loaded(log);
            return;
        }
    };
    let (mut seen, mut handled) = (BTreeSet::new(), 0);
    load_present(&drivers, &mut seen, &mut handled, log);
    if socket.is_none() {
        tell_handled(&mut handled, NOTHING_MORE, log);
    }
    tell_loaded(log);
    if let Err(error) = mounts::mount_efivars() {
        log.write(Level::Warning, &error);
    }
    free_memory(&drivers, log);
    let Some(socket) = socket else { return };
    let mut buffer = vec![0u8; LONGEST_UEVENT];
    loop {
        match recv(&socket, buffer.as_mut_slice(), RecvFlags::empty()) {
            Ok((_, length)) => {
                let event = buffer.get(..length).unwrap_or_default();
                if let Some(alias) = modalias(event) {
                    load_alias(&drivers, alias, &mut seen, log);
                }
                if let Some(number) = field(event, "SEQNUM=").and_then(|number| number.parse().ok()) {
                    tell_handled(&mut handled, number, log);
                }
            }
            // The kernel dropped events because they came faster than drivers load, so all of sysfs is read again.
            Err(rustix::io::Errno::NOBUFS) => load_present(&drivers, &mut seen, &mut handled, log),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                log.write(Level::Error, &format!("listening for devices that appear later: {error}"));
                tell_handled(&mut handled, NOTHING_MORE, log);
                return;
            }
        }
    }
}

fn tell_loaded(log: &Kmsg) {
    note(DRIVERS_LOADED, "", log);
}

/// Notes that a uevent was handled. Its number may be lower than the one noted when sysfs was read.
fn tell_handled(handled: &mut u64, uevent: u64, log: &Kmsg) {
    *handled = uevent.max(*handled);
    note(UEVENTS_HANDLED, &handled.to_string(), log);
}

/// Writes a file for the installer.
fn note(file: &str, text: &str, log: &Kmsg) {
    let folder = Path::new(file).parent().unwrap_or(Path::new("/run"));
    if let Err(error) = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(file, text)) {
        log.write(Level::Error, &format!("creating {file}: {error}"));
    }
}

/// Removes drivers for absent network cards if memory is short. A card that is plugged in later then has no driver.
fn free_memory(drivers: &Drivers, log: &Kmsg) {
    let memory = rustix::system::sysinfo();
    if u64::from(memory.mem_unit) * memory.totalram < LITTLE_MEMORY {
        let freed = drivers.remove_unused(NETWORK_CARDS, Path::new("/sys/module"));
        if freed > 0 {
            let freed = size(freed);
            log.write(
                Level::Info,
                &format!("freed {freed} of memory: drivers of network cards that this machine lacks"),
            );
        }
    }
}

/// Loads drivers for the devices that are in sysfs now.
fn load_present(drivers: &Drivers, seen: &mut BTreeSet<String>, handled: &mut u64, log: &Kmsg) {
    // The number is read before the devices. A device that appears in between has its own event.
    let last = std::fs::read_to_string(LAST_UEVENT).ok().and_then(|number| number.trim().parse().ok());
    let mut folders = vec![Path::new("/sys/devices").to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            // Symbolic links lead back into the tree.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            } else if entry.file_name() == "modalias"
                && let Ok(alias) = std::fs::read_to_string(entry.path())
            {
                load_alias(drivers, alias.trim(), seen, log);
            }
        }
    }
    if let Some(last) = last {
        tell_handled(handled, last, log);
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

/// Returns the modalias of an `add` event. `None` for other events, and for devices without a modalias.
fn modalias(event: &[u8]) -> Option<&str> {
    event.starts_with(b"add@").then_some(())?;
    field(event, "MODALIAS=")
}

/// Returns the value of a key of an event: `ACTION@DEVPATH`, then `KEY=VALUE`, each terminated by NUL.
fn field<'a>(event: &'a [u8], key: &str) -> Option<&'a str> {
    std::str::from_utf8(event).ok()?.split('\0').skip(1).find_map(|field| field.strip_prefix(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_device_names_its_driver() {
        let event = b"add@/devices/pci0/1\0ACTION=add\0MODALIAS=pci:v00001AF4d00001000\0SEQNUM=1\0";
        assert_eq!(modalias(event), Some("pci:v00001AF4d00001000"));
        assert_eq!(field(event, "SEQNUM="), Some("1"));
        assert_eq!(modalias(b"remove@/devices/x\0MODALIAS=pci:v1\0"), None);
        assert_eq!(modalias(b"add@/devices/x\0SUBSYSTEM=net\0"), None);
        assert_eq!(modalias(b"\xff\xfe"), None);
        assert_eq!(modalias(b""), None);
    }
}
