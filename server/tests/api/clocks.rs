//! Servers whose host's clock is set, forward and back, while machines report. libfaketime shows them another time; it
//! leaves the clock that nobody sets as it is.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use reqwest::{Client, StatusCode};
use serde_json::Value;
use slipway_protocol::{Enrolment, Event, EventKind};
use slipway_server::base::data::DataDir;
use slipway_server::operate;
use slipway_server::store::{Store, events};

use crate::killed_servers::{check_reports, machine, uuid};
use crate::postgres;
use crate::program::command;
use crate::site::{Running, Site, until};
use crate::support::{Machine, install_provider, trusting};
use crate::work::TWO_STEPS;

const HOUR: i64 = 60 * 60;
const SERVE: [&str; 7] =
    ["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];

/// The clock of a host.
struct Clock {
    library: PathBuf,
    file: PathBuf,
}

impl Clock {
    /// A clock that is right, in a file of this folder. `None`, and a word about it, if Debian's faketime is missing.
    fn new(folder: &Path) -> Option<Self> {
        let folders = std::fs::read_dir("/usr/lib").unwrap().flatten();
        let mut libraries = folders.map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"));
        let Some(library) = libraries.find(|library| library.exists()) else {
            eprintln!("not checked: the package faketime is missing");
            return None;
        };
        let clock = Self { library, file: folder.join("clock") };
        clock.set(0);
        Some(clock)
    }

    /// Sets the clock to this many seconds after the right time.
    fn set(&self, seconds: i64) {
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("{seconds:+}")).unwrap();
        std::fs::rename(new, &self.file).unwrap();
    }

    /// Lets a program go by the clock.
    fn of(&self, mut command: Command) -> Command {
        command.env("LD_PRELOAD", &self.library).env("FAKETIME_TIMESTAMP_FILE", &self.file);
        for setting in ["FAKETIME_NO_CACHE", "FAKETIME_DONT_FAKE_MONOTONIC", "DONT_FAKE_MONOTONIC", "NO_FAKE_STAT"] {
            command.env(setting, "1");
        }
        command
    }
}

/// A server on a host with such a clock.
struct Host {
    clock: Clock,
    data: PathBuf,
    log: PathBuf,
}

impl Host {
    /// What a command on this host prints, which must succeed.
    fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.clock.of(command(&self.data, arguments)).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Sets the clock, and waits until the server has noticed it.
    fn set(&self, hours: i64) {
        let count = || self.log().matches("the clock of this host was set ").count();
        let before = count();
        self.clock.set(hours * HOUR);
        until("the server notices that its clock was set", || count() > before);
    }

    /// Since when a node is silent, as the status says.
    fn silent_since(&self, node: &str) -> Option<u64> {
        let status: Value = serde_json::from_str(&self.succeed(&["status", "--json", node])).unwrap();
        status["silent_since"].as_u64()
    }
}

async fn stored(store: &Store, run: &str) -> usize {
    events::of_run(&mut store.read().await.unwrap(), run).await.unwrap().len()
}

/// What `/readyz` says of each problem.
async fn problems(client: &Client, url: &str) -> Vec<Value> {
    let answer = client.get(format!("{url}/readyz")).send().await.unwrap();
    let is_ready = answer.status() == StatusCode::OK;
    let said: Value = answer.json().await.unwrap();
    assert_eq!(said["ready"], is_ready, "{said}");
    said["problems"].as_array().unwrap().clone()
}

