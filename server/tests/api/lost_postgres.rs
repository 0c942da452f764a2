//! A PostgreSQL server that is killed, frozen or gone without a word while machines report, also for half a minute, and
//! one whose certificate is not to be trusted.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use reqwest::StatusCode;
use slipway_protocol::{Event, EventAck, EventKind};
use slipway_server::base::data::{DataDir, DatabaseUrl, Place};
use slipway_server::chain;
use slipway_server::store::{Store, events};
use tempfile::TempDir;
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::watch;

use crate::installing::{add_system, debian, start};
use crate::killed_servers::{balancer, check_reports, machines};
use crate::postgres::Server;
use crate::site::{Running, Site};
use crate::support::{Node, TestServer, install_provider, trusting};

/// What was committed survives a kill of the processes, though not of the kernel.
const DURABLE: [&str; 4] = ["listen_addresses=", "fsync=off", "max_connections=50", "shared_buffers=16MB"];
/// How long it may take until the server works again.
const RECOVERY: Duration = Duration::from_secs(60);

/// A server on this database, with a machine in a run.
async fn in_a_run(url: &str) -> (TestServer, Node, String) {
    let folder = tempfile::tempdir().unwrap();
    let place =
        Place { root: folder.path().join("data"), postgres: Some(DatabaseUrl::new(url).unwrap()), ..Place::default() };
    let server = TestServer::start_at(folder, place).await;
    let node = server.enrolled("web1").await;
    add_system(&server, |_| {}).await.unwrap();
    let run = start(&server, debian()).await.unwrap().id;
    node.workflow(&server).await.unwrap();
    (server, node, run)
}

