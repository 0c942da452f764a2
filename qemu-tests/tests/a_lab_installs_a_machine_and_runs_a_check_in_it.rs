//! What a newcomer and a CI job call: one command, with the packages' files alone.

use std::fs;
use std::path::Path;
use std::process::Output;

use anyhow::{Result, ensure};
use qemu_tests::timed;
use slipway_parts::Arch;
use xtask::build::{image, kernel};
use xtask::host::command::command;
use xtask::lab::server::Lab;
use xtask::lab::target_image::{self, System};

/// A lab, which ends with the test.
struct Running<'a> {
    lab: &'a Lab,
    folder: &'a Path,
}

impl Running<'_> {
    fn call(&self, arguments: &[&str]) -> Result<(Output, String)> {
        let output = command(self.lab.program(), arguments).arg("--dir").arg(self.folder).output()?;
        let said = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
        Ok((output, String::from_utf8_lossy(&said).into_owned()))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.folder.exists() {
            let _ = self.call(&["lab", "down"]);
        }
    }
}

#[test]
fn a_lab_installs_a_machine_and_runs_a_check_in_it() -> Result<()> {
    timed("A lab installs a machine and runs a check in it", || {
        let root = tempfile::tempdir()?;
        // Only for its program.
        let lab = Lab::new(&root.path().join("unused"))?;
        let folder = root.path().join("lab");
        let lab = Running { lab: &lab, folder: &folder };
        let parts = image::build_parts(&image::config(kernel::CLOUD, Arch::X86_64)?)?.display().to_string();
        let image = target_image::build(System::SystemdBoot)?.path.display().to_string();

        let (refused, said) = lab.call(&["lab", "up"])?;
        ensure!(!refused.status.success() && said.contains("give an image of a disk with --image"), "{said}");
        ensure!(!folder.exists(), "a refusal leaves something behind");

        let user_data = root.path().join("user-data");
        fs::write(&user_data, "#cloud-config\nwrite_files: [{path: /run/given, content: yes}]\n")?;
        let user_data = user_data.display().to_string();
        let run = ["lab", "run", &image, "--parts", &parts, "--user-data", &user_data, "--option", "disk=4G", "--keep"];
        let (ran, said) = lab.call(&[&run[..], &["--check", "echo \"given: $(cat /run/given)\"; exit 7"]].concat())?;
        ensure!(ran.status.code() == Some(7), "{said}");
        ensure!(said.contains("node1 is running") && said.contains("ended with status 7:\ngiven: yes\n"), "{said}");

        let (shown, said) = lab.call(&["lab", "status"])?;
        ensure!(shown.status.success() && said.contains("node1    running"), "{said}");
        let (ended, said) = lab.call(&["lab", "down"])?;
        ensure!(ended.status.success() && !folder.exists(), "{said}");
        let folder = folder.display().to_string();
        for process in fs::read_dir("/proc")? {
            let arguments = fs::read(process?.path().join("cmdline")).unwrap_or_default();
            ensure!(!String::from_utf8_lossy(&arguments).contains(&folder), "a process is left");
        }
        Ok(())
    })
}
