//! `slipway network`: tries every way to get an address on every interface at once. The first that reaches the server
//! wins.
//!
//! Each hardware interface, present or plugged in later, has a task for each [`Way`] to get an address: DHCP, router
//! advertisements, and addresses in the medium's settings. A task keeps its addresses as long as it lives, with routes
//! of low preference, and connects to the server only through its interface. Any host can accept a connection, so the
//! winner is the first way with a completed TLS handshake whose certificate the boot medium's CA signed. The winner
//! gets the preferred routes and the name servers, and is written to [`slipway_installer::server::link::PATH`], which
//! the installer waits for. If metadata is to say where the server is, each way asks it first, and the file has what
//! the winner was told.

mod dhcp4;
mod dhcp6;
mod given;
mod ipv6;
mod lease;
mod links;
mod plan;
mod rdnss;
mod reach;
mod resolv_conf;
mod routes;
mod servers;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rtnetlink::Handle;
use slipway_installer::config::{Loaded, Metadata};
use slipway_installer::discover::tpm;
use slipway_installer::server::link;
use slipway_protocol::Proof;
use tokio::sync::{Mutex, watch};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::confine::confine;

use self::links::Interface;
use self::plan::Setup;
use self::rdnss::NameServers;
use self::servers::Servers;

/// Interval at which new interfaces and cables are looked for.
const LOOK: Duration = Duration::from_millis(200);
/// Wait after a failed lease or connection.
const PAUSE: Duration = Duration::from_secs(2);
/// Route metric of interfaces that did not win, to which the interface's index is added. The winner has
/// [`Source::metric`].
const METRIC_OTHERS: u32 = 1000;

/// State shared by the tasks.
struct Network {
    netlink: Handle,
    servers: Servers,
    /// The host name sent to DHCP servers, if the settings have one.
    hostname: Option<String>,
    /// IPv6 name servers, by interface.
    advertised: NameServers,
    /// Held during name lookups and while the winner is decided, because name servers and the routes to them are shared
    /// by the whole machine.
    turn: Mutex<()>,
    /// The way that reached the server first. `None` before that, and after that way has lost its addresses.
    winner: watch::Sender<Option<Way>>,
}

/// One way to get an address on one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Way {
    interface: String,
    index: u32,
    source: Source,
}

/// Where addresses come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Given,
    Dhcp4,
    Ipv6,
}

impl Source {
    /// Metric of the winner's routes. Each source has its own, so that a way removes only its own routes.
    fn metric(self) -> u32 {
        match self {
            Self::Given => 10,
            Self::Dhcp4 => 11,
            Self::Ipv6 => 12,
        }
    }
}

/// Does what must precede the first packet: waits for a TPM if the medium requires one, does what only root may do, and
/// gives up the rights of root. Returns what a config drive says, if it is needed.
pub fn prepare(loaded: &Loaded) -> Result<Option<Metadata>> {
    if loaded.require == Proof::Attested {
        wait_for_tpm();
    }
    let drive = servers::ask_config_drive(loaded);
    if let Some(name) = &loaded.machine.hostname {
        match std::fs::write("/proc/sys/kernel/hostname", name) {
            Ok(()) => info!("the name of this machine is {name}"),
            Err(error) => warn!("setting the name of this machine to {name}: {error}"),
        }
    }
    // An interface without a cable must not attract packets.
    if let Err(error) = std::fs::write("/proc/sys/net/ipv4/conf/all/ignore_routes_with_linkdown", "1\n") {
        warn!("disabling routes of interfaces without a link: {error}");
    }
    confine().map(|()| drive)
}

/// Waits until the installer has seen that the TPM works. Until then nothing is sent, not even a question for an
/// address.
fn wait_for_tpm() {
    info!("waiting for the TPM that the boot medium requires");
    while !Path::new(tpm::READY).exists() {
        thread::sleep(Duration::from_millis(100));
    }
}

/// Runs until the process is killed. Without network settings, every interface asks for addresses. `drive` is what
/// [`prepare`] returned.
pub async fn run(loaded: Loaded, drive: Option<Metadata>) -> Result<()> {
    info!("looking for interfaces");
    let (connection, netlink, _) = rtnetlink::new_connection().context("opening a netlink socket")?;
    tokio::spawn(connection);
    let (settings, hostname) = (loaded.machine.network.clone(), loaded.machine.hostname.clone());
    let servers = Servers::new(loaded, drive)?;
    let advertised = NameServers::listen().context("listening for name servers that routers advertise")?;
    let (turn, winner) = (Mutex::new(()), watch::Sender::new(None));
    let network = Arc::new(Network { netlink, servers, hostname, advertised, turn, winner });
    network.set_up("lo").await.context("bringing up lo")?;
    let mut known = BTreeSet::new();
    loop {
        for (name, mac) in links::hardware() {
            if known.insert(name.clone()) {
                let setups = plan::setups(settings.as_ref(), &mac);
                if setups.is_empty() {
                    info!("{name}: not used, because the network settings do not name {mac}");
                }
                for setup in setups {
                    tokio::spawn(serve(Arc::clone(&network), name.clone(), setup));
                }
            }
        }
        sleep(LOOK).await;
    }
}

/// Waits until an interface has a cable, then follows all its ways.
async fn serve(network: Arc<Network>, hardware: String, setup: Setup) {
    while let Err(error) = network.ready(&hardware, &setup, true).await {
        warn!("{hardware}: {error:#}; trying again in {} s", PAUSE.as_secs());
        sleep(PAUSE).await;
    }
    let given = (!setup.given.addresses.is_empty()).then_some(Source::Given);
    let sources = [given, setup.dhcp4.then_some(Source::Dhcp4), setup.ipv6.then_some(Source::Ipv6)];
    for source in sources.into_iter().flatten() {
        tokio::spawn(follow(Arc::clone(&network), hardware.clone(), setup.clone(), source));
    }
}

/// Gets addresses from one source. Starts over whenever the source fails.
async fn follow(network: Arc<Network>, hardware: String, setup: Setup, source: Source) {
    loop {
        match network.ready(&hardware, &setup, false).await {
            Ok(Interface { name, index, mac }) => {
                let way = Way { interface: name, index, source };
                let ended = match source {
                    Source::Given => network.keep_given(&way, &setup).await,
                    Source::Dhcp4 => network.keep_dhcp4(&way, &mac, &setup).await,
                    Source::Ipv6 => network.keep_ipv6(&way, &mac, &setup).await,
                };
                if let Err(error) = ended {
                    warn!("{}: {error:#}; trying again in {} s", way.interface, PAUSE.as_secs());
                    network.give_up(&way).await;
                }
            }
            Err(error) => warn!("{hardware}: {error:#}; trying again in {} s", PAUSE.as_secs()),
        }
        sleep(PAUSE).await;
    }
}

impl Network {
    /// Lets another way win after this one has lost its addresses.
    async fn give_up(&self, way: &Way) {
        let _turn = self.turn.lock().await;
        // If the interface is gone, so are its routes.
        self.unroute(way.index, way.source.metric()).await;
        if self.winner.borrow().as_ref() == Some(way) {
            self.winner.send_replace(None);
            if let Err(error) = link::withdraw() {
                warn!("withdrawing the network: {error}");
            }
        }
    }
}
