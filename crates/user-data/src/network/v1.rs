//! Version 1: a list of devices, name servers and routes.

use std::collections::BTreeSet;

use super::address::{is_host, is_netmask, judge_host, judge_mac, judge_network};
use super::{BOND_MODES, Judged, LARGEST_VLAN, given, judge_name, judge_number, list, mapping, wrong};
use crate::tree::Node;

/// The types of items, and the keys that each needs (cloudinit/net/network_state.py, `ensure_command_keys`).
const TYPES: &[(&str, &[&str])] = &[
    ("physical", &["name"]),
    ("loopback", &["name"]),
    ("infiniband", &["name"]),
    ("vlan", &["name", "vlan_id", "vlan_link"]),
    ("bond", &["name", "bond_interfaces", "params"]),
    ("bridge", &["name", "bridge_interfaces"]),
    ("nameserver", &["address"]),
    ("route", &["destination"]),
];

/// The types of subnets (cloud-init documentation, "Networking config Version 1"; the last three are from ifupdown).
const SUBNETS: &[&str] = &[
    "static",
    "static6",
    "dhcp",
    "dhcp4",
    "dhcp6",
    "ipv6_dhcpv6-stateful",
    "ipv6_dhcpv6-stateless",
    "ipv6_slaac",
    "manual",
    "auto",
    "loopback",
];

/// What cloud-init treats as a truth value (cloudinit/net/network_state.py, `handle_bridge`).
const SWITCH: &[&str] = &["true", "on", "yes", "1", "false", "off", "no", "0"];

pub(super) fn judge(config: &Node) -> Judged {
    let Some(items) = config.get("config") else {
        let reason = "version 1 has the key \"config\", a list of devices; for ethernets, set version: 2";
        return wrong(config.at, reason);
    };
    let items = list(&items.value, "config")?;
    for item in items {
        judge_item(item)?;
    }
    let names: BTreeSet<&str> = items.iter().flat_map(|item| names(item)).collect();
    for item in items.iter().filter(|item| text(item, "type") == Some("nameserver")) {
        let Some(of) = given(item, "interface") else { continue };
        let name = of.scalar().unwrap_or_default();
        if !names.contains(name) {
            return wrong(of.at, format!("the name server is for {name:?}, but no device has that name"));
        }
    }
    Ok(())
}

fn text<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    given(node, key)?.scalar()
}

/// The devices that an item is about.
fn names(item: &Node) -> impl Iterator<Item = &str> {
    let members = ["bond_interfaces", "bridge_interfaces"].into_iter().filter_map(|key| given(item, key)?.list());
    text(item, "name").into_iter().chain(members.flatten().filter_map(|member| member.scalar()))
}

fn judge_item(item: &Node) -> Judged {
    mapping(item, "each of config")?;
    let known = TYPES.iter().find(|(name, _)| text(item, "type") == Some(name));
    let Some((name, needed)) = known else {
        let types: Vec<&str> = TYPES.iter().map(|(name, _)| *name).collect();
        let at = given(item, "type").map_or(item.at, |found| found.at);
        return wrong(at, format!("each of config has a \"type\", which is one of: {}", types.join(", ")));
    };
    if let Some(missing) = needed.iter().find(|key| given(item, key).is_none()) {
        return wrong(item.at, format!("an item of the type {name} needs {missing:?}; cloud-init ignores it without"));
    }
    match *name {
        "route" => return judge_route(item),
        "nameserver" => return judge_servers(item, "address"),
        _ => {}
    }
    if let Some(name) = given(item, "name") {
        judge_name(name.scalar().unwrap_or_default(), name.at, true)?;
    }
    judge_mac(item, "mac_address")?;
    judge_number(item, "mtu")?;
    judge_number(item, "vlan_id")?;
    if let Some(id) = given(item, "vlan_id").filter(|id| number(id).is_none_or(|id| id > LARGEST_VLAN)) {
        return wrong(id.at, format!("vlan_id is a number up to {LARGEST_VLAN}"));
    }
    for key in ["bond_interfaces", "bridge_interfaces"] {
        if let Some(members) = given(item, key) {
            list(members, key)?;
        }
    }
    if let Some(parameters) = item.get("params") {
        judge_parameters(&parameters.value)?;
    }
    match given(item, "subnets") {
        Some(subnets) => list(subnets, "subnets")?.iter().try_for_each(|subnet| judge_subnet(subnet)),
        None => Ok(()),
    }
}

