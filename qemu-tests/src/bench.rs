//! A machine with its server and its boot files, and what tests do with them.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use slipway_parts::Arch;
use slipway_protocol::{Action, Digest, DiskHints, NodeStatus, Step, StreamImage};
use slipway_secure_boot::lists::{self, Entry};
use slipway_secure_boot::{Certificate, Uuid};
use tempfile::TempDir;
use xtask::build::image::ImagePaths;
use xtask::lab::bootable;
use xtask::lab::qemu::{self, Boot, Disk, Machine, MachineConfig, Nic, create_disk};
use xtask::lab::server::{Lab, Place, parse_status};
use xtask::lab::target_image::{self, System};

/// SMBIOS UUID of the machine.
pub const UUID: &str = "7d2f9a60-3c55-4b0e-9c7a-1f0f6a2b9d01";
/// Serial number of the machine's disk.
pub const DISK_SERIAL: &str = "bench-disk-1";
/// Size of the machine's disk in bytes.
const DISK_SIZE: u64 = 256 << 20;
/// Time limit of each wait. Emulated processors are slow.
pub const LIMIT: Duration = Duration::from_secs(480);

/// A server, boot files for it, and a machine that is switched off.
pub struct Bench {
    /// The server.
    pub lab: Lab,
    boot: ImagePaths,
    folder: TempDir,
}

impl Bench {
    /// Starts a server and makes boot files for it.
    pub fn new() -> Result<Self> {
        Self::with_boot_files(|lab| lab.make_boot_files())
    }

    /// Starts a server. `make` makes the machine's boot files.
    pub fn with_boot_files(make: impl FnOnce(&Lab) -> Result<ImagePaths>) -> Result<Self> {
        Self::at(Place::LOOPBACK, make)
    }

