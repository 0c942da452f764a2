//! Gets IPv6 addresses by DHCPv6 (RFC 8415). Routes and prefixes come only from router advertisements.

use std::net::{IpAddr, Ipv6Addr};

use anyhow::{Context, Result, anyhow};
use futures_util::TryStreamExt;
use mozim::{DhcpV6Client, DhcpV6Config, DhcpV6Lease, DhcpV6Mode, DhcpV6State};
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, CacheInfo};
use tokio::time::sleep;
use tracing::{info, warn};

use super::{LOOK, Network, PAUSE, Way};

/// Code of the option with name servers (RFC 3646, section 3).
const NAME_SERVERS: u16 = 23;

impl Network {
    /// Gets a lease and renews it. Starts over whenever one of these fails.
    pub(super) async fn keep_dhcp6(&self, way: &Way, mac: &[u8]) {
        loop {
            if let Err(error) = self.lease_dhcp6(way, mac).await {
                warn!("{}: {error:#}; trying again in {} s", way.interface, PAUSE.as_secs());
            }
            sleep(PAUSE).await;
        }
    }

    async fn lease_dhcp6(&self, way: &Way, mac: &[u8]) -> Result<()> {
        let mut config = DhcpV6Config::new(&way.interface, DhcpV6Mode::NonTemporaryAddresses);
        config.set_iface_index(way.index);
        config.set_link_local_ip(self.link_local(way).await?);
        config.set_duid_by_iface_mac(mac);
        let mut dhcp = DhcpV6Client::init(config, None).await.map_err(|e| anyhow!("starting DHCPv6: {}", e.msg()))?;
        info!("{}: asking for an address with DHCPv6, because the router says so", way.interface);
        let mut held: Option<Ipv6Addr> = None;
        loop {
            let state = dhcp.run().await.map_err(|e| anyhow!("DHCPv6: {}", e.msg()))?;
            let DhcpV6State::Done(lease) = state else { continue };
            self.advertised.set_leased(way.index, name_servers(&lease));
            let mut add = self.netlink.address().add(way.index, IpAddr::V6(lease.address), 128);
            let mut ends = CacheInfo::default();
            (ends.ifa_preferred, ends.ifa_valid) = (lease.preferred_time_sec, lease.valid_time_sec);
            add.message_mut().attributes.push(AddressAttribute::CacheInfo(ends));
            add.replace().execute().await.with_context(|| format!("setting address {}", lease.address))?;
            let before = held.replace(lease.address).filter(|before| *before != lease.address);
            if let Some(before) = before {
                self.drop_address(way.index, IpAddr::V6(before)).await;
            }
        }
    }

    /// Waits until the kernel knows that no other host has the link-local address, and returns that address to send
    /// from.
    async fn link_local(&self, way: &Way) -> Result<Ipv6Addr> {
        loop {
            let mut addresses = self.netlink.address().get().set_link_index_filter(way.index).execute();
            while let Some(address) = addresses.try_next().await.context("reading the addresses")? {
                if let Some(address) = usable_link_local(&address) {
                    return Ok(address);
                }
            }
            sleep(LOOK).await;
        }
    }
}

fn usable_link_local(message: &AddressMessage) -> Option<Ipv6Addr> {
    let not_yet = AddressFlags::Tentative | AddressFlags::Dadfailed;
    let is_in_use =
        |attribute: &AddressAttribute| matches!(attribute, AddressAttribute::Flags(flags) if flags.intersects(not_yet));
    if message.attributes.iter().any(is_in_use) {
        return None;
    }
    message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(IpAddr::V6(address)) if address.is_unicast_link_local() => Some(*address),
        _ => None,
    })
}

/// Reads the name servers of a lease. mozim returns the option with its code and length, contrary to its documentation.
fn name_servers(lease: &DhcpV6Lease) -> Vec<Ipv6Addr> {
    let options = lease.get_option_raw(NAME_SERVERS).unwrap_or_default();
    let address = |bytes: &[u8]| <[u8; 16]>::try_from(bytes).ok().map(Ipv6Addr::from);
    options.iter().flat_map(|option| option.get(4..).unwrap_or_default().chunks(16).filter_map(address)).collect()
}
