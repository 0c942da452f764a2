//! The server under load.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde::Deserialize;
use slipway_server::base::data::DataDir;
use slipway_server::keys::ca::Authority;
use slipway_server::store::Store;
use tempfile::TempDir;

use crate::attack::Attack;

/// Size of the file that clients download. Sparse.
const FILE_BYTES: u64 = 1 << 30;

/// A running server with its own data folder.
pub struct Target {
    folder: TempDir,
    process: Child,
    ready: Ready,
}

/// What the server prints once it listens.
#[derive(Deserialize)]
struct Ready {
    https: String,
    boot: String,
}

impl Target {
    /// Starts this program on free ports of loopback.
    pub async fn start(program: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let boot = folder.path().join("boot");
        fs::create_dir(&boot).unwrap();
        File::create(boot.join("large")).unwrap().set_len(FILE_BYTES).unwrap();
        let mut serve = Command::new(program);
        serve.arg("--data").arg(folder.path().join("data")).args(["serve", "--url", "https://load.test:8443"]);
        serve.args(["--listen", "127.0.0.1:0", "--boot-listen", "127.0.0.1:0", "--boot"]).arg(&boot);
        serve.stdout(Stdio::piped());
        // Its log, if it is wanted, is worth more than a summary.
        if std::env::var_os("LOAD_LOG").is_none() {
            serve.stderr(Stdio::null());
        }
        let mut process = serve.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).unwrap();
        Self { folder, process, ready }
    }

    /// URL of the HTTPS port.
    pub fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.ready.https)
    }

    /// Address of the HTTPS port.
    pub fn https_address(&self) -> SocketAddr {
        self.ready.https.parse().unwrap()
    }

    /// The CA of the server in PEM.
    pub fn ca(&self) -> String {
        Authority::open(&self.data()).unwrap().pem().to_owned()
    }

    /// The database, as a command opens it.
    pub async fn store(&self) -> Store {
        Store::of(&self.data()).await.unwrap()
    }

    /// Starts an attack in a process of its own.
    pub fn attack(&self, attack: &Attack) -> Child {
        let ca = self.folder.path().join("ca.pem");
        fs::write(&ca, self.ca()).unwrap();
        let mut command = Command::new("nice");
        command.args(["-n", "10"]).arg(std::env::current_exe().unwrap()).args(["attack", &attack.name()]);
        command.args([&self.ready.https, &self.ready.boot]).arg(ca).spawn().unwrap()
    }

    /// The server's memory in MiB.
    pub fn rss_mib(&self) -> f64 {
        let status = fs::read_to_string(self.proc("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
    }

    /// Seconds of processor time that the server has used.
    pub fn cpu(&self) -> f64 {
        let stat = fs::read_to_string(self.proc("stat")).unwrap();
        // proc_pid_stat(5): utime and stime are fields 14 and 15, in hundredths of a second on Linux.
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11).take(2);
        fields.map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
    }

    fn proc(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.process.id()))
    }

    fn data(&self) -> DataDir {
        DataDir::open(&self.folder.path().join("data")).unwrap()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
