//! A fleet of nodes: all enrol at once, wait for work, get it, and report once a second, while other nodes only wait,
//! and while servers are killed.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde::Serialize;
use serde_json::json;
use slipway_protocol::{
    Cpu, Disk, EnrolRequest, Enrolment, Event, EventAck, EventKind, Identity, Inventory, MAX_EVENTS_PER_BATCH, Nic,
    POLL_SECONDS,
};
use slipway_server::base::random;
use slipway_server::base::time::now;
use slipway_server::operate::{self, NewNode, NewRun, Task};
use slipway_server::store::{events, nodes as stored};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};
use tokio_rustls::TlsConnector;

use crate::client::Connection;
use crate::database::Database;
use crate::page::Screen;
use crate::target::Target;

/// Nodes that are stored in one transaction.
const STORED_AT_ONCE: usize = 500;
/// Machines that enrol at the same time.
const AT_ONCE: usize = 32;
/// The first and the longest pause before a failed request is repeated, as in `installer/src/server/backoff.rs`.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_LATEST: Duration = Duration::from_secs(15);
/// How long the installer waits for an answer, beyond the time for which the server holds a poll.
const PATIENCE: Duration = Duration::from_secs(15);
/// How much longer than planned the nodes may report. Then the measurement has failed.
const GIVE_UP: Duration = Duration::from_secs(300);
/// Longest time for which idle nodes are watched: each polls twice.
const IDLE: Duration = Duration::from_secs(2 * POLL_SECONDS);

/// Number of failed requests that are printed.
const MOST_TOLD: usize = 20;
static FAILURES: AtomicUsize = AtomicUsize::new(0);

/// What to measure.
#[derive(Args)]
pub struct Options {
    /// The server's program
    server: PathBuf,
    /// Number of nodes that get a run and report
    #[arg(long)]
    nodes: usize,
    /// Number of further nodes that only wait for work
    #[arg(long)]
    idle: usize,
    /// Number of further nodes that the store has, with their hardware
    #[arg(long)]
    stored: usize,
    /// Seconds for which the nodes report
    #[arg(long)]
    seconds: u64,
    /// `sqlite`, `postgres` for a PostgreSQL server of its own, or the URL of an empty database of one
    #[arg(long)]
    database: String,
    /// Number of servers, with a balancer before them if there are several
    #[arg(long)]
    replicas: usize,
    /// Seconds after which a server is killed and started again, each in turn, while nodes report
    #[arg(long)]
    kill_every: Option<u64>,
}

/// The results. Times are in milliseconds, memory is in MiB, and processor time is a share of one core.
#[derive(Debug, Default, Serialize)]
struct Results {
    nodes: usize,
    idle: usize,
    /// Events that the server acknowledged.
    events: usize,
    /// Acknowledged events that the store does not have.
    lost: usize,
    /// Events that the store has twice.
    duplicated: usize,
    /// From when a node has an event to report until it is acknowledged.
    p50_ms: f64,
    p99_ms: f64,
    /// From the end of the operator's command, which is another process, to the answer of the node's poll.
    run_handed_out_p99_ms: f64,
    /// The most memory that a server used.
    server_rss_mib: f64,
    /// Processor time of all servers while all nodes only waited.
    cpu_share: f64,
    /// Seconds from the first request until all nodes were enrolled.
    enrol_s: f64,
    /// Memory of the server that had most while all nodes only waited.
    idle_rss_mib: f64,
    /// Processor time of all servers while nodes reported.
    reporting_cpu_share: f64,
    /// Requests that failed and were repeated.
    repeated: usize,
    /// What kind of database the servers had.
    database: &'static str,
    /// Number of servers.
    replicas: usize,
    /// How often a server was killed.
    kills: usize,
    /// Nodes that the store has besides.
    stored: usize,
    /// From the request for the page of the fleet to its first row, while nodes report: the slowest of 100.
    page_first_row_ms: f64,
    /// From the end of the operator's command to the message with the changed row, while nodes report.
    change_on_screen_p99_ms: f64,
    /// Processor time of the PostgreSQL server while all nodes only waited, and while nodes reported.
    database_cpu_share: Option<f64>,
    database_reporting_cpu_share: Option<f64>,
}

