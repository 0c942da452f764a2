//! What is wrong with a network that an operator wrote.

use std::net::IpAddr;

use super::addresses::{address_problem, in_network, is_host, is_link_local, prefixed};
use super::{Interface, Network};
use crate::shared::identity::normalise_mac;

/// The most bytes in the name of an interface (Linux, IFNAMSIZ, less the zero byte).
const MAX_NAME: usize = 15;
/// The size of a packet in bytes if no other size is given (RFC 894).
const DEFAULT_MTU: u32 = 1500;
const MIN_MTU_IPV6: u32 = 1280;
/// The most interfaces. More would be an accident, not a definition.
const MAX_INTERFACES: usize = 256;

/// Returns the problems of an installed system's network, one sentence each. Empty if the network makes sense.
pub fn problems(network: &Network) -> Vec<String> {
    judge(network, |interface| {
        let given = [interface.mac.is_some(), interface.bond.is_some(), interface.vlan.is_some()];
        let is_one = given.iter().filter(|given| **given).count() == 1;
        (!is_one).then_some("needs one of mac, bond and vlan: give exactly one")
    })
}

/// Returns the problems of a network. `wrong_kind` returns the problem of an interface's kind: hardware, bond or VLAN.
pub(super) fn judge(network: &Network, wrong_kind: impl Fn(&Interface) -> Option<&'static str>) -> Vec<String> {
    let mut problems = Vec::new();
    if network.interfaces.is_empty() || network.interfaces.len() > MAX_INTERFACES {
        return vec![format!(
            "a network has 1 to {MAX_INTERFACES} interfaces, but this one has {}",
            network.interfaces.len()
        )];
    }
    for (index, interface) in network.interfaces.iter().enumerate() {
        let (earlier, _) = network.interfaces.split_at(index);
        let kind = wrong_kind(interface).map(str::to_owned);
        let found = kind.into_iter().chain(own_problems(interface)).chain(place_problems(network, interface, earlier));
        problems.extend(found.map(|problem| format!("interface {:?} {problem}", interface.name)));
    }
    problems.extend(gateways_problems(network));
    for server in &network.nameservers {
        if !server.parse::<IpAddr>().is_ok_and(|server| is_host(&server)) {
            problems.push(format!("the name server {server:?} is not the IP address of a host"));
        }
    }
    for domain in network.search.iter().filter(|domain| !is_domain(domain)) {
        problems.push(format!("the search domain {domain:?} is not a domain name"));
    }
    problems
}

/// Returns the problems between an interface and the other interfaces.
fn place_problems(network: &Network, interface: &Interface, earlier: &[Interface]) -> Vec<String> {
    let mut problems = Vec::new();
    if earlier.iter().any(|other| other.name == interface.name) {
        problems.push("has the same name as an earlier one".to_owned());
    }
    let mac = |interface: &Interface| interface.mac.as_deref().and_then(normalise_mac);
    if mac(interface).is_some_and(|own| earlier.iter().any(|other| mac(other).as_ref() == Some(&own))) {
        problems.push("has the same MAC address as an earlier one".to_owned());
    }
    problems.extend(earlier.iter().filter_map(|other| clash(interface, other)));
    let others = network.interfaces.iter().filter(|other| other.name != interface.name);
    problems.extend(others.filter_map(|other| leads_to(interface, other)));
    problems.extend(mtu_problem(network, interface));
    let named = |name: &str| network.interfaces.iter().find(|other| other.name == name);
    let bonded = |name: &str| bond_of(&network.interfaces, name);
    for part in interface.bond.iter().flat_map(|bond| &bond.of) {
        match named(part) {
            None => problems.push(format!("bonds {part:?}, but there is no such interface")),
            Some(other) if other.mac.is_none() => problems.push(format!("bonds {part:?}, which has no MAC address")),
            Some(other) if other.is_addressed() => {
                problems.push(format!("bonds {part:?}, which has addresses: give them to the bond"));
            }
            Some(_) if bonded(part) != Some(&interface.name) => {
                problems.push(format!("bonds {part:?}, which is in another bond already"));
            }
            Some(_) => {}
        }
    }
    if let Some(vlan) = &interface.vlan {
        match named(&vlan.of) {
            None => problems.push(format!("is a VLAN of {:?}, but there is no such interface", vlan.of)),
            Some(other) if other.vlan.is_some() => {
                problems.push(format!("is a VLAN of {:?}, which is a VLAN itself", vlan.of))
            }
            Some(_) if bonded(&vlan.of).is_some() => {
                problems.push(format!("is a VLAN of {:?}, which is bonded: make it a VLAN of the bond", vlan.of));
            }
            Some(_) => {}
        }
        if earlier.iter().any(|other| other.vlan.as_ref() == Some(vlan)) {
            problems.push("is the same VLAN as an earlier one".to_owned());
        }
    }
    problems
}

