//! `bench siege` and `bench fleet`: servers under load.

use std::path::PathBuf;

use anyhow::Result;

use crate::build::server::{self, Profile};
use crate::host::command::{command, run, run_and_tell};
use crate::host::workspace;

/// What `bench fleet` measures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// Number of nodes that get a run and report.
    pub nodes: u64,
    /// Number of further nodes that only wait for work.
    pub idle: u64,
    /// Number of further nodes that the store has.
    pub stored: u64,
    /// Seconds for which the nodes report.
    pub seconds: u64,
    /// `sqlite`, `postgres`, or the URL of an empty database.
    pub database: String,
    /// Number of servers.
    pub replicas: u64,
    /// Seconds after which a server is killed and started again.
    pub kill_every: Option<u64>,
}

/// Shows how nodes are affected while others attack their server. Runs each attack for `seconds`.
pub fn siege(seconds: u64, profile: Profile) -> Result<()> {
    load("siege", profile, &[seconds.to_string()])
}

/// Shows what a fleet costs its servers, and that nothing is lost when they are killed.
pub fn fleet(fleet: &Fleet, profile: Profile) -> Result<()> {
    let Fleet { nodes, idle, stored, seconds, database, replicas, kill_every } = fleet;
    let mut options = Vec::new();
    let numbers = [("nodes", nodes), ("idle", idle), ("stored", stored), ("seconds", seconds), ("replicas", replicas)];
    for (name, number) in numbers {
        options.extend([format!("--{name}"), number.to_string()]);
    }
    options.extend(["--database".to_owned(), database.clone()]);
    options.extend(kill_every.iter().flat_map(|every| ["--kill-every".to_owned(), every.to_string()]));
    load("fleet", profile, &options)
}

/// Whether this host has the programs of a PostgreSQL server, as Debian installs them.
pub fn has_postgres() -> bool {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    versions.map(|version| version.path().join("bin/initdb")).any(|program| program.exists())
}

/// Builds the server and the program that puts load on it, and runs the program, which prints the results. The program
/// is separate, because it links the protocol's crates and xtask does not.
fn load(kind: &str, profile: Profile, options: &[String]) -> Result<()> {
    let mut cargo =
        command(workspace::cargo(), ["build", "--package", "slipway-server", "--bins", "--example", "load"]);
    cargo.args(profile.options()).env("CARGO_TARGET_DIR", server::host_target()?).current_dir(workspace::root());
    run_and_tell(&mut cargo, "Compiling", "building slipway-server and its clients (kept for the next time)")?;
    let folder = profile.folder()?;
    let server: PathBuf = folder.join("slipway-server");
    let mut load = command(folder.join("examples/load"), [kind]);
    run(load.arg(server).args(options))
}
