//! Servers of one site that know each other, and that are killed while machines report to them.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slipway_installer::config::Config;
use slipway_installer::discover::tpm::{MachineTpm, Place};
use slipway_installer::enrol::{Facts, Session};
use slipway_installer::report::log_book::LogBook;
use slipway_installer::report::reporter::Reporter;
use slipway_installer::screen::Screen;
use slipway_installer::server::machine_key::MachineKey;
use slipway_protocol::{EventKind, Identity, Inventory, Outcome, RunState, Workflow};
use slipway_server::operate::{self, NewNode};
use slipway_server::site::leases::Lease;
use slipway_server::store::{Store, events};
use tokio::net::{TcpListener, TcpStream};

use crate::site::{Running, Site};
use crate::support::install_provider;
use crate::work::{TWO_STEPS, new_run};

#[test]
fn servers_know_each_other() {
    let site = Site::new();
    let one = site.serve("one");
    let other = site.serve("other");
    assert_eq!(site.servers().len(), 2);
    let listed = site.succeed(&["server", "list"]);
    assert!(listed.starts_with("Server ") && listed.matches("https://server.test").count() == 2, "{listed}");
    let status = site.command("one", &["status"]).output().unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    assert!(
        status.contains("\nOther servers of this site:\n") && status.matches("server.test").count() == 1,
        "{status}"
    );

    // One that is killed may still be there, as far as others know. Its next life has its place.
    one.kill();
    assert_eq!(site.servers().len(), 2);
    let status = String::from_utf8(site.command("one", &["status"]).output().unwrap().stdout).unwrap();
    assert!(!status.contains("The server has not been running"), "the other one does: {status}");
    let one = site.serve("one");
    assert_eq!(site.servers().len(), 2);
    one.stop();
    let left = site.servers();
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(left[0]["started_at_rfc3339"].is_string() && left[0]["site_key"].as_str().unwrap().starts_with("age1"));
    other.stop();
    assert_eq!(site.servers().len(), 0);
}

#[test]
fn a_second_server_without_the_site_key_of_the_first_is_refused() {
    let site = Site::new();
    let serve = ["--database", &site.database, "serve", "--url", "https://server.test", "--listen", "127.0.0.1:0"];
    let start = |name: &str, key: Option<&str>| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_slipway-server"));
        command.arg("--data").arg(site.data(name)).env_remove("SLIPWAY_LOG").env_remove("SLIPWAY_DATABASE");
        if let Some(key) = key {
            command.arg("--site-key").arg(site.folder.path().join(key));
        }
        command.args(serve);
        command
    };
    let refused = |name: &str, key: Option<&str>| {
        let output = start(name, key).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(!site.data(name).join("ca.pem").exists(), "it has made no authority");
        String::from_utf8(output.stderr).unwrap()
    };
    let alone = Running::start(start("one", None), site.folder.path().join("log"));
    let said = refused("other", None);
    assert!(said.contains("several servers need a site key") && said.contains("site-key FILE"), "{said}");
    let said = refused("other", Some("site.key"));
    assert!(said.contains("it has no site key: stop it, and start it with the same site key"), "{said}");
    alone.kill();
    // The same data folder has no other server, so it needs no wait, also after a start that failed.
    let mut lacks = start("one", Some("site.key"));
    assert!(!lacks.args(["--boot-listen", "192.0.2.1:1"]).output().unwrap().status.success());
    let first = Running::start(start("one", Some("site.key")), site.folder.path().join("log"));
    let said = refused("other", None);
    assert!(said.contains("it has a site key: give the same as --site-key"), "{said}");
    std::fs::write(site.folder.path().join("wrong.key"), slipway_server::base::data::SiteKey::generate().to_text())
        .unwrap();
    let said = refused("other", Some("wrong.key"));
    assert!(said.contains("it has another site key, age1"), "{said}");
    drop((Running::start(start("other", Some("site.key")), site.folder.path().join("log")), first));
}

