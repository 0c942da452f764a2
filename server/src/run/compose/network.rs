//! A node's network as a cloud-init network configuration (cloud-init documentation, "Networking config Version 2").

use std::net::IpAddr;

use serde_json::{Map, Value, json};
use slipway_protocol::shared::identity;
use slipway_protocol::{Bond, BondMode, Interface, Network};

/// Interval at which the kernel checks the links of a bond, in milliseconds. Without it, the kernel never notices that
/// a link failed.
const LINK_CHECK: u32 = 100;

/// Returns the network configuration as JSON, which is also YAML. The network must be valid.
pub fn text(network: &Network) -> String {
    let [mut ethernets, mut bonds, mut vlans] = [Map::new(), Map::new(), Map::new()];
    for interface in &network.interfaces {
        let mut value = addressing(interface, network);
        let list = match (&interface.mac, &interface.bond, &interface.vlan) {
            (_, Some(bond), _) => {
                value.extend(bond_parts(bond));
                &mut bonds
            }
            (_, _, Some(vlan)) => {
                value.extend([("link".to_owned(), json!(vlan.of)), ("id".to_owned(), json!(vlan.id))]);
                &mut vlans
            }
            (mac, ..) => {
                let mac = mac.as_deref().and_then(identity::normalise_mac);
                value.insert("match".to_owned(), json!({ "macaddress": mac }));
                value.insert("set-name".to_owned(), json!(interface.name));
                &mut ethernets
            }
        };
        list.insert(interface.name.clone(), Value::Object(value));
    }
    let mut config = json!({ "version": 2 });
    for (key, list) in [("ethernets", ethernets), ("bonds", bonds), ("vlans", vlans)] {
        if !list.is_empty() {
            config[key] = Value::Object(list);
        }
    }
    format!("{config:#}\n")
}

/// Returns the settings that all kinds of interface have in common.
fn addressing(interface: &Interface, network: &Network) -> Map<String, Value> {
    let mut value = Map::new();
    let mut put = |key: &str, given: Value| value.insert(key.to_owned(), given);
    put("dhcp4", json!(interface.dhcp4));
    put("dhcp6", json!(interface.dhcp6));
    if !interface.addresses.is_empty() {
        put("addresses", json!(interface.addresses));
    }
    for gateway in &interface.gateways {
        // Gateways are not written as routes, because cloud-init 22.4 would turn ::/0 into ::/64.
        let is_ipv6 = gateway.parse().is_ok_and(|gateway: IpAddr| gateway.is_ipv6());
        put(if is_ipv6 { "gateway6" } else { "gateway4" }, json!(gateway));
    }
    if interface.is_addressed() && !(network.nameservers.is_empty() && network.search.is_empty()) {
        put("nameservers", json!({ "addresses": network.nameservers, "search": network.search }));
    }
    if let Some(mtu) = interface.mtu {
        put("mtu", json!(mtu));
    }
    value
}

fn bond_parts(bond: &Bond) -> [(String, Value); 2] {
    let mut parameters = json!({ "mode": bond.mode, "mii-monitor-interval": LINK_CHECK });
    if bond.mode == BondMode::Lacp {
        // With the fast rate, the switch notices a lost link within seconds.
        parameters["lacp-rate"] = json!("fast");
    }
    [("interfaces".to_owned(), json!(bond.of)), ("parameters".to_owned(), parameters)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_interface_has_its_words() {
        let network = json!({
            "interfaces": [
                {"name": "nic0", "mac": "52-54-00-00-00-01"},
                {"name": "nic1", "mac": "525400000002", "mtu": 9000},
                {"name": "nic2", "mac": "52:54:00:00:00:03", "dhcp4": true},
                {"name": "bond0", "bond": {"of": ["nic0", "nic1"], "mode": "802.3ad"}},
                {"name": "bond0.7", "vlan": {"of": "bond0", "id": 7}, "addresses": ["192.0.2.5/24", "2001:db8::5/64"],
                    "gateways": ["192.0.2.1", "fe80::1"]},
            ],
            "nameservers": ["192.0.2.53"], "search": ["example"],
        });
        let network: Network = serde_json::from_value(network).expect("a network");
        let found: Value = serde_json::from_str(&text(&network)).expect("JSON");
        let none = |mac: &str, name: &str| {
            let by_mac = json!({"macaddress": mac});
            json!({"match": by_mac, "set-name": name, "dhcp4": false, "dhcp6": false})
        };
        let names = json!({"addresses": ["192.0.2.53"], "search": ["example"]});
        let mut nic1 = none("52:54:00:00:00:02", "nic1");
        nic1["mtu"] = json!(9000);
        let mut nic2 = none("52:54:00:00:00:03", "nic2");
        nic2["dhcp4"] = json!(true);
        nic2["nameservers"] = names.clone();
        let parameters = json!({"mode": "802.3ad", "mii-monitor-interval": 100, "lacp-rate": "fast"});
        let expect = json!({
            "version": 2,
            "ethernets": {"nic0": none("52:54:00:00:00:01", "nic0"), "nic1": nic1, "nic2": nic2},
            "bonds": {
                "bond0": {"interfaces": ["nic0", "nic1"], "parameters": parameters, "dhcp4": false, "dhcp6": false},
            },
            "vlans": {"bond0.7": {
                "link": "bond0", "id": 7, "dhcp4": false, "dhcp6": false,
                "addresses": ["192.0.2.5/24", "2001:db8::5/64"],
                "gateway4": "192.0.2.1", "gateway6": "fe80::1", "nameservers": names,
            }},
        });
        assert_eq!(found, expect);
    }
}
