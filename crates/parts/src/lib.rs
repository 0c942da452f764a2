//! The prebuilt parts of boot images: `xtask` builds them once, and `slipway-media` makes boot files from them for each
//! site.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests"))]

mod arch;
pub mod cpio;
mod parts;
mod sbom;

pub use arch::Arch;
pub use parts::sha256;
pub use parts::{ABOUT, About, Component, PROGRAM, Parts, PartsError, RARE_INDEX, RARE_PACK, RareDrivers, STUB};
pub use sbom::sbom;
