//! Switches virtual machines that the server itself creates, in QEMU on its host.
//!
//! A machine outlives the server, and each has a folder of its own, `machines/NODE-ID` in the data folder:
//! [`slipway_qemu::lasting`] says what is in it. Its disk, `disk.raw`, is made when the machine is first switched on.
//! To boot slipway once, the firmware gets an entry for its next start alone. So whatever becomes of the server
//! meanwhile, the machine goes on from its disk afterwards.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use sha2::{Digest as _, Sha256};
use slipway_parts::Arch;
use slipway_protocol::PowerState;
use slipway_qemu::firmware::Firmware;
use slipway_qemu::{Boot, Disk, MachineConfig, Nic, accel, create_disk, lasting, nvram};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::hook::Failure;
use crate::base::data::DataDir;
use crate::store::nodes::Node;

/// Seconds that an order may take by default. Trying KVM, which is done once on a host, takes ten.
pub const LIMIT: u32 = 30;
/// This host's loopback address, as machines on QEMU's user network see it.
pub const HOST: &str = "10.0.2.2";
/// Name of the folder of the machines in the data folder.
const FOLDER: &str = "machines";
const DISK: &str = "disk.raw";
const MIB: u64 = 1 << 20;
/// Memory that slipway needs, and the most that a machine gets, in MiB.
const MEMORY_MIB: std::ops::RangeInclusive<u64> = 256..=1 << 20;
/// Size of a disk in MiB.
const DISK_MIB: std::ops::RangeInclusive<u64> = 64..=64 << 20;
const MAX_CPUS: u32 = 64;

/// What starts a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Starts {
    #[default]
    Uefi,
    Bios,
}

/// What a virtual machine consists of, as the options of its node say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    memory_mib: u32,
    cpus: u32,
    disk_mib: u64,
    starts: Starts,
    has_tpm: bool,
}

impl Profile {
    /// Reads the options. Fails with what is wrong.
    pub fn parse(options: &BTreeMap<String, String>) -> Result<Self, String> {
        let mut profile =
            Self { memory_mib: 1024, cpus: 1, disk_mib: 8 << 10, starts: Starts::default(), has_tpm: false };
        for (key, value) in options {
            let wrong = |meant: &str| format!("the option {key}={value:?} is not {meant}");
            match key.as_str() {
                "memory" => {
                    let size = mebibytes(value).filter(|size| MEMORY_MIB.contains(size));
                    let size = size.and_then(|size| u32::try_from(size).ok());
                    profile.memory_mib =
                        size.ok_or_else(|| wrong("an amount of memory from 256M to 1T, such as 1G"))?;
                }
                "disk" => {
                    let size = mebibytes(value).filter(|size| DISK_MIB.contains(size));
                    profile.disk_mib = size.ok_or_else(|| wrong("a size from 64M to 64T, such as 8G"))?;
                }
                "cpus" => {
                    let cpus = value.parse().ok().filter(|cpus| (1..=MAX_CPUS).contains(cpus));
                    profile.cpus =
                        cpus.ok_or_else(|| wrong(&format!("a number of processors from 1 to {MAX_CPUS}")))?;
                }
                "firmware" => {
                    profile.starts = match value.as_str() {
                        "uefi" => Starts::Uefi,
                        "bios" => Starts::Bios,
                        _ => return Err(wrong("uefi or bios")),
                    }
                }
                "tpm" => {
                    profile.has_tpm = match value.as_str() {
                        "yes" => true,
                        "no" => false,
                        _ => return Err(wrong("yes or no")),
                    }
                }
                _ => {
                    return Err(format!(
                        "a virtual machine has no option {key:?}: it has memory, cpus, disk, firmware and tpm"
                    ));
                }
            }
        }
        Ok(profile)
    }
}

/// Reads a size such as `512M` or `8G`.
fn mebibytes(text: &str) -> Option<u64> {
    let (number, mebibytes) = [("M", 1), ("G", 1 << 10), ("T", 1 << 20)]
        .into_iter()
        .find_map(|(unit, mebibytes)| Some((text.strip_suffix(unit)?, mebibytes)))?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(mebibytes)
}

