//! slipway's companion server: serves boot files and workflows, and shows the state of each machine.
//!
//! [`listen::serve::Server`] is the server. [`operate`] is what operators do, both on the command line and over HTTPS.
//! Decisions are pure functions ([`rules`], [`run::compose`], [`node::admission`]). [`store`] keeps their results, and
//! [`api`] translates between HTTP and both.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests"))]

pub mod api;
pub mod base;
pub mod boot_files;
pub mod image;
pub mod keys;
pub mod listen;
pub mod node;
pub mod operate;
pub mod page;
pub mod power;
pub mod rules;
pub mod run;
pub mod site;
pub mod store;

pub use base::error::{Error, chain};