/// An enrolled machine.
#[derive(Clone)]
struct Node {
    name: String,
    server: SocketAddr,
    address: [u8; 4],
    tls: TlsConnector,
}

/// What a node that worked on a run has seen.
#[derive(Default)]
struct Seen {
    run: String,
    handed_out: Option<Instant>,
    millis: Vec<f64>,
    acknowledged: BTreeSet<u64>,
    repeated: usize,
}

/// Runs the fleet and prints the results.
pub async fn run(options: &Options) {
    let &Options { nodes, idle, stored, replicas, .. } = options;
    let time = Duration::from_secs(options.seconds);
    let mut target = Target::start_several(&options.server, replicas, Database::named(&options.database)).await;
    let database = target.database().kind();
    let mut results = Results { nodes, idle, stored, replicas, database, ..Results::default() };
    register(&target, nodes + idle).await;
    store_more(&target, stored).await;
    eprintln!("{} nodes are registered, and {stored} are stored besides", nodes + idle);

    let began = Instant::now();
    let fleet = enrol(&target, 0..nodes).await;
    results.enrol_s = began.elapsed().as_secs_f64();
    eprintln!("{nodes} nodes enrolled in {:.1} s", results.enrol_s);
    let others = enrol(&target, nodes..nodes + idle).await;

    let mut waiting = JoinSet::new();
    for node in others {
        waiting.spawn(node.wait());
    }
    let mut working = JoinSet::new();
    for node in fleet {
        working.spawn(node.work(time));
    }
    // Until all are connected and ask for work.
    sleep(Duration::from_secs(POLL_SECONDS).min(time)).await;
    let before = Used::by(&target);
    sleep(IDLE.min(time)).await;
    (results.cpu_share, results.database_cpu_share) = before.share(&target);
    results.idle_rss_mib = target.rss_mib();
    eprintln!("all waited: {:.3} of a core, {:.0} MiB", results.cpu_share, results.idle_rss_mib);

    let started = start_runs(&target, nodes).await;
    let before = Used::by(&target);
    let screen = Screen::open(&target).await;
    let screen = tokio::spawn(screen.watch(target.store().await, name(0), time));
    let mut seen = Vec::new();
    results.server_rss_mib = results.idle_rss_mib;
    let mut tick = interval(Duration::from_secs(1));
    let mut next_kill = options.kill_every.map(|every| Instant::now() + Duration::from_secs(every));
    loop {
        tokio::select! {
            _ = tick.tick() => results.server_rss_mib = results.server_rss_mib.max(target.rss_mib()),
            done = working.join_next() => match done {
                Some(done) => seen.push(done.unwrap()),
                None => break,
            },
        }
        if next_kill.is_some_and(|at| at <= Instant::now()) {
            // The nodes are tasks of other threads, so they go on meanwhile.
            target.kill(results.kills % replicas);
            results.kills += 1;
            next_kill = options.kill_every.map(|every| Instant::now() + Duration::from_secs(every));
        }
    }
    (results.reporting_cpu_share, results.database_reporting_cpu_share) = before.share(&target);
    waiting.abort_all();
    let mut waited = screen.await.unwrap();
    results.page_first_row_ms = at(&mut waited.first_rows, 0.99);
    results.change_on_screen_p99_ms = at(&mut waited.changes, 0.99);

    let store = target.store().await;
    let mut handed_out = Vec::new();
    let mut millis = Vec::new();
    for seen in seen {
        let stored = events::of_run(&mut store.read().await.unwrap(), &seen.run).await.unwrap();
        let numbers: BTreeSet<u64> = stored.iter().map(|event| event.seq).collect();
        results.events += seen.acknowledged.len();
        results.lost += seen.acknowledged.difference(&numbers).count();
        // What each event says is there once. Numbers alone would not show it, because they are the key of the table.
        let said: BTreeSet<String> = stored.iter().map(|event| serde_json::to_string(&event.kind).unwrap()).collect();
        results.duplicated += stored.len() - said.len();
        results.repeated += seen.repeated;
        let (_, start) = started.iter().find(|(run, _)| *run == seen.run).unwrap();
        handed_out.push(seen.handed_out.unwrap().saturating_duration_since(*start).as_secs_f64() * 1000.0);
        millis.extend(seen.millis);
    }
    (results.p50_ms, results.p99_ms) = (at(&mut millis, 0.5), at(&mut millis, 0.99));
    results.run_handed_out_p99_ms = at(&mut handed_out, 0.99);
    println!("{}", serde_json::to_string(&results).unwrap());
}

