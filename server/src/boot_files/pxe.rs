//! Network boot beside somebody else's DHCP server: on which interfaces, for which machines, and with which boot files.
//! [`slipway_pxe`] handles the packets.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use slipway_protocol::{BootWay, ErrorCode, Identity};
use slipway_pxe::dhcp::{Files, Machine, Policy};
use slipway_pxe::interface::Interface;
use slipway_pxe::proxy::Proxy;
use slipway_pxe::{Counters, Dropped, Error as PxeError, probe, tftp};

use crate::base::data::DataDir;
use crate::base::error::{Error, chain};
use crate::base::random;
use crate::base::time::now;
use crate::boot_files::fetches::BootFetches;
use crate::node::reports::node_state::known_to_loader;
use crate::rules::ipxe::{self, Known};
use crate::site::leases::{Held, Lease};
use crate::store::Store;
use crate::store::boot_fetches::Fetched;
use crate::store::nodes::{self, Node};
use tokio::task::JoinSet;

/// Paths in the boot folder offered to firmware, in order of preference: the boot image itself, else iPXE.
const X64: [&str; 2] = ["x86_64/slipway.efi", "x86_64/ipxe.efi"];
const ARM64: [&str; 2] = ["aarch64/slipway.efi", "aarch64/ipxe.efi"];
const BIOS: [&str; 1] = ["x86_64/undionly.kpxe"];

/// Maximum number of machines remembered so that they are logged only once.
const MOST_TOLD: usize = 10_000;

/// Where network boot is offered, and to which machines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Names of network interfaces. If empty, network boot is not offered.
    pub interfaces: Vec<String>,
    /// Whether to answer machines that are not registered.
    pub unknown: bool,
}

/// Pause after another proxy was found, or a socket could not be bound, before this one tries again.
const AGAIN: Duration = Duration::from_secs(10);

/// What answers boot firmware, but does not do so yet. The sockets for TFTP are bound.
pub(crate) struct NetworkBoot {
    segments: Vec<Segment>,
    folder: PathBuf,
    unknown: bool,
    counters: Arc<Counters>,
    fetches: Arc<BootFetches>,
}

struct Segment {
    interface: Interface,
    tftp: tftp::Server,
    /// Held by the only server of the site that answers DHCP requests on this network.
    turn: Lease,
    /// The lease, if this server took it when it started.
    held: Option<Held>,
}

impl NetworkBoot {
    /// Binds the sockets for TFTP on each interface. If no other server of the site, all of which use `store`, offers
    /// network boot there, checks for two seconds that no other proxy DHCP server answers. Fetches by TFTP are recorded
    /// in `fetches`. `server` is the id of this server. `None` if the settings have no interface.
    pub async fn bind(
        settings: &Settings,
        folder: Option<&Path>,
        data: &DataDir,
        fetches: &Arc<BootFetches>,
        (store, server): (&Store, &str),
    ) -> Result<Option<Self>, Error> {
        if settings.interfaces.is_empty() {
            return Ok(None);
        }
        let Some(folder) = folder else {
            let message = "network boot needs boot files; name their folder with --boot";
            return Err(Error::refused(ErrorCode::InvalidRequest, message));
        };
        let counters = Arc::new(Counters::default());
        let mut segments = Vec::new();
        for name in &settings.interfaces {
            let failed = |source| Error::NetworkBoot { interface: name.clone(), source };
            let interface = Interface::find(name).map_err(failed)?;
            let turn = Lease::new(store, &format!("proxy DHCP on {}", interface.network()), server);
            let held = turn.take().await?;
            match &held {
                Some(_) => probe::refuse_if_answered(&interface, exchange()).await.map_err(failed)?,
                None => tracing::info!(
                    interface = name,
                    network = interface.network(),
                    "another server of this site offers network boot; this one does when that one stops"
                ),
            }
            // Only to see now whether it can be bound.
            drop(Proxy::bind(&interface, Arc::clone(&counters)).map_err(failed)?);
            let open = open(folder.to_owned(), data.clone());
            let tftp = tftp::Server::bind(&interface, open, on_fetch(Arc::clone(fetches)), Arc::clone(&counters));
            segments.push(Segment { tftp: tftp.map_err(failed)?, interface, turn, held });
        }
        let (folder, fetches) = (folder.to_owned(), Arc::clone(fetches));
        Ok(Some(Self { segments, folder, unknown: settings.unknown, counters, fetches }))
    }

