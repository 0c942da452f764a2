//! Version 2: devices by their kind, as in netplan.

mod keys;
mod references;

use std::net::IpAddr;

use super::address::{address_of, is_network, judge_host, judge_mac, judge_network};
use super::{Judged, LARGEST_VLAN, given, judge_name, judge_number, list, mapping, wrong};
use crate::tree::{Entry, Node};
use keys::RENDERERS;

/// Kinds of devices of cloud-init and netplan (netplan documentation, "YAML configuration").
const KINDS: &[&str] = &[
    "ethernets",
    "bonds",
    "bridges",
    "vlans",
    "wifis",
    "modems",
    "vrfs",
    "tunnels",
    "dummy-devices",
    "virtual-ethernets",
    "nm-devices",
];
/// Kinds of devices that exist, and are not created. If something else than the name matches them, the name is free.
const PHYSICAL: &[&str] = &["ethernets", "wifis", "modems", "nm-devices"];
/// Kinds of devices, each with a key that every device of the kind needs.
const NEEDED: &[(&str, &str)] = &[("tunnels", "mode"), ("vrfs", "table"), ("wifis", "access-points")];

pub(super) fn judge(config: &Node) -> Judged {
    for Entry { key, at, value } in config.mapping().unwrap_or_default() {
        match key.as_str() {
            "version" => {}
            "renderer" if value.scalar().is_some_and(|name| RENDERERS.contains(&name)) => {}
            "renderer" => return wrong(value.at, format!("renderer is one of: {}", RENDERERS.join(", "))),
            "openvswitch" => _ = mapping(value, key)?,
            kind if KINDS.contains(&kind) => {
                for device in mapping(value, kind)? {
                    judge_device(kind, device)?;
                }
            }
            "config" => return wrong(*at, "config belongs to version 1; version 2 lists devices below \"ethernets\""),
            other => {
                let known = KINDS.join(", ");
                return wrong(*at, format!("version 2 has no {other:?}; its kinds of devices are: {known}"));
            }
        }
    }
    references::judge(config)
}

fn judge_device(kind: &str, device: &Entry) -> Judged {
    let value = &*device.value;
    if value.is_null() {
        return wrong(device.at, format!("{:?} has no settings; write {{}} if it needs none", device.key));
    }
    keys::judge_device(kind, device)?;
    for Entry { key, value, .. } in value.mapping().unwrap_or_default() {
        match key.as_str() {
            "addresses" => list(value, key)?.iter().try_for_each(|address| judge_address(address))?,
            "routes" => list(value, key)?.iter().try_for_each(|route| judge_route(route))?,
            "routing-policy" => list(value, key)?.iter().try_for_each(|rule| judge_rule(rule))?,
            _ => {}
        }
    }
    for key in ["gateway4", "gateway6"] {
        not_empty(value, key)?;
        judge_host(value, key)?;
    }
    judge_names(kind, device)?;
    if let Some((_, key)) = NEEDED.iter().find(|(of, key)| *of == kind && given(value, key).is_none()) {
        return wrong(device.at, format!("the device {:?} has the key {key:?}, as all {kind}", device.key));
    }
    match kind {
        "vlans" => judge_vlan(device),
        "bonds" if value.get("interfaces").and_then(|found| found.value.list()).is_none_or(<[_]>::is_empty) => {
            wrong(device.at, format!("the bond {:?} has \"interfaces\", a list of the devices in it", device.key))
        }
        _ => Ok(()),
    }
}

/// Judges the name of a device, what the device is matched by, and the name that it gets.
fn judge_names(kind: &str, device: &Entry) -> Judged {
    let (value, is_physical) = (&device.value, PHYSICAL.contains(&kind));
    let selected = value.get("match").filter(|_| is_physical);
    if let Some(selected) = selected {
        not_empty(&selected.value, "macaddress")?;
        judge_mac(&selected.value, "macaddress")?;
    }
    judge_name(&device.key, device.at, selected.is_none() && kind != "nm-devices")?;
    if device.key.contains(['*', '?', '[', ']']) {
        return wrong(device.at, format!("the name {:?} has a wildcard, which belongs into match", device.key));
    }
    let Some(name) = value.get("set-name").filter(|_| is_physical) else { return Ok(()) };
    judge_name(name.value.scalar().unwrap_or_default(), name.value.at, true)?;
    match selected {
        Some(_) => Ok(()),
        None => wrong(name.at, "set-name needs a \"match\", by which the device is found before it has the name"),
    }
}

