//! Passes the interface that reaches the server from `slipway network` to `slipway installer`.

use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::info;

use crate::config::Metadata;

/// File with the [`Link`]. Its folder is the only one where the network process may write.
pub const PATH: &str = "/run/slipway/network/link.json";

/// Interval at which the file is looked for.
const LOOK: Duration = Duration::from_millis(20);

/// The interface that reached the server first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The kernel's name of the interface.
    pub interface: String,
    /// When the interface got its address, in milliseconds since the start of the kernel ([`uptime`]).
    pub leased_at: u64,
    /// Address and prefix length.
    pub address: String,
    /// Default gateway, if the network has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// Name servers, in order.
    #[serde(default)]
    pub name_servers: Vec<String>,
    /// The metadata that names the server, if nothing else does. The installer takes server and token from it as the
    /// network process did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
}

/// Returns the milliseconds since the start of the kernel, from a clock that cannot be set.
pub fn uptime() -> u64 {
    let since = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(since.tv_sec).unwrap_or(0) * 1000 + u64::try_from(since.tv_nsec / 1_000_000).unwrap_or(0)
}

/// Writes the link's file atomically.
pub fn announce(link: &Link) -> io::Result<()> {
    crate::files::write_whole(Path::new(PATH), &serde_json::to_vec(link)?)
}

/// Removes the link's file.
pub fn withdraw() -> io::Result<()> {
    match std::fs::remove_file(PATH) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Waits for the link's file and returns its content.
pub async fn wait() -> Link {
    let mut waited = 0u32;
    loop {
        let read = std::fs::read(PATH).ok().and_then(|text| serde_json::from_slice(&text).ok());
        if let Some(link) = read {
            return link;
        }
        tokio::time::sleep(LOOK).await;
        waited += 1;
        if waited.is_multiple_of(500) {
            info!("waiting for a network that reaches the server ({} s)", waited / 50);
        }
    }
}
