//! A TPM 2.0 in software for a machine, by the program swtpm. Its state is in the machine's folder. It ends when its
//! machine does.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::fs::{Mode, OFlags, open};

const SOCKET: &str = "tpm.sock";
/// QEMU's arguments for a machine that is started in its folder.
pub const ARGUMENTS: [&str; 6] = [
    "-chardev",
    "socket,id=tpm,path=tpm.sock",
    "-tpmdev",
    "emulator,id=tpm0,chardev=tpm",
    "-device",
    "tpm-crb,tpmdev=tpm0",
];
/// How long a TPM may take to end.
const ENDS: Duration = Duration::from_secs(10);

/// A TPM that waits for its machine. It ends on drop.
pub struct Starting {
    folder: PathBuf,
}

/// Starts the TPM of a machine's folder. One that waits there for a machine that never came is ended before.
pub fn start(folder: &Path) -> Result<Starting> {
    end(folder);
    let state = folder.join("tpm");
    fs::create_dir_all(&state).with_context(|| format!("creating {}", state.display()))?;
    let state = fs::canonicalize(&state).with_context(|| format!("looking for {}", state.display()))?;
    ensure!(
        !state.to_string_lossy().contains(','),
        "starting swtpm for {}: it takes no path with a comma; keep the machine in another folder",
        folder.display()
    );
    let mut swtpm = Command::new("swtpm");
    swtpm.args(["socket", "--tpm2", "--daemon", "--terminate", "--ctrl", &format!("type=unixio,path={SOCKET}")]);
    swtpm.arg("--tpmstate").arg(format!("dir={}", state.display()));
    let started = swtpm.current_dir(folder).process_group(0).stdin(Stdio::null()).output();
    let started = started.context("starting swtpm, which is in Debian's package swtpm")?;
    let said = String::from_utf8_lossy(&started.stderr);
    ensure!(started.status.success(), "starting swtpm for {}: {}", folder.display(), said.trim());
    Ok(Starting { folder: folder.to_owned() })
}

impl Starting {
    /// Leaves the TPM to its machine.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        end(&self.folder);
    }
}

/// CMD_SHUTDOWN of swtpm's control channel (swtpm_ioctls(3)).
const SHUTDOWN: [u8; 4] = [0, 0, 0, 3];

/// Ends a TPM that has no machine.
fn end(folder: &Path) {
    let Ok(folder) = open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) else { return };
    if let Ok(mut connection) = connect(&folder) {
        // It has ended when the other end is closed.
        let _ = connection.set_read_timeout(Some(ENDS));
        let _ = connection.write_all(&SHUTDOWN).and_then(|()| connection.read_to_end(&mut Vec::new()));
    }
}

fn connect(folder: &OwnedFd) -> std::io::Result<UnixStream> {
    // By the folder's descriptor, because the path of a socket must be short (sun_path in unix(7)).
    UnixStream::connect(format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd()))
}
