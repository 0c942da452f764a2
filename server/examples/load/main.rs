//! Puts load on servers: `load siege SERVER SECONDS` and `load fleet SERVER --nodes N ...`. `cargo xtask bench` builds
//! both programs and runs them.

#![allow(clippy::unwrap_used, reason = "a measurement that cannot be made ends")]

mod attack;
mod balancer;
mod client;
mod database;
mod fleet;
mod nodes;
mod page;
#[path = "../../tests/api/postgres.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod postgres;
mod siege;
mod target;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use slipway_server::base::limits::raise_open_files;

use attack::Attack;

#[derive(Parser)]
struct Load {
    #[command(subcommand)]
    kind: Kind,
}

/// What load.
#[derive(Subcommand)]
enum Kind {
    /// A siege's attackers, in a process of their own
    Attack { name: String, arguments: Vec<String> },
    /// Strangers attack while nodes report
    Siege { server: PathBuf, seconds: u64 },
    /// Many nodes wait and report
    Fleet(fleet::Options),
}

#[tokio::main]
async fn main() {
    let load = Load::parse();
    raise_open_files();
    rustls::crypto::ring::default_provider().install_default().unwrap();
    match load.kind {
        Kind::Attack { name, arguments } => attack::run(Attack::named(&name), &arguments).await,
        Kind::Siege { server, seconds } => siege::run(&server, Duration::from_secs(seconds)).await,
        Kind::Fleet(options) => fleet::run(&options).await,
    }
}
