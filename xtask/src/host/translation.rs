//! Runs programs of another architecture on this host: the kernel passes them to QEMU
//! (Documentation/admin-guide/binfmt-misc.rst).

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use slipway_parts::Arch;

use crate::host::command::{command, run_quietly};
use crate::host::packages;

/// Folder of the kernel's binfmt_misc files, through which the kernel accepts rules.
const RULES: &str = "/proc/sys/fs/binfmt_misc";
/// File of Debian's package that has the rule, meant for systemd-binfmt.
const RULE: &str = "/usr/lib/binfmt.d/qemu-aarch64.conf";
/// Context of errors: the operation, and what to do if it fails. A skipped test shows only the first line of an error.
const WHAT: &str = "making this host run arm64 programs (as root, if binfmt_misc can be set up; for a container that \
                    cannot, install qemu-user-static on its host)";

/// Makes this host run arm64 programs, if it does not yet. A host without systemd, such as a container, gets the rule
/// that systemd would have installed. The error says why that is not possible, and what to do.
pub fn ensure() -> Result<()> {
    packages::ensure(packages::TRANSLATION).context(WHAT)?;
    if works() {
        return Ok(());
    }
    set_up().context(WHAT)?;
    ensure!(works(), "{WHAT}: the kernel has the rule, but arm64 programs do not start");
    Ok(())
}

/// Installs the rule of Debian's package in the kernel. The rule applies to all programs until the host restarts.
fn set_up() -> Result<()> {
    let register = Path::new(RULES).join("register");
    if !register.exists() {
        run_quietly(&mut command("mount", ["-t", "binfmt_misc", "binfmt_misc", RULES]))?;
    }
    let rules = fs::read_to_string(RULE).with_context(|| format!("reading {RULE}"))?;
    let rule = rules.lines().find(|line| line.starts_with(':'));
    let rule =
        rule.with_context(|| format!("looking for a binfmt_misc rule: no line of {RULE} begins with a colon"))?;
    fs::write(&register, rule).with_context(|| format!("writing to {}", register.display()))
}

/// Whether a small arm64 program runs.
fn works() -> bool {
    run_quietly(&mut command("arch-test", [Arch::Aarch64.debian()])).is_ok()
}