/// Seconds of processor time that servers and database had used at a time.
struct Used {
    at: Instant,
    servers: f64,
    database: Option<f64>,
}

impl Used {
    fn by(target: &Target) -> Self {
        Self { at: Instant::now(), servers: target.cpu(), database: target.database().cpu() }
    }

    /// What servers and database have used since, as a share of one core.
    fn share(&self, target: &Target) -> (f64, Option<f64>) {
        let (now, seconds) = (Self::by(target), self.at.elapsed().as_secs_f64());
        let database = now.database.zip(self.database).map(|(now, before)| (now - before) / seconds);
        ((now.servers - self.servers) / seconds, database)
    }
}

/// Pauses that double, with a random part.
#[derive(Default)]
struct Backoff {
    failures: u32,
}

impl Backoff {
    async fn wait(&mut self) {
        let whole = (AGAIN * 2_u32.pow(self.failures.min(10))).min(AGAIN_LATEST);
        self.failures += 1;
        let [random] = random::bytes();
        sleep(whole / 2 + whole / 2 * u32::from(random) / u32::from(u8::MAX)).await;
    }
}

/// The value at this share of the sorted values; 0 if there is none.
fn at(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get((values.len() as f64 * share) as usize).copied().unwrap_or_default()
}

fn name(number: usize) -> String {
    format!("node{number}")
}

fn identity(number: usize) -> Identity {
    let uuid = format!("4c4c4544-0042-3010-8058-b7c0{number:08x}");
    Identity { uuid: Some(uuid), ..Identity::default() }
}

/// Registers and releases the nodes.
async fn register(target: &Target, nodes: usize) {
    let store = target.store().await;
    for number in 0..nodes {
        let (name, identity) = (Some(name(number)), identity(number));
        operate::add_node(&store, NewNode { name, identity, release: true, ..NewNode::default() }).await.unwrap();
    }
    store.close().await;
}

/// Stores nodes that were never heard of, with the hardware of common servers.
async fn store_more(target: &Target, nodes: usize) {
    let store = target.store().await;
    let disk = |number: usize, disk: usize| Disk {
        path: format!("/dev/nvme{disk}n1"),
        size: 960_197_124_096,
        model: Some("SAMSUNG MZQL2960HCJR-00A07".to_owned()),
        serial: Some(format!("S64FNE0R{number:06}{disk}")),
        transport: Some("nvme".to_owned()),
        ..Disk::default()
    };
    let nic = |number: usize, nic: usize| Nic {
        name: format!("eno{nic}"),
        mac: Some(format!("52:54:{nic:02x}:{:02x}:{:02x}:{:02x}", number >> 16, number >> 8 & 255, number & 255)),
        driver: Some("bnxt_en".to_owned()),
        ..Nic::default()
    };
    for numbers in (0..nodes).collect::<Vec<_>>().chunks(STORED_AT_ONCE) {
        let mut transaction = store.write().await.unwrap();
        for &number in numbers {
            let identity = Identity { serial: Some(format!("STORED{number}")), ..Identity::default() };
            let inventory = Inventory {
                cpu: Cpu { model: Some("Intel Xeon Gold 6338".to_owned()), threads: 64, arch: "x86_64".to_owned() },
                memory: 256 << 30,
                disks: (0..4).map(|index| disk(number, index)).collect(),
                nics: (0..4).map(|index| nic(number, index)).collect(),
                ..Inventory::default()
            };
            let name = Some(format!("stored{number}"));
            let node = stored::Node { name, inventory: Some(inventory), ..stored::Node::new(identity, now()) };
            stored::save(&mut transaction, &node).await.unwrap();
        }
        transaction.commit().await.unwrap();
    }
    store.close().await;
}

