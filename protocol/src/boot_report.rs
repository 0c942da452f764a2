//! The messages between the boot reporter of an installed system and the server, under `/v1/boot-report`.

use serde::{Deserialize, Serialize};

use crate::{NodeState, Proxy, Secret};

/// The type of the logs that the boot reporter sends, in the server's API.
pub const HOST_BOOT_LOG: &str = "host_boot";
/// The greatest length of a boot id, and of a state of the service manager, in bytes.
pub const MAX_BOOT_WORD_BYTES: usize = 64;

/// How far an installed system is, as its boot reporter sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum BootStage {
    /// The system is in its first boot and still starts up.
    Booting,
    /// The system is in a later boot and still starts up.
    Restarted,
    /// The service manager has nothing left to start.
    Running,
}

/// The body of `POST /v1/boot-report`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BootReport {
    /// How far the system is.
    pub stage: BootStage,
    /// The id of the current boot, from `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// The output of `systemctl is-system-running`, such as `starting` or `degraded`. Absent if the reporter could not
    /// ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_state: Option<String>,
}

/// The answer (200) to `GET` and `POST /v1/boot-report`: the state that the server knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BootKnown {
    /// The state of the node.
    pub node: NodeState,
    /// The newest report of the system that the run installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<BootReport>,
}

/// The state of a run's boot reporter, as operators see it. Times are in milliseconds since 1970, by the server's
/// clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BootStatus {
    /// The newest report.
    pub report: BootReport,
    /// The number of boots that the boot reporter has reported from.
    pub boots: u32,
    /// The time of the first report.
    pub first_at: u64,
    /// The time of the last report.
    pub at: u64,
}

/// The configuration that the action `boot-reporter` leaves in the installed system for the boot reporter, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BootReporterConfig {
    /// The base URL of the server.
    pub url: String,
    /// The token of the run.
    pub token: Secret,
    /// The certificates in PEM that may sign the server's certificate.
    pub ca: String,
    /// The HTTP proxy through which the machine was installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<Proxy>,
    /// The boot reporter ends after this many hours, however the boot went.
    pub hours: u32,
    /// The seconds between two logs.
    pub every: u32,
}

/// The paths of the boot reporter's files in an installed system, without a leading slash. The action creates these
/// files, and the boot reporter removes them.
pub mod places {
    /// The program.
    pub const PROGRAM: &str = "usr/local/lib/slipway/slipway";
    /// The configuration, with the token.
    pub const CONFIG: &str = "usr/local/lib/slipway/report.json";
    /// The unit that starts the program.
    pub const UNIT: &str = "etc/systemd/system/slipway-report.service";
    /// The link that makes the unit part of a boot.
    pub const LINK: &str = "etc/systemd/system/multi-user.target.wants/slipway-report.service";
}
