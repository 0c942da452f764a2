//! A complete installation with nothing simulated: a real Debian on an empty machine, from power-on by UEFI firmware
//! and iPXE to the report that the system runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use slipway_parts::Arch;
use slipway_protocol::{NodeState, NodeStatus};

use crate::host::files;
use crate::lab::qemu::{self, Boot, Disk, Machine, MachineConfig, Nic, create_disk};
use crate::lab::server::Lab;
use crate::lab::target_image::{self, System, TargetImage};

/// Name that the operator gives the machine.
pub const NAME: &str = "demo";
/// Kernel argument that the operator adds to the installed system.
pub const KERNEL_ARGUMENT: &str = "slipway.demo=1";
/// SMBIOS UUID with which the operator registers the machine before power-on.
const UUID: &str = "5b1c6f6e-90e9-4a0f-8c1e-2d6f0f6e1a01";
const DISK_SIZE: u64 = 4 << 30;
/// Smallest memory that slipway supports, in MiB.
const MEMORY_MIB: u32 = 512;
/// Time limit of an installation. Emulated processors are slow, but an installation that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// A server with something to install, and a machine that is switched off.
pub struct Demo {
    /// The server and its data.
    pub lab: Lab,
    /// Size of the initramfs in bytes.
    pub initramfs_bytes: u64,
    folder: PathBuf,
}

impl Demo {
    /// Builds what is missing, starts the server, and prepares the installation as an operator would. All files are in
    /// the folder, which is recreated. `say` receives progress messages. With `keep`, server and machine keep running
    /// when the terminal closes.
    pub fn prepare(folder: &Path, keep: bool, say: &dyn Fn(&str)) -> Result<Self> {
        let install = |lab: &Lab, _: &TargetImage, digest: &str| {
            let system = ["os", "add", "debian-12", "--image", digest, "--phone-home", "--kernel-arg", KERNEL_ARGUMENT];
            lab.operator(&system)?;
            lab.operator(&["run", "start", "--yes", NAME, "--os", "debian-12"]).map(drop)
        };
        Self::with(folder, keep, System::SystemdBoot, say, &install)
    }

    /// Like [`Demo::prepare`] for another system. `start_run` creates the run; it gets the server, the image, and the
    /// image's digest on the server.
    pub fn with(
        folder: &Path,
        keep: bool,
        system: System,
        say: &dyn Fn(&str),
        start_run: &dyn Fn(&Lab, &TargetImage, &str) -> Result<()>,
    ) -> Result<Self> {
        files::empty_dir(folder)?;
        let image = target_image::build(system)?;
        let mut lab = Lab::new(folder)?;
        lab.detached = keep;
        lab.start_server()?;
        let boot = lab.make_boot_files()?;
        let initramfs_bytes = fs::metadata(&boot.initramfs).context("looking at the initramfs")?.len();
        say(&format!("server at {}, initramfs of {:.2} MB", lab.url(), initramfs_bytes as f64 / 1e6));

        let path = image.path.to_str().with_context(|| format!("{} is not UTF-8", image.path.display()))?;
        let digest = lab.operator(&["image", "add", path])?.trim().to_owned();
        let node = lab.operator(&["node", "add", "--name", NAME, "--uuid", UUID, "--release"])?.trim().to_owned();
        start_run(&lab, &image, &digest)?;
        say(&format!("node {node} is registered by its UUID and has a run that installs Debian"));
        Ok(Self { lab, initramfs_bytes, folder: folder.to_owned() })
    }

    /// Switches the machine on.
    pub fn power_on(&self) -> Result<Machine> {
        let disk = self.folder.join("disk.raw");
        create_disk(&disk, DISK_SIZE)?;
        let config = MachineConfig {
            arch: Arch::X86_64,
            boot: Boot::Uefi { uri: Some(self.lab.loader_url()) },
            secure_boot: false,
            cpus: 1,
            memory_mib: MEMORY_MIB,
            uuid: UUID.to_owned(),
            serial: "DEMO0001".to_owned(),
            disks: vec![Disk { path: disk, serial: "demo-disk-1".to_owned() }],
            nics: vec![Nic { mac: "52:54:00:5b:1c:01".to_owned(), bootfile: Some(self.lab.script_url()) }],
            extra: Vec::new(),
            detached: self.lab.detached,
        };
        qemu::start(&config, &self.folder.join("machine"))
    }

    /// Calls `show` with the node's status whenever it changes, until the node runs or has failed. Fails if the machine
    /// takes too long.
    pub fn watch(&self, machine: &mut Machine, mut show: impl FnMut(&NodeStatus)) -> Result<NodeStatus> {
        let changes = self.lab.watch(NAME)?;
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(status) = changes.next(Duration::from_secs(1))? {
                show(&status);
                if matches!(status.state, NodeState::Running | NodeState::Failed) {
                    return Ok(status);
                }
            }
            let log = machine.console_log().display().to_string();
            ensure!(machine.is_running()?, "watching the machine: QEMU has ended; its console is in {log}");
            if Instant::now() > deadline {
                bail!("watching the machine: no running system after {} s; its console is in {log}", LIMIT.as_secs());
            }
        }
    }
}
