//! Chooses the accelerator. `/dev/kvm` may exist and still hang every guest (in a nested, emulated KVM), so it is tried
//! once, and the caller keeps the answer.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use slipway_parts::Arch;

use crate::arguments::{board, command, missing};
use crate::console::Console;
use crate::firmware::Firmware;
use crate::qmp::POLL;

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

/// Returns the accelerator as far as nothing has to be tried: the value of `SLIPWAY_ACCEL` (`kvm` or `tcg`) if it is
/// set; TCG for another architecture than the host's, and where KVM cannot be opened. `None` if KVM has to be tried.
pub fn known(arch: Arch) -> Result<Option<Accel>> {
    if !arch.is_of_host() {
        return Ok(Some(Accel::Tcg));
    }
    match std::env::var("SLIPWAY_ACCEL").as_deref() {
        Ok("kvm") => Ok(Some(Accel::Kvm)),
        Ok("tcg") => Ok(Some(Accel::Tcg)),
        Ok(other) => bail!("reading SLIPWAY_ACCEL {other:?}: must be kvm or tcg"),
        Err(_) if File::options().read(true).write(true).open("/dev/kvm").is_err() => Ok(Some(Accel::Tcg)),
        Err(_) => Ok(None),
    }
}

/// Describes what the answer of [`try_kvm`] depends on: the host's kernel, QEMU, and the processor.
pub fn host(arch: Arch) -> Result<[(&'static str, String); 3]> {
    let kernel = fs::read_to_string("/proc/version").context("reading /proc/version")?;
    let qemu = command(arch).arg("--version").output().with_context(|| missing(arch))?;
    let processor = fs::read_to_string("/proc/cpuinfo").context("reading /proc/cpuinfo")?;
    let processor = processor.lines().find(|line| line.starts_with("model name")).unwrap_or_default();
    let qemu = String::from_utf8_lossy(&qemu.stdout).into_owned();
    Ok([("kernel", kernel), ("qemu", qemu), ("processor", processor.to_owned())])
}

/// Tries whether a guest runs under KVM, which takes up to ten seconds.
pub fn try_kvm(arch: Arch, firmware: &Firmware) -> Result<Accel> {
    Ok(if lives_under_kvm(arch, firmware)? { Accel::Kvm } else { Accel::Tcg })
}

/// Chooses as [`known`] says, or else tries KVM. A file remembers the answer, and what it depends on.
pub fn choose(arch: Arch, memory: &Path) -> Result<Accel> {
    if let Some(known) = known(arch)? {
        return Ok(known);
    }
    let host = host(arch)?.map(|(name, value)| format!("{name}: {}\n", value.trim())).concat();
    let is = |answer: &str| format!("{answer}\n{host}");
    let remembered = fs::read_to_string(memory).unwrap_or_default();
    for (answer, accel) in [("kvm", Accel::Kvm), ("tcg", Accel::Tcg)] {
        if remembered == is(answer) {
            return Ok(accel);
        }
    }
    let accel = try_kvm(arch, &Firmware::of_host(arch)?)?;
    let answer = if accel == Accel::Kvm { "kvm" } else { "tcg" };
    fs::write(memory, is(answer)).with_context(|| format!("writing {}", memory.display()))?;
    Ok(accel)
}

fn lives_under_kvm(arch: Arch, firmware: &Firmware) -> Result<bool> {
    let folder = tempfile::tempdir().context("creating a temporary folder")?;
    let (log, variables) = (folder.path().join("log"), folder.path().join("vars.fd"));
    firmware.variables(&variables)?;
    let mut qemu = command(arch);
    qemu.args(["-machine", board(arch), "-m", "256", "-display", "none", "-nodefaults"]);
    qemu.args(firmware.drives(&variables)).args(Accel::Kvm.arguments(arch));
    qemu.arg("-serial").arg(format!("file:{}", log.display()));
    let mut probe =
        qemu.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().with_context(|| missing(arch))?;
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
