//! A server on this host, with boot files for machines in QEMU.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use slipway_parts::Arch;
use slipway_protocol::NodeStatus;

use crate::build::image::{self, ImagePaths};
use crate::build::kernel;
use crate::build::server::{self, Profile};
use crate::host::command::{command, run_quietly, stdout, tail};
use crate::host::files;
use crate::lab::qemu::firmware;

/// Where the server listens, and its address as machines see it.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Address to listen on.
    pub listen: &'static str,
    /// The server's address as machines see it.
    pub host: &'static str,
    /// Additional arguments of `serve`.
    pub arguments: &'static [&'static str],
}

impl Place {
    /// This host's loopback, which machines on QEMU's user network reach as 10.0.2.2.
    pub const LOOPBACK: Self = Self { listen: "127.0.0.1", host: "10.0.2.2", arguments: &[] };
}

/// Kernel argument for machines without KVM: the kernel does not clear memory on allocation. Clearing would make QEMU
/// discard translated code, which takes minutes.
pub const FOR_EMULATION: &str = "init_on_alloc=0";

/// A server with its data and boot files in one folder.
pub struct Lab {
    folder: PathBuf,
    place: Place,
    program: PathBuf,
    https_port: u16,
    boot_port: u16,
    server: Option<Child>,
    /// Whether the server keeps running when the terminal closes: it gets neither hang-up nor ctrl-c.
    pub detached: bool,
}

/// The line that the server prints once it listens.
#[derive(Deserialize)]
struct Ready {}

impl Lab {
    /// Creates a lab in a folder, on this host's loopback. Does not start the server. The server's ports stay the same
    /// over restarts.
    pub fn new(folder: &Path) -> Result<Self> {
        Self::at(folder, Place::LOOPBACK)
    }

    /// Like [`Lab::new`], at another place.
    pub fn at(folder: &Path, place: Place) -> Result<Self> {
        let program = server::build_server(Profile::Dev)?;
        fs::create_dir_all(folder.join("boot")).with_context(|| format!("creating {}", folder.display()))?;
        let [https_port, boot_port] = free_ports()?;
        Ok(Self { folder: folder.to_owned(), place, program, https_port, boot_port, server: None, detached: false })
    }

    /// The server's HTTPS URL for machines.
    pub fn url(&self) -> String {
        format!("https://{}:{}", self.place.host, self.https_port)
    }

    /// The URL of the boot files over plain HTTP, as machines see it.
    pub fn boot_url(&self) -> String {
        format!("http://{}:{}/boot", self.place.host, self.boot_port)
    }

    /// The URL of the network boot loader, from which the firmware boots.
    pub fn loader_url(&self) -> String {
        format!("{}/ipxe.efi", self.boot_url())
    }

    /// The URL of the unified kernel image, which the firmware can also boot.
    pub fn image_url(&self, arch: Arch) -> String {
        format!("{}/{}/slipway.efi", self.boot_url(), arch.name())
    }

    /// The URL of the boot script, which DHCP announces to the network boot loader.
    pub fn script_url(&self) -> String {
        format!("{}/ipxe", self.boot_url())
    }

    /// The folder of boot files.
    pub fn boot_folder(&self) -> PathBuf {
        self.folder.join("boot")
    }

    /// Runs an operator's command and returns its output.
    pub fn operator(&self, arguments: &[&str]) -> Result<String> {
        stdout(self.command().args(arguments))
            .with_context(|| format!("running slipway-server {}", arguments.join(" ")))
    }

