//! What clients may cost the server. All numbers are here; `docs/reference/limits.md` tells them to operators.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files the server needs besides connections: database, sockets, images that are uploaded.
const OTHER_FILES: usize = 128;
/// Files of a connection: its socket, and the file that it downloads.
const FILES_OF_CONNECTION: usize = 2;

/// Memory for what all downloads have read from files and not yet sent, in bytes. More than 512 downloads at a time take
/// more: [`MIN_CHUNK_BYTES`] each.
pub const DOWNLOAD_BYTES: usize = 8 << 20;
/// What a download reads from its file at once, in bytes. Large, so that the cost of a piece does not matter.
pub const MAX_CHUNK_BYTES: usize = 512 << 10;
/// The same if there are many downloads.
pub const MIN_CHUNK_BYTES: usize = 16 << 10;

/// Files that are read at a time. Each takes a thread, and hundreds of threads would take the processors from those that
/// answer.
pub const READS_AT_ONCE: usize = 8;

/// The limits of a server. Tests make them small.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections to the HTTPS port.
    pub https: Connections,
    /// Connections to the boot port, which has only strangers. Whatever happens to it leaves the HTTPS port alone.
    pub boot: Connections,
    /// Time for a TLS handshake, and after it for the first request of a connection.
    pub first_request: Duration,
    /// Time for every later request of a stranger, idle time included.
    pub stranger_idle: Duration,
    /// The same for a node. Longer than common HTTP clients keep an idle connection (90 s), so that the client closes
    /// it and never finds its request dropped.
    pub node_idle: Duration,
    /// Time without a byte after which a body does not go on, or a client does not read.
    pub stall: Duration,
    /// Time for the whole body of a stranger.
    pub stranger_body: Duration,
    /// Age at which a connection is closed. The request in progress is finished first.
    pub connection_age: Duration,
    /// Largest header of a request in bytes. The buffers of a connection are not larger either.
    pub header_bytes: usize,
    /// Most headers of a request.
    pub headers: usize,
    /// Memory for bodies of strangers.
    pub stranger_bodies: Memory,
    /// Memory for bodies of nodes and operators.
    pub known_bodies: Memory,
    /// Requests of strangers.
    pub requests: Pace,
    /// TLS handshakes.
    pub handshakes: Pace,
    /// How long the answer to a request beyond the pace is held back, so that whoever repeats it at once costs little.
    pub refusal_pause: Duration,
    /// Strangers whose requests are in the database at a time. The others wait, and nodes do not wait for them.
    pub strangers_at_once: usize,
    /// Bytes of a run's stored events. Beyond it, notes are dropped.
    pub run_bytes: u64,
}

/// Limits of the connections to one port. Each must be at least 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// All together.
    pub total: usize,
    /// Those of strangers, who have shown no node's certificate. The rest is kept for nodes.
    pub strangers: usize,
    /// Strangers with one address. An IPv6 network of 64 bits counts as one.
    pub of_address: usize,
    /// Those of one node.
    pub of_node: usize,
}

/// Memory for bodies in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// All together.
    pub total: usize,
    /// Of one address.
    pub of_address: usize,
}

/// What each address may do in a second, and at once after a pause.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// In a second.
    pub per_second: u32,
    /// At once.
    pub burst: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            https: Connections { total: 4096, strangers: 2048, of_address: 512, of_node: 32 },
            boot: Connections { total: 1024, strangers: 1024, of_address: 128, of_node: 2 },
            first_request: Duration::from_secs(10),
            stranger_idle: Duration::from_secs(30),
            node_idle: Duration::from_secs(100),
            stall: Duration::from_secs(20),
            stranger_body: Duration::from_secs(30),
            connection_age: Duration::from_secs(60 * 60),
            header_bytes: 16 << 10,
            headers: 64,
            stranger_bodies: Memory { total: 4 << 20, of_address: 1 << 20 },
            known_bodies: Memory { total: 48 << 20, of_address: 16 << 20 },
            // A waiting machine asks every two seconds, so a hundred of them may share an address.
            requests: Pace { per_second: 50, burst: 500 },
            handshakes: Pace { per_second: 500, burst: 5000 },
            refusal_pause: Duration::from_secs(1),
            strangers_at_once: 2,
            run_bytes: 16 << 20,
        }
    }
}

impl Limits {
    /// These limits, with no more connections than so many open files allow.
    #[must_use]
    pub fn within(mut self, files: usize) -> Self {
        let affordable = files.saturating_sub(OTHER_FILES) / FILES_OF_CONNECTION;
        let wanted = self.https.total + self.boot.total;
        if affordable < wanted {
            for port in [&mut self.https, &mut self.boot] {
                *port = port.scaled(affordable, wanted);
            }
        }
        self
    }
}

impl Connections {
    fn scaled(self, part: usize, of: usize) -> Self {
        let scale = |count: usize| (count * part / of).max(2);
        let (total, strangers, of_address) = (scale(self.total), scale(self.strangers), scale(self.of_address));
        Self { total, strangers, of_address, of_node: self.of_node.min(total) }
    }
}

/// Raises the number of files that this process may open as far as it is allowed to, and returns it. The soft limit is
/// low for the sake of programs that use select(2) (systemd.exec(5), "LimitNOFILE").
pub fn raise_open_files() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    if let Err(error) = raised {
        tracing::warn!(%error, "raising the number of open files");
    }
    let files = if raised.is_ok() { maximum } else { current };
    files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_open_files_mean_few_connections() {
        let limits = Limits::default().within(1024);
        assert_eq!(limits.https, Connections { total: 358, strangers: 179, of_address: 44, of_node: 32 });
        assert_eq!(limits.boot, Connections { total: 89, strangers: 89, of_address: 11, of_node: 2 });
        let needed = OTHER_FILES + FILES_OF_CONNECTION * (limits.https.total + limits.boot.total);
        assert!(needed <= 1024, "{needed}");
        assert_eq!(Limits::default().within(20_000).https, Limits::default().https);
        assert_eq!(Limits::default().within(0).boot.total, 2);
    }
}
