//! Builds `slipway-server` for this host.

use std::path::PathBuf;

use anyhow::Result;

use crate::host::command::{command, run_and_tell};
use crate::host::{cache, workspace};

/// The cargo target directory for this host's programs.
pub fn host_target() -> Result<PathBuf> {
    cache::cargo_target("target-host", &[&["--profile", "dev"], &["--release"]])
}

/// How a program of this host is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// For machines in QEMU, which are slower than any server. The tests use the same compiled crates.
    Dev,
    /// For benchmarks.
    Release,
}

impl Profile {
    /// Returns the options of cargo that select this profile.
    pub fn options(self) -> &'static [&'static str] {
        if self == Self::Release { &["--release"] } else { &[] }
    }

    /// Returns the profile's folder in [`host_target`].
    pub fn folder(self) -> Result<PathBuf> {
        Ok(host_target()?.join(if self == Self::Release { "release" } else { "debug" }))
    }
}

/// Builds `slipway-server` for this host and returns its path. Dependencies are compiled once for all clones.
pub fn build_server(profile: Profile) -> Result<PathBuf> {
    let mut cargo = command(workspace::cargo(), ["build", "--package", "slipway-server"]);
    cargo.args(profile.options()).env("CARGO_TARGET_DIR", host_target()?).current_dir(workspace::root());
    run_and_tell(&mut cargo, "Compiling", "building slipway-server (kept for the next time)")?;
    Ok(profile.folder()?.join("slipway-server"))
}