/// Returns the problem of an interface's packet size. The kernel turns IPv6 off below 1280 bytes (RFC 8200, section
/// 5). It does not let a VLAN have larger packets than the interface below it.
fn mtu_problem(network: &Network, interface: &Interface) -> Option<String> {
    let vlan = interface.vlan.as_ref();
    let below = vlan.and_then(|vlan| network.interfaces.iter().find(|other| other.name == vlan.of));
    let mtu = interface.mtu.or(below.and_then(|below| below.mtu)).unwrap_or(DEFAULT_MTU);
    if mtu < MIN_MTU_IPV6 && has_ipv6(interface) {
        return Some(format!(
            "has an mtu of {mtu} and an IPv6 address, which needs {MIN_MTU_IPV6}: raise the mtu, or use only IPv4"
        ));
    }
    let below = below.filter(|below| mtu > below.mtu.unwrap_or(DEFAULT_MTU))?;
    let most = below.mtu.unwrap_or(DEFAULT_MTU);
    Some(format!("has an mtu of {mtu}, but {:?}, which it is a VLAN of, has only {most}: raise that mtu", below.name))
}

/// Returns a problem for each IP version with several gateways: nobody knows which default route is used.
fn gateways_problems(network: &Network) -> Vec<String> {
    let all = network.interfaces.iter().flat_map(|interface| &interface.gateways);
    let all: Vec<IpAddr> = all.filter_map(|text| text.parse().ok()).collect();
    let of_ipv4 = all.iter().filter(|gateway| gateway.is_ipv4()).count();
    let several = [("IPv4", of_ipv4), ("IPv6", all.len() - of_ipv4)].into_iter().filter(|(_, count)| *count > 1);
    several.map(|(version, _)| format!("there is more than one gateway for {version}")).collect()
}

/// Returns the first bond that has this interface.
fn bond_of<'a>(interfaces: &'a [Interface], name: &str) -> Option<&'a String> {
    let has = |interface: &&Interface| interface.bond.iter().any(|bond| bond.of.iter().any(|part| part == name));
    interfaces.iter().find(has).map(|interface| &interface.name)
}

fn has_ipv6(interface: &Interface) -> bool {
    interface.dhcp6 || hosts(interface).any(|address| address.is_ipv6())
}

/// Returns the interface's addresses, without their prefixes.
fn hosts(interface: &Interface) -> impl Iterator<Item = IpAddr> {
    interface.addresses.iter().filter_map(|text| prefixed(text)).map(|(address, _)| address)
}

/// Returns the problem of an address that an earlier interface has too. Link-local addresses may be the same on
/// each interface (RFC 4291, section 2.5.6).
fn clash(interface: &Interface, earlier: &Interface) -> Option<String> {
    let address = hosts(interface).find(|own| !is_link_local(own) && hosts(earlier).any(|address| address == *own))?;
    Some(format!("has the address {address}, which {:?} also has: give it to only one of them", earlier.name))
}

/// Returns the problem of a gateway that is an address of this machine.
fn leads_to(interface: &Interface, other: &Interface) -> Option<String> {
    let gateways = interface.gateways.iter().filter_map(|text| text.parse::<IpAddr>().ok());
    let mut global = gateways.filter(|gateway| !is_link_local(gateway));
    let gateway = global.find(|gateway| hosts(other).any(|address| address == *gateway))?;
    Some(format!(
        "cannot use the gateway \"{gateway}\": it is an address of {:?}; give the router's address",
        other.name
    ))
}

