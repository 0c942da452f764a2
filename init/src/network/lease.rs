//! What a lease says about its network.

use std::net::Ipv4Addr;

use mozim::DhcpV4Lease;

/// Network address and prefix length of a lease's subnet.
pub(super) fn subnet(lease: &DhcpV4Lease) -> (Ipv4Addr, u8) {
    (lease.yiaddr & lease.subnet_mask, prefix(lease.subnet_mask))
}

/// Destination, prefix length and gateway of each route of a lease except the one to its subnet. Classless routes
/// replace the gateways (RFC 3442).
pub(super) fn routes(lease: &DhcpV4Lease) -> Vec<(Ipv4Addr, u8, Ipv4Addr)> {
    match &lease.classless_routes {
        Some(routes) => routes.iter().map(|r| (r.destination, r.prefix_length, r.router)).collect(),
        None => lease.gateways.iter().flatten().take(1).map(|g| (Ipv4Addr::UNSPECIFIED, 0, *g)).collect(),
    }
}

pub(super) fn prefix(mask: Ipv4Addr) -> u8 {
    // 32 at most, so the conversion cannot fail.
    u8::try_from(u32::from(mask).leading_ones()).unwrap_or(32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_a_prefix_length() {
        assert_eq!(prefix(Ipv4Addr::new(255, 255, 255, 0)), 24);
        assert_eq!(prefix(Ipv4Addr::new(255, 255, 255, 255)), 32);
        assert_eq!(prefix(Ipv4Addr::UNSPECIFIED), 0);
    }

    #[test]
    fn classless_routes_replace_gateways() {
        let mut lease = DhcpV4Lease::default();
        lease.gateways = Some(vec![Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)]);
        assert_eq!(routes(&lease), [(Ipv4Addr::UNSPECIFIED, 0, Ipv4Addr::new(192, 0, 2, 1))]);
        lease.classless_routes = Some(Vec::new());
        assert_eq!(routes(&lease), []);
        (lease.yiaddr, lease.subnet_mask) = (Ipv4Addr::new(192, 0, 2, 77), Ipv4Addr::new(255, 255, 255, 192));
        assert_eq!(subnet(&lease), (Ipv4Addr::new(192, 0, 2, 64), 26));
    }
}
