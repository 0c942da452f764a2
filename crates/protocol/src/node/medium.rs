//! What a boot medium says about itself. The machine that starts from it finds out whether kernel, initramfs and
//! configuration belong together, before it uses its network.

use serde::{Deserialize, Serialize};

/// The path of the [`Medium`] in the initramfs, beside the configuration.
pub const MEDIUM: &str = "/etc/slipway/medium.json";

/// Largest configuration in an initramfs, in bytes. A configuration with a hundred certificates fits.
pub const MOST_CONFIG_BYTES: usize = 1 << 20;

/// The build that an initramfs belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Medium {
    /// Id of the build, as in its manifest.
    pub build: String,
    /// Release of the kernel, as uname(2) says it.
    pub release: String,
    /// SHA-256 of the configuration in the initramfs, in hexadecimal.
    pub config_sha256: String,
}
