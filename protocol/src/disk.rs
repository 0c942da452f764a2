//! How a workflow names the disk it means.

use serde::{Deserialize, Serialize};

/// Links to disks by where they are attached, which slipway works out by itself.
pub const BY_PATH: &str = "/dev/disk/by-path/";

/// What the wanted disk must look like; every hint given must hold.
///
/// Without any hint the machine must have exactly one candidate. Removable disks, read-only disks and the medium slipway
/// booted from are never candidates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DiskHints {
    /// Kernel path, such as `/dev/nvme0n1`, or any link to it under `/dev/disk`. By hand also a regular file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Serial number as the disk reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// World Wide Name, with or without its `0x`, `naa.` or `eui.` prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn: Option<String>,
    /// Model as the disk reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Smallest size that will do, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_size: Option<u64>,
    /// What to do when several disks match.
    #[serde(default, skip_serializing_if = "is_default")]
    pub choose: DiskChoice,
}

/// Which of several matching disks is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DiskChoice {
    /// None: more than one match is an error.
    #[default]
    Only,
    /// The smallest; among equals the first by name.
    Smallest,
    /// The largest; among equals the first by name.
    Largest,
}

fn is_default(choice: &DiskChoice) -> bool {
    *choice == DiskChoice::Only
}