/// Judges the parameters of a bond or a bridge. Their names have hyphens or underscores.
fn judge_parameters(parameters: &Node) -> Judged {
    for entry in mapping(parameters, "params")? {
        let (key, value) = (entry.key.replace('_', "-"), entry.value.scalar().unwrap_or_default());
        let is_mode = || BOND_MODES.contains(&value) || value.parse().is_ok_and(|mode: usize| mode < BOND_MODES.len());
        let is_switch = || SWITCH.iter().any(|word| value.eq_ignore_ascii_case(word));
        if key == "bond-mode" && !is_mode() {
            return wrong(entry.value.at, format!("{} is one of: {}", entry.key, BOND_MODES.join(", ")));
        }
        if key == "bridge-stp" && !is_switch() {
            return wrong(entry.value.at, format!("{} must be on or off", entry.key));
        }
    }
    Ok(())
}

/// Judges the addresses of name servers: a list or a single one.
fn judge_servers(item: &Node, key: &str) -> Judged {
    let Some(servers) = given(item, key) else { return Ok(()) };
    let is_right = |node: &Node| node.scalar().is_some_and(|text| text.split_whitespace().all(is_host));
    let wrong_one = match servers.list() {
        Some(list) => list.iter().map(|server| &**server).find(|server| !is_right(server)),
        None => Some(servers).filter(|server| !is_right(server)),
    };
    wrong_one
        .map_or(Ok(()), |node| wrong(node.at, format!("{key} must be addresses of name servers, such as 192.0.2.1")))
}

fn number(node: &Node) -> Option<u32> {
    node.scalar()?.parse().ok()
}

fn judge_subnet(subnet: &Node) -> Judged {
    mapping(subnet, "each of subnets")?;
    let Some(kind) = text(subnet, "type").filter(|kind| SUBNETS.contains(kind)) else {
        let at = given(subnet, "type").map_or(subnet.at, |found| found.at);
        return wrong(at, format!("each of subnets has a \"type\", which is one of: {}", SUBNETS.join(", ")));
    };
    if matches!(kind, "static" | "static6") {
        let Some(address) = given(subnet, "address").or_else(|| given(subnet, "ip_address")) else {
            return wrong(subnet.at, format!("a subnet of the type {kind} needs an \"address\""));
        };
        judge_network(address, "address")?;
        judge_netmask(subnet, address)?;
    }
    judge_host(subnet, "gateway")?;
    judge_servers(subnet, "dns_nameservers")?;
    match subnet.get("routes") {
        Some(routes) => list(&routes.value, "routes")?.iter().try_for_each(|route| judge_route(route)),
        None => Ok(()),
    }
}

fn judge_route(route: &Node) -> Judged {
    mapping(route, "each of routes")?;
    let Some(to) = given(route, "destination").or_else(|| given(route, "network")) else {
        return wrong(route.at, "a route needs a \"destination\"");
    };
    judge_network(to, "destination")?;
    judge_netmask(route, to)?;
    judge_number(route, "metric")?;
    judge_host(route, "gateway")
}

fn judge_netmask(node: &Node, address: &Node) -> Judged {
    let Some(mask) = given(node, "netmask") else { return Ok(()) };
    let most = if address.scalar().is_some_and(|text| text.contains(':')) { 128 } else { 32 };
    let is_length = number(mask).is_none_or(|length| length <= most);
    if is_length && mask.scalar().is_some_and(is_netmask) {
        return Ok(());
    }
    wrong(mask.at, "netmask must be one such as 255.255.255.0, or the length of a prefix")
}

#[cfg(test)]
mod tests {
    use crate::network::check;

    fn check_item(item: &str, expect: &str) {
        let found = check(&format!("version: 1\nconfig:\n- {item}\n")).map_err(|refusal| refusal.to_string());
        let found = found.err().unwrap_or_default();
        assert!(found.starts_with(expect) && found.is_empty() == expect.is_empty(), "{item}: {found:?}");
    }

    fn check_subnet(subnet: &str, expect: &str) {
        check_item(&format!("{{type: physical, name: eth0, subnets: [{subnet}]}}"), expect);
    }