/// The virtual machines of a server.
#[derive(Clone, Debug)]
pub struct Machines {
    folder: PathBuf,
    /// URL of the server's boot files, as machines see it, if it hands them out without TLS.
    boot_files: Option<String>,
    /// Whether other servers may have the same nodes.
    is_shared: bool,
    /// Whether operators may have machines here.
    is_allowed: bool,
}

impl Machines {
    /// The machines of the server with this data folder. `boot` is the address at which it hands out boot files.
    pub fn new(data: &DataDir, boot: Option<SocketAddr>, is_allowed: bool) -> Self {
        let boot_files = boot.map(|boot| {
            let host = match boot.ip() {
                ip if ip.is_loopback() || ip.is_unspecified() => HOST.to_owned(),
                IpAddr::V4(ip) => ip.to_string(),
                IpAddr::V6(ip) => format!("[{ip}]"),
            };
            format!("http://{host}:{}/boot", boot.port())
        });
        Self { folder: data.path(FOLDER), boot_files, is_shared: data.postgres().is_some(), is_allowed }
    }

    fn folder_of(&self, node: &Node) -> Result<PathBuf, Failure> {
        if !self.is_allowed {
            return Err(Failure::lasting(
                "this server has no virtual machines: start it with --virtual-machines, which lets them reach what \
                 listens on its loopback",
            ));
        }
        if self.is_shared {
            return Err(Failure::lasting(
                "a virtual machine is on the host of one server, but servers of this site may be on several hosts: use \
                 a server whose database is in its data folder",
            ));
        }
        // A machine is started in its folder, from which another path would lead elsewhere.
        let folder = std::path::absolute(self.folder.join(&node.id));
        folder.map_err(|error| Failure::lasting(format!("finding the folder of the virtual machine failed: {error}")))
    }
}

/// Asks whether a machine is on.
pub async fn look(machines: &Machines, node: &Node, limit: Duration) -> Result<PowerState, Failure> {
    let folder = machines.folder_of(node)?;
    let found = within(limit, move || lasting::find(&folder)).await?;
    Ok(if found.is_some() { PowerState::On } else { PowerState::Off })
}

/// Tells a machine to be on or off. With `is_boot`, it boots slipway once.
pub async fn tell(
    machines: &Machines,
    profile: &Profile,
    node: &Node,
    to: PowerState,
    is_boot: bool,
    limit: Duration,
) -> Result<(), Failure> {
    let folder = machines.folder_of(node)?;
    if to == PowerState::Off {
        return within(limit, move || stop(&folder)).await;
    }
    let missing = "the server hands out no boot files without TLS: start it with --boot and --boot-listen";
    let boot = match (&machines.boot_files, is_boot) {
        (Some(url), true) => Some(url.clone()),
        (None, true) => return Err(Failure::lasting(missing)),
        (_, false) => None,
    };
    let (machines, profile, node) = (machines.clone(), profile.clone(), node.clone());
    within(limit, move || start(&machines, &profile, &node, &folder, boot.as_deref())).await
}

/// Does what blocks, but waits no longer than the limit.
async fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let late = || Failure::lasting(format!("QEMU did not do it within {} s", limit.as_secs()));
    let done = timeout(limit, spawn_blocking(work)).await.map_err(|_| late())?;
    let done = done.map_err(|error| Failure::lasting(format!("switching the virtual machine failed: {error}")))?;
    done.map_err(|error| Failure::lasting(format!("{error:#}")))
}

/// Waits until no other order works on a machine, one that is over its limit included. The next one begins when the
/// returned file is closed.
fn order(folder: &Path) -> anyhow::Result<File> {
    std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let path = folder.join("order.lock");
    let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
    file.lock().with_context(|| format!("locking {}", path.display()))?;
    Ok(file)
}

/// Stops a machine, if it runs.
fn stop(folder: &Path) -> anyhow::Result<()> {
    let _order = order(folder)?;
    lasting::find(folder)?.map_or(Ok(()), lasting::Lasting::stop)
}

