//! Which interface reaches the server.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use mozim::DhcpV4Lease;
use rustix::net::sockopt;
use slipway_installer::link::{self, Link};
use slipway_installer::reach;
use slipway_installer::told::Told;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::lease::prefix;
use super::resolv_conf::write_resolv_conf;
use super::{METRIC_WINNER, Network, PAUSE};

/// Timeout of one connection attempt to the server, and of the TLS handshake after it.
const CONNECT: Duration = Duration::from_secs(3);

/// Host and port of the server's URL, and how it is recognised.
pub(super) struct Server {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) verified: reach::Server,
}

impl Network {
    /// Tries to reach the server through this interface while there is no winner.
    pub(super) async fn reach_server(&self, name: &str, index: u32, lease: &DhcpV4Lease) {
        let mut winner = self.winner.subscribe();
        let mut told = Told::default();
        // The sender lives in self, so waiting cannot fail.
        while winner.wait_for(Option::is_none).await.is_ok() {
            if let Err(error) = self.try_server(name, index, lease).await {
                let sentence = format!("{name}: {error:#}");
                if self.winner.borrow().is_none() && told.is_due(&sentence, Instant::now()) {
                    warn!("{sentence}");
                }
                sleep(PAUSE).await;
            }
        }
    }

    async fn try_server(&self, name: &str, index: u32, lease: &DhcpV4Lease) -> Result<()> {
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
