//! Read-only TFTP: RFC 1350, with the options of RFC 2347 (negotiation), 2348 (block size), 2349 (time-out and file
//! size) and 7440 (windows). Block numbers wrap around after 65535, as all firmware expects of large files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Component, Path};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::UdpSocket as Listener;

use crate::counters::{Counters, Dropped};
use crate::error::Error;
use crate::interface::Interface;

pub mod packet;
mod transfer;

use packet::{Packet, ReadRequest, Refusal};

/// UDP port of TFTP servers.
pub const PORT: u16 = 69;
/// A request is at most 512 bytes (RFC 2347); one more byte shows that it is longer.
const LARGEST_REQUEST: usize = 513;

/// Maximum number of simultaneous transfers. Each uses a thread and a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Transfers to all clients together.
    pub transfers: usize,
    /// Transfers to one client address.
    pub per_address: usize,
}

impl Default for Limits {
    /// Enough for several racks that are switched on together, and for firmware that abandons transfers.
    fn default() -> Self {
        Self { transfers: 256, per_address: 8 }
    }
}

/// Opens a file by the name that a client asks for, for example with [`open_below`].
pub type Open = dyn Fn(&str) -> io::Result<File> + Send + Sync;
/// Called when a client has fetched a whole file, with the client's address, the requested name, and the file's size in
/// bytes.
pub type OnFetch = dyn Fn(IpAddr, &str, u64) + Send + Sync;

/// A read-only TFTP server.
pub struct Server {
    listener: Listener,
    address: Ipv4Addr,
    context: Arc<Context>,
}

/// State shared by all transfers.
struct Context {
    open: Box<Open>,
    on_fetch: Box<OnFetch>,
    limits: Limits,
    counters: Arc<Counters>,
    transfers: Mutex<BTreeMap<SocketAddr, Arc<AtomicBool>>>,
}

impl Server {
    /// Listens on an interface. Needs CAP_NET_BIND_SERVICE.
    pub fn bind(
        interface: &Interface,
        open: Box<Open>,
        on_fetch: Box<OnFetch>,
        counters: Arc<Counters>,
    ) -> Result<Self, Error> {
        let socket = interface.bind(interface.address, PORT, false)?;
        let failed = |source| Error::Socket { doing: "using", interface: interface.name.clone(), port: PORT, source };
        Self::new(socket, interface.address, open, on_fetch, Limits::default(), counters).map_err(failed)
    }

    /// Listens on a non-blocking socket that is already bound to this address.
    pub fn new(
        socket: UdpSocket,
        address: Ipv4Addr,
        open: Box<Open>,
        on_fetch: Box<OnFetch>,
        limits: Limits,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let context = Context { open, on_fetch, limits, counters, transfers: Mutex::default() };
        Ok(Self { listener: Listener::from_std(socket)?, address, context: Arc::new(context) })
    }

    /// Serves until the future is dropped. Running transfers continue after that.
    pub async fn run(&self) {
        let mut buffer = [0; LARGEST_REQUEST];
        loop {
            let (packet, client) = match self.listener.recv_from(&mut buffer).await {
                Ok((size, client)) => (buffer.get(..size).unwrap_or_default(), client),
                Err(error) => {
                    tracing::debug!("receiving TFTP requests: {error}");
                    tokio::task::yield_now().await;
                    continue;
                }
            };
            if let Err(why) = self.begin(packet, client) {
                self.context.dropped(client, why);
            }
        }
    }

    /// Starts a transfer in its own thread, because it mostly waits for its client.
    fn begin(&self, packet: &[u8], client: SocketAddr) -> Result<(), Dropped> {
        let request = match packet::parse(packet) {
            Some(Packet::Read(request)) => request,
            _ => return Err(Dropped::MalformedTftp),
        };
        let place = Place::take(&self.context, client)?;
        let local = SocketAddr::from((self.address, 0));
        let run = move || place.context.transfer(local, client, &request, &place.has_begun);
        let thread = std::thread::Builder::new().name("tftp".to_owned()).spawn(run);
        thread.map(drop).map_err(|_| Dropped::TooMany)
    }
}

