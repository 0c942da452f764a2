//! Sets addresses and routes of the interfaces.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result};
use futures_util::TryStreamExt;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags};
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteScope};
use tracing::warn;

use super::lease::{Lease, Route};
use super::{METRIC_OTHERS, Network};

impl Network {
    /// Sets a lease's addresses and routes, with low preference, on the interface.
    pub(super) async fn apply(&self, index: u32, lease: &Lease) -> Result<()> {
        for (address, length) in &lease.addresses {
            let mut add = self.netlink.address().add(index, *address, *length);
            // The kernel sets no subnet routes: they would have the same preference on every interface, and two
            // networks may use the same addresses. It does no duplicate address detection: interfaces of this machine
            // may be on one network and have the same address for a while.
            let flags = AddressFlags::Noprefixroute | AddressFlags::Nodad;
            add.message_mut().attributes.push(AddressAttribute::Flags(flags));
            add.replace().execute().await.with_context(|| format!("setting address {address}"))?;
        }
        self.route(index, lease, METRIC_OTHERS + index).await
    }

    /// Removes an address from the interface, because another machine may get it.
    pub(super) async fn drop_address(&self, index: u32, address: IpAddr) {
        let addresses = self.netlink.address();
        let of_lease = addresses.get().set_link_index_filter(index).set_address_filter(address);
        let mut found = of_lease.execute();
        while let Ok(Some(address)) = found.try_next().await {
            // The address may be gone together with its link.
            let _ = self.netlink.address().del(address).execute().await;
        }
    }

    /// Adds a lease's routes with this metric. If a route with a gateway cannot be set, that is only a warning, because
    /// the server may be reachable without that route.
    pub(super) async fn route(&self, index: u32, lease: &Lease, metric: u32) -> Result<()> {
        for route in &lease.routes {
            let (network, length) = route.destination;
            let added = self.add_route(index, route, metric).await;
            match (added, route.gateway) {
                (Ok(()), _) => {}
                (Err(error), Some(gateway)) => {
                    warn!("setting the route to {network}/{length} via {gateway}: {error}");
                }
                (added, None) => added.with_context(|| format!("setting the route to {network}/{length}"))?,
            }
        }
        Ok(())
    }

    async fn add_route(&self, index: u32, route: &Route, metric: u32) -> Result<(), rtnetlink::Error> {
        let (network, length) = route.destination;
        let message = match (network, route.gateway) {
            (IpAddr::V4(network), gateway) => {
                let message = RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(network, length);
                // The kernel looks for gateways on the link.
                match gateway {
                    Some(IpAddr::V4(gateway)) => message.gateway(gateway),
                    _ => message.scope(RouteScope::Link),
                }
                .output_interface(index)
                .priority(metric)
                .build()
            }
            (IpAddr::V6(network), gateway) => {
                let message = RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(network, length);
                match gateway {
                    Some(IpAddr::V6(gateway)) => message.gateway(gateway),
                    _ => message,
                }
                .output_interface(index)
                .priority(metric)
                .build()
            }
        };
        self.netlink.route().add(message).replace().execute().await
    }

    /// Removes the routes with this metric from an interface.
    pub(super) async fn unroute(&self, index: u32, metric: u32) {
        for all in [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()] {
            let mut routes = self.netlink.route().get(all).execute();
            while let Ok(Some(route)) = routes.try_next().await {
                if is_of(&route, index) && route.attributes.contains(&RouteAttribute::Priority(metric)) {
                    // The route may be gone together with its link.
                    let _ = self.netlink.route().del(route).execute().await;
                }
            }
        }
    }
}

/// Whether a route leads to this interface.
pub(super) fn is_of(route: &RouteMessage, index: u32) -> bool {
    route.attributes.contains(&RouteAttribute::Oif(index))
}
