//! The messages between the boot reporter of an installed system and the server, under `/v1/boot-report`.

use serde::{Deserialize, Serialize, Serializer, ser};

use crate::node::boot_settings::MachineSettings;
use crate::node::state::NodeState;
use crate::shared::secret::Secret;
use crate::workflow::agent::Agent;

/// The type of the logs that the boot reporter sends, in the server's API.
pub const HOST_BOOT_LOG: &str = "host_boot";
/// The greatest length of a boot id, and of a state of the service manager, in bytes.
pub const MAX_BOOT_WORD_BYTES: usize = 64;
/// The most failed units in a report.
pub const MAX_FAILED_UNITS: usize = 32;
/// The greatest length of the name of a unit, in bytes (systemd.unit(5)).
const MAX_UNIT_BYTES: usize = 255;
/// The state of the service manager while the emergency or rescue shell runs (systemctl(1), is-system-running).
pub const MAINTENANCE: &str = "maintenance";

/// Whether a text can be the name of a unit. In unit names, all other characters are escaped (systemd.unit(5)).
pub fn is_unit_name(text: &str) -> bool {
    let is_sign = |byte: u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(&byte);
    (1..=MAX_UNIT_BYTES).contains(&text.len()) && text.contains('.') && text.bytes().all(is_sign)
}

/// The name of a unit, in the server's API.
#[cfg(feature = "openapi")]
#[derive(utoipa::ToSchema)]
#[schema(value_type = String, pattern = r"^[0-9A-Za-z:_.\\@-]*\.[0-9A-Za-z:_.\\@-]*$", max_length = 255)]
#[allow(dead_code, reason = "it is the schema of a text")]
pub(crate) struct UnitName(String);

/// Returns the path of the boot reporter's program among the boot files. `arch` is a name of uname(2).
pub fn program_of(arch: &str) -> String {
    format!("{arch}/{}", places::PROGRAM)
}

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
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9A-Za-z-]{1,64}$"))]
    pub boot_id: String,
    /// The output of `systemctl is-system-running`, such as `starting` or `degraded`. Absent if the reporter could not
    /// ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9A-Za-z-]{1,64}$"))]
    pub system_state: Option<String>,
    /// The names of the units that failed, in the order of `systemctl list-units`. At most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 32, value_type = Vec<UnitName>))]
    pub failed_units: Vec<String>,
}

/// The answer (200) to `GET` and `POST /v1/boot-report`: the state that the server knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BootKnown {
    /// The state of the node.
    pub node: NodeState,
    /// The newest report of the system that the run installed. Absent before its first report.
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
    /// The settings that the machine had for itself while it was installed, without its token: proxy, network, name.
    #[serde(default, serialize_with = "stored")]
    pub machine: MachineSettings,
    /// The boot reporter ends after this many hours, however the boot went.
    pub hours: u32,
    /// The seconds between two uploads of the boot's log.
    pub every: u32,
    /// What the agent may do that the boot reporter becomes once the system runs. None if it does not stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,
}

/// Writes the settings of a machine. A setting that is absent has no key, because none may be without a value.
fn stored<S: Serializer>(settings: &MachineSettings, serializer: S) -> Result<S::Ok, S::Error> {
    settings.stored().map_err(ser::Error::custom)?.serialize(serializer)
}

/// The paths of the boot reporter's files in an installed system, without a leading slash. The action creates these
/// files, and the boot reporter removes them.
pub mod places {
    /// The folder of program and configuration in most systems.
    pub const USR_LOCAL: &str = "usr/local/lib/slipway";
    /// The folder in a system whose /usr is another file system than its root.
    pub const OPT: &str = "opt/slipway";
    /// The folder in a system that is made of read-only trees, in which only /etc and /var are writable.
    pub const VAR: &str = "var/lib/slipway";
    /// All folders that may hold the program and the configuration.
    pub const FOLDERS: &[&str] = &[USR_LOCAL, OPT, VAR];
    /// The program's file name in the folder.
    pub const PROGRAM: &str = "slipway";
    /// The file name of the configuration with the token.
    pub const CONFIG: &str = "report.json";
    /// The file name of the agent's token.
    pub const AGENT: &str = "agent.json";
    /// The file name of the script that fetches the program, for a system that fetches it by itself.
    pub const FETCH: &str = "fetch.sh";
    /// The file name of the script's settings for curl.
    pub const FETCH_CURL: &str = "fetch.curl";
    /// The file name of the certificates in PEM that the script verifies the server with.
    pub const FETCH_CA: &str = "ca.pem";
    /// The name of the unit that starts the program.
    pub const UNIT_NAME: &str = "slipway-report.service";
    /// The path of the unit.
    pub const UNIT: &str = "etc/systemd/system/slipway-report.service";
    /// The links that make the unit part of a boot, including one that ends in the emergency or rescue shell.
    pub const LINKS: &[&str] = &[
        "etc/systemd/system/multi-user.target.wants/slipway-report.service",
        "etc/systemd/system/emergency.target.wants/slipway-report.service",
        "etc/systemd/system/rescue.target.wants/slipway-report.service",
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_of_a_machine_are_read_as_they_were_written() {
        let hostname = Some("rack1".to_owned());
        for machine in [MachineSettings::default(), MachineSettings { hostname, ..MachineSettings::default() }] {
            let config = BootReporterConfig {
                url: "https://s.example".to_owned(),
                token: Secret::from("T".to_owned()),
                ca: String::new(),
                machine,
                hours: 1,
                every: 600,
                agent: Some(Agent::default()),
            };
            let text = serde_json::to_string(&config).expect("JSON");
            assert_eq!(serde_json::from_str::<BootReporterConfig>(&text).expect(&text), config);
            assert!(!text.contains("null"), "{text}");
        }
    }

    #[test]
    fn names_of_units_are_told_from_other_texts() {
        for good in
            ["a.service", "srv-my\\x2ddata.mount", "user@1000.service", "dev-disk-by\\x2duuid-1.device", "a:b_c.d"]
        {
            assert!(is_unit_name(good), "{good}");
        }
        for bad in ["", "service", "a b.service", "a\u{1b}[2J.service", "\u{e4}.service", &"a.".repeat(128)] {
            assert!(!is_unit_name(bad), "{bad:?}");
        }
    }
}
