//! A PostgreSQL server for the tests, without a system service. One serves the whole test program, and each data folder
//! has a database of its own. It listens on a Unix socket alone, and ends with the test program.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use slipway_server::base::data::{DatabaseUrl, Place};

/// Where Debian installs the programs of each version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// Settings for databases that need not outlive anything.
const SETTINGS: [&str; 6] = [
    "listen_addresses=",
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "max_connections=300",
    "shared_buffers=64MB",
];
/// Runs the server until the test program ends, which closes the script's input. Then removes the server's folder.
const KEEP: &str = r#"folder=$1; shift; "$@" & cat > /dev/null; kill -QUIT $!; wait; rm -rf "$folder""#;

static SERVER: LazyLock<Server> = LazyLock::new(|| Server::start(&SETTINGS, |_| {}));

/// A PostgreSQL server.
pub struct Server {
    folder: PathBuf,
    programs: PathBuf,
    settings: Vec<String>,
    /// Names of the databases by their data folders.
    databases: Mutex<BTreeMap<PathBuf, String>>,
    until_end: Vec<ChildStdin>,
}

/// The place of a server with this data folder: with an SQLite database, unless SLIPWAY_TEST_DATABASE asks for
/// PostgreSQL.
pub fn place(data: &Path) -> Place {
    let postgres = url_if_asked(data).map(|url| DatabaseUrl::new(&url).unwrap());
    Place { root: data.to_owned(), postgres, ..Place::default() }
}

/// The URL of the database that belongs to a data folder, if SLIPWAY_TEST_DATABASE asks for PostgreSQL.
pub fn url_if_asked(data: &Path) -> Option<String> {
    is_asked().then(|| url(data))
}

/// Whether SLIPWAY_TEST_DATABASE asks for PostgreSQL.
pub fn is_asked() -> bool {
    match std::env::var("SLIPWAY_TEST_DATABASE") {
        Err(_) => false,
        Ok(name) if name == "postgres" => true,
        Ok(other) => panic!("SLIPWAY_TEST_DATABASE is {other:?}; it can be \"postgres\", or unset for SQLite"),
    }
}

/// The content of the database that belongs to a data folder, if SLIPWAY_TEST_DATABASE asks for PostgreSQL.
pub fn dump_if_asked(data: &Path) -> Option<Vec<u8>> {
    is_asked().then(|| dump(data))
}

/// The content of the database on the PostgreSQL server that belongs to a data folder.
pub fn dump(data: &Path) -> Vec<u8> {
    let url = url(data);
    let database = url.rsplit('/').next().unwrap_or_default();
    succeed(SERVER.command("pg_dump").args(["--dbname", database]))
}

/// Has the database that belongs to a data folder execute statements. Returns what psql prints.
pub fn execute(data: &Path, sql: &str) -> String {
    let url = url(data);
    SERVER.sql(url.rsplit('/').next().unwrap_or_default(), sql)
}

/// The URL of the database that belongs to a data folder. Makes an empty database at the first call.
pub fn url(data: &Path) -> String {
    let mut databases = SERVER.databases.lock().unwrap_or_else(PoisonError::into_inner);
    let count = databases.len();
    let name = databases.entry(data.to_owned()).or_insert_with(|| {
        let name = format!("test{count}");
        SERVER.sql("postgres", &format!("CREATE DATABASE {name}"));
        name
    });
    SERVER.url(name)
}

