//! A machine and its server, for the tests beside this crate: one claim a file, the file's name is the claim.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use slipway_protocol::NodeStatus;
use tempfile::TempDir;
use xtask::image::ImagePaths;
use xtask::lab::Lab;
use xtask::qemu::{Boot, Disk, Machine, MachineConfig, Nic, create_disk};

/// SMBIOS UUID of the machine.
pub const UUID: &str = "7d2f9a60-3c55-4b0e-9c7a-1f0f6a2b9d01";
/// Size of its disk in bytes.
pub const DISK: u64 = 256 << 20;
/// How long anything may take that is waited for; emulated processors are slow.
const LIMIT: Duration = Duration::from_secs(180);

/// A server, its boot files, and a machine that is switched off.
pub struct Bench {
    /// The server.
    pub lab: Lab,
    boot: ImagePaths,
    folder: TempDir,
    began: Instant,
}

impl Bench {
    /// Starts a server and makes boot files for it.
    pub fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut lab = Lab::new(&folder.path().join("lab"))?;
        lab.start_server()?;
        let boot = lab.make_boot_files()?;
        create_disk(&folder.path().join("disk"), DISK)?;
        Ok(Self { lab, boot, folder, began: Instant::now() })
    }

    /// The machine's disk.
    pub fn disk(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    /// A file for the test's own use.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Boots the micro-OS without firmware, which is not the claim.
    pub fn power_on(&self) -> Result<Machine> {
        let config = MachineConfig {
            boot: Boot::Kernel {
                vmlinuz: self.boot.vmlinuz.clone(),
                initramfs: self.boot.initramfs.clone(),
                cmdline: "console=ttyS0,115200 panic=30".to_owned(),
            },
            memory_mib: 512,
            uuid: UUID.to_owned(),
            serial: "BENCH0001".to_owned(),
            disks: vec![Disk { path: self.disk(), serial: "bench-disk-1".to_owned() }],
            nics: vec![Nic { mac: "52:54:00:7d:2f:01".to_owned(), bootfile: None }],
            extra: Vec::new(),
        };
        Machine::start(&config, &self.folder.path().join("machine"))
    }

    /// Waits until the server shows the machine as wanted.
    pub fn wait_for(&self, machine: &Machine, what: &str, wanted: impl Fn(&NodeStatus) -> bool) -> Result<NodeStatus> {
        let deadline = Instant::now() + LIMIT;
        let mut last = String::new();
        while Instant::now() < deadline {
            // Without a name: the machine may not be known yet.
            for line in self.lab.operator(&["status", "--json"])?.lines() {
                let status: NodeStatus = xtask::lab::parse_status(line)?;
                if wanted(&status) {
                    return Ok(status);
                }
                last = line.to_owned();
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        bail!("waiting for a machine that is {what}; last: {last}\n{}", machine.console()?)
    }

    /// Says how long the test took.
    pub fn done(&self, claim: &str) {
        println!("{claim}: {:.1} s", self.began.elapsed().as_secs_f64());
    }

    /// Whether a file begins with zeros only, for this many bytes.
    pub fn starts_with_zeros(path: &Path, length: usize) -> Result<bool> {
        use std::io::Read;
        let mut head = vec![1; length];
        std::fs::File::open(path)?.read_exact(&mut head)?;
        Ok(head.iter().all(|byte| *byte == 0))
    }
}