/// Enrols the machines of these nodes, several at once. Each has an address of its own.
async fn enrol(target: &Target, numbers: std::ops::Range<usize>) -> Vec<Node> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(target.ca().as_bytes()).unwrap()).unwrap();
    let roots = Arc::new(roots);
    let server = target.https_address();
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut enrolling = JoinSet::new();
    for number in numbers {
        let (roots, turns) = (Arc::clone(&roots), Arc::clone(&turns));
        enrolling.spawn(async move {
            let _turn = turns.acquire().await.unwrap();
            enrol_one(server, roots, number).await
        });
    }
    enrolling.join_all().await
}

async fn enrol_one(server: SocketAddr, roots: Arc<RootCertStore>, number: usize) -> Node {
    let [.., high, middle, low] = number.to_be_bytes();
    let address = [127, 1 + high, middle, low.max(1)];
    let key = KeyPair::generate().unwrap();
    let csr = CertificateParams::new(Vec::new()).unwrap().serialize_request(&key).unwrap().pem().unwrap();
    let request = EnrolRequest {
        identity: identity(number),
        inventory: Inventory::default(),
        csr,
        agent_version: "fleet".to_owned(),
        boot_id: "boot".to_owned(),
        bootstrap_token: None,
        tpm: None,
        timing: None,
    };
    let stranger = ClientConfig::builder().with_root_certificates(Arc::clone(&roots)).with_no_client_auth();
    let stranger = TlsConnector::from(Arc::new(stranger));
    let body = serde_json::to_vec(&request).unwrap();
    let mut backoff = Backoff::default();
    let answer = loop {
        let answer = async { Connection::open(server, address, &stranger).await?.post("/v1/enrol", &body).await };
        match in_time(PATIENCE, answer).await {
            Ok(answer) if answer.status == 200 => break answer,
            Ok(answer) => eprintln!("a request to enrol was answered with {}", answer.status),
            Err(error) => eprintln!("a request to enrol failed: {error}"),
        }
        backoff.wait().await;
    };
    let enrolment: Enrolment = serde_json::from_slice(&answer.body).unwrap();
    let chain = CertificateDer::pem_slice_iter(enrolment.certificate.as_bytes()).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_client_auth_cert(chain, key).unwrap();
    // Otherwise each node would keep room for the sessions of many servers.
    config.resumption = rustls::client::Resumption::disabled();
    Node { name: name(number), server, address, tls: TlsConnector::from(Arc::new(config)) }
}

/// Starts a run on each of the first nodes, as an operator's command does. Returns the ids of the runs, and when each
/// command ended.
async fn start_runs(target: &Target, nodes: usize) -> Vec<(String, Instant)> {
    let (store, ca) = (target.store().await, target.ca());
    let mut started = Vec::new();
    for number in 0..nodes {
        let workflow = operate::parse_workflow("steps: [{name: erase, action: {erase-disk: {}}}]").unwrap();
        let run = operate::start_run(&store, &ca, &name(number), NewRun::new(Task::Workflow(workflow))).await.unwrap();
        started.push((run.id, Instant::now()));
    }
    store.close().await;
    started
}

impl Node {
    /// Prints what failed. A server that is killed fails a request of each node, so the first ones are enough.
    fn tell(&self, failure: fmt::Arguments<'_>) {
        if FAILURES.fetch_add(1, Ordering::Relaxed) < MOST_TOLD {
            eprintln!("{}: {failure}", self.name);
        }
    }

