//! Version 2: devices by their kind, as in netplan.

use super::address::{is_network, judge_host, judge_mac, judge_network};
use super::{Judged, given, judge_number, list, mapping, wrong};
use crate::tree::{Entry, Node};

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
const LARGEST_VLAN: u32 = 4094;

pub(super) fn judge(config: &Node) -> Judged {
    for Entry { key, at, value } in config.mapping().unwrap_or_default() {
        match key.as_str() {
            "version" | "renderer" => {}
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
    Ok(())
}

fn judge_device(kind: &str, device: &Entry) -> Judged {
    let value = &*device.value;
    if value.is_null() {
        return wrong(device.at, format!("{:?} has no settings; write {{}} if it needs none", device.key));
    }
    for Entry { key, value, .. } in mapping(value, &format!("the device {:?}", device.key))? {
        match key.as_str() {
            "match" | "nameservers" | "parameters" | "dhcp4-overrides" | "dhcp6-overrides" => _ = mapping(value, key)?,
            "addresses" => list(value, key)?.iter().try_for_each(|address| judge_address(address))?,
            "routes" => list(value, key)?.iter().try_for_each(|route| judge_route(route))?,
            "interfaces" => _ = list(value, key)?,
            _ => {}
        }
    }
    judge_host(value, "gateway4")?;
    judge_host(value, "gateway6")?;
    if let Some(selected) = value.get("match") {
        judge_mac(&selected.value, "macaddress")?;
    }
    if let Some(servers) = value.get("nameservers") {
        judge_servers(&servers.value)?;
    }
    if kind == "vlans" { judge_vlan(device) } else { Ok(()) }
}

/// An address, also with options: `192.0.2.5/24: {label: a}`.
fn judge_address(node: &Node) -> Judged {
    match node.mapping() {
        Some([entry]) if is_network(&entry.key) => Ok(()),
        _ => judge_network(node, "each of addresses"),
    }
}

fn judge_route(route: &Node) -> Judged {
    mapping(route, "each of routes")?;
    match given(route, "to") {
        None => return wrong(route.at, "a route has the key \"to\": a network, or default"),
        Some(to) if to.scalar() == Some("default") => {}
        Some(to) => judge_network(to, "to")?,
    }
    judge_number(route, "metric")?;
    judge_host(route, "via")
}

fn judge_servers(servers: &Node) -> Judged {
    for key in ["addresses", "search"] {
        if let Some(entry) = servers.get(key).filter(|entry| entry.value.scalar().is_none()) {
            list(&entry.value, key)?;
        }
    }
    Ok(())
}

fn judge_vlan(device: &Entry) -> Judged {
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
        check_device("", "line 3, column 3: \"eth0\" has no settings");
        check_device("dhcp", "line 3, column 9: the device \"eth0\" must be a mapping");
    }

    #[test]
    fn kinds_are_those_of_netplan() {
        for right in [
            "tunnels: {t: {mode: sit}}",
            "bridges: {br0: {dhcp4: true}}",
            "renderer: networkd",
            "vlans: {v: {id: '5', link: a}}",
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
            ("vlans: {v: {id: 5000, link: a}}", "line 2, column 9: the VLAN \"v\" has an \"id\""),
            ("vlans: {v: {id: 5}}", "line 2, column 9: the VLAN \"v\" has a \"link\""),
        ] {
            let found = check(&format!("version: 2\n{bad}\n")).expect_err(bad).to_string();
            assert!(found.starts_with(expect), "{bad}: {found}");
        }
    }
}
