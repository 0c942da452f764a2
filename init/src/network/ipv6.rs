//! Follows IPv6 addresses. The kernel makes them from router advertisements (RFC 4862), which may also ask for DHCPv6.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use futures_util::TryStreamExt;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use rtnetlink::packet_route::link::{AfSpecInet6, AfSpecUnspec, Inet6IfaceFlags, LinkAttribute, LinkMessage};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::info;

use super::lease::{Lease, Route};
use super::plan::Setup;
use super::routes::is_of;
use super::{LOOK, Network, PAUSE, Way};

impl Network {
    /// Follows the addresses and routes that the kernel learns. Returns only on an error.
    pub(super) async fn keep_ipv6(self: &Arc<Self>, way: &Way, mac: &[u8], setup: &Setup) -> Result<()> {
        super::rdnss::solicit(way.index);
        // The tasks in both sets are aborted when this function ends.
        let (mut asking, mut reaching) = (JoinSet::new(), JoinSet::new());
        let mut held: Option<Lease> = None;
        loop {
            let link = self.connected(&way.interface).await?;
            if is_managed(&link) && asking.is_empty() {
                let (network, at, mac) = (Arc::clone(self), way.clone(), mac.to_vec());
                asking.spawn(async move { network.keep_dhcp6(&at, &mac).await });
            }
            match self.learned(way).await?.map(|lease| setup.with_names(lease)) {
                Some(lease) if held.as_ref() != Some(&lease) => {
                    let is_new = held.as_ref().is_none_or(|held| held.addresses != lease.addresses);
                    if is_new {
                        info!("{}: {} by IPv6", way.interface, lease.address());
                    }
                    held = Some(lease.clone());
                    self.update(way, &lease).await?;
                    let (network, at) = (Arc::clone(self), way.clone());
                    reaching.abort_all();
                    reaching.spawn(async move { network.reach_server(&at, &lease).await });
                }
                None if held.is_some() => bail!("its IPv6 addresses have expired"),
                _ => {}
            }
            // The first address may come soon; later changes take hours.
            sleep(if held.is_some() { PAUSE } else { LOOK }).await;
        }
    }

    /// Returns the interface's addresses and routes. `None` if it has no address that reaches beyond the link.
    async fn learned(&self, way: &Way) -> Result<Option<Lease>> {
        let mut lease = Lease::default();
        let mut addresses = self.netlink.address().get().set_link_index_filter(way.index).execute();
        while let Some(address) = addresses.try_next().await.context("reading the addresses")? {
            lease.addresses.extend(usable(&address));
        }
        if lease.addresses.is_empty() {
            return Ok(None);
        }
        let all = RouteMessageBuilder::<std::net::Ipv6Addr>::new().build();
        let mut routes = self.netlink.route().get(all).execute();
        while let Some(route) = routes.try_next().await.context("reading the routes")? {
            if is_of(&route, way.index) {
                lease.routes.extend(advertised(&route));
            }
        }
        lease.name_servers = self.advertised.of(way.index).into_iter().map(|server| zoned(server, way)).collect();
        Ok(Some(lease))
    }
}

/// Adds the interface to a link-local address, which is ambiguous without it (RFC 4007, section 11).
fn zoned(server: std::net::Ipv6Addr, way: &Way) -> String {
    if server.is_unicast_link_local() { format!("{server}%{}", way.interface) } else { server.to_string() }
}

/// Returns the address if no other host has it and it reaches beyond the link.
fn usable(message: &AddressMessage) -> Option<(IpAddr, u8)> {
    let not_yet = AddressFlags::Tentative | AddressFlags::Dadfailed | AddressFlags::Deprecated;
    let is_usable = message.attributes.iter().all(|attribute| match attribute {
        AddressAttribute::Flags(flags) => !flags.intersects(not_yet),
        _ => true,
    });
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(address @ IpAddr::V6(_)) => Some(*address),
        _ => None,
    })?;
    let is_of_link = matches!(message.header.scope, AddressScope::Link | AddressScope::Host);
    (is_usable && !is_of_link).then_some((address, message.header.prefix_len))
}

/// Returns the route if it is from a router advertisement, or if the kernel made it for an advertised address.
fn advertised(message: &RouteMessage) -> Option<Route> {
    if !matches!(message.header.protocol, RouteProtocol::Ra | RouteProtocol::Kernel) || message.header.table != MAIN {
        return None;
    }
    let mut route =
        Route { destination: (IpAddr::from([0; 16]), message.header.destination_prefix_length), gateway: None };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet6(address)) => route.destination.0 = IpAddr::V6(*address),
            RouteAttribute::Gateway(RouteAddress::Inet6(address)) => route.gateway = Some(IpAddr::V6(*address)),
            _ => {}
        }
    }
    let is_of_link =
        matches!(route.destination.0, IpAddr::V6(address) if address.is_unicast_link_local() || address.is_multicast());
    (!is_of_link).then_some(route)
}

/// The main routing table (include/uapi/linux/rtnetlink.h, RT_TABLE_MAIN).
const MAIN: u8 = 254;

/// Whether router advertisements ask for DHCPv6 addresses (RFC 4861, section 4.2, flag M).
fn is_managed(link: &LinkMessage) -> bool {
    let of_link = link.attributes.iter().filter_map(|attribute| match attribute {
        LinkAttribute::AfSpecUnspec(of_families) => Some(of_families),
        _ => None,
    });
    let of_ipv6 = of_link.flatten().filter_map(|of_family| match of_family {
        AfSpecUnspec::Inet6(attributes) => Some(attributes),
        _ => None,
    });
    of_ipv6
        .flatten()
        .any(|attribute| matches!(attribute, AfSpecInet6::Flags(flags) if flags.contains(Inet6IfaceFlags::RaManaged)))
}
