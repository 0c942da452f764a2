//! The machine's network interfaces.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use slipway_protocol::Nic;
use slipway_protocol::shared::identity::{mac_address, normalise_mac};

use super::files::{Notes, attribute, note};
use super::links::Link;

/// Maximum number of interfaces listed: a request must stay below [`slipway_protocol::MAX_REQUEST_BYTES`].
const MAX_NICS: usize = 1024;

/// Drivers of the USB network link between a host and its management controller. The link's MAC address belongs to the
/// controller and is often the same in every machine of a model.
const CONTROLLER_DRIVERS: &[&str] = &["cdc_ether", "cdc_eem", "cdc_ncm", "cdc_subset", "rndis_host"];

/// `NET_ADDR_PERM` in Linux's netdevice.h: the current address is the permanent one.
const ADDRESS_IS_PERMANENT: &str = "0";

/// Returns the interfaces that are devices, sorted by name. Leaves out loopback, bridges, bonds, VLANs and veth pairs.
pub(super) fn nics(sys: &Path, links: &BTreeMap<String, Link>, notes: &mut Notes) -> Vec<Nic> {
    let folder = sys.join("class/net");
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) => {
            note(&folder, &error, notes);
            return Vec::new();
        }
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.path().join("device").exists())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    if names.len() > MAX_NICS {
        note(&folder, &format!("{} interfaces, of which {MAX_NICS} are listed", names.len()), notes);
        names.truncate(MAX_NICS);
    }
    names.into_iter().map(|name| nic(&folder.join(&name), links.get(&name), name, notes)).collect()
}

/// Returns the permanent MAC addresses that identify this machine, sorted. Leaves out addresses that many cards share.
pub(super) fn identifying_macs(nics: &[Nic]) -> Vec<String> {
    let macs: BTreeSet<&String> = nics
        .iter()
        .filter(|nic| !nic.driver.as_deref().is_some_and(|driver| CONTROLLER_DRIVERS.contains(&driver)))
        .filter_map(|nic| nic.mac.as_ref().filter(|mac| mac_address(mac).is_ok()))
        .collect();
    macs.into_iter().cloned().collect()
}

fn nic(folder: &Path, link: Option<&Link>, name: String, notes: &mut Notes) -> Nic {
    let mut read = |attribute_name: &str| attribute(&folder.join(attribute_name), notes);
    let current = read("address");
    let is_permanent = read("addr_assign_type").as_deref() == Some(ADDRESS_IS_PERMANENT);
    let permanent = link.and_then(|link| link.permanent_mac.clone()).or(current.filter(|_| is_permanent));
    Nic {
        name,
        mac: permanent.as_deref().and_then(normalise_mac),
        addresses: link.map(|link| link.addresses.clone()).unwrap_or_default(),
        carrier: read("carrier").as_deref() == Some("1"),
        speed: read("speed").as_deref().and_then(speed),
        driver: driver(folder),
    }
}

/// Returns the speed in Mbit/s. Drivers that do not know the speed report -1, some as an unsigned number (ethtool's
/// `SPEED_UNKNOWN`).
fn speed(text: &str) -> Option<u32> {
    text.parse().ok().filter(|speed| !matches!(*speed, 0 | u32::MAX))
}

fn driver(folder: &Path) -> Option<String> {
    let target = fs::read_link(folder.join("device/driver")).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}
