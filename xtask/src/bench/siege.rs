//! `bench siege`: how nodes are affected while others attack their server.

use anyhow::Result;

use crate::build::server::{self, Profile};
use crate::host::command::{command, run, run_and_tell};
use crate::host::workspace;

/// Builds the server and the program that attacks it, and runs each attack for `seconds`. The program prints the
/// results. It is separate, because it links the protocol's crates and xtask does not.
pub fn siege(seconds: u64, profile: Profile) -> Result<()> {
    let mut cargo =
        command(workspace::cargo(), ["build", "--package", "slipway-server", "--bins", "--example", "siege"]);
    cargo.args(profile.options()).env("CARGO_TARGET_DIR", server::host_target()?).current_dir(workspace::root());
    run_and_tell(&mut cargo, "Compiling", "building slipway-server and its attackers (kept for the next time)")?;
    let folder = profile.folder()?;
    let mut siege = command(folder.join("examples/siege"), [folder.join("slipway-server")]);
    run(siege.arg(seconds.to_string()))
}
