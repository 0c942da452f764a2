//! The network of a boot image: the parts of a network configuration that it supports.

use super::problems::judge;
use super::{Interface, Network};

/// Returns the problems of a boot image's network, one sentence each. Empty if the network makes sense.
///
/// A boot image has no bonds. An interface with neither `mac` nor `vlan` applies to each hardware interface whose MAC
/// address is not in the network.
pub fn boot_problems(network: &Network) -> Vec<String> {
    let bonds = network.interfaces.iter().filter(|interface| interface.bond.is_some());
    let refused = bonds.map(|bond| {
        format!(
            "interface {:?} is a bond, which a boot image cannot have: give its addresses to one of its interfaces",
            bond.name
        )
    });
    let mut problems: Vec<String> = refused.collect();
    if !problems.is_empty() {
        return problems;
    }
    problems = judge(network, |interface| {
        (interface.mac.is_some() && interface.vlan.is_some()).then_some("needs one of mac and vlan: give at most one")
    });
    if network.interfaces.iter().filter(|interface| stands_for_others(interface)).count() > 1 {
        problems.push("more than one interface has neither mac nor vlan: only one may apply to all others".to_owned());
    }
    if !network.interfaces.iter().any(Interface::is_addressed) {
        problems.push("no interface has an address: set dhcp4 or dhcp6, or give addresses".to_owned());
    }
    problems
}

fn stands_for_others(interface: &Interface) -> bool {
    interface.mac.is_none() && interface.vlan.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_image_has_hardware_and_vlans() {
        let check = |interfaces: serde_json::Value, expect: &[&str]| {
            let network: Network =
                serde_json::from_value(serde_json::json!({ "interfaces": interfaces })).expect("a network");
            let found = boot_problems(&network);
            assert_eq!(found.len(), expect.len(), "{found:?}");
            for (found, expect) in found.iter().zip(expect) {
                assert!(found.contains(expect), "{found:?} has no {expect:?}");
            }
        };
        let mac = "52:54:00:12:34:56";
        check(serde_json::json!([{"name": "any", "dhcp4": true}]), &[]);
        check(
            serde_json::json!([{"name": "any"}, {"name": "v", "vlan": {"of": "any", "id": 120}, "dhcp4": true}]),
            &[],
        );
        check(
            serde_json::json!([{"name": "a", "mac": mac, "addresses": ["192.0.2.5/24"], "gateways": ["192.0.2.1"]},
                {"name": "b", "dhcp6": true}]),
            &[],
        );
        check(serde_json::json!([{"name": "a", "dhcp4": true}, {"name": "b"}]), &["only one may apply to all others"]);
        check(serde_json::json!([{"name": "a"}]), &["no interface has an address"]);
        check(
            serde_json::json!([{"name": "a", "mac": mac}, {"name": "b"},
                {"name": "c", "bond": {"of": ["a", "b"]}, "dhcp4": true}]),
            &["\"c\" is a bond, which a boot image cannot have"],
        );
        check(
            serde_json::json!([{"name": "a", "dhcp4": true},
                {"name": "v", "mac": mac, "vlan": {"of": "a", "id": 4095}}]),
            &["give at most one", "1 to 4094"],
        );
        check(serde_json::json!([{"name": "a", "addresses": ["192.0.2.5"]}]), &["prefix length"]);
    }
}
