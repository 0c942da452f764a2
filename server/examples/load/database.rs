//! The database of the servers under load.

use std::fs;
use std::path::Path;

use slipway_server::base::data::DatabaseUrl;

use crate::postgres::Server;
use crate::target::cpu_of;

/// A PostgreSQL server that is as durable as Debian configures it, with room for the connections of several servers.
const SETTINGS: [&str; 2] = ["listen_addresses=", "max_connections=200"];

/// A database.
pub enum Database {
    /// A file in the data folder.
    Sqlite,
    /// On a PostgreSQL server of its own, which ends with this program.
    Own(Server),
    /// On the PostgreSQL server that this URL names.
    Given(String),
}

impl Database {
    /// The database that an option names: `sqlite`, `postgres` for a server of its own, or the URL of one.
    pub fn named(name: &str) -> Self {
        match name {
            "sqlite" => Self::Sqlite,
            "postgres" => Self::Own(Server::start(&SETTINGS, |_| {})),
            url => Self::Given(url.to_owned()),
        }
    }

    /// What kind of database it is.
    pub fn kind(&self) -> &'static str {
        if matches!(self, Self::Sqlite) { "sqlite" } else { "postgres" }
    }

    /// The URL. `None` for a file in the data folder.
    pub fn url(&self) -> Option<DatabaseUrl> {
        self.text().map(|url| DatabaseUrl::new(&url).unwrap())
    }

    /// The URL as servers are given it.
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Sqlite => None,
            Self::Own(server) => Some(server.url("postgres")),
            Self::Given(url) => Some(url.clone()),
        }
    }

    /// Seconds of processor time that all processes of the PostgreSQL server have used. `None` if it is not a process
    /// of this program.
    pub fn cpu(&self) -> Option<f64> {
        let Self::Own(server) = self else { return None };
        let pid_file = server.socket().with_file_name("data").join("postmaster.pid");
        let first = fs::read_to_string(pid_file).unwrap().lines().next().unwrap().to_owned();
        let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        let children = processes.filter(|process| parent(process).is_some_and(|parent| parent == first));
        // What has ended counts for the process that waited for it.
        Some(cpu_of(&Path::new("/proc").join(&first), true) + children.map(|child| cpu_of(&child, false)).sum::<f64>())
    }
}

/// The parent of a process. `None` if the folder in `/proc` is not, or no longer, that of a process.
fn parent(process: &Path) -> Option<String> {
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1).map(str::to_owned)
}