/// Forwards each connection to a server that runs, as a balancer does.
pub async fn balancer(servers: Arc<Mutex<Vec<String>>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    tokio::spawn(async move {
        let mut turn = 0;
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let all = servers.lock().unwrap().clone();
            turn += 1;
            tokio::spawn(async move {
                for number in 0..all.len() {
                    if let Ok(mut server) = TcpStream::connect(&all[(turn + number) % all.len()]).await {
                        drop(tokio::io::copy_bidirectional(&mut client, &mut server).await);
                        return;
                    }
                }
            });
        }
    });
    url
}

pub fn uuid(number: usize) -> String {
    format!("4c4c4544-0042-3010-8058-b7c04f5{number:05x}")
}

/// A machine with the installer's own code: it enrols, asks for work, and reports it note by note until `stop`. It
/// keeps its key in a new folder. Returns the run and the texts that it reported.
pub async fn machine(
    state: &Path,
    ca: String,
    url: &str,
    number: usize,
    stop: tokio::sync::watch::Receiver<bool>,
) -> (String, Vec<String>) {
    std::fs::create_dir(state).unwrap();
    let config = Config::new(url.parse().unwrap(), ca);
    let facts = Facts {
        tpm: MachineTpm::at(Place { device: state.join("no-tpm"), event_log: None }),
        identity: Identity { uuid: Some(uuid(number)), ..Identity::default() },
        look: Inventory::default,
        boot_id: format!("boot-{number}"),
        kernel_to_init: None,
        leased_at: None,
    };
    let key = MachineKey::of_this_boot(state).unwrap();
    let session = Session::open(config, facts, key, Screen::default(), false).await.unwrap();
    let workflow: Workflow = loop {
        match session.client().workflow().await {
            Ok(Some(workflow)) => break workflow,
            // The server was killed, or has no work yet.
            Ok(None) | Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    let reporter = Reporter::start(session, LogBook::default());
    reporter.begin(&workflow.run, workflow.next_seq);
    let mut said = Vec::new();
    for step in 0..2 {
        reporter.event(&workflow.run, step, 1, EventKind::Started);
        while step == 0 && !*stop.borrow() {
            // A run has room for a number of notes.
            if said.len() < 900 {
                let note = format!("note {} of machine {number}", said.len());
                reporter.event(&workflow.run, step, 1, EventKind::Note(note.clone()));
                said.push(note);
            }
            tokio::time::sleep(Duration::from_millis(20 + said.len() as u64 / 2)).await;
        }
        reporter.event(&workflow.run, step, 1, EventKind::Succeeded(Outcome::default()));
    }
    reporter.flush().await.unwrap();
    (workflow.run, said)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_stored_twice_while_servers_are_killed() {
    const MACHINES: usize = 4;
    const KILLS: usize = 6;
    install_provider();
    let site = Site::new();
    let mut running = [Some(site.serve("server0")), Some(site.serve("server1"))];
    let addresses = |running: &[Option<Running>; 2]| running.iter().flatten().map(|one| one.address.clone()).collect();
    let servers = Arc::new(Mutex::new(addresses(&running)));
    let url = balancer(Arc::clone(&servers)).await;
    let store = site.store().await;
    let (stop, stopping) = tokio::sync::watch::channel(false);
    let machines = machines(&site, &store, &url, MACHINES, &stopping).await;
    let harming = async {
        for kill in 0..KILLS {
            tokio::time::sleep(Duration::from_millis(700)).await;
            let victim = kill % 2;
            tokio::task::block_in_place(|| {
                running[victim].take().unwrap().kill();
                *servers.lock().unwrap() = addresses(&running);
            });
            tokio::time::sleep(Duration::from_millis(500)).await;
            tokio::task::block_in_place(|| {
                running[victim] = Some(site.serve(&format!("server{victim}")));
                *servers.lock().unwrap() = addresses(&running);
            });
        }
        stop.send_replace(true);
    };
    let (reported, ()) = tokio::join!(machines, harming);
    for (number, (run, said)) in reported.into_iter().enumerate() {
        check_reports(&store, number, &run, &said).await;
    }
}

/// Adds this many machines with a run each. The future that is returned lets them work until they are told to stop.
pub async fn machines<'a>(
    site: &'a Site,
    store: &Store,
    url: &'a str,
    count: usize,
    stop: &'a tokio::sync::watch::Receiver<bool>,
) -> impl Future<Output = Vec<(String, Vec<String>)>> {
    let ca = site.succeed(&["ca"]);
    for number in 0..count {
        let identity = Identity { uuid: Some(uuid(number)), ..Identity::default() };
        let new = NewNode { name: Some(format!("m{number}")), identity, release: true, ..NewNode::default() };
        operate::add_node(store, new).await.unwrap();
        operate::start_run(store, &ca, &format!("m{number}"), new_run(TWO_STEPS)).await.unwrap();
    }
    let one = move |number| {
        let (state, ca) = (site.data(&format!("machine{number}")), ca.clone());
        async move { machine(&state, ca, url, number, stop.clone()).await }
    };
    futures_util::future::join_all((0..count).map(one))
}

/// Checks that all that a machine reported is stored, in order and once, and that its run succeeded.
pub async fn check_reports(store: &Store, number: usize, run: &str, said: &[String]) {
    assert!(said.len() > 10, "{said:?}");
    let stored = events::of_run(&mut store.read().await.unwrap(), run).await.unwrap();
    let notes: Vec<String> = stored
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Note(note) => Some(note.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(notes, said, "machine {number}");
    let numbers: Vec<u64> = stored.iter().map(|event| event.seq).collect();
    assert_eq!(numbers, (1..=stored.len() as u64).collect::<Vec<_>>());
    let status = operate::show_node(store, &format!("m{number}")).await.unwrap();
    assert_eq!(status.run.unwrap().state, RunState::Succeeded);
}

/// A process that holds a lease and dies is followed by another one, and never before its lease is over.
#[tokio::test(flavor = "multi_thread")]
async fn work_that_one_process_does_goes_on_in_another_when_that_is_killed() {
    let site = Site::new();
    drop(site.serve("one"));
    let store = site.store().await;
    let (first, second) = (Lease::new(&store, "work", "first"), Lease::new(&store, "work", "second"));
    let held = first.take().await.unwrap().expect("it is free");
    assert!(second.take().await.unwrap().is_none(), "it is the first one's");
    // It is renewed for as long as the work lasts, which is longer than the lease.
    let is_over = Arc::new(Mutex::new(false));
    let working = {
        let is_over = Arc::clone(&is_over);
        tokio::spawn(held.during(async move {
            tokio::time::sleep(Duration::from_secs(20)).await;
            *is_over.lock().unwrap() = true;
        }))
    };
    let held = second.wait().await;
    assert!(*is_over.lock().unwrap(), "both have worked at once");
    assert_eq!(working.await.unwrap(), Some(()));
    // A process that is killed does not give it back.
    drop(held);
    let begun = std::time::Instant::now();
    let held = first.wait().await;
    let waited = begun.elapsed();
    assert!(waited > Duration::from_secs(10) && waited < Duration::from_secs(60), "{waited:?}");
    // One that finds another at work stops its own.
    crate::postgres::execute(site.folder.path(), "UPDATE leases SET holder = 'second'");
    assert_eq!(held.during(std::future::pending::<()>()).await, None);
    // The clock of the database was set back by an hour.
    crate::postgres::execute(site.folder.path(), "UPDATE leases SET until = until + 3600000");
    let begun = std::time::Instant::now();
    drop(first.wait().await);
    assert!(begun.elapsed() > Duration::from_secs(5), "its holder had time to renew it");
}
