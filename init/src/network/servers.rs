//! Which server an interface is to reach: that of the configuration, or one that metadata names.
//!
//! Each interface is told by the service on its own network. So a stranger who answers on one network cannot keep the
//! machine from a server that another network leads to.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Once;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use slipway_actions::ConfigDrive;
use slipway_installer::config::{Loaded, Metadata};
use slipway_installer::metadata::{ADDRESS, Answer, Service, of_config_drive};
use slipway_installer::server::reach::Server;
use slipway_protocol::{Failure, MetadataSource};
use tokio::sync::Mutex;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::pid1::DRIVERS_LOADED;

use super::Way;
use super::lease::Lease;

/// How long to wait for the drivers of disks before a config drive is looked for the last time.
const DRIVERS_LIMIT: Duration = Duration::from_secs(10);
/// Interval at which a config drive is looked for.
const LOOK: Duration = Duration::from_millis(200);
/// The address in [`ADDRESS`], for its IP version.
const SERVICE: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254));

/// The servers to reach.
pub(super) struct Servers {
    loaded: Loaded,
    /// The server for all interfaces, if it is known before there is a network.
    known: Option<Known>,
    /// What services said, by the index of the interface.
    told: Mutex<BTreeMap<u32, Known>>,
    /// Says once that a way cannot ask.
    cannot_ask: Once,
}

/// A server, and the metadata that named it.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) server: Server,
    pub(super) metadata: Option<Metadata>,
}

impl Servers {
    /// Makes the servers of a configuration. `drive` is what a config drive says.
    pub(super) fn new(loaded: Loaded, drive: Option<Metadata>) -> Result<Self> {
        let is_known = loaded.config.is_some() || drive.is_some();
        let known = if is_known { Some(known(&loaded, drive)?) } else { None };
        Ok(Self { loaded, known, told: Mutex::default(), cannot_ask: Once::new() })
    }

    /// Returns the server that this way is to reach. If the configuration names none, asks the metadata services in
    /// this way.
    pub(super) async fn of(&self, way: &Way, lease: &Lease) -> Result<Known> {
        if let Some(known) = &self.known {
            return Ok(known.clone());
        }
        if !lease.speaks_to(SERVICE) {
            return Ok(self.told_to_others(way).await);
        }
        if self.loaded.metadata.iter().all(|by| *by == MetadataSource::ConfigDrive) {
            bail!("no config drive says where the server is, and the boot image allows no other metadata");
        }
        let service = Service::new(ADDRESS.parse()?, Some(&way.interface))?;
        let answer = service.ask(&self.loaded.metadata).await?;
        let mut told = self.told.lock().await;
        let is_news = told.get(&way.index).is_none_or(|told| told.metadata.as_ref() != Some(&answer.metadata));
        let known = known(&self.loaded, Some(answer.metadata.clone()))?;
        if is_news {
            tell(&answer, &way.interface);
        }
        told.insert(way.index, known.clone());
        Ok(known)
    }

    /// Waits until another way on the same interface was told a server. A way that has IPv6 alone cannot ask.
    async fn told_to_others(&self, way: &Way) -> Known {
        self.cannot_ask.call_once(|| {
            info!("{}: metadata services are asked by IPv4 alone; waiting for an IPv4 address", way.interface);
        });
        loop {
            if let Some(known) = self.told.lock().await.get(&way.index) {
                return known.clone();
            }
            sleep(LOOK).await;
        }
    }

    /// Returns the metadata that named the server of an interface.
    pub(super) async fn metadata(&self, index: u32) -> Option<Metadata> {
        match &self.known {
            Some(known) => known.metadata.clone(),
            None => self.told.lock().await.get(&index).and_then(|told| told.metadata.clone()),
        }
    }
}

fn known(loaded: &Loaded, metadata: Option<Metadata>) -> Result<Known> {
    let server = Server::new(&loaded.complete(metadata.as_ref())?)?;
    Ok(Known { server, metadata })
}

fn tell(answer: &Answer, place: &str) {
    let by = answer.metadata.by.title();
    info!("{place}: {by} says where the server is");
    if !answer.ignored.is_empty() {
        let ignored = answer.ignored.join(", ");
        warn!("{place}: {by} also sets {ignored}, which is ignored: it is trusted for the server and a token alone");
    }
}

/// Looks for a config drive, if it is allowed and nothing else says where the server is. Mounting needs the rights of
/// root. Returns what the drive says if a server can be made of it.
pub(super) fn ask_config_drive(loaded: &Loaded) -> Option<Metadata> {
    if loaded.config.is_some() || !loaded.metadata.contains(&MetadataSource::ConfigDrive) {
        return None;
    }
    let asked = wait_for_config_drive().and_then(|drive| {
        let Some(drive) = drive else { return Ok(None) };
        let answer = of_config_drive(&drive)?;
        tell(&answer, "network");
        known(loaded, Some(answer.metadata)).map(|known| known.metadata)
    });
    asked.unwrap_or_else(|error| {
        warn!("{}", Failure::of(&*error).in_one_line());
        None
    })
}

/// Waits until a config drive is there, or all drivers are loaded.
fn wait_for_config_drive() -> Result<Option<ConfigDrive>> {
    let began = Instant::now();
    loop {
        let is_last = Path::new(DRIVERS_LOADED).exists() || began.elapsed() >= DRIVERS_LIMIT;
        let drive = ConfigDrive::find(Path::new("/sys"), Path::new("/dev"))?;
        if drive.is_some() || is_last {
            return Ok(drive);
        }
        thread::sleep(LOOK);
    }
}
