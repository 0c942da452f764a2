//! Kinds of boot files.

use serde::{Deserialize, Serialize};

/// A kind of boot files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = MediaKind))]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Kernel, initramfs and unified kernel image of each architecture, for boot over the network.
    Network,
    /// The image of a stick: a disk with a GUID partition table and an EFI system partition.
    Stick,
    /// The image of a disc (ISO 9660), for virtual media of management controllers.
    Disc,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Network, Self::Stick, Self::Disc];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Stick => "stick",
            Self::Disc => "disc",
        }
    }

    /// Whether files of this kind reserve space for one machine's settings.
    pub fn has_machine_settings(self) -> bool {
        self != Self::Network
    }
}