/// Judges an address, which may have options: `192.0.2.5/24: {label: a}`.
fn judge_address(node: &Node) -> Judged {
    match node.mapping() {
        Some([entry]) if is_network(&entry.key) => Ok(()),
        _ => judge_network(node, "each of addresses"),
    }
}

/// Refuses a key without a value. cloud-init leaves it out; netplan treats it as a wrong value.
fn not_empty(node: &Node, key: &str) -> Judged {
    match node.get(key) {
        Some(entry) if given(node, key).is_none() => {
            wrong(entry.value.at, format!("{key} has no value, which netplan refuses; leave it out"))
        }
        _ => Ok(()),
    }
}

fn judge_route(route: &Node) -> Judged {
    keys::judge(route, "each of routes", &[keys::ROUTE])?;
    ["from", "via"].into_iter().try_for_each(|key| not_empty(route, key))?;
    let Some(to) = given(route, "to") else {
        return wrong(route.at, "a route has the key \"to\": a network, or default");
    };
    let is_default = to.scalar() == Some("default");
    if !is_default {
        judge_network(to, "to")?;
    }
    judge_host(route, "via")?;
    let family = |node: &Node| node.scalar().and_then(address_of).map(|address: IpAddr| address.is_ipv4());
    match given(route, "via") {
        Some(via) if !is_default && family(via) != family(to) => {
            wrong(via.at, "via is an address of the other IP version than to")
        }
        None if is_default && given(route, "type").is_none() => {
            wrong(route.at, "a default route has the key \"via\", the address of the gateway")
        }
        _ => Ok(()),
    }
}

fn judge_rule(rule: &Node) -> Judged {
    keys::judge(rule, "each of routing-policy", &[keys::POLICY])?;
    for key in ["from", "to"] {
        not_empty(rule, key)?;
        if let Some(network) = given(rule, key) {
            judge_network(network, key)?;
        }
    }
    match given(rule, "from").or_else(|| given(rule, "to")) {
        Some(_) => Ok(()),
        None => wrong(rule.at, "each of routing-policy has \"from\" or \"to\", a network"),
    }
}

fn judge_vlan(device: &Entry) -> Judged {
    judge_number(&device.value, "id")?;
    match given(&device.value, "id").and_then(|id| id.scalar()?.parse::<u32>().ok()) {
        Some(id) if id <= LARGEST_VLAN => {}
        _ => {
            return wrong(device.at, format!("the VLAN {:?} has an \"id\", a number up to {LARGEST_VLAN}", device.key));
        }
    }
    match given(&device.value, "link").and_then(Node::scalar) {
        Some(_) => Ok(()),
        None => wrong(device.at, format!("the VLAN {:?} has a \"link\", the device that it is on", device.key)),
    }
}

#[cfg(test)]
mod tests {
    use crate::network::check;

    fn check_device(device: &str, expect: &str) {
        let found =
            check(&format!("version: 2\nethernets:\n  eth0: {device}\n")).map_err(|refusal| refusal.to_string());
        let found = found.err().unwrap_or_default();
        assert!(found.starts_with(expect) && found.is_empty() == expect.is_empty(), "{device}: {found:?}");
    }

