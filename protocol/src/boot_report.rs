//! What the boot reporter of an installed system and the server say to each other, under `/v1/boot-report`.

use serde::{Deserialize, Serialize};

use crate::{NodeState, Secret};

/// Type of the logs the boot reporter sends, in the server's API.
pub const HOST_BOOT_LOG: &str = "host_boot";
/// Longest boot id and state of the service manager, in bytes.
pub const MAX_BOOT_WORD_BYTES: usize = 64;

/// How far an installed system is, as its boot reporter sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum BootStage {
    /// In its first boot, on its way up.
    Booting,
    /// In a later boot, on its way up.
    Restarted,
    /// The service manager has nothing left to start.
    Running,
}

/// `POST /v1/boot-report`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BootReport {
    /// How far the system is.
    pub stage: BootStage,
    /// The boot it is in, `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// What `systemctl is-system-running` prints, such as `starting` or `degraded`, where that could be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_state: Option<String>,
}

/// 200 of `GET` and of `POST /v1/boot-report`: what the server knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BootKnown {
    /// Where the node stands.
    pub node: NodeState,
    /// The newest report of the run's system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<BootReport>,
}

/// What operators see of a run's boot reporter. Times in milliseconds since 1970, by the server's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BootStatus {
    /// Its newest report.
    pub report: BootReport,
    /// How many boots it has reported from.
    pub boots: u32,
    /// When it first reported.
    pub first_at: u64,
    /// When it last reported.
    pub at: u64,
}

/// What the action `boot-reporter` leaves in the installed system for the reporter, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BootReporterConfig {
    /// Base URL of the server.
    pub url: String,
    /// Token of the run.
    pub token: Secret,
    /// Certificates in PEM that may sign the server's.
    pub ca: String,
    /// Hours after which it ends, however the boot went.
    pub hours: u32,
    /// Seconds between two logs.
    pub every: u32,
}

/// Where the files of the boot reporter are in an installed system, without a slash before them: what the action makes and the
/// reporter takes away.
pub mod places {
    /// The program.
    pub const PROGRAM: &str = "usr/local/lib/slipway/slipway";
    /// Its configuration, with the token.
    pub const CONFIG: &str = "usr/local/lib/slipway/report.json";
    /// The unit that starts it.
    pub const UNIT: &str = "etc/systemd/system/slipway-report.service";
    /// The link by which the unit belongs to a boot.
    pub const LINK: &str = "etc/systemd/system/multi-user.target.wants/slipway-report.service";
}