    /// Answers machines until the future is dropped. `https` is the server's URL, `boot` the address of the plain HTTP
    /// listener for boot files, if there is one.
    pub async fn run(mut self, store: &Store, https: &str, boot: Option<SocketAddr>) {
        let (store, fetches) = (store.clone(), Arc::clone(&self.fetches));
        let audience = Arc::new(Audience { store, unknown: self.unknown, told: Mutex::default(), fetches });
        let mut tasks = JoinSet::new();
        for Segment { interface, tftp, turn, held } in self.segments.drain(..) {
            let offer = Offer {
                base: base_url(https, boot, interface.address),
                folder: self.folder.clone(),
                interface,
                audience: Arc::clone(&audience),
                counters: Arc::clone(&self.counters),
            };
            tasks.spawn(async move { offer.in_turn(&turn, held).await });
            tasks.spawn(async move { tftp.run().await });
        }
        while tasks.join_next().await.is_some() {}
    }
}

/// Network boot on one interface.
struct Offer {
    interface: Interface,
    folder: PathBuf,
    base: String,
    audience: Arc<Audience>,
    counters: Arc<Counters>,
}

impl Offer {
    /// Answers whenever no other server of the site does.
    async fn in_turn(&self, turn: &Lease, mut held: Option<Held>) {
        let interface = &self.interface.name;
        loop {
            // What was held from the start on was checked then.
            let is_checked = held.is_some();
            let now_held = match held.take() {
                Some(held) => held,
                None => turn.wait().await,
            };
            match now_held.during(self.answer(is_checked)).await {
                None => tracing::warn!(
                    interface,
                    "stopped offering network boot: the lease for it was not renewed in time, or another server took it"
                ),
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    tracing::error!(interface, error = chain(&error), "could not offer network boot");
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }

    async fn answer(&self, is_checked: bool) -> Result<(), PxeError> {
        if !is_checked {
            probe::refuse_if_answered(&self.interface, exchange()).await?;
        }
        let proxy = Proxy::bind(&self.interface, Arc::clone(&self.counters))?;
        tracing::info!(interface = self.interface.name, address = %self.interface.address, "offering network boot");
        let admit = |machine, address| async move { self.audience.admit(&machine, address).await };
        proxy.run(|| policy(&self.folder, &self.base), admit).await;
        Ok(())
    }
}

/// Decides which machines are answered.
struct Audience {
    store: Store,
    unknown: bool,
    /// Machines with nothing to install that were already logged.
    told: Mutex<BTreeSet<[u8; 6]>>,
    fetches: Arc<BootFetches>,
}

impl Audience {
    /// Whether to answer the machine. Also records its address.
    async fn admit(&self, machine: &Machine, address: Option<Ipv4Addr>) -> Result<(), Dropped> {
        let (known, node) = known(&self.store, machine).await.map_err(|error| {
            tracing::warn!(error = chain(&error), "could not look up a machine that boots over the network");
            Dropped::NotSent
        })?;
        if let Some((node, address)) = node.zip(address) {
            self.fetches.met(node, address.into(), now());
        }
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if ipxe::boots_from_disk(&known) {
            if told.len() < MOST_TOLD && told.insert(machine.mac) {
                let mac = mac(machine);
                tracing::info!(mac, "a machine with nothing to install asked for a boot file; it boots from its disk");
            }
            return Err(Dropped::NothingToInstall);
        }
        told.remove(&machine.mac);
        match known {
            Known::No if !self.unknown => Err(Dropped::Unknown),
            _ => Ok(()),
        }
    }
}

impl Drop for NetworkBoot {
    fn drop(&mut self) {
        tracing::info!("network boot stopped: {}", self.counters);
    }
}

/// Returns a random transaction ID for the check for other proxies. The check also uses the next higher ID.
fn exchange() -> u32 {
    let text = random::id();
    text.bytes().fold(0, |number: u32, byte| number.wrapping_mul(31).wrapping_add(byte.into()))
}

/// Returns a function that opens boot files by the same rules as the HTTP API.
fn open(folder: PathBuf, data: DataDir) -> Box<tftp::Open> {
    Box::new(move |name| {
        let file = tftp::open_below(&folder, name)?;
        if data.has(&file) { Err(std::io::ErrorKind::NotFound.into()) } else { Ok(file) }
    })
}

/// Returns a function that records files fetched by TFTP.
fn on_fetch(fetches: Arc<BootFetches>) -> Box<tftp::OnFetch> {
    Box::new(move |address: IpAddr, name: &str, bytes| {
        let (at, way, file) = (now(), BootWay::Tftp, name.to_owned());
        fetches.fetched(Fetched { at, address, file, bytes, way, to_disk: false, node: None });
    })
}

/// The server's base URL for HTTP clients on an interface. Without TLS if there is a plain listener, because firmware
/// may not trust the CA.
fn base_url(https: &str, boot: Option<SocketAddr>, interface: Ipv4Addr) -> String {
    match boot {
        Some(boot) if boot.ip().is_unspecified() => format!("http://{interface}:{}", boot.port()),
        Some(boot) => format!("http://{boot}"),
        None => https.to_owned(),
    }
}

/// Returns the boot files that exist now, as paths for TFTP and as URLs.
fn policy(folder: &Path, base: &str) -> Policy {
    let first = |names: &[&str]| names.iter().find(|name| folder.join(name).is_file()).map(|name| (*name).to_owned());
    let tftp = Files { bios: first(&BIOS), x64: first(&X64), arm64: first(&ARM64) };
    let url = |name: &Option<String>| name.as_ref().map(|name| format!("{base}/boot/{name}"));
    let http = Files { bios: None, x64: url(&tftp.x64), arm64: url(&tftp.arm64) };
    Policy { tftp, http, script: Some(format!("{base}/boot/ipxe")) }
}

/// Returns what is known about a machine by its UUID and one of its network cards, and the id of its node if exactly
/// one node matches. Firmware does not send the serial number.
async fn known(store: &Store, machine: &Machine) -> Result<(Known, Option<String>), Error> {
    let uuid = machine.uuid.map(|uuid| base16ct::lower::encode_string(&uuid));
    let asks = Identity { uuid, serial: None, macs: vec![mac(machine)] }.usable();
    let mut connection = store.read().await?;
    // Two machines may have had the same network card at different times.
    let is_it = |node: &Node| {
        let registered = node.identity.usable().uuid;
        registered.is_none() || asks.uuid.is_none() || registered == asks.uuid
    };
    let mut nodes = nodes::matching(&mut connection, &asks).await?;
    nodes.retain(is_it);
    let mut known = Known::No;
    let only = match nodes.as_slice() {
        [node] => Some(node.id.clone()),
        _ => None,
    };
    for node in nodes {
        known = known_to_loader(&mut connection, &node).await?;
        // If several nodes match, one that has something to install is used.
        if !ipxe::boots_from_disk(&known) {
            break;
        }
    }
    Ok((known, only))
}

fn mac(machine: &Machine) -> String {
    machine.mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use slipway_protocol::NodeState;

    use super::*;

    #[test]
    fn urls_name_the_listener_that_firmware_can_use() {
        let base = |boot: Option<&str>| {
            base_url("https://a:8443", boot.map(|boot| boot.parse().unwrap()), Ipv4Addr::new(192, 0, 2, 1))
        };
        assert_eq!(base(None), "https://a:8443");
        assert_eq!(base(Some("0.0.0.0:8080")), "http://192.0.2.1:8080");
        assert_eq!(base(Some("[::]:8080")), "http://192.0.2.1:8080");
        assert_eq!(base(Some("198.51.100.7:80")), "http://198.51.100.7:80");
    }

    #[tokio::test]
    async fn registered_machines_are_answered_until_they_have_nothing_to_install() {
        const MAC: [u8; 6] = [0x52, 0x54, 0, 0x7d, 0x2f, 1];
        const UUID: u128 = 0x7d2f9a60_3c55_4b0e_9c7a_1f0f6a2b9d01;
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("db")).await.unwrap();
        let by_uuid = Machine { mac: [2, 0, 0, 0, 0, 9], uuid: Some(UUID.to_be_bytes()) };
        let by_mac = Machine { mac: MAC, uuid: None };
        let other = Machine { mac: MAC, uuid: Some((UUID + 1).to_be_bytes()) };
        let stranger = Machine { mac: [2, 0, 0, 0, 0, 8], uuid: None };
        let audience = |unknown| Audience {
            store: store.clone(),
            unknown,
            told: Mutex::default(),
            fetches: Arc::new(BootFetches::default()),
        };
        let identity = Identity {
            uuid: Some("7d2f9a60-3c55-4b0e-9c7a-1f0f6a2b9d01".to_owned()),
            serial: Some("S1".to_owned()),
            macs: vec!["52:54:00:7d:2f:01".to_owned()],
        };
        let mut node = Node::new(identity, 0);
        for (state, expected) in [
            (NodeState::Registered, Ok(())),
            (NodeState::Failed, Ok(())),
            (NodeState::Installed, Err(Dropped::NothingToInstall)),
            (NodeState::Decommissioned, Err(Dropped::Unknown)),
        ] {
            node.state = state;
            let mut transaction = store.write().await.unwrap();
            nodes::save(&mut transaction, &node).await.unwrap();
            crate::store::commit(transaction).await.unwrap();
            assert_eq!(audience(false).admit(&by_uuid, None).await, expected, "{state:?}");
            assert_eq!(audience(false).admit(&by_mac, None).await, expected, "{state:?}");
            for machine in [&other, &stranger] {
                assert_eq!(audience(false).admit(machine, None).await, Err(Dropped::Unknown), "{state:?} {machine:?}");
                assert_eq!(audience(true).admit(machine, None).await, Ok(()), "{state:?} {machine:?}");
            }
        }
    }

    #[tokio::test]
    async fn what_a_machine_fetches_by_tftp_is_its_nodes_once_it_took_an_address() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("db")).await.unwrap();
        let node = Node::new(Identity { macs: vec!["52:54:00:7d:2f:01".to_owned()], ..Identity::default() }, 0);
        let mut transaction = store.write().await.unwrap();
        nodes::save(&mut transaction, &node).await.unwrap();
        crate::store::commit(transaction).await.unwrap();
        let fetches = Arc::new(BootFetches::default());
        let audience =
            Audience { store: store.clone(), unknown: true, told: Mutex::default(), fetches: Arc::clone(&fetches) };
        let on_fetch = on_fetch(Arc::clone(&fetches));
        for (mac, address) in [(1, [192, 0, 2, 7]), (9, [192, 0, 2, 9])] {
            let machine = Machine { mac: [0x52, 0x54, 0, 0x7d, 0x2f, mac], uuid: None };
            assert_eq!(audience.admit(&machine, Some(address.into())).await, Ok(()));
            on_fetch(address.into(), "x86_64//slipway.efi", 20);
        }
        fetches.write(&store).await.unwrap();
        let mut connection = store.read().await.unwrap();
        let of_nodes = crate::store::boot_fetches::since_heard(&mut connection, None).await.unwrap();
        let strange = crate::store::boot_fetches::of_strangers(&mut connection, now()).await.unwrap();
        let told = |fetches: &[slipway_protocol::BootFetch]| match fetches {
            [one] => (one.file.clone(), one.bytes, one.way, one.address.clone()),
            other => panic!("{other:?}"),
        };
        let expect = |address: &str| ("x86_64/slipway.efi".to_owned(), 20, BootWay::Tftp, address.to_owned());
        assert_eq!((of_nodes.len(), told(&of_nodes[&node.id])), (1, expect("192.0.2.7")));
        assert_eq!(told(&strange), expect("192.0.2.9"));
    }

    #[test]
    fn what_the_boot_folder_lacks_is_not_offered() {
        let folder = tempfile::tempdir().unwrap();
        let offered = || policy(folder.path(), "http://a");
        assert_eq!((offered().tftp, offered().http), (Files::default(), Files::default()));
        std::fs::create_dir(folder.path().join("x86_64")).unwrap();
        std::fs::write(folder.path().join("x86_64/ipxe.efi"), "").unwrap();
        assert_eq!(offered().tftp.x64.as_deref(), Some("x86_64/ipxe.efi"));
        std::fs::write(folder.path().join("x86_64/slipway.efi"), "").unwrap();
        assert_eq!(offered().tftp.x64.as_deref(), Some("x86_64/slipway.efi"));
        assert_eq!(offered().http.x64.as_deref(), Some("http://a/boot/x86_64/slipway.efi"));
        assert_eq!(offered().tftp.arm64, None);
    }
}
