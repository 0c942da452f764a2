//! `slipway network`: DHCP on every interface at once; the first that reaches the server wins.
//!
//! Each interface of a device, present or plugged in later, has its own task. The task brings the link up,
//! takes a lease and renews it as long as the task lives, sets the address and a default route of low preference, and
//! connects to the server through this interface only. The first interface with a TLS handshake that the CA of the boot
//! medium vouches for gets the preferred route and the name servers: anybody can accept a connection. It is written to [`slipway_installer::link::PATH`], which the installer waits for.

mod lease;
mod reach;
mod resolv_conf;
mod routes;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use futures_util::TryStreamExt;
use mozim::{DhcpV4Client, DhcpV4Config, DhcpV4State};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags};
use rtnetlink::{Handle, LinkUnspec};
use slipway_installer::link;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{info, warn};

use self::lease::prefix;
use self::reach::Server;

/// How often to look for new interfaces and cables.
const LOOK: Duration = Duration::from_millis(200);
/// Wait after a failed lease or connection.
const PAUSE: Duration = Duration::from_secs(2);
/// Route metric of the interface that won, and of the others (plus the interface's index).
const METRIC_WINNER: u32 = 10;
const METRIC_OTHERS: u32 = 1000;

/// State shared by the tasks.
struct Network {
    netlink: Handle,
    server: Server,
    /// Held during name lookups, because name servers and the route to them belong to the whole machine, and while the
    /// winner is decided.
    turn: Mutex<()>,
    /// The interface that reached the server first, for as long as it has its lease.
    winner: watch::Sender<Option<String>>,
}

/// What only root may do.
pub fn prepare() {
    // An interface without a cable must not attract packets.
    if let Err(error) = std::fs::write("/proc/sys/net/ipv4/conf/all/ignore_routes_with_linkdown", "1\n") {
        warn!("disabling routes of interfaces without a link: {error}");
    }
}

/// Runs until it is killed.
pub async fn run(host: &str, port: u16, ca: &str) -> Result<()> {
    let (connection, netlink, _) = rtnetlink::new_connection().context("opening a netlink socket")?;
    tokio::spawn(connection);
    let server = Server { host: host.to_owned(), port, verified: slipway_installer::reach::Server::new(host, ca)? };
    let network = Arc::new(Network { netlink, server, turn: Mutex::new(()), winner: watch::Sender::new(None) });
    network.set_up("lo").await.context("bringing up lo")?;
    let mut known = BTreeSet::new();
    loop {
        for name in interfaces() {
            if known.insert(name.clone()) {
                tokio::spawn(serve_interface(Arc::clone(&network), name));
            }
        }
        sleep(LOOK).await;
    }
}

/// Interfaces of devices. Bridges, tunnels and lo have no device.
fn interfaces() -> Vec<String> {
    let entries = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    entries.filter(|e| e.path().join("device").exists()).filter_map(|e| e.file_name().into_string().ok()).collect()
}

async fn serve_interface(network: Arc<Network>, name: String) {
    loop {
        if let Err(error) = network.keep_lease(&name).await {
            warn!("{name}: {error:#}; trying again in {} s", PAUSE.as_secs());
            network.give_up(&name).await;
        }
        sleep(PAUSE).await;
    }
}

impl Network {
    async fn set_up(&self, name: &str) -> Result<()> {
        self.netlink.link().set(LinkUnspec::new_with_name(name).up().build()).execute().await?;
        Ok(())
    }

    /// Takes a lease and renews it. Returns only with an error.
    async fn keep_lease(self: &Arc<Self>, name: &str) -> Result<()> {
        self.set_up(name).await.with_context(|| format!("bringing up {name}"))?;
        let (index, mac) = self.wait_for_carrier(name).await?;
        let mut config = DhcpV4Config::new(name);
        config.set_iface_index(index);
        config.set_iface_mac_raw(&mac).map_err(|e| anyhow!("{}", e.msg()))?;
        config.use_mac_as_client_id();
        let mut dhcp = DhcpV4Client::init(config, None).await.map_err(|e| anyhow!("starting DHCP: {}", e.msg()))?;
        info!("{name}: link is up, asking for an address with DHCP");
        let mut held: Option<Ipv4Addr> = None;
        // Aborted when the lease or this function ends.
        let mut reaching = JoinSet::new();
        loop {
            let state = dhcp.run().await.map_err(|e| anyhow!("DHCP: {}", e.msg()))?;
            let DhcpV4State::Done(lease) = state else { continue };
            self.apply(index, &lease).await?;
            let before = held.replace(lease.yiaddr);
            if before != Some(lease.yiaddr) {
                if let Some(before) = before {
                    self.drop_address(index, before).await;
                }
                info!("{name}: {}/{} from {}", lease.yiaddr, prefix(lease.subnet_mask), lease.srv_id);
                let network = Arc::clone(self);
                let name = name.to_owned();
                reaching.abort_all();
                reaching.spawn(async move { network.reach_server(&name, index, &lease).await });
            }
        }
    }

    async fn wait_for_carrier(&self, name: &str) -> Result<(u32, Vec<u8>)> {
        let mut said = false;
        loop {
            let mut links = self.netlink.link().get().match_name(name.to_owned()).execute();
            let link = links.try_next().await.with_context(|| format!("reading the state of {name}"))?;
            let link = link.with_context(|| format!("{name} is gone"))?;
            let mac = link.attributes.iter().find_map(|a| match a {
                LinkAttribute::Address(mac) => Some(mac.clone()),
                _ => None,
            });
            if link.header.flags.contains(LinkFlags::LowerUp)
                && let Some(mac) = mac
            {
                return Ok((link.header.index, mac));
            }
            if !std::mem::replace(&mut said, true) {
                info!("{name}: waiting for a cable");
            }
            sleep(LOOK).await;
        }
    }

    /// Lets another interface win after this one lost its lease.
    async fn give_up(&self, name: &str) {
        let _turn = self.turn.lock().await;
        // If the interface is gone, so are its routes.
        let index = std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex"));
        if let Ok(index) = index.unwrap_or_default().trim().parse() {
            self.unroute(index, METRIC_WINNER).await;
        }
        if self.winner.borrow().as_deref() == Some(name) {
            self.winner.send_replace(None);
            if let Err(error) = link::withdraw() {
                warn!("withdrawing the network: {error}");
            }
        }
    }
}
