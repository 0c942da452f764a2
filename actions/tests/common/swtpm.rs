//! A software TPM behind a character device, like a real one.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

/// A TPM that runs until this is dropped.
pub struct Tpm {
    pub device: PathBuf,
    swtpm: Child,
    /// Held open, because the device would end with its first user.
    _open: File,
}

impl Tpm {
    /// Starts the TPM with its state in a folder, which is created. None if there is no swtpm.
    pub fn start(state: &Path) -> Option<Self> {
        std::fs::create_dir_all(state).unwrap();
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let device = PathBuf::from(ptsname(&master, Vec::new()).unwrap().into_string().unwrap());
        let open = rustix::fs::open(&device, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let mut settings = tcgetattr(&open).unwrap();
        settings.make_raw();
        tcsetattr(&open, OptionalActions::Now, &settings).unwrap();
        if let Err(error) = Command::new("swtpm").arg("--version").output() {
            eprintln!("not checked: starting swtpm: {error}");
            return None;
        }
        // swtpm takes the descriptor of a device only if it is not a standard one (0 to 2).
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec swtpm chardev --tpm2 --fd 3 \"$@\" 3<&0 </dev/null", "sh", "--flags"]);
        shell.args(["not-need-init,startup-clear", "--tpmstate", &format!("dir={}", state.display())]);
        let swtpm = shell.stdin(Stdio::from(master)).stdout(Stdio::null()).spawn().unwrap();
        Some(Self { device, swtpm, _open: open.into() })
    }

    /// Measures something into a register with tpm2-tools.
    pub fn extend(&self, pcr: u32) {
        let digest = "5".repeat(64);
        let mut extend = Command::new("tpm2_pcrextend");
        extend.arg("-T").arg(format!("device:{}", self.device.display())).arg(format!("{pcr}:sha256={digest}"));
        super::disk_image::run(&mut extend);
    }
}

impl Drop for Tpm {
    fn drop(&mut self) {
        // The TPM may already have ended.
        drop(self.swtpm.kill());
        drop(self.swtpm.wait());
    }
}
