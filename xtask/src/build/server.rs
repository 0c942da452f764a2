//! Builds `slipway-server` for this host.

use std::path::PathBuf;

use anyhow::Result;

use crate::host::command::{command, run_and_tell};
use crate::host::{cache, workspace};

/// The cargo target directory for this host's programs.
pub fn host_target() -> Result<PathBuf> {
    cache::cargo_target("target-host", &[&["--profile", "dev"], &["--release"]])
}

/// Builds `slipway-server` for this host and returns its path. Dependencies are compiled once for all clones.
pub fn build_server() -> Result<PathBuf> {
    let target = host_target()?;
    let mut cargo = command(workspace::cargo(), ["build", "--release", "--package", "slipway-server"]);
    cargo.env("CARGO_TARGET_DIR", &target).current_dir(workspace::root());
    run_and_tell(&mut cargo, "Compiling", "building slipway-server (kept for the next time)")?;
    Ok(target.join("release/slipway-server"))
}
