//! The folder of a lab, and the server in it.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use slipway_qemu::lasting;
use slipway_server::base::data::{DataDir, Place, SERVE_LOCK, served_by};
use slipway_server::power::qemu::HOST;
use slipway_server::store::Store;

/// Marks a folder as that of a lab, and has the ports of its server.
const FILE: &str = "lab.json";
/// How long the server may take to end.
const ENDS: Duration = Duration::from_secs(60);
/// Bytes of logs that are shown.
const TAIL: usize = 4 << 10;

/// A lab.
#[derive(Debug)]
pub struct Lab {
    folder: PathBuf,
    ports: Ports,
}

/// Ports on this host's loopback.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Ports {
    https: u16,
    boot: u16,
}

/// The server of a lab, which runs.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    /// Its process.
    pub pid: u32,
}

impl Lab {
    /// Makes the folder of a new lab.
    pub fn make(folder: &Path) -> anyhow::Result<Self> {
        let folder = std::path::absolute(folder).with_context(|| format!("looking for {}", folder.display()))?;
        if folder.join(FILE).exists() {
            bail!(
                "starting a lab: there is one in {}; end it with `slipway-server lab down`, or give another folder \
                 with --dir",
                folder.display()
            );
        }
        let made = fs::create_dir(&folder);
        made.with_context(|| {
            format!("making the folder {} for the lab; give another one with --dir", folder.display())
        })?;
        let lab = Self { folder, ports: free_ports()? };
        let path = lab.folder.join(FILE);
        fs::write(&path, serde_json::to_vec(&lab.ports)?).with_context(|| format!("writing {}", path.display()))?;
        Ok(lab)
    }

