//! nginx in front of a server, with the configuration in `packaging/`.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use xtask::host::command::{command, run_quietly};
use xtask::host::{packages, workspace};
use xtask::lab::server::{Lab, free_ports};

use crate::bench::{Bench, LIMIT};

/// nginx, stopped on drop.
pub struct Nginx {
    process: Child,
    folder: PathBuf,
    port: u16,
}

impl Nginx {
    /// Starts nginx in front of a server that has a certificate for firmware. The configuration is the shipped one,
    /// except for port and data folder.
    pub fn start(bench: &Bench) -> Result<Self> {
        packages::ensure(&["nginx-light"])?;
        let folder = bench.folder().join("nginx");
        fs::create_dir_all(&folder)?;
        let [port] = free_ports()?;
        let server = bench.lab.url().replace("10.0.2.2", "127.0.0.1");
        configure(&folder, &bench.folder().join("lab/data"), &server, port)?;
        let mut nginx = command("/usr/sbin/nginx", ["-p"]);
        nginx.arg(&folder).arg("-c").arg(folder.join("nginx.conf")).stdin(Stdio::null()).stderr(Stdio::null());
        let process = nginx.spawn().context("starting nginx")?;
        let nginx = Self { process, folder, port };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(began.elapsed() <= LIMIT, "starting nginx: {}", nginx.errors()?);
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(nginx)
    }

    /// The URL of a boot file, as machines see it.
    pub fn url(&self, file: &str) -> String {
        format!("https://10.0.2.2:{}/boot/{file}", self.port)
    }

    /// Reads nginx's log of requests, a line for each.
    pub fn requests(&self) -> Result<String> {
        Ok(fs::read_to_string(self.folder.join("access.log"))?)
    }

    /// Reads nginx's log of errors, such as connections that ended early.
    pub fn errors(&self) -> Result<String> {
        Ok(fs::read_to_string(self.folder.join("error.log"))?)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // On SIGTERM nginx ends in an orderly way, with its workers. Both calls fail only if it has already ended.
        let _ = run_quietly(&mut command("kill", ["-TERM", &self.process.id().to_string()]));
        let _ = self.process.wait();
    }
}

/// Writes the shipped configuration, changed for a test, and the main configuration that includes it and logs to the
/// folder.
fn configure(folder: &Path, data: &Path, server: &str, port: u16) -> Result<()> {
    let mut site = fs::read_to_string(workspace::root().join("packaging/nginx/slipway-boot.conf"))?;
    for (shipped, here) in [
        ("listen 443 ssl;", format!("listen 127.0.0.1:{port} ssl;")),
        ("proxy_pass https://127.0.0.1:8443;", format!("proxy_pass {server};")),
        (" /var/lib/slipway/", format!(" {}/", data.display())),
    ] {
        ensure!(site.contains(shipped), "the shipped configuration has no {shipped:?}");
        site = site.replace(shipped, &here);
    }
    fs::write(folder.join("site.conf"), site)?;
    let scratch = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|kind| format!("{kind}_temp_path {kind};"));
    let main = format!(
        "user root; daemon off; pid nginx.pid; error_log error.log info; events {{}}
         http {{ access_log access.log; {} include site.conf; }}",
        scratch.join(" ")
    );
    Ok(fs::write(folder.join("nginx.conf"), main)?)
}

/// Gives a server a certificate for firmware. Returns the root certificate, in PEM, that the firmware must trust.
pub fn serve_firmware(lab: &mut Lab) -> Result<String> {
    let root = lab.operator(&["ca", "firmware"])?;
    lab.stop_server()?;
    lab.start_server()?;
    Ok(root)
}