/// Returns the problems of an interface by itself.
fn own_problems(interface: &Interface) -> Vec<String> {
    let mut problems = Vec::new();
    let mut wrong = |problem: String| problems.push(problem);
    if !is_name(&interface.name) {
        wrong(format!(
            "is not a valid interface name: use 1 to {MAX_NAME} letters, digits, dots, hyphens and underscores, not \
             only digits, and not a name that the kernel uses"
        ));
    }
    if let Some(mac) = interface.mac.as_ref().filter(|mac| normalise_mac(mac).is_none()) {
        wrong(format!("has {mac:?} as its MAC address, which is not valid: write it like 52:54:00:12:34:56"));
    }
    if interface.mac.as_deref().and_then(normalise_mac).is_some_and(|mac| is_group(&mac)) {
        wrong("has a multicast MAC address: the second digit of a network card's own address is even".to_owned());
    }
    if let Some(bond) = &interface.bond {
        let twice = (1..bond.of.len()).any(|index| bond.of[..index].contains(&bond.of[index]));
        if bond.of.len() < 2 || twice {
            wrong("is a bond of fewer than two interfaces, or lists one of them twice".to_owned());
        }
    }
    if let Some(vlan) = interface.vlan.as_ref().filter(|vlan| !(1..=4094).contains(&vlan.id)) {
        wrong(format!("is VLAN {}, but VLAN ids are 1 to 4094", vlan.id));
    }
    if let Some(mtu) = interface.mtu.filter(|mtu| !(576..=65535).contains(mtu)) {
        wrong(format!("has an mtu of {mtu}, but it must be 576 to 65535"));
    }
    for address in &interface.addresses {
        if let Some(problem) = address_problem(address) {
            wrong(format!("cannot have the address {address:?}: {problem}"));
        }
    }
    let hosts: Vec<IpAddr> = hosts(interface).collect();
    for (_, address) in hosts.iter().enumerate().filter(|(index, address)| hosts[..*index].contains(address)) {
        wrong(format!("has the address {address} twice: give it once, with one prefix"));
    }
    for gateway in &interface.gateways {
        if let Some(problem) = gateway_problem(interface, gateway) {
            wrong(format!("cannot use the gateway {gateway:?}: {problem}"));
        }
    }
    problems
}

fn gateway_problem(interface: &Interface, text: &str) -> Option<&'static str> {
    let Some(gateway) = text.parse::<IpAddr>().ok().filter(is_host) else {
        return Some("it is not the IP address of a host");
    };
    let is_link_local = is_link_local(&gateway);
    let own: Vec<_> = interface.addresses.iter().filter_map(|address| prefixed(address)).collect();
    let reaches = |(address, len): &(IpAddr, u32)| match is_link_local {
        true => address.is_ipv6(),
        false => in_network(&gateway, address, *len),
    };
    if own.iter().any(|(address, _)| *address == gateway) {
        return Some("it is an address of this interface");
    }
    let is_none = |len: &u32| address_problem(&format!("{gateway}/{len}")).is_some();
    if gateway.is_ipv4() && own.iter().any(|network| reaches(network) && is_none(&network.1)) {
        return Some("it is the first or the last address of its network, which no router can have");
    }
    // With DHCP only, cloud-init leaves the gateway to DHCP.
    (!own.iter().any(reaches)).then_some("it is not in the network of any of the interface's addresses")
}

/// Returns whether a MAC address in the usual spelling is a group address (IEEE 802, section 8.2.2).
fn is_group(mac: &str) -> bool {
    u8::from_str_radix(&mac[..2], 16).is_ok_and(|first| first & 1 == 1)
}

/// Returns whether the kernel and systemd accept this name (systemd, `ifname_valid_full`).
fn is_name(name: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(known)
        && !name.bytes().all(|byte| byte.is_ascii_digit())
        && !matches!(name, "." | ".." | "lo" | "all" | "default" | "bonding_masters")
}

/// Returns whether this is a list of labels joined by dots. Labels have letters, digits, hyphens and underscores (RFC
/// 1123, section 2.1).
fn is_domain(text: &str) -> bool {
    let is_label = |label: &str| {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        (1..=63).contains(&label.len()) && label.bytes().all(known) && !label.starts_with('-') && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

#[cfg(test)]
mod tests;
