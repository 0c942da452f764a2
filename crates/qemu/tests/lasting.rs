//! A machine that outlives whoever started it runs once, is found again, and ends with its TPM.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use slipway_parts::Arch;
use slipway_qemu::accel::Accel;
use slipway_qemu::firmware::Firmware;
use slipway_qemu::{Boot, Disk, MachineConfig, create_disk, lasting, nvram};

/// Firmware is slow under emulation on a busy host.
const LIMIT: Duration = Duration::from_secs(120);

fn has(program: &str) -> bool {
    let has = Command::new(program).arg("--version").output().is_ok();
    if !has {
        println!("not checked: machines in QEMU, because {program} is not installed");
    }
    has
}

fn machine(firmware: Firmware) -> MachineConfig {
    MachineConfig {
        arch: Arch::X86_64,
        boot: Boot::Uefi { firmware, pxe: false },
        secure_boot: false,
        cpus: 1,
        memory_mib: 256,
        uuid: "4c4c4544-0042-3010-8058-b7c04f503432".to_owned(),
        serial: "one,two".to_owned(),
        disks: vec![Disk { path: "disk.raw".into(), serial: "disk".to_owned() }],
        nics: Vec::new(),
        extra: Vec::new(),
        detached: true,
    }
}

fn wait_for(what: &str, mut is_there: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    while !is_there()? {
        ensure!(Instant::now() < deadline, "{what} within {} s", LIMIT.as_secs());
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Whether a process has a file of the folder in its arguments.
fn is_used(folder: &Path) -> Result<bool> {
    let named = |entry: std::io::Result<fs::DirEntry>| {
        let arguments = entry.and_then(|entry| fs::read(entry.path().join("cmdline"))).unwrap_or_default();
        String::from_utf8_lossy(&arguments).contains(&*folder.to_string_lossy())
    };
    Ok(fs::read_dir("/proc")?.any(named))
}

#[test]
fn it_runs_once_and_is_found_until_it_is_stopped() -> Result<()> {
    if !has("qemu-system-x86_64") || !has("swtpm") {
        return Ok(());
    }
    let root = tempfile::tempdir()?;
    // Longer than a path of a socket may be.
    let folder = root.path().join("f".repeat(120));
    fs::create_dir_all(&folder)?;
    create_disk(&folder.join("disk.raw"), 1 << 30)?;
    let config = machine(Firmware::of_host(Arch::X86_64)?);
    ensure!(lasting::find(&folder)?.is_none(), "it runs before it was started");
    lasting::start(&config, Accel::Tcg, &folder, true)?;
    let found = lasting::find(&folder)?.context("it is not found")?;
    let pid = found.pid();
    let again = lasting::start(&config, Accel::Tcg, &folder, false).err().context("it was started twice")?;
    ensure!(again.to_string().contains("starting QEMU in"), "{again:#}");
    ensure!(lasting::find(&folder)?.is_some_and(|found| found.pid() == pid), "it is another one");

    let console = folder.join("console.log");
    wait_for("the firmware's shell", || {
        Ok(fs::read(&console).is_ok_and(|text| String::from_utf8_lossy(&text).contains("Shell>")))
    })?;
    found.stop()?;
    ensure!(lasting::find(&folder)?.is_none(), "it runs after it was stopped");
    wait_for("the TPM ends", || Ok(!is_used(&folder)?))?;

    // What the firmware wrote is understood.
    nvram::boot_next(&folder.join("vars.fd"), Some("http://10.0.2.2:9/none.efi"))?;
    nvram::boot_next(&folder.join("vars.fd"), None)?;

    // A number that is left over is not that of a machine.
    fs::write(folder.join("qemu.pid"), format!("{}\n", std::process::id()))?;
    ensure!(lasting::find(&folder)?.is_none(), "a number is not a machine");
    Ok(())
}

#[test]
fn one_that_cannot_start_says_why_and_leaves_nothing_behind() -> Result<()> {
    if !has("qemu-system-x86_64") || !has("swtpm") {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let config = machine(Firmware::of_host(Arch::X86_64)?);
    let error = lasting::start(&config, Accel::Tcg, folder.path(), true).err().context("it started")?;
    ensure!(error.to_string().contains("disk.raw"), "{error:#}");
    ensure!(lasting::find(folder.path())?.is_none());
    wait_for("the TPM ends", || Ok(!is_used(folder.path())?))
}
