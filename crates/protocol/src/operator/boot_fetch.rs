//! Boot files that machines fetched, as the server shows them to operators.

use serde::{Deserialize, Serialize};

/// How a machine fetched a boot file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum BootWay {
    /// Over HTTPS.
    Https,
    /// Over HTTP, without TLS.
    Http,
    /// By TFTP.
    Tftp,
    /// A script that the server wrote for iPXE, over HTTPS or HTTP.
    IpxeScript,
}

/// A boot file that a machine fetched, up to its last byte.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BootFetch {
    /// When the last byte was sent, in milliseconds since 1970 by the server's clock.
    pub at: u64,
    /// The path below the boot folder.
    pub file: String,
    /// The size of the file in bytes.
    pub bytes: u64,
    /// How the file was fetched.
    pub way: BootWay,
    /// The address of the machine that fetched the file.
    pub address: String,
}

/// The boot files that the machine of a node fetched since it was last heard from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BootFilesFetched {
    /// The files, oldest first.
    pub files: Vec<BootFetch>,
    /// The time of the last fetch, in milliseconds since 1970. Present if nothing was heard of the machine for 15
    /// minutes after that fetch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_since: Option<u64>,
}
