//! `slipway network`: DHCP on every interface at once; the first that reaches the server wins.
//!
//! Each interface of a device, present or plugged in later, has its own task. The task brings the link up,
//! takes a lease and renews it as long as the task lives, sets the address and a default route of low preference, and
//! connects to the server through this interface only. The first interface with a TLS handshake that the CA of the boot
//! medium vouches for gets the preferred route and the name servers: anybody can accept a connection. It is written to [`slipway_installer::link::PATH`], which the installer waits for.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use futures_util::TryStreamExt;
use mozim::{DhcpV4Client, DhcpV4Config, DhcpV4Lease, DhcpV4State};
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags};
use rtnetlink::packet_route::route::{RouteAttribute, RouteScope};
use rtnetlink::{Handle, LinkUnspec, RouteMessageBuilder};
use rustix::net::sockopt;
use slipway_installer::link::{self, Link};
use slipway_installer::reach;
use slipway_installer::told::Told;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::confine::RESOLV_CONF;

/// How often to look for new interfaces and cables.
const LOOK: Duration = Duration::from_millis(200);
/// Timeout of one connection attempt to the server, and of the TLS handshake after it.
const CONNECT: Duration = Duration::from_secs(3);
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

/// Host and port of the server's URL, and how it is recognised.
struct Server {
    host: String,
    port: u16,
    verified: reach::Server,
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
    let server = Server { host: host.to_owned(), port, verified: reach::Server::new(host, ca)? };
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
            let leased_at = link::uptime();
            let before = held.replace(lease.yiaddr);
            if before != Some(lease.yiaddr) {
                if let Some(before) = before {
                    self.drop_address(index, before).await;
                }
                info!("{name}: {}/{} from {}", lease.yiaddr, prefix(lease.subnet_mask), lease.srv_id);
                let network = Arc::clone(self);
                let name = name.to_owned();
                reaching.abort_all();
                reaching.spawn(async move { network.reach_server(&name, index, &lease, leased_at).await });
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

    /// Sets the lease's address and its routes, with low preference, on the interface.
    async fn apply(&self, index: u32, lease: &DhcpV4Lease) -> Result<()> {
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
    async fn drop_address(&self, index: u32, address: Ipv4Addr) {
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
    async fn route(&self, index: u32, lease: &DhcpV4Lease, metric: u32) -> Result<()> {
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

    /// Tries to reach the server through this interface while there is no winner.
    async fn reach_server(&self, name: &str, index: u32, lease: &DhcpV4Lease, leased_at: u64) {
        let mut winner = self.winner.subscribe();
        let mut told = Told::default();
        // The sender lives in self, so waiting cannot fail.
        while winner.wait_for(Option::is_none).await.is_ok() {
            if let Err(error) = self.try_server(name, index, lease, leased_at).await {
                let sentence = format!("{name}: {error:#}");
                if self.winner.borrow().is_none() && told.is_due(&sentence, Instant::now()) {
                    warn!("{sentence}");
                }
                sleep(PAUSE).await;
            }
        }
    }

    async fn try_server(&self, name: &str, index: u32, lease: &DhcpV4Lease, leased_at: u64) -> Result<()> {
        let addresses = self.look_up(index, lease).await?;
        let address = self.server.connect_any(name, &addresses).await.with_context(|| {
            format!("reaching the server at https://{}:{} through {name}", self.server.host, self.server.port)
        })?;
        let _turn = self.turn.lock().await;
        if self.winner.borrow().is_some() {
            return Ok(());
        }
        self.route(index, lease, METRIC_WINNER).await?;
        write_resolv_conf(lease)?;
        let link = Link {
            interface: name.to_owned(),
            leased_at,
            address: format!("{}/{}", lease.yiaddr, prefix(lease.subnet_mask)),
            gateway: lease.gateways.iter().flatten().next().map(ToString::to_string),
            name_servers: lease.dns_srvs.iter().flatten().map(ToString::to_string).collect(),
        };
        link::announce(&link).context("announcing the network")?;
        info!("{name}: reached the server at {address}");
        self.winner.send_replace(Some(name.to_owned()));
        Ok(())
    }

    async fn look_up(&self, index: u32, lease: &DhcpV4Lease) -> Result<Vec<SocketAddr>> {
        if let Ok(address) = self.server.host.trim_matches(['[', ']']).parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, self.server.port)]);
        }
        let _turn = self.turn.lock().await;
        let nobody_won = self.winner.borrow().is_none();
        if nobody_won {
            self.route(index, lease, METRIC_WINNER).await?;
            write_resolv_conf(lease)?;
        }
        let found = tokio::net::lookup_host((self.server.host.as_str(), self.server.port)).await;
        if nobody_won {
            self.unroute(index, METRIC_WINNER).await;
        }
        let servers: Vec<_> = lease.dns_srvs.iter().flatten().map(ToString::to_string).collect();
        let asked = if servers.is_empty() {
            "without a name server, as DHCP gave none".to_owned()
        } else {
            format!("at {}", servers.join(", "))
        };
        let found = found.with_context(|| format!("looking up the server's name {} {asked}", self.server.host))?;
        Ok(found.collect())
    }

