//! The servers of a site as programs of their own, on one database and with one site key.

use std::ffi::OsStr;
use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use slipway_server::base::data::{DataDir, DatabaseUrl, Place, SiteKey};
use slipway_server::store::Store;
use tempfile::TempDir;

use crate::postgres;
use crate::program::{Ended, started};

/// What all servers of a site have.
pub struct Site {
    pub folder: TempDir,
    /// URL of the database.
    pub database: String,
    site_key: SiteKey,
}

/// A server that runs.
pub struct Running {
    program: Ended,
    /// Address and port of its HTTPS listener.
    pub address: String,
    /// Address and port of its listener for metrics, if it has one.
    metrics: Option<String>,
    log: PathBuf,
}

impl Site {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let database = postgres::url(folder.path());
        Self::on(folder, database)
    }

    /// A site on a database of one's own.
    pub fn on(folder: TempDir, database: String) -> Self {
        let site_key = SiteKey::generate();
        std::fs::write(folder.path().join("site.key"), site_key.to_text()).unwrap();
        Self { folder, database, site_key }
    }

    /// The program on a data folder of this name.
    pub fn command(&self, name: &str, arguments: &[&str]) -> Command {
        self.command_of(env!("CARGO_BIN_EXE_slipway-server"), name, arguments)
    }

    /// A program, which may be of another version, on a data folder of this name.
    pub fn command_of(&self, program: impl AsRef<OsStr>, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.arg("--data").arg(self.data(name)).args(["--database", &self.database]).arg("--site-key");
        command.arg(self.folder.path().join("site.key")).args(arguments);
        command.env_remove("SLIPWAY_LOG").env_remove("SLIPWAY_DATABASE");
        command
    }

    /// What a command prints that must succeed, run on a data folder without a server.
    pub fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.command("commands", arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts a server on a data folder of this name.
    pub fn serve(&self, name: &str) -> Running {
        self.serve_by(env!("CARGO_BIN_EXE_slipway-server"), name)
    }

    /// Starts a server by a program, which may be of another version.
    pub fn serve_by(&self, program: impl AsRef<OsStr>, name: &str) -> Running {
        let serve = ["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0"];
        Running::start(self.command_of(program, name, &serve), self.folder.path().join(format!("{name}.log")))
    }

    pub fn data(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The database, opened as another process would.
    pub async fn store(&self) -> Store {
        let postgres = Some(DatabaseUrl::new(&self.database).unwrap());
        let place =
            Place { root: self.data("commands"), postgres, site_key: Some(self.site_key.clone()), ..Place::default() };
        Store::of(&DataDir::open(place).unwrap()).await.unwrap()
    }

    /// What the servers say about each other: each server's URL and host.
    pub fn servers(&self) -> Vec<Value> {
        serde_json::from_str(&self.succeed(&["server", "list", "--json"])).unwrap()
    }
}

impl Running {
    /// Starts a server whose log goes to a file.
    pub fn start(mut command: Command, log: PathBuf) -> Self {
        command.stderr(File::options().create(true).append(true).open(&log).unwrap());
        let (program, ready) = started(command);
        let metrics = ready["metrics"].as_str().map(str::to_owned);
        Self { program, address: ready["https"].as_str().unwrap().to_owned(), metrics, log }
    }

    /// Port of its HTTPS listener.
    pub fn port(&self) -> &str {
        self.address.rsplit_once(':').unwrap().1
    }

    /// Address and port of its listener for metrics.
    pub fn metrics(&self) -> &str {
        self.metrics.as_deref().unwrap()
    }

    /// Stops the server as a system's manager does.
    pub fn stop(mut self) {
        let id = rustix::process::Pid::from_child(&self.program.0);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        assert!(self.program.0.wait().unwrap().success());
    }

    /// Kills the server.
    pub fn kill(self) {
        drop(self);
    }

    /// All that the servers on this data folder have logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }
}

/// Waits until something is so.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(90);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
