//! slipway's companion server: serves boot files and workflows, and shows the state of each machine.
//!
//! [`serve::Server`] is the server. [`operate`] is what operators do, both on the command line and over HTTPS.
//! Decisions are pure functions ([`state`], [`ipxe`], [`compose`], [`range`]). [`store`] keeps their results, and
//! [`api`] translates between HTTP and both.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests"))]

pub mod admission;
pub mod api;
pub mod backup;
pub mod boot_fetches;
pub mod ca;
pub mod capture;
pub mod certificate;
pub mod compose;
mod connections;
pub mod data;
pub mod enrol;
mod error;
pub mod escrow;
pub mod foresee;
pub mod image;
pub mod ipxe;
pub mod jwt;
pub mod limits;
mod listener;
mod live_keys;
pub mod media;
pub mod metadata;
pub mod operate;
pub mod phone_home_settings;
pub mod pkcs11;
pub mod pxe;
pub mod random;
pub mod range;
pub mod rate;
pub mod reports;
pub mod seal;
pub mod secure_boot;
pub mod serve;
pub mod snippet;
pub mod state;
pub mod status;
pub mod store;
pub mod time;

pub use error::{Error, chain};
