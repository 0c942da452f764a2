//! Addresses and routes of the interfaces.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, Result};
use futures_util::TryStreamExt;
use mozim::DhcpV4Lease;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags};
use rtnetlink::packet_route::route::{RouteAttribute, RouteScope};
use rtnetlink::{LinkUnspec, RouteMessageBuilder};
use tracing::warn;

use super::lease::{prefix, routes, subnet};
use super::{METRIC_OTHERS, Network};

impl Network {
    /// Sets the lease's address and its routes, with low preference, on the interface.
    pub(super) async fn apply(&self, index: u32, lease: &DhcpV4Lease) -> Result<()> {
        let mut add = self.netlink.address().add(index, IpAddr::V4(lease.yiaddr), prefix(lease.subnet_mask));
        // The kernel's own subnet route has the same preference on every interface, and two networks may use the same
        // addresses.
        let flags = AddressAttribute::Flags(AddressFlags::Noprefixroute);
        add.message_mut().attributes.push(flags);
        let added = add.replace().execute().await;
        added.with_context(|| format!("setting address {}", lease.yiaddr))?;
        if let Some(mtu) = lease.mtu.filter(|mtu| *mtu >= 576) {
            let set = self.netlink.link().set(LinkUnspec::new_with_index(index).mtu(mtu.into()).build()).execute();
            if let Err(error) = set.await {
                warn!("setting the MTU to {mtu} from DHCP: {error}; it is not changed");
            }
        }
        self.route(index, lease, METRIC_OTHERS + index).await
    }

    /// Removes an address from the interface. Another machine may have been given it.
    pub(super) async fn drop_address(&self, index: u32, address: Ipv4Addr) {
        let addresses = self.netlink.address();
        let of_lease = addresses.get().set_link_index_filter(index).set_address_filter(IpAddr::V4(address));
        let mut found = of_lease.execute();
        while let Ok(Some(address)) = found.try_next().await {
            // It may be gone with its link.
            let _ = self.netlink.address().del(address).execute().await;
        }
    }

    /// Adds the route to the lease's subnet and its further routes with this metric. If a further route cannot be set,
    /// that is only a warning: the server may be reachable without it.
    pub(super) async fn route(&self, index: u32, lease: &DhcpV4Lease, metric: u32) -> Result<()> {
        let (network, length) = subnet(lease);
        let to_subnet = self.add_route(index, (network, length, Ipv4Addr::UNSPECIFIED), metric).await;
        to_subnet.with_context(|| format!("setting the route to {network}/{length}"))?;
        for (destination, length, gateway) in routes(lease) {
            if let Err(error) = self.add_route(index, (destination, length, gateway), metric).await {
                warn!("setting the route to {destination}/{length} via {gateway}: {error}");
            }
        }
        Ok(())
    }

    async fn add_route(
        &self,
        index: u32,
        (destination, length, gateway): (Ipv4Addr, u8, Ipv4Addr),
        metric: u32,
    ) -> Result<(), rtnetlink::Error> {
        let route = RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(destination, length)
            .output_interface(index)
            .priority(metric);
        // A destination without a gateway is on the link. Gateways are looked up there too.
        let route = if gateway.is_unspecified() { route.scope(RouteScope::Link) } else { route.gateway(gateway) };
        self.netlink.route().add(route.build()).replace().execute().await
    }

    /// Removes the routes with this metric from an interface.
    pub(super) async fn unroute(&self, index: u32, metric: u32) {
        let mut routes = self.netlink.route().get(RouteMessageBuilder::<Ipv4Addr>::new().build()).execute();
        while let Ok(Some(route)) = routes.try_next().await {
            let of_interface = route.attributes.contains(&RouteAttribute::Oif(index));
            let of_metric = route.attributes.contains(&RouteAttribute::Priority(metric));
            if of_interface && of_metric {
                // It may be gone with its link.
                let _ = self.netlink.route().del(route).execute().await;
            }
        }
    }
}
