//! `bench siege`: how nodes are affected while others attack their server.

use anyhow::Result;

use crate::build::server;
use crate::host::command::{command, run, run_and_tell};
use crate::host::workspace;

/// Builds the server and the program that attacks it, and runs each attack for this many seconds. The program prints
/// the results. It is separate, because it links the protocol's crates and xtask does not.
pub fn siege(seconds: u64) -> Result<()> {
    let target = server::host_target()?;
    let arguments = ["build", "--release", "--package", "slipway-server", "--bins", "--example", "siege"];
    let mut cargo = command(workspace::cargo(), arguments);
    cargo.env("CARGO_TARGET_DIR", &target).current_dir(workspace::root());
    run_and_tell(&mut cargo, "Compiling", "building slipway-server and its attackers (kept for the next time)")?;
    let mut siege = command(target.join("release/examples/siege"), [target.join("release/slipway-server")]);
    run(siege.arg(seconds.to_string()))
}
