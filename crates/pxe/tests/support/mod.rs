//! A TFTP server, and a line to it that loses packets.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use slipway_pxe::Counters;
use slipway_pxe::tftp::{Limits, Server, open_below};
use tempfile::TempDir;

/// The longest wait. It only guards against hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// A server that serves a folder on the loopback.
pub struct Served {
    folder: TempDir,
    pub port: u16,
    pub counters: Arc<Counters>,
    pub fetched: Arc<Mutex<Vec<(IpAddr, String, u64)>>>,
}

impl Served {
    pub fn start(limits: Limits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (counters, fetched) = (Arc::new(Counters::default()), Arc::new(Mutex::new(Vec::new())));
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let port = socket.local_addr().unwrap().port();
        let root: PathBuf = folder.path().to_owned();
        let open = Box::new(move |name: &str| open_below(&root, name));
        let list = Arc::clone(&fetched);
        let on_fetch = Box::new(move |address, name: &str, bytes| {
            list.lock().unwrap().push((address, name.to_owned(), bytes));
        });
        let counted = Arc::clone(&counters);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                Server::new(socket, Ipv4Addr::LOCALHOST, open, on_fetch, limits, counted).unwrap().run().await;
            });
        });
        Self { folder, port, counters, fetched }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Waits until `done` accepts the counters, because the server works in other threads.
    pub fn wait_until(&self, done: impl Fn(&Counters) -> bool) {
        let start = Instant::now();
        while !done(&self.counters) {
            assert!(start.elapsed() < LIMIT, "{}", self.counters);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Passes packets between one client and a server, except for the packets that it loses.
pub struct LossyLine {
    pub port: u16,
    lost: Arc<AtomicUsize>,
}

impl LossyLine {
    /// Starts a line that loses the packets with the numbers `lose`. Packets of both directions are counted together,
    /// from 0.
    pub fn start(server: u16, lose: &[usize]) -> Self {
        let front = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let back = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = front.local_addr().unwrap().port();
        let lost = Arc::new(AtomicUsize::new(0));
        let (passed, lose) = (Arc::new(AtomicUsize::new(0)), Arc::new(lose.to_vec()));
        let survives = {
            let lost = Arc::clone(&lost);
            move || {
                let survives = !lose.contains(&passed.fetch_add(1, Ordering::Relaxed));
                lost.fetch_add(usize::from(!survives), Ordering::Relaxed);
                survives
            }
        };
        // The client's address, and the port that the server answers from.
        let ends = Arc::new(Mutex::new((None, server)));
        let (to_server, to_client) = ((front.try_clone().unwrap(), back.try_clone().unwrap()), (back, front));
        for (from, to, is_client) in [(to_server.0, to_server.1, true), (to_client.0, to_client.1, false)] {
            let (ends, survives) = (Arc::clone(&ends), survives.clone());
            std::thread::spawn(move || {
                let mut buffer = [0; 2048];
                loop {
                    // A port may have been closed.
                    let Ok((size, peer)) = from.recv_from(&mut buffer) else { continue };
                    let mut ends = ends.lock().unwrap();
                    let target = if is_client {
                        ends.0 = Some(peer);
                        // A request goes to the server's own port.
                        let port = if buffer[1] == 1 { server } else { ends.1 };
                        (Ipv4Addr::LOCALHOST, port).into()
                    } else {
                        ends.1 = peer.port();
                        ends.0.unwrap()
                    };
                    drop(ends);
                    if survives() {
                        let _ = to.send_to(&buffer[..size], target);
                    }
                }
            });
        }
        Self { port, lost }
    }

    pub fn lost(&self) -> usize {
        self.lost.load(Ordering::Relaxed)
    }
}

/// Bytes without repetition, from a xorshift generator (Marsaglia, 2003).
pub fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let bytes = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    bytes.flatten().take(length).collect()
}
