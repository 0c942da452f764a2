//! How each hardware interface is set up, from the medium's settings or by default.

use std::net::IpAddr;

use slipway_protocol::shared::identity::normalise_mac;
use slipway_protocol::shared::network::prefixed;
use slipway_protocol::{Interface, Network};

use super::lease::{Lease, Route};

/// How an interface gets its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Setup {
    /// VLAN id. `None` for the hardware interface itself.
    pub(super) vlan: Option<u16>,
    /// MTU of the hardware interface, and of its VLAN, in bytes. `None` leaves the MTU unchanged.
    pub(super) hardware_mtu: Option<u32>,
    pub(super) mtu: Option<u32>,
    pub(super) dhcp4: bool,
    /// Whether to use router advertisements, and DHCPv6 if they ask for it.
    pub(super) ipv6: bool,
    /// Lease with the addresses in the settings. Its name servers and domains are also used with addresses from
    /// elsewhere.
    pub(super) given: Lease,
}

/// Returns how to set up the hardware interface with this MAC address and its VLANs. Empty if the settings name
/// neither.
pub(super) fn setups(network: Option<&Network>, mac: &str) -> Vec<Setup> {
    let Some(network) = network else { return vec![Setup { dhcp4: true, ipv6: true, ..Setup::default() }] };
    let mac = normalise_mac(mac);
    let hardware = || network.interfaces.iter().filter(|interface| interface.vlan.is_none());
    let own = |interface: &&Interface| {
        let of_settings = interface.mac.as_deref().and_then(normalise_mac);
        of_settings.is_some() && of_settings == mac
    };
    let Some(hardware) = hardware().find(own).or_else(|| hardware().find(|interface| interface.mac.is_none())) else {
        return Vec::new();
    };
    let on_it = |interface: &&Interface| interface.vlan.as_ref().is_some_and(|vlan| vlan.of == hardware.name);
    let all = std::iter::once(hardware).chain(network.interfaces.iter().filter(on_it));
    let addressed = all.filter(|interface| interface.is_addressed());
    addressed.map(|interface| setup(network, hardware, interface)).collect()
}

fn setup(network: &Network, hardware: &Interface, interface: &Interface) -> Setup {
    // The settings were checked before, so no address is lost here.
    let addresses: Vec<(IpAddr, u8)> = interface.addresses.iter().filter_map(|text| address(text)).collect();
    let gateways = interface.gateways.iter().filter_map(|text| text.parse().ok());
    let to_subnets = addresses.iter().copied().map(Route::to_subnet);
    let routes = to_subnets.chain(gateways.map(Route::default)).collect();
    let (name_servers, search) = (network.nameservers.clone(), network.search.clone());
    Setup {
        vlan: interface.vlan.as_ref().and_then(|vlan| u16::try_from(vlan.id).ok()),
        hardware_mtu: hardware.mtu,
        mtu: interface.mtu,
        dhcp4: interface.dhcp4,
        ipv6: interface.dhcp6,
        given: Lease { addresses, routes, name_servers, search },
    }
}

fn address(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = prefixed(text)?;
    Some((address, u8::try_from(length).ok()?))
}

impl Setup {
    /// Returns the lease with the name servers and domains of the settings before its own.
    pub(super) fn with_names(&self, mut lease: Lease) -> Lease {
        lease.name_servers.splice(0..0, self.given.name_servers.iter().cloned());
        lease.search.splice(0..0, self.given.search.iter().cloned());
        lease
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: &str = "52:54:00:00:00:01";

    fn network(json: serde_json::Value) -> Option<Network> {
        serde_json::from_value(json).ok()
    }

    #[test]
    fn without_settings_every_interface_asks_for_addresses() {
        assert_eq!(setups(None, MAC), [Setup { dhcp4: true, ipv6: true, ..Setup::default() }]);
    }

    #[test]
    fn an_interface_without_mac_stands_for_those_that_are_not_named() {
        let network = network(serde_json::json!({"interfaces": [
            {"name": "any", "mtu": 9000},
            {"name": "v", "vlan": {"of": "any", "id": 120}, "dhcp4": true, "mtu": 1400},
            {"name": "lan", "mac": "52-54-00-00-00-01", "dhcp6": true},
            {"name": "w", "vlan": {"of": "lan", "id": 7}, "dhcp4": true},
        ]}));
        let of = |mac: &str| setups(network.as_ref(), mac);
        let vlan =
            Setup { vlan: Some(120), hardware_mtu: Some(9000), mtu: Some(1400), dhcp4: true, ..Setup::default() };
        assert_eq!(of("52:54:00:00:00:02"), [vlan]);
        let lan = Setup { ipv6: true, ..Setup::default() };
        assert_eq!(of(MAC), [lan, Setup { vlan: Some(7), dhcp4: true, ..Setup::default() }]);
    }

    #[test]
    fn addresses_have_a_route_to_their_network_and_one_to_the_gateway() {
        let network = network(serde_json::json!({
            "interfaces": [{"name": "lan", "mac": MAC, "addresses": ["192.0.2.5/24", "2001:db8::5/64"],
                "gateways": ["192.0.2.1", "fe80::1"]}],
            "nameservers": ["192.0.2.53"], "search": ["example"],
        }));
        assert_eq!(setups(network.as_ref(), "52:54:00:00:00:02"), []);
        let found = setups(network.as_ref(), MAC);
        let given = found.first().map(|setup| setup.given.clone()).unwrap_or_default();
        let routes: Vec<String> =
            given.routes.iter().map(|route| format!("{:?}", (route.destination, route.gateway))).collect();
        assert_eq!(
            routes,
            [
                "((192.0.2.0, 24), None)",
                "((2001:db8::, 64), None)",
                "((0.0.0.0, 0), Some(192.0.2.1))",
                "((::, 0), Some(fe80::1))"
            ]
        );
        assert_eq!((given.address(), given.name_servers), ("192.0.2.5/24".to_owned(), vec!["192.0.2.53".to_owned()]));
        let leased = Lease { name_servers: vec!["192.0.2.9".to_owned()], ..Lease::default() };
        let names = found.first().map(|setup| setup.with_names(leased).name_servers);
        assert_eq!(names, Some(vec!["192.0.2.53".to_owned(), "192.0.2.9".to_owned()]));
    }
}
