//! `bench siege` and `bench fleet`: a server under load.

use std::path::PathBuf;

use anyhow::Result;

use crate::build::server::{self, Profile};
use crate::host::command::{command, run, run_and_tell};
use crate::host::workspace;

/// Shows how nodes are affected while others attack their server. Runs each attack for `seconds`.
pub fn siege(seconds: u64, profile: Profile) -> Result<()> {
    load("siege", &[seconds], profile)
}

/// Shows what a fleet costs its server: this many nodes work on runs for `seconds`, and `idle` others wait for work.
pub fn fleet(nodes: u64, idle: u64, seconds: u64, profile: Profile) -> Result<()> {
    load("fleet", &[nodes, idle, seconds], profile)
}

/// Builds the server and the program that puts load on it, and runs the program, which prints the results. The program
/// is separate, because it links the protocol's crates and xtask does not.
fn load(kind: &str, numbers: &[u64], profile: Profile) -> Result<()> {
    let mut cargo =
        command(workspace::cargo(), ["build", "--package", "slipway-server", "--bins", "--example", "load"]);
    cargo.args(profile.options()).env("CARGO_TARGET_DIR", server::host_target()?).current_dir(workspace::root());
    run_and_tell(&mut cargo, "Compiling", "building slipway-server and its clients (kept for the next time)")?;
    let folder = profile.folder()?;
    let server: PathBuf = folder.join("slipway-server");
    let mut load = command(folder.join("examples/load"), [kind]);
    run(load.arg(server).args(numbers.iter().map(u64::to_string)))
}