    /// Removes the routes with this metric from an interface.
    async fn unroute(&self, index: u32, metric: u32) {
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

impl Server {
    /// Connects to the first address at which the server answers, only through this interface.
    async fn connect_any(&self, interface: &str, addresses: &[SocketAddr]) -> Result<SocketAddr> {
        let mut last = anyhow!("its name has no address");
        for address in addresses {
            let socket = match address {
                SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4(),
                SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6(),
            }?;
            socket.bind_device(Some(interface.as_bytes()))?;
            sockopt::set_tcp_nodelay(&socket, true)?;
            match tokio::time::timeout(CONNECT, socket.connect(*address)).await {
                Ok(Ok(stream)) => match self.verified.verify(stream, CONNECT).await {
                    Ok(()) => return Ok(*address),
                    Err(stranger) => last = stranger.into(),
                },
                Ok(Err(error)) => last = error.into(),
                Err(_) => last = anyhow!("no answer from {address} in {} s", CONNECT.as_secs()),
            }
        }
        Err(last)
    }
}

/// Network address and prefix length of a lease's subnet.
fn subnet(lease: &DhcpV4Lease) -> (Ipv4Addr, u8) {
    (lease.yiaddr & lease.subnet_mask, prefix(lease.subnet_mask))
}

/// Destination, prefix length and gateway of each route of a lease except the one to its subnet. Classless routes
/// replace the gateways (RFC 3442).
fn routes(lease: &DhcpV4Lease) -> Vec<(Ipv4Addr, u8, Ipv4Addr)> {
    match &lease.classless_routes {
        Some(routes) => routes.iter().map(|r| (r.destination, r.prefix_length, r.router)).collect(),
        None => lease.gateways.iter().flatten().take(1).map(|g| (Ipv4Addr::UNSPECIFIED, 0, *g)).collect(),
    }
}

fn prefix(mask: Ipv4Addr) -> u8 {
    // 32 at most, so the conversion cannot fail.
    u8::try_from(u32::from(mask).leading_ones()).unwrap_or(32)
}

fn write_resolv_conf(lease: &DhcpV4Lease) -> Result<()> {
    let mut text = String::new();
    // The domain comes from the network, so it is checked before it is written to the file.
    if let Some(domain) = lease.domain_name.as_deref().filter(|d| is_domain(d)) {
        text.push_str(&format!("search {domain}\n"));
    }
    for server in lease.dns_srvs.iter().flatten().take(3) {
        text.push_str(&format!("nameserver {server}\n"));
    }
    // The resolver's default is five seconds a try.
    text.push_str("options timeout:2 attempts:2\n");
    std::fs::write(RESOLV_CONF, text).with_context(|| format!("writing {RESOLV_CONF}"))
}

fn is_domain(text: &str) -> bool {
    !text.is_empty() && text.len() <= 253 && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'))
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
    fn only_domains_reach_resolv_conf() {
        assert!(is_domain("rack1.example.net"));
        assert!(!is_domain("x\nnameserver 192.0.2.66"));
        assert!(!is_domain(""));
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