/// Reports an event until it is acknowledged, as a machine does.
async fn report(server: &TestServer, node: &Node, run: &str, seq: u64) {
    let kind = if seq == 1 { EventKind::Started } else { EventKind::Note(format!("note {seq}")) };
    let event = Event { seq, at: 1, step: 0, attempt: 1, kind };
    let began = Instant::now();
    loop {
        let response = node.post_events(server, run, std::slice::from_ref(&event)).await;
        match response.status() {
            StatusCode::OK => {
                assert!(response.json::<EventAck>().await.unwrap().seq >= seq);
                return;
            }
            status => assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{}", response.text().await.unwrap()),
        }
        assert!(began.elapsed() < RECOVERY, "event {seq} is not stored");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Checks that the events up to this one are stored, and none twice.
async fn check_events(server: &TestServer, run: &str, last: u64) {
    let found = events::of_run(&mut server.store().await.read().await.unwrap(), run).await.unwrap();
    assert_eq!(found.iter().map(|event| event.seq).collect::<Vec<_>>(), (1..=last).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_are_stored_once_while_the_database_server_is_killed_and_frozen() {
    let mut database = Server::start(&DURABLE, |_| {});
    let (server, node, run) = in_a_run(&database.url("postgres")).await;
    let (stop, mut stopped) = watch::channel(false);
    let reporting = async {
        let mut seq = 0;
        while !*stopped.borrow_and_update() || seq < 20 {
            seq += 1;
            report(&server, &node, &run, seq).await;
        }
        seq
    };
    let harming = async {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(700)).await;
            database.signal("-KILL", false);
            tokio::time::sleep(Duration::from_secs(1)).await;
            database.run();
        }
        tokio::time::sleep(Duration::from_millis(700)).await;
        database.signal("-STOP", true);
        tokio::time::sleep(Duration::from_secs(5)).await;
        database.signal("-CONT", true);
        tokio::time::sleep(Duration::from_millis(700)).await;
        stop.send_replace(true);
    };
    let (last, ()) = tokio::join!(reporting, harming);
    check_events(&server, &run, last).await;
    assert_eq!(node.workflow(&server).await.unwrap().run, run);
    server.stop().await;
}

/// How long the database is away, in a row.
const AWAY: Duration = Duration::from_secs(30);

/// Two servers as processes, and machines with the installer's own session.
#[tokio::test(flavor = "multi_thread")]
async fn half_a_minute_without_the_database_loses_nothing_and_is_told() {
    const MACHINES: usize = 3;
    install_provider();
    let mut database = Server::start(&DURABLE, |_| {});
    let site = Site::on(tempfile::tempdir().unwrap(), database.url("postgres"));
    let running = ["server0", "server1"].map(|name| site.serve(name));
    let addresses = running.iter().map(|one| one.address.clone()).collect();
    let url = balancer(Arc::new(Mutex::new(addresses))).await;
    let store = site.store().await;
    let client = trusting(&site.succeed(&["ca"])).build().unwrap();
    let (stop, stopping) = watch::channel(false);
    let machines = machines(&site, &store, &url, MACHINES, &stopping).await;
    let ready = async |one: &Running| {
        let answer = client.get(format!("https://{}/readyz", one.address)).send().await.unwrap();
        (answer.status(), answer.json::<serde_json::Value>().await.unwrap())
    };
    // Both say so, for as long as the database is away, and run on.
    let away = async || {
        let began = Instant::now();
        let mut told = [0; 2];
        while began.elapsed() < AWAY || told.contains(&0) {
            for (one, told) in running.iter().zip(&mut told) {
                let (status, said) = ready(one).await;
                if status == StatusCode::SERVICE_UNAVAILABLE {
                    assert_eq!(said["problems"][0]["message"], "the database does not answer", "{said}");
                    *told += 1;
                } else {
                    assert_eq!(*told, 0, "it is not ready before the database is back");
                }
                let alive = client.get(format!("https://{}/healthz", one.address)).send().await.unwrap();
                assert_eq!(alive.status(), StatusCode::OK);
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert!(began.elapsed() < 4 * RECOVERY, "the servers do not notice it: {told:?}");
        }
    };
    let back = async || {
        for one in &running {
            let began = Instant::now();
            while ready(one).await.0 != StatusCode::OK {
                assert!(began.elapsed() < 2 * RECOVERY, "it is not ready again: {}", one.log());
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        // Machines report for a while.
        tokio::time::sleep(Duration::from_secs(2)).await;
    };
    let harming = async {
        back().await;
        database.signal("-STOP", true);
        away().await;
        database.signal("-CONT", true);
        back().await;
        database.signal("-KILL", false);
        away().await;
        database.run();
        back().await;
        stop.send_replace(true);
    };
    let (reported, ()) = tokio::join!(machines, harming);
    for (number, (run, said)) in reported.into_iter().enumerate() {
        check_reports(&store, number, &run, &said).await;
    }
    for one in running {
        let log = one.log();
        let count = |text: &str| log.lines().filter(|line| line.contains(text)).count();
        assert_eq!((count("not ready: the database does not answer"), count("ready again")), (2, 2), "{log}");
        assert!(!log.contains("panicked"), "{log}");
        one.stop();
    }
}

/// Forwards connections to a PostgreSQL server, until those that are open are forgotten: for the client they stay open,
/// but nothing comes through any more. A database server that loses its power leaves such connections behind.
struct Relay {
    url: String,
    forget: watch::Sender<()>,
}

impl Relay {
    async fn to(socket: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("postgres://slipway@{}/postgres", listener.local_addr().unwrap());
        let (forget, forgotten) = watch::channel(());
        tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut server = UnixStream::connect(&socket).await.unwrap();
                let mut forgotten = forgotten.clone();
                forgotten.mark_unchanged();
                tokio::spawn(async move {
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => return,
                        _ = forgotten.changed() => {}
                    }
                    drop(server);
                    std::future::pending::<()>().await;
                    drop(client);
                });
            }
        });
        Self { url, forget }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_to_a_database_server_that_is_gone_without_a_word_are_replaced() {
    let database = Server::start(&DURABLE, |_| {});
    let relay = Relay::to(database.socket()).await;
    let (server, node, run) = in_a_run(&relay.url).await;
    report(&server, &node, &run, 1).await;

    relay.forget.send_replace(());
    report(&server, &node, &run, 2).await;

    // Now while the answer to a statement is awaited: that of the writers' lock, which another session holds.
    let mut other = database.session("postgres");
    other.run("SELECT pg_advisory_lock(8317708060514149633)");
    let waiting = report(&server, &node, &run, 3);
    let forgetting = async {
        let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        while database.sql("postgres", waits).trim() == "0" {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        relay.forget.send_replace(());
        drop(other);
    };
    tokio::join!(waiting, forgetting);
    check_events(&server, &run, 3).await;
    server.stop().await;
}

/// A certificate authority, and a server certificate of it for this name, in the files that PostgreSQL expects.
fn certificates(folder: &Path, data: &Path, name: &str) {
    let (ca_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    std::fs::write(folder.join("ca.pem"), ca.self_signed(&ca_key).unwrap().pem()).unwrap();
    let leaf = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &Issuer::new(ca, ca_key)).unwrap();
    std::fs::write(data.join("server.crt"), leaf.pem()).unwrap();
    std::fs::write(data.join("server.key"), key.serialize_pem()).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(data.join("server.key"), mode).unwrap();
}

/// A PostgreSQL server with such a certificate on a port of localhost, and the folder with the authority's.
fn with_tls(name: &str) -> (Server, u16, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let settings = ["listen_addresses=localhost".to_owned(), format!("port={port}"), "ssl=on".to_owned()];
    let settings: Vec<&str> = settings.iter().map(String::as_str).chain(["fsync=off"]).collect();
    let server = Server::start(&settings, |data| certificates(folder.path(), data, name));
    (server, port, folder)
}

async fn connect(port: u16, parameters: &str) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("postgres://slipway@localhost:{port}/postgres?sslmode=verify-full{parameters}");
    let postgres = Some(DatabaseUrl::new(&url).unwrap());
    let data = DataDir::make(Place { root: folder.path().join("data"), postgres, ..Place::default() }).unwrap();
    let store = Store::of(&data).await.map_err(|error| chain(&error))?;
    store.close().await;
    Ok(())
}

#[tokio::test]
async fn a_database_server_must_prove_its_name_by_an_authority_that_is_trusted() {
    let (_good, port, folder) = with_tls("localhost");
    let with_ca = |folder: &TempDir| format!("&sslrootcert={}", folder.path().join("ca.pem").display());
    connect(port, &with_ca(&folder)).await.unwrap();
    let refused = connect(port, "").await.expect_err("nobody vouches for it");
    assert!(refused.ends_with("from your own authority, add sslrootcert=FILE to the URL"), "{refused}");

    let (_other, other_port, other) = with_tls("db.example");
    let refused = connect(other_port, &with_ca(&other)).await.expect_err("it has another name");
    assert!(refused.contains("localhost") && refused.contains("db.example"), "{refused}");
    let refused = connect(port, &with_ca(&other)).await.expect_err("it is from another authority");
    assert!(refused.contains("sslrootcert"), "{refused}");
}
