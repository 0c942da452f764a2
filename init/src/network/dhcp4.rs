//! Gets IPv4 addresses by DHCP (RFC 2131).

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use mozim::{DhcpV4Client, DhcpV4Config, DhcpV4State};
use rtnetlink::LinkUnspec;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::lease::Lease;
use super::plan::Setup;
use super::{Network, Way};

impl Network {
    /// Gets a lease and renews it. Returns only on an error.
    pub(super) async fn keep_dhcp4(self: &Arc<Self>, way: &Way, mac: &[u8], setup: &Setup) -> Result<()> {
        let name = &way.interface;
        let mut config = DhcpV4Config::new(name);
        config.set_iface_index(way.index);
        config.set_iface_mac_raw(mac).map_err(|e| anyhow!("{}", e.msg()))?;
        config.use_mac_as_client_id();
        if let Some(hostname) = &self.hostname {
            config.set_host_name(hostname);
        }
        let mut dhcp = DhcpV4Client::init(config, None).await.map_err(|e| anyhow!("starting DHCP: {}", e.msg()))?;
        info!("{name}: link is up, asking for an address with DHCP");
        let mut held: Option<Ipv4Addr> = None;
        // This task is aborted when the lease or this function ends.
        let mut reaching = JoinSet::new();
        loop {
            let state = dhcp.run().await.map_err(|e| anyhow!("DHCP: {}", e.msg()))?;
            let DhcpV4State::Done(leased) = state else { continue };
            let lease = setup.with_names(Lease::of_dhcp4(&leased));
            self.apply(way.index, &lease).await?;
            if let Some(mtu) = leased.mtu.filter(|mtu| *mtu >= 576 && setup.mtu.is_none()) {
                let set = LinkUnspec::new_with_index(way.index).mtu(mtu.into()).build();
                if let Err(error) = self.netlink.link().set(set).execute().await {
                    warn!("setting the MTU to {mtu} from DHCP: {error}; the MTU stays unchanged");
                }
            }
            let before = held.replace(leased.yiaddr);
            if before != Some(leased.yiaddr) {
                if let Some(before) = before {
                    self.drop_address(way.index, before.into()).await;
                }
                info!("{name}: {} from {}", lease.address(), leased.srv_id);
                let (network, way) = (Arc::clone(self), way.clone());
                reaching.abort_all();
                reaching.spawn(async move { network.reach_server(&way, &lease).await });
            }
        }
    }
}