    /// Waits for work as long as the program runs, and does not get any.
    async fn wait(self) {
        loop {
            self.poll(&mut None).await;
        }
    }

    /// Asks for work until there is some. Returns its body.
    async fn poll(&self, connection: &mut Option<Connection>) -> Vec<u8> {
        let mut backoff = Backoff::default();
        loop {
            match self.ask(connection, None).await {
                Ok((200, body)) => return body,
                Ok((204, _)) => {
                    backoff = Backoff::default();
                    continue;
                }
                Ok((status, _)) => self.tell(format_args!("a poll was answered with {status}")),
                Err(error) => self.tell(format_args!("a poll failed: {error}")),
            }
            backoff.wait().await;
        }
    }

    /// Waits for a run, and has an event of it to report each second. What was not acknowledged is reported again, with
    /// what is new.
    async fn work(self, time: Duration) -> Seen {
        let mut connection = None;
        let workflow: serde_json::Value = serde_json::from_slice(&self.poll(&mut connection).await).unwrap();
        let handed_out = Some(Instant::now());
        let run = workflow["run"].as_str().unwrap().to_owned();
        let mut seen = Seen { run: run.clone(), handed_out, ..Seen::default() };
        let mut backoff = Backoff::default();
        let (began, mut acknowledged) = (Instant::now(), 0);
        while acknowledged < time.as_secs() {
            assert!(began.elapsed() < time + GIVE_UP, "{}: event {acknowledged} was the last one stored", self.name);
            // The first event is due at once, and the others a second after each other.
            let due = (began.elapsed().as_secs() + 1).min(time.as_secs());
            if due == acknowledged {
                sleep((began + Duration::from_secs(due)).saturating_duration_since(Instant::now())).await;
                continue;
            }
            let events: Vec<Event> = (acknowledged + 1..=due).take(MAX_EVENTS_PER_BATCH).map(event).collect();
            let body = json!({ "run": run, "events": events }).to_string();
            match self.ask(&mut connection, Some(&body)).await {
                Ok((200, body)) => {
                    let ack: EventAck = serde_json::from_slice(&body).unwrap();
                    for seq in acknowledged + 1..=ack.seq {
                        let late = began.elapsed().saturating_sub(Duration::from_secs(seq - 1));
                        seen.millis.push(late.as_secs_f64() * 1000.0);
                        seen.acknowledged.insert(seq);
                    }
                    acknowledged = ack.seq;
                    backoff = Backoff::default();
                    continue;
                }
                Ok((status, _)) => self.tell(format_args!("an event was answered with {status}")),
                Err(error) => self.tell(format_args!("an event was not reported: {error}")),
            }
            seen.repeated += 1;
            backoff.wait().await;
        }
        seen
    }

    /// Posts events, or asks for work if there are none, on the open connection or a new one.
    async fn ask(&self, connection: &mut Option<Connection>, events: Option<&str>) -> io::Result<(u16, Vec<u8>)> {
        let open = connection.take();
        let patience = if events.is_some() { PATIENCE } else { PATIENCE + Duration::from_secs(POLL_SECONDS) };
        let asking = async {
            let mut open = match open {
                Some(open) => open,
                None => Connection::open(self.server, self.address, &self.tls).await?,
            };
            let answer = match events {
                Some(events) => open.post("/v1/node/events", events.as_bytes()).await?,
                None => open.get("/v1/node/workflow").await?,
            };
            Ok((open, answer))
        };
        let (open, answer) = in_time(patience, asking).await?;
        *connection = Some(open);
        Ok((answer.status, answer.body))
    }
}

/// An event of the only step.
fn event(seq: u64) -> Event {
    let kind = if seq == 1 { EventKind::Started } else { EventKind::Note(format!("report {seq}")) };
    Event { seq, at: 1, step: 0, attempt: 1, kind }
}

async fn in_time<T>(patience: Duration, answer: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(patience, answer).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
