//! Addresses, as Python's `ipaddress` reads them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Judged, given, wrong};
use crate::tree::{Node, Value};

/// Refuses a value that is not an address, with or without its prefix or mask.
pub(super) fn judge_network(node: &Node, what: &str) -> Judged {
    match node.scalar() {
        Some(text) if is_network(text) => Ok(()),
        _ => wrong(node.at, format!("{what} must be an address such as 192.0.2.5/24 or 2001:db8::5/64")),
    }
}

/// Refuses the value of a key that is there and is not an address of a host.
pub(super) fn judge_host(node: &Node, key: &str) -> Judged {
    let Some(value) = given(node, key) else { return Ok(()) };
    let is_right = |address: IpAddr| match key {
        "gateway4" => address.is_ipv4(),
        "gateway6" => address.is_ipv6(),
        _ => true,
    };
    let text = value.scalar().unwrap_or_default();
    match text.parse() {
        Ok(address) if is_right(address) => Ok(()),
        _ if text.contains('/') => wrong(value.at, format!("{key} must be an address without a prefix length")),
        _ => wrong(value.at, format!("{key} is not a valid address")),
    }
}

/// Refuses a value that is not a hardware address as the kernel writes it: cloud-init would not find the device.
pub(super) fn judge_mac(node: &Node, key: &str) -> Judged {
    given(node, key).map_or(Ok(()), |value| judge_hardware(value, key))
}

pub(super) fn judge_hardware(value: &Node, key: &str) -> Judged {
    match &value.value {
        Value::Text(text) if is_mac(text) => Ok(()),
        Value::Other(text) if is_mac(text) => {
            wrong(value.at, format!("YAML reads this {key} as a number; put it in quotes: \"{text}\""))
        }
        _ => wrong(value.at, format!("{key} must be a hardware address such as \"52:54:00:12:34:56\"")),
    }
}

pub(super) fn is_host(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

/// The address in a text that may also have a prefix or a mask.
pub(super) fn address_of(text: &str) -> Option<IpAddr> {
    text.split('/').next()?.parse().ok()
}

pub(super) fn is_network(text: &str) -> bool {
    let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    let is_prefix = |most: u32| prefix.is_none_or(|prefix| is_length(prefix, most));
    match address.parse() {
        Ok(IpAddr::V4(_)) => is_prefix(32) || prefix.is_some_and(is_mask),
        Ok(IpAddr::V6(_)) => is_prefix(128),
        Err(_) => false,
    }
}

/// Whether a text is a mask, or the length of a prefix.
pub(super) fn is_netmask(text: &str) -> bool {
    is_mask(text) || is_length(text, 128) || text.parse::<Ipv6Addr>().is_ok()
}

fn is_length(text: &str, most: u32) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse().is_ok_and(|length: u32| length <= most)
}

/// Whether an address is a mask: ones before zeros, as in 255.255.255.0, or the other way.
fn is_mask(text: &str) -> bool {
    let Ok(mask) = text.parse::<Ipv4Addr>().map(u32::from) else { return false };
    mask.leading_ones() + mask.trailing_zeros() == 32 || mask.leading_zeros() + mask.trailing_ones() == 32 || mask == 0
}

/// Whether a text is a hardware address: six octets, or the twenty of `InfiniBand`.
fn is_mac(text: &str) -> bool {
    let is_octet = |octet: &str| octet.len() == 2 && octet.bytes().all(|byte| byte.is_ascii_hexdigit());
    matches!(text.split(':').count(), 6 | 20) && text.split(':').all(is_octet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_those_of_python() {
        for right in
            ["192.0.2.5", "192.0.2.5/24", "0.0.0.0/0", "192.0.2.5/255.255.255.0", "192.0.2.5/0.0.0.255", "::/0"]
        {
            assert!(is_network(right), "{right}");
        }
        for right in
            ["2001:db8::5", "2001:db8::5/64", "192.0.2.5/032", "192.0.2.5/0.0.0.0", "192.0.2.5/255.255.255.255"]
        {
            assert!(is_network(right), "{right}");
        }
        for bad in ["", "/24", "192.0.2", "192.0.2.256/24", "192.0.2.5/33", "192.0.2.5/", "192.0.2.5/24/24", "host/24"]
        {
            assert!(!is_network(bad), "{bad}");
        }
        for bad in ["2001:db8::5/129", "2001:db8::5/ffff::", "192.0.2.5/255.0.255.0", "192.0.2.5/-1", " 192.0.2.5"] {
            assert!(!is_network(bad), "{bad}");
        }
    }
}