/// Starts a machine, and makes it before if it is new. `boot` is the URL of boot files that it boots once.
fn start(machines: &Machines, profile: &Profile, node: &Node, folder: &Path, boot: Option<&str>) -> anyhow::Result<()> {
    let _order = order(folder)?;
    if lasting::find(folder)?.is_some() {
        return Ok(());
    }
    let Some(arch) = Arch::ALL.into_iter().find(|arch| arch.is_of_host()) else {
        bail!("slipway has no boot files for machines of this host's architecture");
    };
    let disk = folder.join(DISK);
    if !disk.exists() {
        create_disk(&disk, profile.disk_mib * MIB)?;
    }
    let by = match profile.starts {
        Starts::Uefi => {
            let (firmware, variables) = (Firmware::of_host(arch)?, folder.join("vars.fd"));
            firmware.variables(&variables)?;
            let program = boot.map(|boot| format!("{boot}/{}/slipway.efi", arch.name()));
            nvram::boot_next(&variables, program.as_deref())?;
            Boot::Uefi { firmware, pxe: false }
        }
        Starts::Bios => Boot::Bios { pxe: boot.is_some() },
    };
    // Announced to a BIOS alone: firmware would not find what it boots next.
    let bootfile = boot.filter(|_| profile.starts == Starts::Bios).map(|boot| format!("{boot}/ipxe"));
    let identity = &node.identity;
    let config = MachineConfig {
        arch,
        boot: by,
        secure_boot: false,
        cpus: profile.cpus,
        memory_mib: profile.memory_mib,
        uuid: identity.uuid.clone().unwrap_or_else(|| uuid(&node.id)),
        serial: identity.serial.clone().unwrap_or_else(|| node.id.clone()),
        disks: vec![Disk { path: DISK.into(), serial: format!("disk-{}", &node.id[..node.id.len().min(15)]) }],
        nics: vec![Nic { mac: identity.macs.first().cloned().unwrap_or_else(|| mac(&node.id)), bootfile }],
        extra: Vec::new(),
        detached: true,
    };
    lasting::start(&config, accel::choose(arch, &machines.folder.join("accelerator"))?, folder, profile.has_tpm)
}

/// A UUID for the machine of a node that has none (RFC 9562, version 8).
fn uuid(node: &str) -> String {
    let mut bytes: [u8; 32] = Sha256::digest(format!("uuid of node {node}")).into();
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = base16ct::lower::encode_string(&bytes[..16]);
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// A MAC address for the machine of a node that has none, in the range of QEMU.
fn mac(node: &str) -> String {
    let bytes: [u8; 32] = Sha256::digest(format!("MAC address of node {node}")).into();
    format!("52:54:00:{:02x}:{:02x}:{:02x}", bytes[0], bytes[1], bytes[2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_say_what_a_machine_consists_of() {
        let profile = |options: &[(&str, &str)]| {
            Profile::parse(&options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
        };
        let usual = Profile { memory_mib: 1024, cpus: 1, disk_mib: 8192, starts: Starts::Uefi, has_tpm: false };
        assert_eq!(profile(&[]), Ok(usual.clone()));
        let small = Profile { memory_mib: 512, disk_mib: 1024, starts: Starts::Bios, ..usual.clone() };
        assert_eq!(profile(&[("memory", "512M"), ("disk", "1G"), ("firmware", "bios")]), Ok(small));
        assert_eq!(profile(&[("cpus", "4"), ("tpm", "yes")]), Ok(Profile { cpus: 4, has_tpm: true, ..usual }));
        for (key, value) in [
            ("memory", "1024"),
            ("memory", "64M"),
            ("memory", "+1G"),
            ("disk", "18446744073709551615T"),
            ("disk", "G"),
            ("cpus", "0"),
            ("firmware", "UEFI"),
            ("tpm", "2.0"),
            ("display", "none"),
        ] {
            let refused = profile(&[(key, value)]).expect_err(value);
            assert!(refused.contains(key), "{refused}");
        }
    }

    #[test]
    fn what_a_node_does_not_have_follows_from_its_id() {
        assert_eq!(uuid("3f0c9a52e1b7d846"), uuid("3f0c9a52e1b7d846"));
        assert_ne!(uuid("3f0c9a52e1b7d846"), uuid("3f0c9a52e1b7d847"));
        let identity = slipway_protocol::shared::identity::system_uuid(&uuid("3f0c9a52e1b7d846"));
        assert_eq!(identity, Ok(uuid("3f0c9a52e1b7d846")));
        let address = slipway_protocol::shared::identity::mac_address(&mac("3f0c9a52e1b7d846"));
        assert_eq!(address, Ok(mac("3f0c9a52e1b7d846")));
    }
}
