//! The power of machines, as operators see and switch it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// What switches the power of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum PowerProvider {
    /// Nothing does.
    #[default]
    None,
    /// A program on the server's host, called a hook.
    Command,
    /// The machine's BMC, by Redfish.
    Redfish,
    /// The server itself, which has the machine in QEMU on its host.
    Qemu,
}

/// What a machine boots once by Redfish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum PowerBoot {
    /// What the network offers, by PXE.
    #[default]
    Network,
    /// A file at a URL, by UEFI HTTP boot.
    Http,
    /// A disc image at a URL, in a virtual drive of the BMC.
    Media,
}

/// How a machine is reached by Redfish.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Redfish {
    /// The URL of the BMC: `https://` and a host.
    #[cfg_attr(feature = "openapi", schema(pattern = "^https://[A-Za-z0-9.:\\[\\]-]{1,260}/?$"))]
    pub url: String,
    /// The user.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[^\\x00-\\x1f\\x7f-\\x9f:]{1,128}$"))]
    pub username: String,
    /// The id of the machine, if the BMC has several. By default, it is the one that has the node's UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(pattern = "^[A-Za-z0-9_.:@-]{1,128}$"))]
    pub system: Option<String>,
    /// The CA certificates that the BMC is verified with, in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// The SHA-256 of the BMC's certificate, as `sha256:` and hexadecimal. It counts whatever name and dates the
    /// certificate has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(pattern = "^sha256:[0-9a-fA-F]{64}$"))]
    pub pin: Option<String>,
    /// What the machine boots once.
    #[serde(default)]
    pub boot: PowerBoot,
    /// The URL of the file or of the disc image that it boots. Not for `network`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(pattern = "^https?://[!-~]{1,2000}$"))]
    pub boot_url: Option<String>,
}

/// Whether power is really switched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum PowerMode {
    /// It is.
    #[default]
    Real,
    /// Nothing is switched. What would be is recorded as an event.
    Recorder,
    /// Requests to switch it are refused.
    Disabled,
}

/// Whether a machine is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PowerState {
    /// It is on.
    On,
    /// It is off.
    Off,
}

impl fmt::Display for PowerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

/// What an operator can do with the power of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PowerAct {
    /// Switch the machine on.
    On,
    /// Switch the machine off, without telling its operating system.
    Off,
    /// Switch the machine off and on again, or on if it is off.
    Cycle,
    /// Look whether the machine is on.
    Status,
    /// Have the machine boot slipway once: switch it off and on again, or on if it is off.
    Boot,
}

impl PowerAct {
    /// What is done to the machine, in a sentence such as "web1 is to be switched off".
    pub fn in_words(self) -> &'static str {
        match self {
            Self::On => "switched on",
            Self::Off => "switched off",
            Self::Cycle => "switched off and on again",
            Self::Status => "asked whether it is on",
            Self::Boot => "switched on to boot slipway once",
        }
    }
}

/// Where a power act stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PowerActState {
    /// No server has begun it.
    Asked,
    /// The machine is being switched off.
    SwitchingOff,
    /// The machine is being switched on.
    SwitchingOn,
    /// It is done.
    Done,
    /// It failed.
    Failed,
    /// It was not done, or not to its end, because it is not wanted any more.
    Withdrawn,
}

impl PowerActState {
    /// Whether a server has yet to do something.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Asked | Self::SwitchingOff | Self::SwitchingOn)
    }
}

/// The newest power act of a node. Times are in milliseconds since 1970, by the server's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PowerActStatus {
    /// The id of the act.
    pub id: String,
    /// What was asked for.
    pub act: PowerAct,
    /// Where it stands.
    pub state: PowerActState,
    /// When it was asked for.
    pub asked_at: u64,
    /// Whether the machine was switched for it, or may have been.
    #[serde(default)]
    pub switched: bool,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<u64>,
    /// The id of the run that the machine is to fetch. Present if the start of a run asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Why it failed or was withdrawn, or why it is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl PowerActStatus {
    /// Says where it stands, with the machine as the subject: `is being switched off`.
    pub fn in_words(&self) -> String {
        let (act, reason) = (self.act.in_words(), self.reason.as_ref());
        let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        match self.state {
            PowerActState::Asked => format!("is to be {act}{reason}"),
            PowerActState::SwitchingOff => format!("is being switched off{reason}"),
            PowerActState::SwitchingOn => format!("is being switched on{reason}"),
            PowerActState::Done => format!("was {act}"),
            PowerActState::Failed => format!("could not be {act}{reason}"),
            PowerActState::Withdrawn => format!("was not {act}{reason}"),
        }
    }
}

/// How the power of a node's machine is switched, and whether it is on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodePower {
    /// What switches it.
    pub provider: PowerProvider,
    /// Whether it is really switched.
    pub mode: PowerMode,
    /// The name of the hook. Present if the provider is `command`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<String>,
    /// What the hook is told, such as the address of the machine's BMC, or what a virtual machine consists of. The
    /// password is left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    /// How its BMC is reached. Present if the provider is `redfish`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redfish: Option<Redfish>,
    /// Whether the server keeps a password for the provider.
    #[serde(default)]
    pub has_password: bool,
    /// The time after which the provider is stopped, in seconds.
    pub limit_seconds: u32,
    /// Whether the machine was on when that was last asked. Absent if that is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<PowerState>,
    /// When that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_at: Option<u64>,
    /// The last act that failed, until a later one succeeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<PowerActStatus>,
    /// The newest act.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub act: Option<PowerActStatus>,
}
