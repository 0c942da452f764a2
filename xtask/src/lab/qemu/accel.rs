//! Chooses the accelerator. `/dev/kvm` may exist and still hang every guest (in a nested, emulated KVM), so it is tried
//! once and the result is cached.

use std::fs::{self, File};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use slipway_parts::Arch;

use crate::host::cache::{self, Key};
use crate::host::command::{command, stdout};

use super::arguments::{board, program};
use super::console::Console;
use super::firmware::Release;
use super::{POLL, firmware};

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// The host's processor.
    Kvm,
    /// QEMU's software translation.
    Tcg,
}

impl Accel {
    /// QEMU's arguments for this accelerator.
    pub fn arguments(self, arch: Arch) -> [&'static str; 4] {
        match (self, arch) {
            (Accel::Kvm, _) => ["-accel", "kvm", "-cpu", "host"],
            // Without these features (fast byte strings) a kernel clears memory word by word, which makes fewer writes.
            // At each write QEMU must check whether the page held code that was run.
            (Accel::Tcg, Arch::X86_64) => ["-accel", "tcg,thread=multi", "-cpu", "max,-erms,-fsrm"],
            (Accel::Tcg, Arch::Aarch64) => ["-accel", "tcg,thread=multi", "-cpu", "cortex-a72"],
        }
    }
}

/// Time limit for a guest to show that it runs. A guest under a working KVM needs a fifth of that.
const PROBE: Duration = Duration::from_secs(10);
/// What the firmware of a machine without disks finally prints. A BIOS would prove nothing, because it does not use the
/// instructions that fail in a half-working KVM.
const ALIVE: &str = "UEFI Interactive Shell";

/// Chooses the value of `SLIPWAY_ACCEL` (`kvm` or `tcg`) if it is set, else KVM if a guest runs under it, else TCG. An
/// architecture other than the host's is always translated.
pub fn choose(arch: Arch) -> Result<Accel> {
    if !arch.is_of_host() {
        return Ok(Accel::Tcg);
    }
    match std::env::var("SLIPWAY_ACCEL").as_deref() {
        Ok("kvm") => return Ok(Accel::Kvm),
        Ok("tcg") => return Ok(Accel::Tcg),
        Ok(other) => bail!("reading SLIPWAY_ACCEL {other:?}: must be kvm or tcg"),
        Err(_) if File::options().read(true).write(true).open("/dev/kvm").is_err() => return Ok(Accel::Tcg),
        Err(_) => {}
    }
    let processor = fs::read_to_string("/proc/cpuinfo").context("reading /proc/cpuinfo")?;
    let key = Key::new("accel-2")
        .with("kernel", stdout(&mut command("uname", ["-rv"]))?)
        .with("qemu", stdout(&mut command(program(arch), ["--version"]))?)
        .with("processor", processor.lines().find(|line| line.starts_with("model name")).unwrap_or_default());
    let folder = cache::keyed("accel", key, |folder| {
        let answer = if lives_under_kvm(arch)? { "kvm" } else { "tcg" };
        eprintln!("guests run under {answer}");
        fs::write(folder.join("answer"), answer).context("writing the answer")
    })?;
    let answer = fs::read_to_string(folder.join("answer")).context("reading the answer")?;
    Ok(if answer == "kvm" { Accel::Kvm } else { Accel::Tcg })
}

fn lives_under_kvm(arch: Arch) -> Result<bool> {
    let folder = tempfile::tempdir().context("creating a temporary folder")?;
    let (log, variables) = (folder.path().join("log"), folder.path().join("vars.fd"));
    firmware::variables(&variables, arch, Release::Host, None)?;
    let mut qemu = command(program(arch), ["-machine", board(arch), "-m", "256", "-display", "none", "-nodefaults"]);
    qemu.args(firmware::drives(&variables, arch, Release::Host)?).args(Accel::Kvm.arguments(arch));
    qemu.arg("-serial").arg(format!("file:{}", log.display()));
    let mut probe =
        qemu.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("starting QEMU")?;
    let mut console = Console::new(&log);
    let mut lives = false;
    for _ in 0..PROBE.as_millis() / POLL.as_millis() {
        lives = console.find(ALIVE)?;
        if lives || probe.try_wait().context("waiting for QEMU")?.is_some() {
            break;
        }
        std::thread::sleep(POLL);
    }
    probe.kill().context("stopping QEMU")?;
    probe.wait().context("waiting for QEMU")?;
    Ok(lives)
}