    /// Opens the folder of a lab.
    pub fn open(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join(FILE);
        ensure!(path.exists(), "there is no lab in {}; give its folder with --dir", folder.display());
        let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let ports = serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))?;
        // The folder itself, and not a link to it, is removed in the end.
        let folder = fs::canonicalize(folder).with_context(|| format!("looking for {}", folder.display()))?;
        Ok(Self { folder, ports })
    }

    /// The URL of the server's page on this host.
    pub fn page(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.https)
    }

    /// The folder of boot files.
    pub fn boot_folder(&self) -> PathBuf {
        self.folder.join("boot")
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn machines(&self) -> PathBuf {
        self.data().join("machines")
    }

    /// Path of what a machine wrote to its serial port.
    pub fn console(&self, node: &str) -> String {
        self.machines().join(node).join("console.log").display().to_string()
    }

    /// What all machines wrote to their serial ports, without terminal control sequences.
    pub fn consoles(&self) -> anyhow::Result<Vec<String>> {
        self.folders_of_machines()?.iter().map(|folder| lasting::console(folder)).collect()
    }

    /// Opens the store of the server.
    pub async fn store(&self) -> anyhow::Result<(Store, DataDir)> {
        let data = DataDir::open(Place::from(&self.data()))?;
        Ok((super::super::open(&data).await?, data))
    }

    /// Starts the server, which outlives this process, and waits until it listens.
    pub fn start(&self, parts: &Path) -> anyhow::Result<Server> {
        let path = self.folder.join("server.log");
        let log = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        let program = std::env::current_exe().context("looking for this program")?;
        let mut serve = Command::new(program);
        // What is set for another server of this host is not for this one.
        for (name, _) in std::env::vars_os() {
            let name_of = name.to_string_lossy();
            if name_of.starts_with("SLIPWAY_") && !["SLIPWAY_ACCEL", "SLIPWAY_LOG"].contains(&&*name_of) {
                serve.env_remove(&name);
            }
        }
        let local = |port: u16| format!("127.0.0.1:{port}");
        serve.arg("serve").arg("--data").arg(self.data()).arg("--parts").arg(parts).arg("--virtual-machines");
        serve.args(["--url", &format!("https://{HOST}:{}", self.ports.https), "--listen", &local(self.ports.https)]);
        serve.args(["--boot-listen", &local(self.ports.boot), "--boot"]).arg(self.boot_folder());
        // It gets neither hang-up nor ctrl-c of this terminal.
        serve.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut server = serve.spawn().context("starting slipway-server")?;
        let mut line = String::new();
        let out = server.stdout.take().context("starting slipway-server")?;
        BufReader::new(out).read_line(&mut line).context("reading what slipway-server prints")?;
        if line.is_empty() {
            let said = fs::read_to_string(&path).unwrap_or_default();
            bail!("starting slipway-server: it does not listen; it said: {}", end(&said));
        }
        Ok(Server { pid: server.id() })
    }

    /// Returns the server, if it runs.
    pub fn server(&self) -> anyhow::Result<Option<Server>> {
        Ok(served_by(&self.data())?.map(|pid| Server { pid }))
    }

    /// The end of the server's log.
    pub fn log(&self) -> String {
        end(&fs::read_to_string(self.folder.join("server.log")).unwrap_or_default())
    }

    /// Ends the server, then the machines, and removes the folder. No other process is ended: the locks of their files
    /// say which ones they are.
    pub async fn remove(self) -> anyhow::Result<()> {
        tokio::task::spawn_blocking(move || self.remove_now()).await?
    }

    fn remove_now(&self) -> anyhow::Result<()> {
        // First, so that it starts no machine meanwhile.
        if let Some(server) = self.server()? {
            self.stop(server)?;
        }
        for folder in self.folders_of_machines()? {
            if let Some(machine) = lasting::find(&folder)? {
                machine.stop()?;
            }
        }
        fs::remove_dir_all(&self.folder).with_context(|| format!("removing {}", self.folder.display()))
    }

    fn folders_of_machines(&self) -> anyhow::Result<Vec<PathBuf>> {
        let machines = self.machines();
        let entries = match fs::read_dir(&machines) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).with_context(|| format!("reading {}", machines.display())),
        };
        let paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>();
        let paths = paths.with_context(|| format!("reading {}", machines.display()))?;
        Ok(paths.into_iter().filter(|path| path.is_dir()).collect())
    }

    /// Whether a process has the lock of the server's data folder open. Its number alone says nothing: it may be one of
    /// another container.
    fn is_open_in(&self, pid: u32) -> bool {
        let lock = fs::metadata(self.data().join(SERVE_LOCK)).map(|file| (file.dev(), file.ino()));
        let Ok(lock) = lock else { return false };
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.filter_map(|file| fs::metadata(file.path()).ok()).any(|file| (file.dev(), file.ino()) == lock)
    }

    fn stop(&self, server: Server) -> anyhow::Result<()> {
        let doing = || format!("stopping slipway-server (process {})", server.pid);
        let pid = i32::try_from(server.pid).ok().and_then(Pid::from_raw).with_context(doing)?;
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(rustix::io::Errno::SRCH) => return Ok(()),
            Err(error) => return Err(error).with_context(doing),
        };
        // Whoever held the lock may have ended before its process was opened.
        if self.server()?.is_none_or(|now| now.pid != server.pid) {
            return Ok(());
        }
        ensure!(
            self.is_open_in(server.pid),
            "{}: that process is not the server of this lab, which probably runs in a container; end it there",
            doing()
        );
        pidfd_send_signal(&process, Signal::TERM).with_context(doing)?;
        let limit = Timespec::try_from(ENDS).with_context(doing)?;
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        let count = rustix::io::retry_on_intr(|| poll(&mut ended, Some(&limit))).with_context(doing)?;
        ensure!(count == 1, "{}: it has not ended after {} s", doing(), ENDS.as_secs());
        Ok(())
    }
}

/// Finds free ports of the loopback. Boot files contain them, so that they are chosen before the server starts.
fn free_ports() -> anyhow::Result<Ports> {
    let bind = || TcpListener::bind(("127.0.0.1", 0)).context("looking for free ports");
    let port = |listener: &TcpListener| listener.local_addr().map(|address| address.port());
    // Both are held at once, so that they differ.
    let (https, boot) = (bind()?, bind()?);
    Ok(Ports { https: port(&https)?, boot: port(&boot)? })
}

fn end(text: &str) -> String {
    let start = text.len().saturating_sub(TAIL);
    let start = (start..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    text[start..].trim().to_owned()
}
