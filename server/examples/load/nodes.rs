//! Fifty nodes that report an event every second.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair};
use reqwest::{Certificate, Client, ClientBuilder, StatusCode};
use serde_json::json;
use slipway_protocol::{EnrolRequest, Enrolment, Event, EventKind, Identity, Inventory};
use slipway_server::operate::{self, NewNode, NewRun, Task};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::target::Target;

const NODES: usize = 50;
const EVERY: Duration = Duration::from_secs(1);
/// After so many reports a node connects again: an attack must not keep new connections out either.
const RECONNECT: u64 = 5;
/// As long as the installer waits for an answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// What the nodes have seen.
#[derive(Default)]
pub struct Seen {
    /// Milliseconds of each report that was stored.
    pub millis: Vec<f64>,
    /// Reports that were not.
    pub errors: usize,
}

/// The nodes at work.
pub struct Nodes {
    seen: Arc<Mutex<Seen>>,
    /// They end with this, before the server does.
    _working: JoinSet<()>,
}

/// A node with a run.
struct Node {
    ca: String,
    identity: String,
    url: String,
    run: String,
    address: [u8; 4],
}

/// The address of a node. Half of the nodes have one of their own. The others share 127.0.0.1, from which some attacks
/// come too.
fn address(node: usize) -> [u8; 4] {
    if node.is_multiple_of(2) { [127, 0, 1, node as u8] } else { [127, 0, 0, 1] }
}

impl Nodes {
    /// Registers, releases and enrols the nodes, starts a run on each, and lets them report.
    pub async fn start(target: &Target) -> Self {
        let (store, ca, seen) = (target.store().await, target.ca(), Arc::new(Mutex::new(Seen::default())));
        let mut working = JoinSet::new();
        for number in 0..NODES {
            let uuid = format!("4c4c4544-0042-3010-8058-b7c04f5034{number:02x}");
            let identity = Identity { uuid: Some(uuid), ..Identity::default() };
            let name = format!("node{number}");
            let new =
                NewNode { name: Some(name.clone()), identity: identity.clone(), release: true, ..NewNode::default() };
            operate::add_node(&store, new).await.unwrap();
            let workflow = operate::parse_workflow("steps: [{name: erase, action: {erase-disk: {}}}]").unwrap();
            let run = operate::start_run(&store, &ca, &name, NewRun::new(Task::Workflow(workflow))).await.unwrap();
            let identity = enrol(target, identity).await;
            let url = target.url("/v1/node/events");
            let node = Node { ca: ca.clone(), identity, url, run: run.id, address: address(number) };
            let seen = Arc::clone(&seen);
            working.spawn(async move {
                tokio::time::sleep(EVERY * number as u32 / NODES as u32).await;
                node.report(&seen).await;
            });
        }
        store.close().await;
        Self { seen, _working: working }
    }

    /// What they have seen since the last call.
    pub fn take(&self) -> Seen {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

fn trusting(ca: &str) -> ClientBuilder {
    Client::builder().tls_certs_only([Certificate::from_pem(ca.as_bytes()).unwrap()])
}

/// Enrols a machine and returns its key and certificate in PEM.
async fn enrol(target: &Target, identity: Identity) -> String {
    let key = KeyPair::generate().unwrap();
    let csr = CertificateParams::new(Vec::new()).unwrap().serialize_request(&key).unwrap().pem().unwrap();
    let (inventory, agent_version, boot_id) = (Inventory::default(), "load".to_owned(), "boot".to_owned());
    let request = EnrolRequest {
        identity,
        inventory,
        csr,
        agent_version,
        boot_id,
        bootstrap_token: None,
        tpm: None,
        timing: None,
    };
    let client = trusting(&target.ca()).build().unwrap();
    let response = client.post(target.url("/v1/enrol")).json(&request).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    key.serialize_pem() + &response.json::<Enrolment>().await.unwrap().certificate
}

impl Node {
    fn client(&self) -> Client {
        let identity = reqwest::Identity::from_pem(self.identity.as_bytes()).unwrap();
        let client = trusting(&self.ca).identity(identity).timeout(PATIENCE);
        client.local_address(Some(self.address.into())).build().unwrap()
    }

    async fn report(self, seen: &Mutex<Seen>) {
        let mut every = interval(EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut client = self.client();
        for seq in 1.. {
            every.tick().await;
            if seq % RECONNECT == 0 {
                client = self.client();
            }
            let kind = if seq == 1 { EventKind::Started } else { EventKind::Note(format!("report {seq}")) };
            let event = Event { seq, at: 1, step: 0, attempt: 1, kind };
            let body = json!({ "run": self.run, "events": [event] });
            let began = Instant::now();
            let answer = client.post(&self.url).json(&body).send().await;
            let millis = began.elapsed().as_secs_f64() * 1000.0;
            let mut seen = seen.lock().unwrap();
            match answer {
                Ok(answer) if answer.status() == StatusCode::OK => seen.millis.push(millis),
                Ok(answer) => {
                    eprintln!("an event was answered with {}", answer.status());
                    seen.errors += 1;
                }
                Err(error) => {
                    eprintln!("an event was not reported: {error:?}");
                    seen.errors += 1;
                }
            }
        }
    }
}
