//! What `/healthz` and `/readyz` say: of a server that works, of one whose database is away, read-only or full, and of
//! one that stops.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::{Client, StatusCode};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use slipway_protocol::{Event, EventAck, EventKind};
use slipway_server::api::health::Health;
use slipway_server::base::data::{DataDir, DatabaseUrl, Place};
use slipway_server::store::{Store, commit, db, events};
use tempfile::TempDir;

use crate::metrics::Scrape;
use crate::output::{Logged, logged, started};
use crate::postgres::Server;
use crate::program::{Ended, command};
use crate::support::{Machine, TestServer, UUID, trusting};

/// How long to wait for what takes seconds.
const PATIENCE: Duration = Duration::from_secs(120);
const STEPS: &str = "steps: [{name: leave, action: {reboot: {}}}]\n";

/// Asks until the answer is right.
pub async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn get(client: &Client, url: &str) -> (StatusCode, Value) {
    let answer = client.get(format!("{url}/readyz")).send().await.unwrap();
    assert_eq!(answer.headers()["cache-control"], "no-store");
    (answer.status(), answer.json().await.unwrap())
}

/// Waits until a server says that exactly this is the matter. Returns since when, in milliseconds since 1970.
async fn lacks(client: &Client, url: &str, what: &str, message: &str) -> u64 {
    until(message, async || {
        let (status, said) = get(client, url).await;
        assert_eq!(status == StatusCode::OK, said["ready"] == true, "{said}");
        assert_eq!(status == StatusCode::SERVICE_UNAVAILABLE, said["ready"] == false, "{said}");
        let [problem] = said["problems"].as_array().unwrap().as_slice() else { return None };
        let is_it = problem["what"] == what && problem["message"] == message;
        assert!(problem["since_rfc3339"].as_str().unwrap().starts_with("20"), "{problem}");
        is_it.then(|| problem["since"].as_u64().unwrap())
    })
    .await
}

async fn is_ready(client: &Client, url: &str) {
    until("the server is ready", async || (get(client, url).await.0 == StatusCode::OK).then_some(())).await;
}

#[tokio::test]
async fn anybody_may_ask_at_either_port() {
    let server = TestServer::start().await;
    for url in [server.url(""), server.boot_url("")] {
        let answer = server.client().get(format!("{url}/healthz")).send().await.unwrap();
        assert_eq!((answer.status(), answer.text().await.unwrap().as_str()), (StatusCode::OK, "ok\n"));
        is_ready(&server.client(), &url).await;
        let (_, said) = get(&server.client(), &url).await;
        assert_eq!(said, json!({ "ready": true, "problems": [] }));
    }
}

/// The column `success` of a change, which is false while a change of the schema is not whole.
async fn schema_is_whole(store: &Store, is_whole: bool) {
    let mut transaction = store.write().await.unwrap();
    let sql = "UPDATE _sqlx_migrations SET success = $1 WHERE version = 20";
    db::query(sql).bind(is_whole).execute(&mut transaction).await.unwrap();
    commit(transaction).await.unwrap();
}

#[tokio::test]
async fn a_server_without_the_schema_of_its_version_is_not_ready() {
    let server = TestServer::start().await;
    let (client, url, store) = (server.client(), server.url(""), server.store().await);
    schema_is_whole(&store, false).await;
    lacks(&client, &url, "database", "the schema of the database is not that of this version of slipway-server").await;
    schema_is_whole(&store, true).await;
    is_ready(&client, &url).await;
}

#[tokio::test]
async fn keys_that_cannot_be_taken_over_are_a_problem_until_they_can() {
    let server = TestServer::start().await;
    let (client, url, data) = (server.client(), server.url(""), server.data_path());
    std::fs::rename(data.join("ca.pem"), data.join("away")).unwrap();
    let sql = "INSERT INTO site_keys (id, revision) VALUES (1, 9) ON CONFLICT (id) DO UPDATE SET revision = 9";
    let mut transaction = server.store().await.write().await.unwrap();
    db::query(sql).execute(&mut transaction).await.unwrap();
    commit(transaction).await.unwrap();
    let message = "the keys of the site could not be taken over; the ones before are in use";
    lacks(&client, &url, "keys", message).await;
    std::fs::rename(data.join("away"), data.join("ca.pem")).unwrap();
    is_ready(&client, &url).await;
}

