//! A TPM in software for a machine.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::bench::LIMIT;

/// A software TPM that runs until this value is dropped, or until its machine ends.
pub struct Tpm(Child, Vec<String>);

impl Tpm {
    /// Switches on a TPM that keeps its state in a folder. If the folder does not exist, the TPM is a new one.
    pub fn start(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let socket = folder.join("socket");
        // An earlier TPM may have left its socket.
        drop(std::fs::remove_file(&socket));
        let mut swtpm = Command::new("swtpm");
        swtpm.args(["socket", "--tpm2", "--ctrl", &format!("type=unixio,path={}", socket.display()), "--tpmstate"]);
        let swtpm = swtpm.arg(format!("dir={}", folder.display())).spawn().context("starting swtpm")?;
        let deadline = Instant::now() + LIMIT;
        // The socket exists before the TPM listens.
        while UnixStream::connect(&socket).is_err() {
            ensure!(Instant::now() < deadline, "starting swtpm: nobody listens on {}", socket.display());
            std::thread::sleep(Duration::from_millis(50));
        }
        let chardev = format!("socket,id=tpm,path={}", socket.display());
        let arguments =
            ["-chardev", &chardev, "-tpmdev", "emulator,id=tpm0,chardev=tpm", "-device", "tpm-crb,tpmdev=tpm0"];
        Ok(Self(swtpm, arguments.map(str::to_owned).to_vec()))
    }

    /// QEMU's arguments for a machine with this TPM.
    pub fn arguments(&self) -> Vec<String> {
        self.1.clone()
    }
}

impl Drop for Tpm {
    fn drop(&mut self) {
        // Both calls fail only if the TPM has already ended with the machine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
