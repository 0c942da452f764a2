//! Network cards and storage controllers on the PCI bus that do not work, because they have no driver or their driver
//! did not find its firmware. Only the kernel log shows the latter.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use slipway_protocol::{DeviceKind, UnservedDevice};

use super::Roots;
use super::files::{Notes, attribute, note};

/// Maximum number of devices listed: a request must stay below [`slipway_protocol::MAX_REQUEST_BYTES`].
const MOST_DEVICES: usize = 128;
/// Maximum number of firmware files listed for a device.
const MOST_FILES: usize = 8;
/// Longest name of a firmware file, in bytes.
const LONGEST_NAME: usize = 128;
/// Maximum number of bytes read from the kernel log. By default, the log has 128 KiB, and each record gets a prefix.
const MOST_LOG: usize = 4 << 20;
/// Longest record of /dev/kmsg (`CONSOLE_EXT_LOG_MAX`, 8192 in kernel/printk/printk.c).
const LONGEST_RECORD: usize = 8192;
/// Maximum number of bytes read from modules.alias. Debian's has 1.5 MB.
const MOST_ALIASES: u64 = 16 << 20;

/// A firmware file that the kernel did not find.
#[derive(Debug, PartialEq, Eq)]
struct Missing<'a> {
    driver: &'a str,
    /// PCI address.
    address: &'a str,
    file: &'a str,
}

/// Returns the devices that have no driver or whose driver lacks firmware, sorted by address.
pub(super) fn unserved(roots: &Roots, notes: &mut Notes) -> Vec<UnservedDevice> {
    let folder = roots.sys.join("bus/pci/devices");
    // A machine may have no PCI bus.
    let mut addresses: Vec<String> = fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    addresses.retain(|address| kind(&folder.join(address), notes).is_some());
    if addresses.is_empty() {
        return Vec::new();
    }
    addresses.sort();
    let log = kernel_log(&roots.dev.join("kmsg"), notes);
    let missing: Vec<Missing<'_>> = log.lines().filter_map(missing).collect();
    let mut devices: Vec<UnservedDevice> = addresses
        .into_iter()
        .filter_map(|address| device(roots, &folder.join(&address), address, &missing, notes))
        .take(MOST_DEVICES + 1)
        .collect();
    if devices.len() > MOST_DEVICES {
        note(
            &folder,
            &format!("more than {MOST_DEVICES} devices do not work, of which {MOST_DEVICES} are listed"),
            notes,
        );
        devices.truncate(MOST_DEVICES);
    }
    devices
}

/// Returns the devices without a driver, each with its modalias.
pub(super) fn without_driver(roots: &Roots, notes: &mut Notes) -> Vec<(UnservedDevice, String)> {
    let folder = roots.sys.join("bus/pci/devices");
    let devices = unserved(roots, notes).into_iter();
    let devices = devices.filter(|device| device.driver.is_none() && device.missing_firmware.is_empty());
    let with_alias = |device: UnservedDevice| {
        let alias = attribute(&folder.join(&device.address).join("modalias"), &mut Vec::new())?;
        Some((device, alias))
    };
    devices.filter_map(with_alias).collect()
}

/// Returns what a device is for, from the base class in its class code (PCI Code and ID Assignment, section 1). `None`
/// for other classes, and for the virtual functions of a card, which are for virtual machines.
fn kind(folder: &Path, notes: &mut Notes) -> Option<DeviceKind> {
    let class = attribute(&folder.join("class"), notes)?;
    match class.strip_prefix("0x")?.get(..2)? {
        "01" | "02" if folder.join("physfn").exists() => None,
        "01" => Some(DeviceKind::Storage),
        "02" => Some(DeviceKind::Network),
        _ => None,
    }
}