/// A server that is another process, and a machine in a run that reports to it.
struct Site {
    folder: TempDir,
    server: Logged,
    jwt: String,
    run: String,
}

impl Site {
    /// `command` runs the program with arguments on the data folder and the database of the server.
    async fn new(folder: TempDir, server: Logged, command: impl Fn(&[&str]) -> String) -> Self {
        command(&["node", "add", "--name", "web1", "--uuid", UUID, "--release"]);
        let machine = Machine::with_uuid(UUID);
        let request = json!({ "identity": machine.identity, "inventory": {}, "csr": machine.csr(),
                              "agent_version": "test", "boot_id": "b" });
        let answer = server.client.post(format!("{}/v1/enrol", server.https)).json(&request).send().await.unwrap();
        let enrolment: Value = answer.json().await.unwrap();
        let jwt = enrolment["jwt"].as_str().unwrap().to_owned();
        let steps = folder.path().join("steps.yaml");
        std::fs::write(&steps, STEPS).unwrap();
        let run = command(&["run", "start", "--yes", "web1", "--workflow", steps.to_str().unwrap()]).trim().to_owned();
        Self { folder, server, jwt, run }
    }

    /// Starts a server on a database server.
    async fn on_postgres(database: &Server) -> (Self, Place) {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        database.sql("postgres", "CREATE DATABASE slipway");
        let url = database.url("slipway");
        let mut program = command(&data, &SERVE);
        program.env("SLIPWAY_DATABASE", &url);
        let server = with_log(&data, &folder.path().join("log"), program);
        let command = |arguments: &[&str]| {
            let output = command(&data, arguments).env("SLIPWAY_DATABASE", &url).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let postgres = Some(DatabaseUrl::new(&url).unwrap());
        let site = Self::new(folder, server, command).await;
        let root = site.folder.path().join("data");
        (site, Place { root, postgres, ..Place::default() })
    }

    async fn lacks(&self, what: &str, message: &str) -> u64 {
        lacks(&self.server.client, &self.server.https, what, message).await
    }

    async fn is_ready(&self) {
        is_ready(&self.server.client, &self.server.https).await;
    }

    /// Reports an event once. Returns whether it is stored.
    async fn report(&self, seq: u64) -> bool {
        let kind = if seq == 1 { EventKind::Started } else { EventKind::Note("x".repeat(500)) };
        let body = json!({ "run": self.run, "events": [Event { seq, at: 1, step: 0, attempt: 1, kind }] });
        let request = self.server.client.post(format!("{}/v1/node/events", self.server.https));
        let answer = request.bearer_auth(&self.jwt).json(&body).send().await.unwrap();
        match answer.status() {
            StatusCode::OK => {
                assert!(answer.json::<EventAck>().await.unwrap().seq >= seq);
                true
            }
            status => {
                assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{}", answer.text().await.unwrap());
                false
            }
        }
    }

    async fn report_until_stored(&self, seq: u64) {
        until("the event is stored", async || self.report(seq).await.then_some(())).await;
    }

    /// Checks that the events up to this one are stored, and none twice.
    async fn check_stored(&self, place: Place, last: u64) {
        let store = Store::of(&DataDir::open(place).unwrap()).await.unwrap();
        let found = events::of_run(&mut store.read().await.unwrap(), &self.run).await.unwrap();
        assert_eq!(found.iter().map(|event| event.seq).collect::<Vec<_>>(), (1..=last).collect::<Vec<_>>());
        store.close().await;
    }

    /// Checks that the log says once that the server is not ready, why and what to do, and once that it is again.
    async fn check_log(&self, why: &[&str]) {
        let path = self.folder.path().join("log");
        let log = || std::fs::read_to_string(&path).unwrap();
        until("the log says that all is well", async || log().contains("ready again").then_some(())).await;
        let log = log();
        let lines = |with: &str| log.lines().filter(|line| line.contains(with)).collect::<Vec<_>>();
        let [lost] = lines("not ready: ")[..] else { panic!("{log}") };
        assert!(why.iter().all(|why| lost.contains(why)), "{lost}");
        assert_eq!(lines("ready again").len(), 1, "{log}");
    }
}

const SERVE: [&str; 9] = [
    "serve",
    "--url",
    "https://server.test",
    "--listen",
    "127.0.0.1:0",
    "--boot-listen",
    "127.0.0.1:0",
    "--metrics-listen",
    "127.0.0.1:0",
];

fn with_log(data: &Path, log: &Path, mut program: Command) -> Logged {
    program.env_remove("JOURNAL_STREAM").env_remove("SLIPWAY_LOG");
    program.stderr(File::create(log).unwrap()).stdout(Stdio::piped());
    started(data, program)
}

const DURABLE: [&str; 4] = ["listen_addresses=", "fsync=off", "max_connections=50", "shared_buffers=16MB"];

#[tokio::test(flavor = "multi_thread")]
async fn a_database_server_that_is_away_is_a_problem_until_it_is_back() {
    let mut database = Server::start(&DURABLE, |_| {});
    let (site, place) = Site::on_postgres(&database).await;
    site.is_ready().await;
    site.report_until_stored(1).await;
    database.signal("-KILL", false);
    let since = site.lacks("database", "the database does not answer").await;
    assert!(!site.report(2).await);
    assert_eq!(site.lacks("database", "the database does not answer").await, since, "the time stays");
    let alive = site.server.client.get(format!("{}/healthz", site.server.https)).send().await.unwrap();
    assert_eq!(alive.status(), StatusCode::OK, "the server itself runs");
    let metrics =
        Scrape::of(site.server.client.get(format!("{}/metrics", site.server.metrics.as_ref().unwrap()))).await;
    assert_eq!((metrics.get("slipway_ready"), metrics.get("slipway_problem{what=\"database\"}")), (0.0, 1.0));
    assert!(!metrics.has("slipway_nodes"), "no number is better than an old one");
    database.run();
    site.is_ready().await;
    site.report_until_stored(2).await;
    site.check_stored(place, 2).await;
    site.check_log(&["the database does not answer"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_database_server_holds_up_no_answer() {
    let database = Server::start(&DURABLE, |_| {});
    let (site, place) = Site::on_postgres(&database).await;
    site.report_until_stored(1).await;
    database.signal("-STOP", true);
    site.lacks("database", "the database does not answer").await;
    database.signal("-CONT", true);
    site.is_ready().await;
    site.report_until_stored(2).await;
    site.check_stored(place, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_database_is_a_problem_until_it_accepts_changes() {
    let database = Server::start(&DURABLE, |_| {});
    let (site, place) = Site::on_postgres(&database).await;
    site.report_until_stored(1).await;
    let set = |what: &str| {
        database.sql("postgres", &format!("ALTER DATABASE slipway {what}"));
        let ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'slipway'";
        database.sql("postgres", ends);
    };
    set("SET default_transaction_read_only = on");
    site.lacks("database", "the database is read-only").await;
    assert!(!site.report(2).await);
    set("RESET default_transaction_read_only");
    site.is_ready().await;
    site.report_until_stored(2).await;
    site.check_stored(place, 2).await;
    let log = std::fs::read_to_string(site.folder.path().join("log")).unwrap();
    assert!(log.contains("not ready: the database is read-only") && log.contains("name the one that accepts"), "{log}");
}

/// The data folder is on a small file system that only the server's mount namespace has.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_a_problem_until_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let script = "mount -t tmpfs -o size=8m,mode=700 none \"$1\" && shift && exec \"$@\"";
    let unshared = |program: &Command| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(&data);
        command.arg(program.get_program()).args(program.get_args());
        command
    };
    if !unshared(&Command::new("true")).output().is_ok_and(|output| output.status.success()) {
        eprintln!("not checked: mounts of one's own are not allowed");
        return;
    }
    let mut program = unshared(&command(&data, &SERVE));
    program.env_remove("JOURNAL_STREAM").env_remove("SLIPWAY_LOG").stdout(Stdio::piped());
    program.stderr(File::create(folder.path().join("log")).unwrap());
    let child = Ended(program.spawn().unwrap());
    // Where others find the server's mounts. SQLite resolves links, so commands have to be among the mounts.
    let process = child.0.id();
    let seen = PathBuf::from(format!("/proc/{process}/root{}", data.display()));
    let server = Logged::of(&seen, child);
    let inside = |arguments: &[&str]| {
        let (program, mounts) = (command(&data, arguments), format!("--mount=/proc/{process}/ns/mnt"));
        let output = Command::new("nsenter").arg(mounts).arg(program.get_program()).args(program.get_args()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let site = Site::new(folder, server, inside).await;
    site.is_ready().await;
    let mut seq = 0;
    let fill = || {
        let mut filler = File::create(seen.join("filler")).unwrap();
        let full = std::io::copy(&mut std::io::repeat(0), &mut filler).expect_err("the file system is full");
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    };
    fill();
    // What the log of the database has room for is still stored.
    while site.report(seq + 1).await {
        seq += 1;
        assert!(seq < 10_000, "the disk is not full");
    }
    site.lacks("database", "the database has no room: its disk is full").await;
    assert!(!site.report(seq + 1).await);
    std::fs::remove_file(seen.join("filler")).unwrap();
    site.is_ready().await;
    for _ in 0..20 {
        seq += 1;
        site.report_until_stored(seq).await;
    }
    let token = std::fs::read_to_string(seen.join("operator-token")).unwrap();
    let request = site.server.client.get(format!("{}/v1/operator/runs/{}/events", site.server.https, site.run));
    let found: Vec<Value> = request.bearer_auth(token.trim()).send().await.unwrap().json().await.unwrap();
    let found: Vec<u64> = found.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(found, (1..=seq).collect::<Vec<_>>(), "none is lost, and none is there twice");
    site.check_log(&["the database has no room", "make room on it"]).await;
}

/// However many ask, the database is asked once a second.
#[tokio::test(flavor = "multi_thread")]
async fn many_who_ask_at_once_cost_one_question() {
    let folder = tempfile::tempdir().unwrap();
    let data = DataDir::make(crate::postgres::place(&folder.path().join("data"))).unwrap();
    let store = Store::of(&data).await.unwrap();
    let health = Arc::new(Health::default());
    let began = Instant::now();
    let asks: Vec<_> = (0..500)
        .map(|_| {
            let (health, store) = (Arc::clone(&health), store.clone());
            tokio::spawn(async move { health.problems(&store).await })
        })
        .collect();
    for ask in asks {
        assert_eq!(ask.await.unwrap(), []);
    }
    let questions = health.probes();
    assert!((1..=1 + began.elapsed().as_secs()).contains(&questions), "{questions}");
}

fn terminate(server: &Logged) {
    let process = Pid::from_child(&server.program.0);
    rustix::process::kill_process(process, Signal::TERM).unwrap();
}

/// Waits until a process ends, and checks that it ended well.
async fn ends(server: &mut Logged) {
    let status = until("the server ends", async || server.program.0.try_wait().unwrap()).await;
    assert!(status.success(), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_drains_answers_requests_and_says_that_it_is_not_ready() {
    let folder = tempfile::tempdir().unwrap();
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    let mut server = logged(&data, &log, &["--drain", "3600"]);
    let (https, boot) = (server.https.clone(), server.boot.clone());
    is_ready(&server.client, &https).await;
    terminate(&server);
    lacks(&server.client, &https, "running", "the server stops").await;
    for _ in 0..3 {
        // Each client makes a connection of its own.
        let ca = std::fs::read_to_string(data.join("ca.pem")).unwrap();
        let client = trusting(&ca).build().unwrap();
        let answer = client.get(format!("{https}/v1/time")).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::NO_CONTENT);
        let script = client.get(format!("{boot}/boot/ipxe")).send().await.unwrap();
        assert_eq!(script.status(), StatusCode::OK);
        let enrol = client.post(format!("{https}/v1/enrol"));
        assert_eq!(enrol.body("{}").send().await.unwrap().status(), StatusCode::BAD_REQUEST, "it was read");
        lacks(&client, &boot, "running", "the server stops").await;
    }
    assert!(server.program.0.try_wait().unwrap().is_none(), "it runs");
    // Another signal ends the wait.
    terminate(&server);
    ends(&mut server).await;
    server.client.get(format!("{https}/healthz")).send().await.expect_err("nobody listens");
    assert!(std::fs::read_to_string(log).unwrap().contains("draining"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_stops_by_itself_when_it_has_drained() {
    let folder = tempfile::tempdir().unwrap();
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    for seconds in ["0", "1"] {
        let mut server = logged(&data, &log, &["--drain", seconds]);
        terminate(&server);
        ends(&mut server).await;
        assert_eq!(std::fs::read_to_string(&log).unwrap().contains("draining"), seconds == "1");
    }
}