    /// Watches a node's status: its state now, then every change, until the receiver is dropped or the command ends.
    pub fn watch(&self, node: &str) -> Result<Watch> {
        let mut status = self.command();
        status.args(["status", "--json", "--watch", node]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = status.spawn().context("starting slipway-server status")?;
        let out = process.stdout.take().context("starting slipway-server status")?;
        let (send, changes) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if send.send(parse_status(&line)).is_err() {
                    break;
                }
            }
        });
        Ok(Watch { process, changes })
    }

    /// Makes boot files for this server, with its CA, and puts the network boot loader into the same folder.
    pub fn make_boot_files(&self) -> Result<ImagePaths> {
        self.make_boot_files_with_ca(self.operator(&["ca"])?)
    }

    /// Like [`Lab::make_boot_files`], with another CA in PEM.
    pub fn make_boot_files_with_ca(&self, ca: String) -> Result<ImagePaths> {
        self.make(ca, kernel::CLOUD, Arch::X86_64)
    }

    /// Like [`Lab::make_boot_files`], without a server, which machines are told in these places, separated by commas.
    pub fn make_boot_files_that_ask(&self, places: &str) -> Result<ImagePaths> {
        self.make_for(&["--metadata", places], self.operator(&["ca"])?, kernel::CLOUD, Arch::X86_64)
    }

    /// Like [`Lab::make_boot_files`], with the kernel that has drivers for physical machines.
    pub fn make_boot_files_for_real_machines(&self) -> Result<ImagePaths> {
        self.make(self.operator(&["ca"])?, kernel::GENERIC, Arch::X86_64)
    }

    /// Like [`Lab::make_boot_files`], for arm64 virtual machines.
    pub fn make_boot_files_for_arm64(&self) -> Result<ImagePaths> {
        self.make(self.operator(&["ca"])?, kernel::CLOUD, Arch::Aarch64)
    }

    /// Makes the image of a boot medium, `stick` or `disc`, with this kernel of `initramfs/kernels.txt`.
    pub fn make_medium(&self, kind: &str, kernel: &str) -> Result<PathBuf> {
        let out = self.folder.join("media");
        let mut media = self.command();
        media.args(["media", "build", "--kind", kind, "--kernel", kernel, "--argument", FOR_EMULATION, "--parts"]);
        media.arg(image::build_parts(&image::config(kernel, Arch::X86_64)?)?).arg("--out").arg(&out);
        run_quietly(&mut media)?;
        Ok(out.join(if kind == "disc" { "slipway.iso" } else { "slipway.img" }))
    }

    fn make(&self, ca: String, kernel: &str, arch: Arch) -> Result<ImagePaths> {
        self.make_for(&["--url", &self.url()], ca, kernel, arch)
    }

    /// Makes boot files. `server` is the option that says where the server is.
    fn make_for(&self, server: &[&str], ca: String, kernel: &str, arch: Arch) -> Result<ImagePaths> {
        let (boot, ca_file) = (self.boot_folder(), self.folder.join("ca.pem"));
        let loader = firmware::network_boot_loader(arch)?;
        fs::copy(&loader, boot.join("ipxe.efi")).with_context(|| format!("copying {}", loader.display()))?;
        files::write(&ca_file, ca)?;
        // The command gets the data folder, so that the server's Secure Boot keys, if it has any, sign the files.
        let mut media = self.command();
        media.args(["media", "build", "--kind", "network", "--kernel", kernel]);
        media.arg("--parts").arg(image::build_parts(&image::config(kernel, arch)?)?).arg("--out").arg(&boot);
        media.args(server).args(["--argument", FOR_EMULATION, "--ca"]).arg(&ca_file);
        run_quietly(&mut media)?;
        Ok(ImagePaths::below(&boot, arch.name()))
    }

    /// Starts the server and waits until it listens.
    pub fn start_server(&mut self) -> Result<()> {
        let path = self.server_log();
        let log = File::options().create(true).append(true).open(&path);
        let log = log.with_context(|| format!("opening {}", path.display()))?;
        let mut serve = self.command();
        let listen = |port: u16| format!("{}:{port}", self.place.listen);
        serve.args(["serve", "--url", &self.url(), "--listen", &listen(self.https_port)]).args(self.place.arguments);
        serve.args(["--boot-listen", &listen(self.boot_port), "--boot"]).arg(self.boot_folder());
        serve.env("SLIPWAY_LOG", "info,slipway_server=debug");
        if self.detached {
            serve.process_group(0);
        }
        serve.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let server = self.server.insert(serve.spawn().context("starting slipway-server")?);
        let mut line = String::new();
        let out = server.stdout.take().context("starting slipway-server")?;
        BufReader::new(out).read_line(&mut line).context("reading from slipway-server")?;
        if serde_json::from_str::<Ready>(&line).is_err() {
            let said = fs::read_to_string(&path).unwrap_or_default();
            bail!("starting slipway-server: it is not listening; the end of {}:\n{}", path.display(), tail(&said, 10));
        }
        Ok(())
    }

    /// Stops the server as an operator would, and waits until it ends.
    pub fn stop_server(&mut self) -> Result<()> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        run_quietly(&mut command("kill", ["-TERM", &server.id().to_string()]))?;
        let status = server.wait().context("waiting for slipway-server")?;
        ensure!(status.success(), "stopping slipway-server: {status}");
        Ok(())
    }

    /// Kills the server, as a power cut would.
    pub fn kill_server(&mut self) -> Result<()> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        server.kill().and_then(|()| server.wait()).context("killing slipway-server").map(drop)
    }

    /// Path of the server's log, which has every request. Restarts append to the log.
    pub fn server_log(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    /// Keeps the server running after this value is dropped, and returns its process id.
    pub fn keep_server(&mut self) -> Option<u32> {
        self.server.take().map(|server| server.id())
    }

    /// The server's program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--data").arg(self.folder.join("data"));
        command
    }
}

/// Parses a line of `slipway-server status --json`.
pub fn parse_status(line: &str) -> Result<NodeStatus> {
    serde_json::from_str(line).with_context(|| format!("reading the status {line}"))
}

/// A watched node.
pub struct Watch {
    process: Child,
    changes: mpsc::Receiver<Result<NodeStatus>>,
}

impl Watch {
    /// Waits for the next change. Returns `None` if there is none within the limit.
    pub fn next(&self, limit: Duration) -> Result<Option<NodeStatus>> {
        match self.changes.recv_timeout(limit) {
            Ok(status) => status.map(Some),
            Err(mpsc::RecvTimeoutError::Timeout) => Ok(None),
            Err(mpsc::RecvTimeoutError::Disconnected) => bail!("watching the node: slipway-server status has ended"),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Both calls fail only if the process has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            // Both calls fail only if the server has already ended.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// Finds free loopback ports. They are chosen before the server starts, because boot files contain them.
pub fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let bind = |_| TcpListener::bind(("127.0.0.1", 0));
    let listeners = (0..N).map(bind).collect::<Result<Vec<_>, _>>().context("looking for free ports")?;
    // All ports are held open at once, so that none is returned twice.
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr().context("looking for free ports")?.port();
    }
    Ok(ports)
}