    #[test]
    fn devices_have_addresses_that_are_some() {
        check_device("{addresses: [192.0.2.5/24, '2001:db8::5/64', 192.0.2.6/24: {label: a}], dhcp4: no}", "");
        check_device("{addresses: 192.0.2.5/24}", "line 3, column 21: addresses must be a list");
        check_device("{addresses: }", "line 3, column 19: addresses must be a list");
        check_device("{addresses: [192.0.2.5/33]}", "line 3, column 22: each of addresses must be an address");
        check_device("{gateway4: 192.0.2.1/24}", "line 3, column 20: gateway4 must be an address without a prefix");
        check_device("{gateway4: '2001:db8::1'}", "line 3, column 20: gateway4 is not a valid address");
        check_device("{match: {macaddress: 52:54:00:12:34:56}}", "line 3, column 30: YAML reads this macaddress as a");
        check_device("{match: {macaddress: 52:54:00:12:34:5a}, set-name: a}", "");
        check_device("{match: {macaddress: 52-54-00-12-34-5a}}", "line 3, column 30: macaddress must be a hardware");
        check_device("{nameservers: [192.0.2.1]}", "line 3, column 23: nameservers must be a mapping");
        check_device("{nameservers: {addresses: 192.0.2.1, search: [a]}}", "");
        check_device("{routes: [{to: default, via: 192.0.2.1}, {to: 198.51.100.0/24, via: 192.0.2.1, metric: 5}]}", "");
        check_device("{routes: [{via: 192.0.2.1}]}", "line 3, column 19: a route has the key \"to\"");
        check_device("{routes: [{to: all}]}", "line 3, column 24: to must be an address");
        for (device, expect) in [
            ("{dhcp4: maybe}", "line 3, column 17: dhcp4 must be true or false"),
            ("{dhcp4: }", "line 3, column 15: dhcp4 must be true or false"),
            ("{gateway4: }", "line 3, column 18: gateway4 has no value, which netplan refuses; leave it out"),
            ("{gateway6: ''}", "line 3, column 20: gateway6 has no value"),
            ("{match: {macaddress: }}", "line 3, column 28: macaddress has no value"),
            ("{routes: [{to: default, via: }]}", "line 3, column 36: via has no value"),
            ("{routing-policy: [{from: , to: 192.0.2.0/24, table: 5}]}", "line 3, column 32: from has no value"),
            ("{dhcp4: YES, dhcp6: 'off', mtu: '9000', renderer: networkd, macaddress: random}", ""),
            ("{mtu: big}", "line 3, column 15: mtu must be a whole number"),
            ("{mtu: }", "line 3, column 13: mtu must be a whole number"),
            ("{dhcp: true}", "line 3, column 10: the device \"eth0\" has no key \"dhcp\"; \"dhcp4\" may"),
            (
                "{adresses: [192.0.2.5/24]}",
                "line 3, column 10: the device \"eth0\" has no key \"adresses\"; \"addresses\"",
            ),
            (
                "{address: [192.0.2.5/24]}",
                "line 3, column 10: the device \"eth0\" has no key \"address\"; \"addresses\"",
            ),
            ("{interfaces: [a]}", "line 3, column 10: the device \"eth0\" has no key \"interfaces\""),
            ("{foo: 1}", "line 3, column 10: the device \"eth0\" has no key \"foo\"; netplan would ignore"),
            ("{renderer: ifupdown}", "line 3, column 20: renderer is one of: networkd, NetworkManager"),
            ("{set-name: lan0}", "line 3, column 10: set-name needs a \"match\""),
            ("{match: {mac: '52:54:00:12:34:5a'}}", "line 3, column 18: match has no key \"mac\"; \"macaddress\" may"),
            ("{macaddress: foo}", "line 3, column 22: macaddress must be a hardware address"),
            ("{nameservers: {addresses: [foo]}}", "line 3, column 36: addresses must be addresses such as 192.0.2.1"),
            ("{nameservers: {addresses: }}", "line 3, column 33: addresses must be a list"),
            ("{nameservers: {search: }}", "line 3, column 30: search must be a list"),
            ("{nameservers: {address: [192.0.2.1]}}", "line 3, column 24: nameservers has no key \"address\""),
            ("{dhcp4-overrides: {use-dns: maybe}}", "line 3, column 37: use-dns must be true or false"),
            ("{link-local: ipv4}", "line 3, column 22: link-local must be a list"),
            ("{link-local: []}", ""),
            ("{routes: [{to: default}]}", "line 3, column 19: a default route has the key \"via\""),
            (
                "{routes: [{to: 198.51.100.0/24, via: '2001:db8::1'}]}",
                "line 3, column 46: via is an address of the other",
            ),
            ("{routes: [{to: default, via: 192.0.2.1, on-link: maybe}]}", "line 3, column 58: on-link must be true"),
            ("{routing-policy: [{table: 5}]}", "line 3, column 27: each of routing-policy has \"from\" or \"to\""),
        ] {
            check_device(device, expect);
        }
        check_device("", "line 3, column 3: \"eth0\" has no settings");
        check_device("dhcp", "line 3, column 9: the device \"eth0\" must be a mapping");
    }

