//! Devices that name other devices of the configuration (netplan, src/parse.c, `handle_netdef_id_ref` and similar
//! functions).

use std::collections::{BTreeMap, BTreeSet};

use super::KINDS;
use crate::network::{Judged, given, wrong};
use crate::tree::{Entry, Node};

/// Refuses a name that two devices have, a device that is named but not defined, and a device that is in two others.
pub(super) fn judge(config: &Node) -> Judged {
    let devices = || {
        let kinds = config.mapping().unwrap_or_default().iter().filter(|entry| KINDS.contains(&entry.key.as_str()));
        kinds.flat_map(|kind| kind.value.mapping().unwrap_or_default())
    };
    let mut names = BTreeSet::new();
    if let Some(again) = devices().find(|device| !names.insert(device.key.as_str())) {
        return wrong(again.at, format!("{:?} is already the name of a device of another kind", again.key));
    }
    // The ports of Open vSwitch have names of their own.
    if config.get("openvswitch").is_some() {
        return Ok(());
    }
    let mut members = BTreeMap::new();
    for Entry { key, value, .. } in devices() {
        for (node, what) in named(value) {
            let Some(name) = node.scalar() else { return wrong(node.at, format!("{what} must be names of devices")) };
            if name == key {
                return wrong(node.at, format!("{what} of {key:?} cannot name itself; name another device"));
            }
            if !names.contains(name) {
                let reason = format!("{what} of {key:?} names a device that is not defined");
                return wrong(node.at, format!("{reason}; if it is a card, add \"ethernets: {{{name}: {{}}}}\""));
            }
            if what == "interfaces" && members.insert(name, key).is_some_and(|other| other != key) {
                return wrong(node.at, format!("{name:?} is already in another device"));
            }
        }
    }
    Ok(())
}

/// The values that name other devices, and their keys.
fn named(device: &Node) -> Vec<(&Node, &'static str)> {
    let members = given(device, "interfaces").and_then(Node::list).unwrap_or_default();
    let mut named: Vec<_> = members.iter().map(|member| (&**member, "interfaces")).collect();
    named.extend(given(device, "link").map(|link| (link, "link")));
    let parameters = device.get("parameters").map(|found| &*found.value);
    named.extend(parameters.and_then(|found| given(found, "primary")).map(|primary| (primary, "primary")));
    named
}
