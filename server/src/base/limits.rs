//! Limits on what clients may cost the server. All of them are here; `docs/reference/limits.md` describes them for
//! operators.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files that the server needs besides connections: database, sockets, uploaded images.
const OTHER_FILES: usize = 128;
/// Open files for each connection: its socket, and a file that it downloads.
const FILES_OF_CONNECTION: usize = 2;

/// Memory in bytes for file content that downloads have read and not yet sent. More than 512 simultaneous downloads
/// take more: [`MIN_CHUNK_BYTES`] each.
pub const DOWNLOAD_BYTES: usize = 8 << 20;
/// Bytes that a download reads from its file at once. Large, so that the overhead of a read does not matter.
pub const MAX_CHUNK_BYTES: usize = 512 << 10;
/// Bytes that a download reads at once if there are many downloads.
pub const MIN_CHUNK_BYTES: usize = 16 << 10;

/// Maximum number of simultaneous file reads. Each takes a thread, and hundreds of threads would delay other requests.
pub const READS_AT_ONCE: usize = 8;

/// The limits of a server. Tests use small ones.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections to the HTTPS port.
    pub https: Connections,
    /// Connections to the boot port, which serves only strangers. They cannot exhaust the HTTPS port.
    pub boot: Connections,
    /// Connections to the port for metrics alone.
    pub metrics: Connections,
    /// Time limit for the TLS handshake, and then for the first request on a connection.
    pub first_request: Duration,
    /// Time limit for each later request of a stranger, idle time included.
    pub stranger_idle: Duration,
    /// Time limit for each later request of a node. Longer than common HTTP clients keep an idle connection (90 s), so
    /// that the client closes it first and a request never arrives on a closed connection.
    pub node_idle: Duration,
    /// Time after which a transfer without progress is aborted, in either direction.
    pub stall: Duration,
    /// Time limit for the whole body of a stranger's request.
    pub stranger_body: Duration,
    /// Age at which a connection is closed, after any request in progress.
    pub connection_age: Duration,
    /// Maximum size of a request's headers, and of a connection's buffers, in bytes.
    pub header_bytes: usize,
    /// Maximum number of headers in a request.
    pub headers: usize,
    /// Memory for request bodies of strangers.
    pub stranger_bodies: Memory,
    /// Memory for request bodies of nodes and operators.
    pub known_bodies: Memory,
    /// Rate of strangers' requests.
    pub requests: Pace,
    /// Rate of TLS handshakes.
    pub handshakes: Pace,
    /// Delay before a request beyond the rate is refused, so that immediate repetition costs little.
    pub refusal_pause: Duration,
    /// Maximum number of strangers' requests that use the database at once. Others wait, and nodes do not wait for
    /// them.
    pub strangers_at_once: usize,
    /// Maximum size of a run's stored events in bytes. Beyond it, notes are dropped.
    pub run_bytes: u64,
    /// How long the URL that a machine is redirected to for an image can be used. A download that began goes on; a
    /// machine that begins again asks the server again.
    pub redirect_lifetime: Duration,
}

/// Limits on the connections to one port. Each must be at least 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// All connections together.
    pub total: usize,
    /// Connections of strangers, which have no node's certificate. The rest is reserved for nodes.
    pub strangers: usize,
    /// Connections of strangers from one address. An IPv6 /64 network counts as one address.
    pub of_address: usize,
    /// Connections of one node.
    pub of_node: usize,
}

/// Limits on memory for request bodies, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// All bodies together.
    pub total: usize,
    /// Bodies from one address.
    pub of_address: usize,
}

/// Rate limit for each address: a number per second, and a burst after a pause.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Requests per second.
    pub per_second: u32,
    /// Requests at once after a pause.
    pub burst: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            https: Connections { total: 20_480, strangers: 2048, of_address: 512, of_node: 32 },
            boot: Connections { total: 1024, strangers: 1024, of_address: 128, of_node: 2 },
            metrics: Connections { total: 32, strangers: 32, of_address: 16, of_node: 2 },
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
            // A waiting machine sends a request every two seconds, so a hundred machines can share an address.
            requests: Pace { per_second: 50, burst: 500 },
            handshakes: Pace { per_second: 500, burst: 5000 },
            refusal_pause: Duration::from_secs(1),
            strangers_at_once: 2,
            run_bytes: 16 << 20,
            redirect_lifetime: Duration::from_secs(60 * 60),
        }
    }
}

impl Limits {
    /// Returns these limits, with fewer connections if `files` open files do not suffice for them. Nodes keep at least
    /// as many as strangers.
    #[must_use]
    pub fn within(mut self, files: usize) -> Self {
        let affordable = files.saturating_sub(OTHER_FILES) / FILES_OF_CONNECTION;
        let of_https = affordable.saturating_sub(self.boot.total);
        self.https.total = self.https.total.min(of_https.max(2 * self.https.strangers));
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

/// Raises this process's limit of open files as far as permitted, and returns it. The soft limit is low for programs
/// that use select(2) (systemd.exec(5), "LimitNOFILE").
pub fn raise_open_files() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    if let Err(error) = raised {
        tracing::warn!(%error, "could not raise the limit of open files");
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
        assert_eq!(Limits::default().within(65_536).https, Limits::default().https);
        let limits = Limits::default().within(20_000);
        assert_eq!(limits.https, Connections { total: 8912, ..Limits::default().https });
        assert_eq!(limits.boot, Limits::default().boot);
        assert_eq!(Limits::default().within(0).boot.total, 2);
    }
}