    /// Like [`Bench::with_boot_files`], with the server at another place.
    pub fn at(place: Place, make: impl FnOnce(&Lab) -> Result<ImagePaths>) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut lab = Lab::at(&folder.path().join("lab"), place)?;
        lab.start_server()?;
        let boot = make(&lab)?;
        create_disk(&folder.path().join("disk"), DISK_SIZE)?;
        Ok(Self { lab, boot, folder })
    }

    /// A folder for the test.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The machine's disk.
    pub fn disk(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    /// The unified kernel image.
    pub fn uki(&self) -> &Path {
        &self.boot.uki
    }

    /// Adds an image to the server. Returns its URL for machines and its digest.
    pub fn add_image(&self, image: &[u8]) -> Result<(String, Digest)> {
        let file = self.folder.path().join("image");
        std::fs::write(&file, image)?;
        self.add_file(&file, &[])
    }

    /// Adds a file that is not an image. Returns its URL for machines and its digest.
    pub fn add_other(&self, bytes: &[u8]) -> Result<(String, Digest)> {
        let file = self.folder.path().join("other");
        std::fs::write(&file, bytes)?;
        self.add_file(&file, &["--not-an-image"])
    }

    /// Adds a real Debian. Returns its URL for machines and its digest.
    pub fn add_system(&self, system: System) -> Result<(String, Digest)> {
        self.add_file(&target_image::build(system)?.path, &[])
    }

    fn add_file(&self, file: &Path, options: &[&str]) -> Result<(String, Digest)> {
        let digest = self.lab.operator(&[&["image", "add", path(file)?], options].concat())?.trim().to_owned();
        Ok((format!("{}/images/{digest}", self.lab.url()), digest.parse()?))
    }

    /// Registers the machine by its UUID and releases it.
    pub fn register(&self) -> Result<()> {
        self.lab.operator(&["node", "add", "--name", "m1", "--uuid", UUID, "--release"]).map(drop)
    }

    /// Starts a run with these steps on the registered machine.
    pub fn start_run(&self, steps: &[Step]) -> Result<()> {
        self.start_workflow(&serde_json::json!({ "steps": steps }))
    }

    /// Like [`Bench::start_run`], with an installed system that phones home.
    pub fn start_run_that_phones_home(&self, steps: &[Step]) -> Result<()> {
        self.start_workflow(&serde_json::json!({ "steps": steps, "phone_home": true }))
    }

    fn start_workflow(&self, workflow: &serde_json::Value) -> Result<()> {
        let file = self.folder.path().join("workflow");
        std::fs::write(&file, serde_json::to_vec(workflow)?)?;
        self.lab.operator(&["run", "start", "--yes", "m1", "--workflow", path(&file)?]).map(drop)
    }

    /// Returns the machine's configuration. It starts the boot image without firmware, which most tests are not about.
    pub fn machine(&self) -> MachineConfig {
        MachineConfig {
            arch: Arch::X86_64,
            boot: Boot::Kernel {
                vmlinuz: self.boot.vmlinuz.clone(),
                initramfs: self.boot.initramfs.clone(),
                // Tests use SysRq to act on a running machine. The kernel puts the proxy, a parameter that it does not
                // know, into PID 1's environment. PID 1 must not pass it on.
                cmdline: "console=ttyS0,115200 sysrq_always_enabled=1 https_proxy=http://192.0.2.1:9".to_owned(),
            },
            secure_boot: false,
            cpus: 1,
            memory_mib: 512,
            uuid: UUID.to_owned(),
            serial: "BENCH0001".to_owned(),
            disks: vec![Disk { path: self.disk(), serial: DISK_SERIAL.to_owned() }],
            nics: vec![Nic { mac: "52:54:00:7d:2f:01".to_owned(), bootfile: None }],
            extra: Vec::new(),
            detached: false,
        }
    }

    /// Returns the machine's configuration with firmware and one disk, and without a network card.
    pub fn machine_with_firmware(&self, disk: &Path) -> MachineConfig {
        let disks = vec![Disk { path: disk.to_owned(), serial: DISK_SERIAL.to_owned() }];
        MachineConfig { boot: Boot::Uefi { uri: None }, nics: Vec::new(), disks, ..self.machine() }
    }

    /// Switches the machine on.
    pub fn power_on(&self, machine: &MachineConfig) -> Result<Machine> {
        qemu::start(machine, &self.folder.path().join("machine"))
    }

    /// Returns the server's status of all nodes.
    pub fn status(&self) -> Result<Vec<NodeStatus>> {
        self.lab.operator(&["status", "--json"])?.lines().map(parse_status).collect()
    }

    /// Waits until the server's status of the machine is as wanted.
    pub fn wait_for(&self, machine: &Machine, what: &str, wanted: impl Fn(&NodeStatus) -> bool) -> Result<NodeStatus> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let nodes = self.status()?;
            if let Some(node) = nodes.iter().find(|node| wanted(node)) {
                return Ok(node.clone());
            }
            if Instant::now() > deadline {
                bail!("waiting for a machine that is {what}: the nodes are {nodes:#?}\n{}", machine.console()?);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Makes a step that writes an image to the machine's disk.
pub fn stream(name: &str, url: &str, digest: Digest) -> Step {
    let (url, digest, disk) = (url.to_owned(), Some(digest), DiskHints::default());
    step(name, Action::StreamImage(StreamImage { url, digest, disk, ..StreamImage::default() }))
}

/// Makes a step with one attempt.
pub fn step(name: &str, action: Action) -> Step {
    Step { name: name.to_owned(), action, retries: 0, timeout: None }
}

/// Makes incompressible bytes without repetition, by a xorshift generator (Marsaglia, 2003).
pub fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(length).collect()
}

/// Returns QEMU's arguments for firmware whose TLS trusts one certificate, `ca` in PEM, and nothing else. Makes the
/// file with that certificate in the folder.
pub fn firmware_trusts(folder: &Path, ca: &str) -> Result<Vec<String>> {
    let list = lists::build(&[Entry::certificate(Uuid::nil(), &Certificate::from_pem(ca)?)]);
    let mut file = tempfile::Builder::new().suffix(".esl").tempfile_in(folder)?;
    file.write_all(&list)?;
    let (_, kept) = file.keep()?;
    // Read by OVMF into the variable TlsCaCertificate (OvmfPkg/Library/TlsAuthConfigLib).
    Ok(vec!["-fw_cfg".to_owned(), format!("name=etc/edk2/https/cacerts,file={}", path(&kept)?)])
}

/// Makes a disk image from which UEFI firmware starts a program: a GUID partition table and an EFI system partition.
/// Without a network, the small program [`xtask::lab::qemu::firmware::IPXE`] prints its greeting and gives up.
pub fn bootable_image(folder: &Path, program: &Path) -> Result<PathBuf> {
    let image = folder.join("bootable");
    bootable::make(&image, 64 << 20, program, &[])?;
    Ok(image)
}

/// Returns the bytes done by a step of the newest run. `None` if nothing is known of the step's progress.
pub fn progress(node: &NodeStatus, step: usize) -> Option<u64> {
    node.run.as_ref()?.steps.get(step)?.progress.as_ref().map(|progress| progress.bytes)
}

/// Whether a disk begins with a mebibyte of zeros.
pub fn has_empty_head(disk: &Path) -> Result<bool> {
    let mut head = vec![1; 1 << 20];
    std::fs::File::open(disk)?.read_exact(&mut head)?;
    Ok(head.iter().all(|byte| *byte == 0))
}

/// Runs a test, and prints how long it took directly, because the test runner hides the output of passed tests.
pub fn timed(claim: &str, test: impl FnOnce() -> Result<()>) -> Result<()> {
    let began = Instant::now();
    let result = test();
    writeln!(std::io::stderr(), "{claim}: {:.1} s", began.elapsed().as_secs_f64())?;
    result
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}
