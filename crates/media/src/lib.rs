//! Boot files: kernel, initramfs, unified kernel image, and the images of a stick and a disc. They are assembled from
//! prebuilt [`slipway_parts::Parts`], which are the same for every site, and one [`Config`], without a compiler or any
//! other program. The same inputs give the same bytes.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests"))]

mod build;
mod config;
mod gpt;
mod iso;
pub mod judge;
mod kind;
pub mod machine_settings;
mod manifest;
mod measurements;
mod network;
mod uki;

pub use build::{BuildError, Inputs, Sink, build, id};
pub use config::{Config, to_yaml};
pub use kind::Kind;
pub use manifest::{AssetInfo, MANIFEST, Manifest, PartsUsed, Range, Signer};
pub use measurements::{MeasureError, Measurements, SectionDigest, measured};
pub use network::SignFileError;
pub use uki::{UkiError, assemble};
