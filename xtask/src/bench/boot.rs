//! `bench boot`: how long a machine takes from power-on to a written disk.

use anyhow::Result;

use crate::build::server;
use crate::host::command::{command, run, run_and_tell};
use crate::host::workspace;

/// Builds the benchmark program and runs it for `rounds` rounds of the `ways` of installing, or of all ways if `ways`
/// is empty. It is a separate program that prints its own results, because it links what only whole-machine tests need.
pub fn boot(rounds: usize, ways: &[String]) -> Result<()> {
    let target = server::host_target()?;
    let mut cargo = command(workspace::cargo(), ["build", "--package", "qemu-tests", "--example", "boot"]);
    cargo.env("CARGO_TARGET_DIR", &target).current_dir(workspace::root());
    run_and_tell(&mut cargo, "Compiling", "building the benchmark program (kept for the next time)")?;
    run(command(target.join("debug/examples/boot"), [rounds.to_string()]).args(ways))
}
