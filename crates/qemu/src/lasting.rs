//! Machines that outlive the process that starts them. All that is known of one is in its folder, so that whoever comes
//! later finds it:
//!
//! ```text
//! qemu.pid     locked by QEMU as long as it runs
//! console.log  what the machine wrote to its serial port, over all starts
//! qmp console  sockets
//! vars.fd      variables of UEFI firmware
//! tpm/         state of its TPM
//! ```
//!
//! The kernel says who holds the lock of `qemu.pid` (fcntl(2), F_GETLK). A number in a file may be that of another
//! process by now; the holder of a lock cannot be. QEMU does not start if it does not get the lock, so that a machine
//! never runs twice.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, Pid, PidfdFlags, Signal, fcntl_getlk, pidfd_open, pidfd_send_signal};

use crate::accel::Accel;
use crate::arguments;
use crate::config::{Boot, MachineConfig};
use crate::console::Console;
use crate::tpm;

const PID_FILE: &str = "qemu.pid";
/// How long QEMU may take to end when it is asked to, and when it is killed.
const ENDS: Duration = Duration::from_secs(10);

/// A machine that runs.
#[derive(Debug)]
pub struct Lasting {
    folder: PathBuf,
    pid: Pid,
    process: OwnedFd,
}

/// Starts the machine of a folder, with a TPM of its own if it is to have one. Paths of disks may be relative to the
/// folder. Returns once the machine runs. Fails if it runs already.
pub fn start(config: &MachineConfig, accel: Accel, folder: &Path, has_tpm: bool) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    if let Boot::Uefi { firmware, .. } = &config.boot {
        firmware.variables(&folder.join("vars.fd"))?;
    }
    // Relative to the folder, because paths of sockets must be short (sun_path in unix(7)).
    let here = Path::new("");
    let accel = accel.arguments(config.arch);
    let arguments = arguments::of(config, accel, &here.join("vars.fd"), &here.join("console.log"), here);
    let mut qemu = arguments::command(config.arch);
    qemu.args(arguments).args(["-daemonize", "-pidfile", PID_FILE]);
    if let Some(running) = find(folder)? {
        bail!("starting QEMU in {}: the machine runs already, as process {}", folder.display(), running.pid());
    }
    let tpm = if has_tpm { Some(tpm::start(folder)?) } else { None };
    if tpm.is_some() {
        qemu.args(tpm::ARGUMENTS);
    }
    // A group of its own, so that ctrl-c does not reach it while it starts.
    let started = qemu.current_dir(folder).process_group(0).stdin(Stdio::null()).output();
    let started = started.with_context(|| arguments::missing(config.arch))?;
    if !started.status.success() {
        let said = String::from_utf8_lossy(&started.stderr);
        bail!("starting QEMU in {}: {}", folder.display(), said.trim());
    }
    // The TPM ends with the connection of its machine.
    if let Some(tpm) = tpm {
        tpm.keep();
    }
    Ok(())
}

/// Finds the machine of a folder, if it runs.
pub fn find(folder: &Path) -> Result<Option<Lasting>> {
    let path = folder.join(PID_FILE);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("opening {}", path.display())),
    };
    let holder = || -> Result<Option<Pid>> {
        let held = fcntl_getlk(&file, &Flock::from(FlockType::WriteLock));
        let Some(held) = held.with_context(|| format!("looking who locks {}", path.display()))? else {
            return Ok(None);
        };
        let strange = "the machine was started on another host or in another container; stop it there";
        Ok(Some(held.pid.with_context(|| format!("looking who locks {}: {strange}", path.display()))?))
    };
    let Some(pid) = holder()? else { return Ok(None) };
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(Errno::SRCH) => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("opening process {pid:?}")),
    };
    // Whoever held the lock may have ended before its process was opened.
    Ok((holder()? == Some(pid)).then(|| Lasting { folder: folder.to_owned(), pid, process }))
}

/// Returns what the machine of a folder wrote to its serial port, over all starts, without terminal control sequences.
pub fn console(folder: &Path) -> Result<String> {
    Console::new(&folder.join("console.log")).text()
}

impl Lasting {
    /// Process id of QEMU.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Ends the machine as a power cut does, and waits until it has ended. What it gave its disks is written.
    pub fn stop(self) -> Result<()> {
        for signal in [Signal::TERM, Signal::KILL] {
            match pidfd_send_signal(&self.process, signal) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(error).with_context(|| format!("stopping QEMU (process {})", self.pid())),
            }
            if self.has_ended(ENDS)? {
                return Ok(());
            }
        }
        bail!("stopping QEMU (process {}) in {}: it does not end", self.pid(), self.folder.display())
    }

    /// Waits until the machine has ended. Returns whether it has.
    fn has_ended(&self, limit: Duration) -> Result<bool> {
        let limit = Timespec::try_from(limit).context("waiting for QEMU")?;
        // A process that has ended is readable (pidfd_open(2)).
        let mut ended = [PollFd::new(&self.process, PollFlags::IN)];
        let count = rustix::io::retry_on_intr(|| poll(&mut ended, Some(&limit))).context("waiting for QEMU")?;
        ensure!(count <= 1, "waiting for QEMU: {count} processes ended");
        Ok(count == 1)
    }
}
