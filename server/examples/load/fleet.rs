//! A fleet of nodes: all enrol at once, wait for work, get it, and report once a second, while other nodes only wait.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde::Serialize;
use serde_json::json;
use slipway_protocol::{EnrolRequest, Enrolment, Event, EventKind, Identity, Inventory, POLL_SECONDS};
use slipway_server::operate::{self, NewNode, NewRun, Task};
use slipway_server::store::events;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tokio_rustls::TlsConnector;

use crate::client::Connection;
use crate::target::Target;

/// Machines that enrol at the same time.
const AT_ONCE: usize = 32;
/// Pause before a failed request is repeated.
const AGAIN: Duration = Duration::from_millis(500);
/// Longest time for which idle nodes are watched: each polls twice.
const IDLE: Duration = Duration::from_secs(2 * POLL_SECONDS);

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
    p50_ms: f64,
    p99_ms: f64,
    /// From the end of the operator's command, which is another process, to the answer of the node's poll.
    run_handed_out_p99_ms: f64,
    /// The most memory that the server used.
    server_rss_mib: f64,
    /// Processor time of the server while all nodes only waited.
    cpu_share: f64,
    /// Seconds from the first request until all nodes were enrolled.
    enrol_s: f64,
    /// Memory of the server while all nodes only waited.
    idle_rss_mib: f64,
    /// Processor time of the server while nodes reported.
    reporting_cpu_share: f64,
    /// Requests that failed and were repeated.
    repeated: usize,
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

/// Runs the fleet against this server, and prints the results.
pub async fn run(server: &Path, nodes: usize, idle: usize, time: Duration) {
    let target = Target::start(server).await;
    let mut results = Results { nodes, idle, ..Results::default() };
    register(&target, nodes + idle).await;
    eprintln!("{} nodes are registered", nodes + idle);

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
    tokio::time::sleep(Duration::from_secs(POLL_SECONDS).min(time)).await;
    let watch = IDLE.min(time);
    let (began, cpu) = (Instant::now(), target.cpu());
    tokio::time::sleep(watch).await;
    results.cpu_share = (target.cpu() - cpu) / began.elapsed().as_secs_f64();
    results.idle_rss_mib = target.rss_mib();
    eprintln!("all waited: {:.3} of a core, {:.0} MiB", results.cpu_share, results.idle_rss_mib);

    let started = start_runs(&target, nodes).await;
    let (began, cpu) = (Instant::now(), target.cpu());
    let mut seen = Vec::new();
    results.server_rss_mib = results.idle_rss_mib;
    let mut tick = interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            _ = tick.tick() => results.server_rss_mib = results.server_rss_mib.max(target.rss_mib()),
            done = working.join_next() => match done {
                Some(done) => seen.push(done.unwrap()),
                None => break,
            },
        }
    }
    results.reporting_cpu_share = (target.cpu() - cpu) / began.elapsed().as_secs_f64();
    waiting.abort_all();

    let store = target.store().await;
    let mut handed_out = Vec::new();
    let mut millis = Vec::new();
    for seen in seen {
        let stored = events::of_run(&mut store.read().await.unwrap(), &seen.run).await.unwrap();
        let numbers: BTreeSet<u64> = stored.iter().map(|event| event.seq).collect();
        results.events += seen.acknowledged.len();
        results.lost += seen.acknowledged.difference(&numbers).count();
        results.duplicated += stored.len() - numbers.len();
        results.repeated += seen.repeated;
        let (_, start) = started.iter().find(|(run, _)| *run == seen.run).unwrap();
        handed_out.push(seen.handed_out.unwrap().saturating_duration_since(*start).as_secs_f64() * 1000.0);
        millis.extend(seen.millis);
    }
    (results.p50_ms, results.p99_ms) = (at(&mut millis, 0.5), at(&mut millis, 0.99));
    results.run_handed_out_p99_ms = at(&mut handed_out, 0.99);
    println!("{}", serde_json::to_string(&results).unwrap());
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
    let answer = loop {
        let answer = async { Connection::open(server, address, &stranger).await?.post("/v1/enrol", &body).await };
        match answer.await {
            Ok(answer) if answer.status == 200 => break answer,
            Ok(answer) => eprintln!("a request to enrol was answered with {}", answer.status),
            Err(error) => eprintln!("a request to enrol failed: {error}"),
        }
        tokio::time::sleep(AGAIN).await;
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
    /// Waits for work as long as the program runs, and does not get any.
    async fn wait(self) {
        loop {
            self.poll(&mut None).await;
        }
    }

    /// Asks for work until there is some. Returns its body.
    async fn poll(&self, connection: &mut Option<Connection>) -> Vec<u8> {
        loop {
            match self.ask(connection, None).await {
                Ok((200, body)) => return body,
                Ok((204, _)) => {}
                Ok((status, _)) => {
                    eprintln!("{}: a poll was answered with {status}", self.name);
                    tokio::time::sleep(AGAIN).await;
                }
                Err(error) => {
                    eprintln!("{}: a poll failed: {error}", self.name);
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }

    /// Waits for a run, and reports an event of it each second.
    async fn work(self, time: Duration) -> Seen {
        let mut connection = None;
        let workflow: serde_json::Value = serde_json::from_slice(&self.poll(&mut connection).await).unwrap();
        let handed_out = Some(Instant::now());
        let run = workflow["run"].as_str().unwrap().to_owned();
        let mut seen = Seen { run: run.clone(), handed_out, ..Seen::default() };
        let mut every = interval(Duration::from_secs(1));
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for seq in 1..=time.as_secs() {
            every.tick().await;
            let kind = if seq == 1 { EventKind::Started } else { EventKind::Note(format!("report {seq}")) };
            let event = Event { seq, at: 1, step: 0, attempt: 1, kind };
            let body = json!({ "run": run, "events": [event] }).to_string();
            let began = Instant::now();
            loop {
                match self.ask(&mut connection, Some(&body)).await {
                    Ok((200, _)) => break,
                    Ok((status, _)) => eprintln!("{}: an event was answered with {status}", self.name),
                    Err(error) => eprintln!("{}: an event was not reported: {error}", self.name),
                }
                seen.repeated += 1;
                tokio::time::sleep(AGAIN).await;
            }
            seen.millis.push(began.elapsed().as_secs_f64() * 1000.0);
            seen.acknowledged.insert(seq);
        }
        seen
    }

    /// Posts events, or asks for work if there are none, on the open connection or a new one.
    async fn ask(&self, connection: &mut Option<Connection>, events: Option<&str>) -> std::io::Result<(u16, Vec<u8>)> {
        let mut open = match connection.take() {
            Some(open) => open,
            None => Connection::open(self.server, self.address, &self.tls).await?,
        };
        let answer = match events {
            Some(events) => open.post("/v1/node/events", events.as_bytes()).await?,
            None => open.get("/v1/node/workflow").await?,
        };
        *connection = Some(open);
        Ok((answer.status, answer.body))
    }
}