async fn until_problems(client: &Client, url: &str, expect: &[(&str, &str)]) {
    let expect: Vec<Value> = expect.iter().map(|(what, message)| serde_json::json!([what, message])).collect();
    for _ in 0..900 {
        let found = problems(client, url).await;
        if found.iter().map(|one| serde_json::json!([one["what"], one["message"]])).eq(expect.iter().cloned()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{expect:?}: {:?}", problems(client, url).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_set_loses_nothing_and_makes_no_machine_silent() {
    let folder = tempfile::tempdir().unwrap();
    let Some(clock) = Clock::new(folder.path()) else { return };
    install_provider();
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    let mut program = clock.of(command(&data, &SERVE));
    program.env_remove("JOURNAL_STREAM");
    let server = Running::start(program, log.clone());
    let host = Host { clock, data, log };
    let steps = folder.path().join("steps.yaml");
    std::fs::write(&steps, TWO_STEPS).unwrap();
    let runs = [0, 1].map(|number| {
        let name = format!("m{number}");
        host.succeed(&["node", "add", "--name", &name, "--uuid", &uuid(number), "--release"]);
        host.succeed(&["run", "start", "--yes", &name, "--workflow", steps.to_str().unwrap()]).trim().to_owned()
    });
    let ca = host.succeed(&["ca"]);
    let (stop, stopping) = tokio::sync::watch::channel(false);
    let (state, url) = (folder.path().join("machine"), format!("https://localhost:{}", server.port()));
    let working = {
        let (ca, url) = (ca.clone(), url.clone());
        tokio::spawn(async move { machine(&state, ca, &url, 0, stopping).await })
    };
    let store = Store::of(&DataDir::open(postgres::place(&host.data)).unwrap()).await.unwrap();
    let client = trusting(&ca).build().unwrap();
    // Beyond a day, the credentials of the machine are not valid any more, and then not yet.
    for hours in [3, 0, -3, 0, 30, 0] {
        host.set(hours);
        let before = stored(&store, &runs[0]).await;
        for _ in 0..900 {
            if stored(&store, &runs[0]).await > before + 5 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(stored(&store, &runs[0]).await > before + 5, "{hours}: it goes on: {}", host.log());
        assert_eq!(problems(&client, &url).await, Vec::<Value>::new(), "{hours}");
        tokio::task::block_in_place(|| until("the machine is not silent", || host.silent_since("m0").is_none()));
    }

    // A machine that is gone is silent after a while, though it was last heard from at a later time.
    host.set(3);
    gone(&client, &url, &runs[1]).await;
    for _ in 0..900 {
        if operate::show_node(&store, "m1").await.unwrap().last_seen.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    host.set(0);
    assert_eq!(host.silent_since("m1"), None, "not because of the clock");
    tokio::task::block_in_place(|| until("the machine is silent", || host.silent_since("m1").is_some()));
    stop.send_replace(true);
    let (run, said) = working.await.unwrap();
    assert_eq!(run, runs[0]);
    check_reports(&store, 0, &run, &said).await;

    // By a clock that is wrong by years, the certificates of the site are not valid.
    let metrics = format!("http://{}", server.metrics());
    until_problems(&client, &metrics, &[]).await;
    host.set(11 * 366 * 24);
    let message = "the certificates of the site are not valid at the time of this host's clock";
    until_problems(&client, &metrics, &[("keys", message)]).await;
    host.set(0);
    until_problems(&client, &metrics, &[]).await;
    // What was signed meanwhile was replaced: a new connection verifies it.
    let client = trusting(&ca).build().unwrap();
    assert_eq!(problems(&client, &url).await, Vec::<Value>::new());
    let log = host.log();
    assert!(log.contains("was set forward by 10") && log.contains("was set back by 10"), "{log}");
    assert!(log.contains("certificate authority expired on") && log.contains("ready again"), "{log}");
    assert!(!log.contains("panicked"), "{log}");
    server.stop();
}

/// A machine that begins its run and is never heard from again.
async fn gone(client: &Client, url: &str, run: &str) {
    let machine = Machine::with_uuid(&uuid(1));
    let answer = client.post(format!("{url}/v1/enrol")).json(&machine.request()).send().await.unwrap();
    let enrolment: Enrolment = answer.json().await.unwrap();
    let node = |request: reqwest::RequestBuilder| request.bearer_auth(&enrolment.jwt).send();
    let work = node(client.get(format!("{url}/v1/node/workflow?wait=0"))).await.unwrap();
    assert_eq!(work.status(), StatusCode::OK);
    let events = [Event { seq: 1, at: 1, step: 0, attempt: 1, kind: EventKind::Started }];
    let body = serde_json::json!({ "run": run, "events": events });
    let stored = node(client.post(format!("{url}/v1/node/events")).json(&body)).await.unwrap();
    assert_eq!(stored.status(), StatusCode::OK);
}

/// Certificates from a server whose clock is that wrong are not valid at the other.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_servers_whose_clocks_are_far_apart_the_wrong_one_is_not_ready() {
    let site = Site::new();
    let Some(clock) = Clock::new(site.folder.path()) else { return };
    install_provider();
    let right = site.serve("right");
    let wrong = Running::start(clock.of(site.command("wrong", &SERVE)), site.folder.path().join("wrong.log"));
    let client = trusting(&site.succeed(&["ca"])).build().unwrap();
    let [at_right, at_wrong] = [&right, &wrong].map(|server| format!("https://localhost:{}", server.port()));
    until_problems(&client, &at_wrong, &[]).await;
    for hours in [13, -13] {
        clock.set(hours * HOUR);
        let message = "the clock of this host is more than 12 hours from that of another server of the site";
        until_problems(&client, &at_wrong, &[("clock", message)]).await;
        assert_eq!(problems(&client, &at_right).await, Vec::<Value>::new());
        clock.set(0);
        until_problems(&client, &at_wrong, &[]).await;
    }
    let log = wrong.log();
    for expect in ["s ahead of that of the database server", "s behind that of host", "set both by NTP", "ready again"]
    {
        assert!(log.contains(expect), "{expect}: {log}");
    }
    right.stop();
    wrong.stop();
}
