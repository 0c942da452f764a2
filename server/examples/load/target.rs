//! The servers under load.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::Deserialize;
use slipway_server::base::data::{DataDir, Place, SiteKey};
use slipway_server::keys::ca::Authority;
use slipway_server::operate;
use slipway_server::store::Store;
use tempfile::TempDir;

use crate::attack::Attack;
use crate::balancer;
use crate::database::Database;

/// Size of the file that clients download. Sparse.
const FILE_BYTES: u64 = 1 << 30;
/// How often a server that was killed is started, if its ports are in use for a moment.
const STARTS: usize = 10;

/// Running servers with one database. Each has its own data folder.
pub struct Target {
    folder: TempDir,
    program: PathBuf,
    database: Database,
    site_key: Option<SiteKey>,
    servers: Vec<Server>,
    /// Address that nodes connect to.
    https: SocketAddr,
}

/// A server.
struct Server {
    process: Child,
    ready: Ready,
    /// Seconds of processor time of its processes that were killed.
    cpu_before: f64,
}

/// What the server prints once it listens.
#[derive(Clone, Deserialize)]
struct Ready {
    https: String,
    boot: String,
}

impl Target {
    /// Starts this program on free ports of loopback, with SQLite.
    pub async fn start(program: &Path) -> Self {
        Self::start_several(program, 1, Database::Sqlite).await
    }

    /// Starts so many servers on one database, and a balancer before them if there are several.
    pub async fn start_several(program: &Path, servers: usize, database: Database) -> Self {
        assert!(servers == 1 || database.url().is_some(), "several servers need PostgreSQL");
        let folder = tempfile::tempdir().unwrap();
        let boot = folder.path().join("boot");
        fs::create_dir(&boot).unwrap();
        File::create(boot.join("large")).unwrap().set_len(FILE_BYTES).unwrap();
        let site_key = (servers > 1).then(SiteKey::generate);
        if let Some(key) = &site_key {
            let file = folder.path().join("site.key");
            fs::write(&file, key.to_text()).unwrap();
            fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        }
        let https = SocketAddr::from(([127, 0, 0, 1], 0));
        let program = program.to_owned();
        let mut target = Self { folder, program, database, site_key, servers: Vec::new(), https };
        for number in 0..servers {
            let (process, ready) = target.serve(number, "127.0.0.1:0", "127.0.0.1:0").unwrap();
            target.servers.push(Server { process, ready, cpu_before: 0.0 });
        }
        let addresses: Vec<SocketAddr> =
            target.servers.iter().map(|server| server.ready.https.parse().unwrap()).collect();
        target.https = if servers > 1 { balancer::start(addresses).await } else { addresses[0] };
        target
    }

    /// Starts a server. `None` if it ends before it listens.
    fn serve(&self, number: usize, https: &str, boot: &str) -> Option<(Child, Ready)> {
        let folder = self.folder.path();
        let mut serve = Command::new(&self.program);
        serve.arg("--data").arg(self.root(number));
        if let Some(url) = self.database.text() {
            serve.env("SLIPWAY_DATABASE", url);
        }
        if self.site_key.is_some() {
            serve.env("SLIPWAY_SITE_KEY", folder.join("site.key"));
        }
        serve.args(["serve", "--url", "https://load.test:8443", "--listen", https, "--boot-listen", boot]);
        serve.arg("--boot").arg(folder.join("boot"));
        serve.stdout(Stdio::piped());
        // Its log, if it is wanted, is worth more than a summary.
        if std::env::var_os("LOAD_LOG").is_none() {
            serve.stderr(Stdio::null());
        }
        let mut process = serve.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        match serde_json::from_str(&line) {
            Ok(ready) => Some((process, ready)),
            Err(_) => {
                drop(process.kill());
                process.wait().unwrap();
                None
            }
        }
    }

    /// Kills a server without a warning and starts it again on the same ports. Waits until it listens.
    pub fn kill(&mut self, number: usize) {
        let Server { process, ready, cpu_before } = &mut self.servers[number];
        *cpu_before += cpu_of(&proc(process), false);
        process.kill().unwrap();
        process.wait().unwrap();
        let Ready { https, boot } = ready.clone();
        let again = (0..STARTS).find_map(|start| {
            std::thread::sleep(Duration::from_millis(500) * u32::from(start > 0));
            self.serve(number, &https, &boot)
        });
        self.servers[number].process = again.expect("a server that was killed starts again").0;
    }

    /// The database of the servers.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// URL of the HTTPS port.
    pub fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.https)
    }

    /// Address of the HTTPS port, which is that of the balancer if there are several servers.
    pub fn https_address(&self) -> SocketAddr {
        self.https
    }

    /// The CA of the servers in PEM.
    pub fn ca(&self) -> String {
        Authority::open(&self.data()).unwrap().pem().to_owned()
    }

    /// The token of an operator.
    pub async fn operator(&self) -> String {
        let store = self.store().await;
        operate::add_operator(&store, &self.data(), "bench", None).await.unwrap().token
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
        command.args([&self.https.to_string(), &self.servers[0].ready.boot]).arg(ca).spawn().unwrap()
    }

    /// Memory in MiB of the server that has most.
    pub fn rss_mib(&self) -> f64 {
        let rss = |server: &Server| {
            let status = fs::read_to_string(proc(&server.process).join("status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
        };
        self.servers.iter().map(rss).fold(0.0, f64::max)
    }

    /// Seconds of processor time that all servers have used.
    pub fn cpu(&self) -> f64 {
        self.servers.iter().map(|server| server.cpu_before + cpu_of(&proc(&server.process), false)).sum()
    }

    fn root(&self, number: usize) -> PathBuf {
        self.folder.path().join(format!("data{number}"))
    }

    fn data(&self) -> DataDir {
        let (postgres, site_key) = (self.database.url(), self.site_key.clone());
        DataDir::open(Place { root: self.root(0), postgres, site_key, ..Place::default() }).unwrap()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        for server in &mut self.servers {
            drop(server.process.kill());
            drop(server.process.wait());
        }
    }
}

/// The folder of a process in `/proc`.
fn proc(process: &Child) -> PathBuf {
    PathBuf::from(format!("/proc/{}", process.id()))
}

/// Seconds of processor time that a process has used, by its folder in `/proc`, with that of its children that have
/// ended if `with_ended`. 0 if it has ended itself.
pub fn cpu_of(process: &Path, with_ended: bool) -> f64 {
    let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
    // proc_pid_stat(5): utime, stime, cutime and cstime are the fields from 14, in hundredths of a second on Linux.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace().skip(11);
    let ticks = fields.take(if with_ended { 4 } else { 2 }).map(|ticks| ticks.parse::<f64>().unwrap());
    ticks.sum::<f64>() / 100.0
}
