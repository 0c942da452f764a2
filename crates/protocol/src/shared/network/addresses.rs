//! Addresses as operators write them.

use std::net::IpAddr;

/// Returns an address and the length of its prefix, in bits.
pub fn prefixed(text: &str) -> Option<(IpAddr, u32)> {
    let (address, len) = text.split_once('/')?;
    let len = len.parse().ok().filter(|_| len.bytes().all(|byte| byte.is_ascii_digit()))?;
    let address: IpAddr = address.parse().ok()?;
    (len <= bits(&address).1).then_some((address, len))
}

/// Returns the address as a number, and its length in bits.
fn bits(address: &IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

/// Returns the part of an address after its prefix, and the same part with all bits set.
fn host_part(address: &IpAddr, len: u32) -> (u128, u128) {
    let (bits, all) = bits(address);
    let mask = 1_u128.checked_shl(all - len).map_or(u128::MAX, |above| above - 1);
    (bits & mask, mask)
}

pub(super) fn in_network(gateway: &IpAddr, address: &IpAddr, len: u32) -> bool {
    let network = |address: &IpAddr| bits(address).0 - host_part(address, len).0;
    gateway.is_ipv4() == address.is_ipv4() && network(gateway) == network(address)
}

pub(super) fn address_problem(text: &str) -> Option<&'static str> {
    let Some((address, len)) = prefixed(text) else {
        return Some("write it with its prefix length, such as 192.0.2.5/24 or 2001:db8::5/64");
    };
    let (host, all) = host_part(&address, len);
    match address {
        _ if len == 0 || !is_host(&address) => Some("it cannot be the address of a machine"),
        // In a network of two addresses or one, each address is a host (RFC 3021).
        _ if all <= 1 => None,
        _ if host == 0 => Some("it is the address of the network itself"),
        IpAddr::V4(_) if host == all => Some("it is the broadcast address of its network"),
        _ => None,
    }
}

/// Returns whether this can be the address of another machine.
pub(super) fn is_host(address: &IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !address.is_unspecified() && !address.is_loopback() && !address.is_multicast() && !is_broadcast
}

pub(super) fn is_link_local(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}
