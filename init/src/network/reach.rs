//! Finds the way that reaches the server.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rustix::net::sockopt;
use slipway_installer::server::link::{self, Link};
use slipway_installer::server::reach::Server;
use slipway_installer::server::told::Told;
use slipway_protocol::Failure;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::lease::Lease;
use super::resolv_conf::write_resolv_conf;
use super::{Network, PAUSE, Way};

/// Timeout of one connection attempt to the server, and of the TLS handshake after it.
const CONNECT: Duration = Duration::from_secs(3);

impl Network {
    /// Tries to reach the server in this way as long as there is no winner.
    pub(super) async fn reach_server(&self, way: &Way, lease: &Lease) {
        let leased_at = link::uptime();
        let mut winner = self.winner.subscribe();
        let mut told = Told::default();
        // Waiting fails only without a sender, which `self` holds.
        while winner.wait_for(Option::is_none).await.is_ok() {
            if let Err(error) = self.try_server(way, lease, leased_at).await {
                let sentence = format!("{}: {}", way.interface, Failure::of(&*error).in_one_line());
                if self.winner.borrow().is_none() && told.is_due(&sentence, Instant::now()) {
                    warn!("{sentence}");
                }
            }
            sleep(PAUSE).await;
        }
    }

    async fn try_server(&self, way: &Way, lease: &Lease, leased_at: u64) -> Result<()> {
        let server = self.servers.of(way, lease).await?.server;
        // The proxy or server address has the other IP version, so only another way can reach it.
        if first_hop_address(&server).is_some_and(|address| !lease.speaks_to(address)) {
            return Ok(());
        }
        let mut addresses = self.look_up(&server, way, lease).await?;
        addresses.retain(|address| lease.speaks_to(address.ip()));
        let name = &way.interface;
        let address = self
            .connect_any(&server, name, &addresses)
            .await
            .with_context(|| format!("reaching the server at {server} through {name}"))?;
        let _turn = self.turn.lock().await;
        if self.winner.borrow().is_some() {
            return Ok(());
        }
        self.prefer(way, lease, leased_at).await?;
        info!("{name}: reached the server at {address}");
        self.winner.send_replace(Some(way.clone()));
        Ok(())
    }

    /// Makes this way the winner: the machine uses its routes and name servers.
    async fn prefer(&self, way: &Way, lease: &Lease, leased_at: u64) -> Result<()> {
        self.route(way.index, lease, way.source.metric()).await?;
        write_resolv_conf(lease)?;
        let link = Link {
            interface: way.interface.clone(),
            leased_at,
            address: lease.address(),
            gateway: lease.gateway().map(|gateway| gateway.to_string()),
            name_servers: lease.name_servers.clone(),
            metadata: self.servers.metadata(way.index).await,
        };
        link::announce(&link).context("announcing the network")
    }

    /// Applies a new lease of the winner to the machine.
    pub(super) async fn update(&self, way: &Way, lease: &Lease) -> Result<()> {
        let _turn = self.turn.lock().await;
        if self.winner.borrow().as_ref() != Some(way) {
            return Ok(());
        }
        self.unroute(way.index, way.source.metric()).await;
        self.prefer(way, lease, link::uptime()).await
    }

    async fn look_up(&self, server: &Server, way: &Way, lease: &Lease) -> Result<Vec<SocketAddr>> {
        let (host, port) = server.first_hop();
        if let Some(address) = first_hop_address(server) {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let _turn = self.turn.lock().await;
        let nobody_won = self.winner.borrow().is_none();
        if nobody_won {
            self.route(way.index, lease, way.source.metric()).await?;
            write_resolv_conf(lease)?;
        }
        let found = tokio::net::lookup_host((host, port)).await;
        if nobody_won {
            self.unroute(way.index, way.source.metric()).await;
        }
        let asked = match lease.name_servers.as_slice() {
            [] => "without a name server (none is known)".to_owned(),
            [one] => format!("with the name server {one}"),
            several => format!("with the name servers {}", several.join(", ")),
        };
        let found = found.with_context(|| format!("looking up {host} {asked}, to reach {server}"))?;
        Ok(found.collect())
    }

    /// Connects, through this interface only, to the first address that answers.
    async fn connect_any(&self, server: &Server, interface: &str, addresses: &[SocketAddr]) -> Result<SocketAddr> {
        let mut last = anyhow!("its name has no address that this interface can reach");
        for address in addresses {
            let socket = match address {
                SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4(),
                SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6(),
            }?;
            socket.bind_device(Some(interface.as_bytes()))?;
            sockopt::set_tcp_nodelay(&socket, true)?;
            match tokio::time::timeout(CONNECT, socket.connect(*address)).await {
                Ok(Ok(stream)) => match server.verify(stream, CONNECT).await {
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

/// Returns the address of the proxy or else the server, if its URL has an address instead of a name.
fn first_hop_address(server: &Server) -> Option<IpAddr> {
    server.first_hop().0.trim_matches(['[', ']']).parse().ok()
}
