//! The settings of a network, from DHCP, from router advertisements, or from the medium's settings.

use std::net::{IpAddr, Ipv4Addr};

use mozim::DhcpV4Lease;

/// How this machine uses a network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lease {
    /// This machine's addresses and their prefix lengths.
    pub(super) addresses: Vec<(IpAddr, u8)>,
    pub(super) routes: Vec<Route>,
    /// Addresses of name servers. Link-local addresses include their zone.
    pub(super) name_servers: Vec<String>,
    /// Search domains for names.
    pub(super) search: Vec<String>,
}

/// A route to a network, given by its address and prefix length. Without a gateway, that network is on the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) destination: (IpAddr, u8),
    pub(super) gateway: Option<IpAddr>,
}

impl Lease {
    pub(super) fn of_dhcp4(lease: &DhcpV4Lease) -> Self {
        let address = (IpAddr::V4(lease.yiaddr), prefix(lease.subnet_mask));
        let mut routes = vec![Route::to_subnet(address)];
        // Classless routes replace the router option (RFC 3442). A router of 0.0.0.0 means that the destination is on
        // the link.
        match &lease.classless_routes {
            Some(classless) => routes.extend(classless.iter().map(|route| Route {
                destination: network_of((IpAddr::V4(route.destination), route.prefix_length)),
                gateway: (!route.router.is_unspecified()).then_some(IpAddr::V4(route.router)),
            })),
            None => {
                routes.extend(lease.gateways.iter().flatten().take(1).map(|gateway| Route::default((*gateway).into())))
            }
        }
        Self {
            addresses: vec![address],
            routes,
            name_servers: lease.dns_srvs.iter().flatten().map(ToString::to_string).collect(),
            search: lease.domain_name.iter().cloned().collect(),
        }
    }

    /// Returns the first address and its prefix length, as text.
    pub(super) fn address(&self) -> String {
        self.addresses.first().map(|(address, length)| format!("{address}/{length}")).unwrap_or_default()
    }

    /// Returns the router of the default route. `None` without a default route, or if it has no router.
    pub(super) fn gateway(&self) -> Option<IpAddr> {
        self.routes.iter().filter(|route| route.destination.1 == 0).find_map(|route| route.gateway)
    }

    /// Whether the other address has the same IP version as one of this machine's addresses.
    pub(super) fn speaks_to(&self, other: IpAddr) -> bool {
        self.addresses.iter().any(|(own, _)| own.is_ipv4() == other.is_ipv4())
    }
}

impl Route {
    pub(super) fn to_subnet(address: (IpAddr, u8)) -> Self {
        Self { destination: network_of(address), gateway: None }
    }

    pub(super) fn default(gateway: IpAddr) -> Self {
        let everything: IpAddr = if gateway.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        Self { destination: (everything, 0), gateway: Some(gateway) }
    }
}

/// Returns the network of an address: the address with all bits after the prefix cleared.
fn network_of((address, length): (IpAddr, u8)) -> (IpAddr, u8) {
    let network = match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(length.into())).unwrap_or(0);
            IpAddr::V4((address.to_bits() & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(length.into())).unwrap_or(0);
            IpAddr::V6((address.to_bits() & mask).into())
        }
    };
    (network, length)
}

pub(super) fn prefix(mask: Ipv4Addr) -> u8 {
    // At most 32, so the conversion cannot fail.
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
    fn a_network_has_no_bit_behind_the_prefix() {
        for (address, length, expect) in [
            ("192.0.2.77", 26, "192.0.2.64"),
            ("192.0.2.77", 32, "192.0.2.77"),
            ("192.0.2.77", 0, "0.0.0.0"),
            ("2001:db8::1:2", 64, "2001:db8::"),
            ("2001:db8::1:2", 127, "2001:db8::1:2"),
            ("2001:db8::1:2", 0, "::"),
        ] {
            let network = address.parse().map(|address| network_of((address, length)).0);
            assert_eq!(network, expect.parse(), "{address}/{length}");
        }
    }

    #[test]
    fn classless_routes_replace_gateways() {
        let mut lease = DhcpV4Lease::default();
        (lease.yiaddr, lease.subnet_mask) = (Ipv4Addr::new(192, 0, 2, 77), Ipv4Addr::new(255, 255, 255, 192));
        let gateway = Ipv4Addr::new(192, 0, 2, 65);
        lease.gateways = Some(vec![gateway, Ipv4Addr::new(192, 0, 2, 66)]);
        let subnet = Route { destination: (IpAddr::from([192, 0, 2, 64]), 26), gateway: None };
        let routed = Lease::of_dhcp4(&lease);
        assert_eq!(routed.routes, [subnet.clone(), Route::default(gateway.into())]);
        assert_eq!((routed.gateway(), routed.address()), (Some(gateway.into()), "192.0.2.77/26".to_owned()));
        lease.classless_routes = Some(Vec::new());
        assert_eq!(Lease::of_dhcp4(&lease).routes, [subnet]);
    }
}