/// Returns the device if it does not work.
fn device(
    roots: &Roots,
    folder: &Path,
    address: String,
    missing: &[Missing<'_>],
    notes: &mut Notes,
) -> Option<UnservedDevice> {
    let of_device: Vec<&Missing<'_>> = missing.iter().filter(|missing| missing.address == address).collect();
    if of_device.is_empty() && folder.join("driver").exists() {
        return None;
    }
    let kind = kind(folder, notes)?;
    let id = |text: String| text.strip_prefix("0x").filter(|id| id.len() == 4).map(str::to_ascii_lowercase);
    let (vendor, device) = (attribute(&folder.join("vendor"), notes)?, attribute(&folder.join("device"), notes)?);
    let (vendor, device) = (id(vendor)?, id(device)?);
    let driver = match of_device.first() {
        Some(missing) => Some(missing.driver.to_owned()),
        None => module(roots, &vendor, &device, notes),
    };
    let files: BTreeSet<&str> = of_device.iter().map(|missing| missing.file).collect();
    let missing_firmware = files.into_iter().take(MOST_FILES).map(str::to_owned).collect();
    Some(UnservedDevice { kind, address, vendor, device, driver, missing_firmware })
}

/// Returns the first module of the running kernel that lists this device. depmod writes a PCI driver's table as `alias
/// pci:v0000VVVVd0000DDDDsv...` with upper-case digits (`do_pci_entry` in scripts/mod/file2alias.c).
fn module(roots: &Roots, vendor: &str, device: &str, notes: &mut Notes) -> Option<String> {
    let release = attribute(&roots.proc.join("sys/kernel/osrelease"), notes)?;
    let file = fs::File::open(roots.modules.join(release).join("modules.alias")).ok()?;
    let wanted = format!("alias pci:v0000{}d0000{}", vendor.to_ascii_uppercase(), device.to_ascii_uppercase());
    let mut lines = BufReader::new(file.take(MOST_ALIASES)).lines().map_while(Result::ok);
    let line = lines.find(|line| line.starts_with(&wanted))?;
    line.rsplit(' ').next().map(str::to_owned)
}

/// Returns all records that are in the kernel log now. Does not wait for more.
fn kernel_log(path: &Path, notes: &mut Notes) -> String {
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path);
    let mut file = match file {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return String::new(),
        Err(error) => {
            note(path, &error, notes);
            return String::new();
        }
    };
    let (mut all, mut record) = (Vec::new(), [0; LONGEST_RECORD]);
    while all.len() < MOST_LOG {
        match file.read(&mut record) {
            Ok(0) => break,
            Ok(length) => all.extend_from_slice(record.get(..length).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // The kernel overwrote the next record. The next read continues after it.
            Err(error) if error.raw_os_error() == Some(Errno::PIPE.raw_os_error()) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                note(path, &error, notes);
                break;
            }
        }
    }
    String::from_utf8_lossy(&all).into_owned()
}

/// Returns the firmware file that a line of /dev/kmsg reports missing (-2 is ENOENT). Linux prints `DRIVER ADDRESS:
/// Direct firmware load for FILE failed with error -2` (drivers/base/firmware_loader/main.c), Debian `DRIVER ADDRESS:
/// firmware: failed to load FILE (-2)`.
fn missing(record: &str) -> Option<Missing<'_>> {
    let (_, text) = record.split_once(';')?;
    let (from, said) = text.split_once(": ")?;
    let (driver, address) = from.split_once(' ')?;
    let linux = || said.strip_prefix("Direct firmware load for ")?.strip_suffix(" failed with error -2");
    let debian = || said.strip_prefix("firmware: failed to load ")?.strip_suffix(" (-2)");
    let file = linux().or_else(debian)?;
    let is_name = |text: &str| (1..=LONGEST_NAME).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    [driver, address, file].into_iter().all(is_name).then_some(Missing { driver, address, file })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_file_is_read_from_the_kernel_log() {
        let found = Missing { driver: "qed", address: "0000:03:00.0", file: "qed/a.bin" };
        for (record, expect) in [
            ("3,9,5,-;qed 0000:03:00.0: Direct firmware load for qed/a.bin failed with error -2", Some(&found)),
            ("3,9,5,-;qed 0000:03:00.0: firmware: failed to load qed/a.bin (-2)", Some(&found)),
            ("3,9,5,-;qed 0000:03:00.0: firmware: failed to load qed/a.bin (-12)", None),
            ("3,9,5,-;qed 0000:03:00.0: firmware: failed to load  (-2)", None),
            ("3,9,5,-;qed 0000:03:00.0: firmware: failed to load a b (-2)", None),
            ("6,9,5,-;qed 0000:03:00.0: firmware: direct-loading firmware qed/a.bin", None),
            ("6,9,5,-;firmware: failed to load qed/a.bin (-2)", None),
            (" DEVICE=+pci:0000:03:00.0", None),
            ("", None),
        ] {
            assert_eq!(missing(record).as_ref(), expect, "{record}");
        }
    }
}