    #[test]
    fn kinds_are_those_of_netplan() {
        for right in [
            "tunnels: {t: {mode: sit}}",
            "vlans: {v: {id: 5, link: eth9}}\nethernets: {eth9: {}}",
            "bridges: {br0: {dhcp4: true}}",
            "renderer: networkd",
            "bonds: {b: {interfaces: [a]}}\nethernets: {a: {}}\nvlans: {v: {id: '5', link: b}}",
            "ethernets: {the-card-behind-the-wall: {match: {name: en*}, dhcp4: true}}",
        ] {
            assert_eq!(check(&format!("version: 2\n{right}\n")), Ok(()), "{right}");
        }
        for (bad, expect) in [
            ("ethernet: {}", "line 2, column 1: version 2 has no \"ethernet\""),
            ("packages: [a]", "line 2, column 1: version 2 has no \"packages\""),
            ("config: []", "line 2, column 1: config belongs to version 1"),
            ("ethernets:", "line 2, column 10: ethernets must be a mapping"),
            ("ethernets: [eth0]", "line 2, column 12: ethernets must be a mapping"),
            ("bonds: {b: {interfaces: eth0}}", "line 2, column 25: interfaces must be a list"),
            ("tunnels: {t: {local: 192.0.2.1}}", "line 2, column 11: the device \"t\" has the key \"mode\""),
            ("vrfs: {v: {interfaces: []}}", "line 2, column 8: the device \"v\" has the key \"table\""),
            ("bonds: {b: {interfaces: []}}", "line 2, column 9: the bond \"b\" has \"interfaces\""),
            ("bonds: {b: {interfaces: [a]}}", "line 2, column 26: interfaces of \"b\" names a device that is not"),
            ("bridges: {b: {interfaces: [b]}}", "line 2, column 28: interfaces of \"b\" cannot name itself"),
            ("bridges: {a: {}}\nvlans: {a: {id: 1, link: b}}", "line 3, column 9: \"a\" is already the name"),
            (
                "ethernets: {a: {}}\nbridges: {b: {interfaces: [a]}, c: {interfaces: [a]}}",
                "line 3, column 50: \"a\" is already in another device",
            ),
            (
                "vlans: {v: {id: 5, link: eth9}}",
                "line 2, column 26: link of \"v\" names a device that is not defined; if it is a card, add \
                 \"ethernets: {eth9: {}}\"",
            ),
            ("vlans: {v: {id: 010, link: a}}", "line 2, column 17: id must be a whole number"),
            ("vlans: {v: {id: 1_0, link: a}}", "line 2, column 17: id must be a whole number"),
            (
                "ethernets: {a: {}}\nbonds: {b: {interfaces: [a], parameters: {mode: lacp}}}",
                "line 3, column 49: mode is one of",
            ),
            ("bridges: {b: {parameters: {stp: maybe}}}", "line 2, column 33: stp must be true or false"),
            ("renderer: sysconfig", "line 2, column 11: renderer is one of: networkd, NetworkManager"),
            ("renderer:", "line 2, column 9: renderer is one of"),
            ("ethernets: {'${NIC}': {dhcp4: true}}", "line 2, column 13: \"${NIC}\" looks like a variable"),
            ("ethernets: {'eth*': {dhcp4: true}}", "line 2, column 13: the name \"eth*\" has a wildcard"),
            ("ethernets: {averyveryverylong: {}}", "line 2, column 13: \"averyveryverylong\" cannot be the name"),
            ("vlans: {v: {id: 5000, link: a}}", "line 2, column 9: the VLAN \"v\" has an \"id\""),
            ("vlans: {v: {id: 5}}", "line 2, column 9: the VLAN \"v\" has a \"link\""),
        ] {
            let found = check(&format!("version: 2\n{bad}\n")).expect_err(bad).to_string();
            assert!(found.starts_with(expect), "{bad}: {found}");
        }
    }
}
