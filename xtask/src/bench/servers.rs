//! nginx and slipway-server side by side on loopback, with the same certificate and the same files.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::cost::cpu_of;
use super::streams::Stream;
use crate::build::server::{self, Profile};
use crate::host::command::{command, run_quietly, stdout};
use crate::host::files;
use crate::lab;

/// Time limit for nginx to listen.
const START: Duration = Duration::from_secs(10);

/// Both servers. They are stopped on drop.
pub struct Servers {
    folder: PathBuf,
    program: PathBuf,
    nginx_port: u16,
    slipway_port: u16,
    running: Vec<Child>,
}

impl Servers {
    /// Creates the folder with the files and starts both servers.
    pub fn start(folder: &Path, streams: &[Stream], profile: Profile) -> Result<Self> {
        let www = folder.join("www");
        files::create_dir(&www)?;
        for stream in streams {
            let link = www.join(stream.name());
            symlink(&stream.path, &link).with_context(|| format!("linking {}", link.display()))?;
        }
        let program = server::build_server(profile)?;
        let [nginx_port, slipway_port] = lab::server::free_ports()?;
        let mut servers = Self { folder: folder.to_owned(), program, nginx_port, slipway_port, running: Vec::new() };
        servers.start_slipway()?;
        servers.start_nginx()?;
        for stream in streams {
            stdout(servers.slipway(&["image", "add"]).arg(&stream.path))?;
        }
        let ca = servers.operator(&["ca"])?;
        files::write(&servers.ca(), ca)?;
        Ok(servers)
    }

    /// Returns the path of the CA of both servers, in PEM.
    pub fn ca(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// nginx's URL of an image.
    pub fn nginx_url(&self, stream: &Stream) -> String {
        format!("https://localhost:{}/{}", self.nginx_port, stream.name())
    }

    /// slipway-server's URL of an image.
    pub fn slipway_url(&self, stream: &Stream) -> String {
        format!("{}/images/sha256:{}", self.url(), stream.sha256)
    }

    /// slipway-server's URL.
    pub fn url(&self) -> String {
        format!("https://localhost:{}", self.slipway_port)
    }

    /// Runs an operator's command of slipway-server and returns its output.
    pub fn operator(&self, arguments: &[&str]) -> Result<String> {
        stdout(&mut self.slipway(arguments))
    }

    /// Returns the path of the file that slipway-server sends for an image.
    pub fn slipway_file(&self, stream: &Stream) -> PathBuf {
        self.folder.join("data/images/sha256").join(&stream.sha256)
    }

    /// Returns the seconds of processor time that slipway-server and nginx have used.
    pub fn cpu(&self) -> Result<(f64, f64)> {
        let [slipway, nginx] = &self.running[..] else { bail!("looking for the servers: they are not running") };
        let workers = stdout(&mut command("pgrep", ["--parent", &nginx.id().to_string()]))?;
        let mut nginx_cpu = cpu_of(nginx.id())?;
        for worker in workers.split_whitespace() {
            nginx_cpu += cpu_of(worker.parse().context("reading the output of pgrep")?)?;
        }
        Ok((cpu_of(slipway.id())?, nginx_cpu))
    }

    /// Returns the largest resident size of slipway-server so far, in MiB (proc_pid_status(5), VmHWM).
    pub fn peak_mib(&self) -> Result<f64> {
        let slipway = self.running.first().context("looking for slipway-server: it is not running")?;
        let status = files::read_text(Path::new(&format!("/proc/{}/status", slipway.id())))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
        Ok(kib.context("reading the memory of slipway-server: no VmHWM")? / 1024.0)
    }

    fn slipway(&self, arguments: &[&str]) -> Command {
        let mut slipway = command(&self.program, ["--data"]);
        slipway.arg(self.folder.join("data")).args(arguments);
        slipway
    }

    fn start_slipway(&mut self) -> Result<()> {
        let listen = format!("127.0.0.1:{}", self.slipway_port);
        let url = self.url();
        let log = fs::File::create(self.folder.join("slipway.log")).context("creating slipway.log")?;
        let mut serve = self.slipway(&["serve", "--url", &url, "--listen", &listen]);
        let mut child = serve.stdout(Stdio::piped()).stderr(log).spawn().context("starting slipway-server")?;
        let out = child.stdout.take().context("starting slipway-server")?;
        self.running.push(child);
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).context("reading from slipway-server")?;
        if line.is_empty() {
            bail!("starting slipway-server: it ended; see {}", self.folder.join("slipway.log").display());
        }
        Ok(())
    }

    /// Starts nginx, configured as its manual recommends for large static files: sendfile, one worker per core.
    fn start_nginx(&mut self) -> Result<()> {
        let folder = self.folder.display();
        // Clients trust only the root, so the server sends the intermediate with its certificate.
        let chain = ["server.pem", "intermediate.pem"].map(|file| self.folder.join("data").join(file));
        let chain = chain.iter().map(fs::read_to_string).collect::<Result<String, _>>();
        let chain = chain.context("reading the certificates of slipway-server")?;
        fs::write(self.folder.join("chain.pem"), chain).context("writing chain.pem")?;
        let scratch = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {folder}/nginx-{kind};"))
            .join(" ");
        let configuration = format!(
            "user root; worker_processes auto; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log; \
             events {{}}
             http {{ access_log off; sendfile on; tcp_nopush on; {scratch}
             server {{ listen 127.0.0.1:{} ssl; ssl_protocols TLSv1.3; root {folder}/www;
             ssl_certificate {folder}/chain.pem; ssl_certificate_key {folder}/data/server.key; }} }}",
            self.nginx_port
        );
        let path = self.folder.join("nginx.conf");
        files::write(&path, configuration)?;
        let mut nginx = command("/usr/sbin/nginx", ["-p"]);
        nginx.arg(&self.folder).arg("-c").arg(&path).stdin(Stdio::null()).stderr(Stdio::null());
        self.running.push(nginx.spawn().context("starting nginx")?);
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.nginx_port)).is_err() {
            if began.elapsed() > START {
                bail!("starting nginx: it is not listening; see {}", self.folder.join("nginx.log").display());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for mut child in self.running.drain(..) {
            // On SIGTERM both shut down cleanly, nginx with its workers.
            _ = run_quietly(&mut command("kill", ["-TERM", &child.id().to_string()]));
            _ = child.wait();
        }
    }
}