impl Server {
    /// Starts a server, after preparing its data folder.
    pub fn start(settings: &[&str], prepare: impl FnOnce(&Path)) -> Self {
        let versions = std::fs::read_dir(VERSIONS).into_iter().flatten().flatten();
        let programs = versions.map(|version| version.path().join("bin")).filter(|bin| bin.join("initdb").exists());
        let programs = programs.max().expect("there is no PostgreSQL on this host: install the package postgresql");
        let folder = tempfile::tempdir().unwrap().keep();
        let data = folder.join("data");
        let (is_root, user) = (rustix::process::geteuid().is_root(), user());
        if is_root {
            succeed(Command::new("chown").arg("postgres:").arg(&folder));
        }
        let mut initdb = Command::new(user[0]);
        initdb.args(&user[1..]).arg(programs.join("initdb")).arg("--pgdata").arg(&data);
        succeed(initdb.args(["--no-sync", "--encoding=UTF8", "--locale=C", "--auth=trust", "--username=slipway"]));
        prepare(&data);
        if is_root {
            succeed(Command::new("chown").args(["--recursive", "postgres:"]).arg(&data));
        }
        let settings = settings.iter().map(|&setting| setting.to_owned()).collect();
        let mut server = Self { folder, programs, settings, databases: Mutex::default(), until_end: Vec::new() };
        server.run();
        server
    }

    /// Runs the server, also again after it was killed.
    pub fn run(&mut self) {
        let log = File::options().create(true).append(true).open(self.folder.join("log")).unwrap();
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEP, "sh"]);
        // The first keeper removes the folder in the end.
        keeper.arg(if self.until_end.is_empty() { self.folder.as_path() } else { Path::new("") });
        keeper.args(user()).arg(self.programs.join("postgres"));
        keeper.arg("-D").arg(self.data()).arg("-k").arg(&self.folder);
        keeper.args(self.settings.iter().flat_map(|setting| ["-c", setting]));
        keeper.stdin(Stdio::piped()).stdout(log.try_clone().unwrap()).stderr(log);
        self.until_end.push(keeper.spawn().unwrap().stdin.take().unwrap());
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.command("pg_isready").arg("--quiet").status().unwrap().success() {
            let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "PostgreSQL does not start: {log}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Sends a signal, such as `-KILL`, to the first process of the server, or to all its processes.
    pub fn signal(&self, signal: &str, to_all: bool) {
        let file = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap();
        let first = file.lines().next().unwrap();
        succeed(Command::new("kill").args([signal, first]));
        if to_all {
            succeed(Command::new("pkill").args([signal, "--parent", first]));
        }
    }

    /// The URL of a database, by the Unix socket.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://slipway@{}/{database}", self.folder.display().to_string().replace('/', "%2F"))
    }

    /// Path of the Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join(".s.PGSQL.5432")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.arg("--host").arg(&self.folder).args(["--username", "slipway"]);
        let port = self.settings.iter().find_map(|setting| setting.strip_prefix("port="));
        command.args(port.map(|port| format!("--port={port}")));
        command
    }

    /// Has a database execute statements. Returns what psql prints.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        let arguments = ["--dbname", database, "--no-psqlrc", "--set", "ON_ERROR_STOP=1", "--command", sql];
        String::from_utf8(succeed(self.command("psql").args(["--tuples-only", "--no-align"]).args(arguments))).unwrap()
    }

    /// Opens a session that keeps its locks until it is dropped.
    pub fn session(&self, database: &str) -> Session {
        let mut psql = self.command("psql");
        psql.args(["--dbname", database, "--no-psqlrc", "--quiet"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        Session(psql.spawn().unwrap())
    }
}

/// A session of psql.
pub struct Session(Child);

impl Session {
    /// Executes statements, and returns when they are done.
    pub fn run(&mut self, sql: &str) {
        let output = BufReader::new(self.0.stdout.as_mut().unwrap());
        writeln!(self.0.stdin.as_mut().unwrap(), "{sql};\n\\echo done").unwrap();
        assert!(output.lines().any(|line| line.unwrap() == "done"), "{sql}: the session ended");
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The command that runs another one as a user that PostgreSQL accepts. It refuses to run as root.
fn user() -> &'static [&'static str] {
    match rustix::process::geteuid().is_root() {
        true => &["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"],
        false => &["env"],
    }
}

fn succeed(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}
