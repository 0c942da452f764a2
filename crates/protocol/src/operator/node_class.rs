//! Classes of nodes: how long a node and its system are meant to live.

use serde::{Deserialize, Serialize};

/// How long a node and its system are meant to live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum NodeClass {
    /// The system stays until an operator installs another one.
    #[default]
    #[cfg_attr(feature = "clap", value(help = "The system stays until an operator installs another one"))]
    Persistent,
    /// The system lasts until the machine boots slipway again, which reinstalls it if it had reported that it runs.
    /// The disks are erased before the node goes out of service.
    #[cfg_attr(
        feature = "clap",
        value(help = "The system is reinstalled whenever the machine boots slipway; the disks are erased before \
                      the machine goes out of service")
    )]
    Ephemeral,
    /// The machine may be taken away at any time: its silence is no trouble.
    #[cfg_attr(feature = "clap", value(help = "The machine may be taken away at any time: its silence is not flagged"))]
    Spot,
}

impl NodeClass {
    /// All classes.
    pub const ALL: [Self; 3] = [Self::Persistent, Self::Ephemeral, Self::Spot];

    /// Returns the name of the class in JSON, in options and on the page.
    pub fn name(self) -> &'static str {
        match self {
            Self::Persistent => "persistent",
            Self::Ephemeral => "ephemeral",
            Self::Spot => "spot",
        }
    }
}