    #[test]
    fn items_have_a_type_and_what_it_needs() {
        check_item("{type: physical, name: eth0, mac_address: '52:54:00:12:34:56', subnets: [{type: dhcp}]}", "");
        check_item("{type: bond, name: b, bond_interfaces: [c, d], params: {bond-mode: 1}}", "");
        check_item("{type: route, destination: 198.51.100.0/24, gateway: 192.0.2.1, metric: 3}", "");
        check_item("{type: nameserver, address: [192.0.2.1], search: a}", "");
        check_item(
            "{type: bridge, name: b, bridge_interfaces: [c]}\n- {type: nameserver, address: 192.0.2.1, interface: c}",
            "",
        );
        check_item(
            "{type: nameserver, address: '::1', interface: c}",
            "line 3, column 49: the name server is for \"c\"",
        );
        check_item("{name: eth0}", "line 3, column 3: each of config has a \"type\"");
        check_item("{type: ethernet, name: eth0}", "line 3, column 10: each of config has a \"type\"");
        check_item(
            "{type: vlan, name: a, vlan_id: 5}",
            "line 3, column 3: an item of the type vlan needs \"vlan_link\"",
        );
        check_item(
            "{type: bridge, name: b, bridge_interfaces: c}",
            "line 3, column 46: bridge_interfaces must be a list",
        );
        for (item, expect) in [
            ("{type: nameserver, address: [192.0.2.1, dns]}", "line 3, column 43: address must be addresses of name"),
            ("{type: physical, name: [a]}", "line 3, column 26: \"\" cannot be the name of a network interface"),
            ("{type: physical, name: enp0s31f6.vlan100}", "line 3, column 26: \"enp0s31f6.vlan100\" cannot be"),
            ("{type: physical, name: '${NIC}'}", "line 3, column 26: \"${NIC}\" looks like a variable"),
            ("{type: physical, name: a, mtu: jumbo}", "line 3, column 34: mtu must be a whole number"),
            ("{type: vlan, name: a, vlan_id: ten, vlan_link: b}", "line 3, column 34: vlan_id must be a whole number"),
            ("{type: vlan, name: a, vlan_id: 4095, vlan_link: b}", "line 3, column 34: vlan_id is a number up to 4094"),
            (
                "{type: bond, name: b, bond_interfaces: [c], params: {bond-mode: lacp}}",
                "line 3, column 67: bond-mode is",
            ),
            (
                "{type: bridge, name: b, bridge_interfaces: [c], params: {bridge_stp: x}}",
                "line 3, column 72: bridge_stp",
            ),
        ] {
            check_item(item, expect);
        }
        check_item("eth0", "line 3, column 3: each of config must be a mapping");
        let mac = "{type: physical, name: eth0, mac_address: 52:54:00:12:34:56}";
        check_item(mac, "line 3, column 45: YAML reads this mac_address as a number; put it in quotes: \"52:54:");
    }

    #[test]
    fn subnets_have_a_type_and_addresses_that_are_some() {
        check_subnet("{type: static, address: 192.0.2.5, netmask: 255.255.255.0, gateway: 192.0.2.1}", "");
        check_subnet("{type: static6, address: '2001:db8::5/64', routes: [{network: '::', netmask: 0}]}", "");
        check_subnet("{address: 192.0.2.5}", "line 3, column 42: each of subnets has a \"type\"");
        check_subnet("{type: fixed}", "line 3, column 49: each of subnets has a \"type\"");
        check_subnet("{type: static}", "line 3, column 42: a subnet of the type static needs an \"address\"");
        check_subnet("{type: static, address: 192.0.2.500/24}", "line 3, column 66: address must be an address");
        check_subnet("{type: static, address: 192.0.2.5, netmask: x}", "line 3, column 86: netmask must be one");
        check_subnet("{type: static, address: 192.0.2.5/24, gateway: x}", "line 3, column 89: gateway is not a valid");
        check_subnet("{type: static, address: 192.0.2.5, netmask: 33}", "line 3, column 86: netmask must be one");
        check_subnet("{type: dhcp, dns_nameservers: {a: 1}}", "line 3, column 72: dns_nameservers must be addresses");
        check_subnet("{type: dhcp, dns_nameservers: 192.0.2.1 192.0.2.2}", "");
        check_subnet("{type: dhcp, routes: [{gateway: 192.0.2.1}]}", "line 3, column 64: a route needs a");
    }

    #[test]
    fn a_list_is_what_version_1_has() {
        for (bad, expect) in [
            ("", "line 1, column 1: version 1 has the key \"config\""),
            ("ethernets: {}", "line 1, column 1: version 1 has the key \"config\""),
            ("config: {}", "line 2, column 9: config must be a list"),
            ("config:", "line 2, column 7: config must be a list"),
        ] {
            let found = check(&format!("version: 1\n{bad}\n")).expect_err(bad).to_string();
            assert!(found.starts_with(expect), "{bad}: {found}");
        }
        for right in ["version: 1\nconfig: disabled\n", "config: disabled\n", "version: 1\nconfig: []\n"] {
            assert_eq!(check(right), Ok(()), "{right}");
            let inner = right.lines().map(|line| format!("  {line}\n")).collect::<String>();
            assert_eq!(check(&format!("network:\n{inner}")), Ok(()), "{right}");
        }
    }
}