impl Context {
    fn transfer(&self, local: SocketAddr, client: SocketAddr, request: &ReadRequest, has_begun: &AtomicBool) {
        let name = request.name.trim_start_matches('/');
        // Each transfer has its own port, and the client replies to it (RFC 1350, section 4).
        let socket = UdpSocket::bind(local).and_then(|socket| socket.connect(client).map(|()| socket));
        let socket = match socket {
            Ok(socket) => socket,
            Err(error) => {
                tracing::warn!(%client, "opening a socket for a TFTP transfer: {error}");
                return self.dropped(client, Dropped::NotRead);
            }
        };
        let sent = self.open(request, name).and_then(|file| {
            let done = transfer::send(&socket, &file, &request.options, has_begun);
            done.map_err(|stopped| (stopped.into(), None))
        });
        match sent {
            Ok(bytes) => {
                tracing::debug!(%client, name, bytes, "sent a boot file by TFTP");
                self.counters.count_fetch(bytes);
                (self.on_fetch)(client.ip(), name, bytes);
            }
            Err((why, refusal)) => {
                if let Some(refusal) = refusal {
                    // If this packet is lost, the client asks again.
                    let _ = socket.send(&packet::error(refusal));
                }
                tracing::debug!(%client, name, why = why.as_str(), "a boot file was not sent");
                self.counters.count_drop(why);
            }
        }
    }

    fn open(&self, request: &ReadRequest, name: &str) -> Result<File, (Dropped, Option<Refusal>)> {
        if !request.octet {
            return Err((Dropped::MalformedTftp, Some(Refusal::Mode)));
        }
        (self.open)(name).map_err(|_| (Dropped::NoSuchFile, Some(Refusal::NoSuchFile)))
    }

    fn dropped(&self, client: SocketAddr, why: Dropped) {
        tracing::debug!(%client, why = why.as_str(), "TFTP packet dropped");
        self.counters.count_drop(why);
    }

    fn transfers(&self) -> MutexGuard<'_, BTreeMap<SocketAddr, Arc<AtomicBool>>> {
        self.transfers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the permitted simultaneous transfers.
struct Place {
    context: Arc<Context>,
    client: SocketAddr,
    /// Whether the client has acknowledged anything.
    has_begun: Arc<AtomicBool>,
}

impl Place {
    fn take(context: &Arc<Context>, client: SocketAddr) -> Result<Self, Dropped> {
        let mut transfers = context.transfers();
        let of_client = transfers.keys().filter(|each| each.ip() == client.ip()).count();
        match transfers.get(&client) {
            // The first answer is still on its way, or is lost and will be repeated.
            Some(begun) if !begun.load(Ordering::Relaxed) => return Err(Dropped::Repeated),
            // The client started again from the same port. The earlier transfer ends when it times out.
            Some(_) => {}
            None if transfers.len() >= context.limits.transfers || of_client >= context.limits.per_address => {
                return Err(Dropped::TooMany);
            }
            None => {}
        }
        let has_begun = Arc::new(AtomicBool::new(false));
        transfers.insert(client, Arc::clone(&has_begun));
        Ok(Self { context: Arc::clone(context), client, has_begun })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut transfers = self.context.transfers();
        // A later transfer to the same port may have replaced this entry.
        if transfers.get(&self.client).is_some_and(|begun| Arc::ptr_eq(begun, &self.has_begun)) {
            transfers.remove(&self.client);
        }
    }
}

/// Opens a regular file by its relative path below a folder.
pub fn open_below(folder: &Path, name: &str) -> io::Result<File> {
    let path = folder.join(name);
    // Checked first, because opening a FIFO would block until something writes to it.
    if !stays_inside(name) || !std::fs::metadata(&path)?.is_file() {
        return Err(io::ErrorKind::NotFound.into());
    }
    File::open(path)
}

/// Whether the path is relative and has only plain names. Symbolic links inside the folder are followed, because the
/// operator made them.
pub fn stays_inside(path: &str) -> bool {
    !path.is_empty()
        && !path.contains('\0')
        && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}
