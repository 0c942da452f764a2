//! What `/metrics` says, who may read it, and the rules for alerts that ask for it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use reqwest::{RequestBuilder, StatusCode};
use slipway_protocol::{Event, EventKind, Failure, Identity};
use slipway_server::node::status;
use slipway_server::operate::{self, NewNode};
use slipway_server::store::node_contacts;

use crate::support::{IMAGE, Machine, Node, TestServer, UUID};
use crate::work::{TWO_STEPS, new_run};

/// The values of one answer, by name and labels.
pub struct Scrape {
    pub text: String,
    values: BTreeMap<String, f64>,
}

impl Scrape {
    /// Gets metrics, and checks their format (OpenMetrics 1.0, "Text Format").
    pub async fn of(request: RequestBuilder) -> Self {
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let media_type = answer.headers()["content-type"].to_str().unwrap();
        assert_eq!(media_type, "application/openmetrics-text; version=1.0.0; charset=utf-8");
        let text = answer.text().await.unwrap();
        assert!(text.ends_with("# EOF\n"), "{text}");
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let values = samples.map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        });
        Self { values: values.collect(), text: text.clone() }
    }

    pub fn get(&self, series: &str) -> f64 {
        *self.values.get(series).unwrap_or_else(|| panic!("there is no {series} in\n{}", self.text))
    }

    /// Whether there is a metric of this name.
    pub fn has(&self, name: &str) -> bool {
        self.names().contains(name)
    }

    /// The names of all series, without labels.
    fn names(&self) -> BTreeSet<&str> {
        self.values.keys().map(|series| series.split('{').next().unwrap()).collect()
    }
}

async fn scrape(server: &TestServer) -> Scrape {
    Scrape::of(server.client().get(server.metrics_url("/metrics"))).await
}

#[tokio::test]
async fn operators_may_read_metrics_and_whoever_reaches_their_port() {
    let server = TestServer::start().await;
    let url = server.url("/metrics");
    for request in [server.client().get(&url), server.client().get(&url).bearer_auth("guess")] {
        assert_eq!(request.send().await.unwrap().status(), StatusCode::UNAUTHORIZED);
    }
    assert_eq!(server.client().get(server.boot_url("/metrics")).send().await.unwrap().status(), StatusCode::NOT_FOUND);
    let by_token = Scrape::of(server.client().get(&url).bearer_auth(server.operator_token())).await;
    let others = scrape(&server).await;
    let families = |scrape: &Scrape| {
        let lines = scrape.text.lines().filter(|line| line.starts_with("# TYPE"));
        lines.map(ToOwned::to_owned).collect::<BTreeSet<_>>()
    };
    assert_eq!(families(&by_token), families(&others));
    for path in ["/healthz", "/readyz"] {
        assert_eq!(server.client().get(server.metrics_url(path)).send().await.unwrap().status(), StatusCode::OK);
    }
    for path in ["/v1/time", "/boot/ipxe", "/v1/openapi.json", "/v1/operator/nodes"] {
        let answer = server.client().get(server.metrics_url(path)).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{path}");
    }
    // The names of metrics are an interface.
    let version = format!("slipway_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
    assert_eq!((others.get(&version), others.get("slipway_ready")), (1.0, 1.0));
    assert!(others.names().iter().all(|name| name.starts_with("slipway_")), "{}", others.text);
    let kind = if crate::postgres::is_asked() { "postgresql" } else { "sqlite" };
    assert_eq!(others.get(&format!("slipway_database_info{{kind=\"{kind}\"}}")), 1.0);
    assert!(others.get("slipway_database_bytes") >= 4096.0);
    assert_eq!(others.has("slipway_database_wal_bytes"), kind == "sqlite");
    let room = others.get("slipway_data_folder_available_bytes");
    assert!(room > 0.0 && room <= others.get("slipway_data_folder_size_bytes"), "{room}");
    let now = slipway_server::base::time::now() as f64 / 1000.0;
    for (name, days) in [("server", 20.0), ("intermediate", 300.0), ("root", 1000.0)] {
        let at = others.get(&format!("slipway_certificate_expiry_timestamp_seconds{{certificate=\"{name}\"}}"));
        assert!(at > now + days * 86400.0, "{name}: {at}");
    }
}

async fn add_node(server: &TestServer, name: &str, uuid: &str) -> String {
    let identity = Identity { uuid: Some(uuid.to_owned()), ..Identity::default() };
    let new = NewNode { name: Some(name.to_owned()), identity, release: true, ..NewNode::default() };
    operate::add_node(&server.store().await, new).await.unwrap().id
}

fn event(seq: u64, step: u32, kind: EventKind) -> Event {
    Event { seq, at: 1, step, attempt: 1, kind }
}

#[tokio::test]
async fn nodes_and_runs_are_counted_as_status_shows_them() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let store = server.store().await;
    add_node(&server, "web2", "4c4c4544-0042-3010-8058-000000000002").await;
    add_node(&server, "web3", "4c4c4544-0042-3010-8058-000000000003").await;
    operate::decommission_node(&store, "web3").await.unwrap();
    // Two machines wait: one is not registered, the other has only a part of a node's identifiers.
    for serial in ["7CZ1", "7CZ2"] {
        let uuid = (serial == "7CZ2").then(|| UUID.to_owned());
        let machine = Machine::new(Identity { uuid, serial: Some(serial.to_owned()), macs: vec![] });
        assert_eq!(machine.try_enrol(&server).await.status(), StatusCode::ACCEPTED);
    }
    let run = operate::start_run(&store, &server.ca(), "web1", new_run(TWO_STEPS)).await.unwrap().id;
    node.workflow(&server).await.unwrap();
    let begun = [event(1, 0, EventKind::Started)];
    assert_eq!(node.post_events(&server, &run, &begun).await.status(), StatusCode::OK);
    let store = server.store().await;
    node_contacts::seen(&mut store.read().await.unwrap(), &node.enrolment.node, 1).await.unwrap();

    let all = status::all(&store).await.unwrap();
    let found = scrape(&server).await;
    let mut sum = 0.0;
    for node in &all {
        let state = serde_json::to_value(node.state).unwrap();
        let same = all.iter().filter(|other| other.state == node.state).count();
        assert_eq!(found.get(&format!("slipway_nodes{{state={state}}}")), same as f64, "{}", found.text);
    }
    for (series, value) in &found.values {
        sum += if series.starts_with("slipway_nodes{") { *value } else { 0.0 };
    }
    assert_eq!(sum, all.len() as f64);
    assert!(all.len() > 3, "{all:?}");
    let silent = all.iter().filter(|node| node.silent_since.is_some()).count();
    assert_eq!((silent, found.get("slipway_nodes_silent")), (1, 1.0));
    assert_eq!(found.get("slipway_runs{state=\"running\"}"), 1.0);
    assert_eq!(found.get("slipway_runs{state=\"failed\"}"), 0.0, "a state without runs is there too");

    // Whoever asks again at once gets the same numbers.
    let began = Instant::now();
    add_node(&server, "web4", "4c4c4544-0042-3010-8058-000000000004").await;
    let again = scrape(&server).await.get("slipway_nodes{state=\"registered\"}");
    assert!(again == found.get("slipway_nodes{state=\"registered\"}") || began.elapsed() > Duration::from_secs(5));
    for name in ["web1", "web2", UUID, &node.enrolment.node, &run] {
        assert!(!found.text.contains(name), "no label is of a node: {}", found.text);
    }
}

#[tokio::test]
async fn steps_and_runs_count_once_however_often_they_are_reported() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let run = operate::start_run(&server.store().await, &server.ca(), "web1", new_run(TWO_STEPS)).await.unwrap().id;
    node.workflow(&server).await.unwrap();
    assert_eq!(scrape(&server).await.get("slipway_runs_ended_total{result=\"failed\"}"), 0.0);
    let failure = || Failure { reason: "no".to_owned(), ..Failure::default() };
    let events = [
        event(1, 0, EventKind::Started),
        event(2, 0, EventKind::Succeeded(Default::default())),
        event(3, 1, EventKind::Started),
        event(4, 1, EventKind::Failed(failure())),
    ];
    for _ in 0..3 {
        assert_eq!(node.post_events(&server, &run, &events).await.status(), StatusCode::OK);
    }
    let found = scrape(&server).await;
    let steps = |action: &str, result: &str| {
        found.get(&format!("slipway_step_seconds_count{{action=\"{action}\",result=\"{result}\"}}"))
    };
    assert_eq!((steps("erase-disk", "succeeded"), steps("reboot", "failed")), (1.0, 1.0));
    assert_eq!(found.get("slipway_runs_ended_total{result=\"failed\"}"), 1.0);
    assert_eq!(found.get("slipway_runs_ended_total{result=\"succeeded\"}"), 0.0);
    assert!(found.get("slipway_database_commit_seconds_count") > 3.0);
    assert_eq!(found.get("slipway_database_failed_commits_total"), 0.0);
}

#[tokio::test]
async fn requests_count_by_their_route_and_files_by_their_bytes() {
    let server = TestServer::start().await;
    std::fs::write(server.folder.path().join("boot/x86_64/vmlinuz"), [7; 3000]).unwrap();
    let mut image = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut image, &IMAGE).unwrap();
    let known = slipway_server::image::Known::default();
    let (store, data) = (server.store().await, server.data());
    let added = slipway_server::image::add(&store, &data, image.path(), known, |_| {}).await.unwrap();
    let image = server.url(&format!("/images/{}", added.image.digest));
    let client = server.client();
    for (url, range) in [
        (image.clone(), "bytes=0-99"),
        (image.clone(), "bytes=0-"),
        (image, "bytes=9999-"),
        (server.boot_url("/boot/x86_64/vmlinuz"), "bytes=0-"),
        (server.url("/boot/x86_64/none"), "bytes=0-"),
        (server.url("/no/such/path"), "bytes=0-"),
    ] {
        client.get(url).header("range", range).send().await.unwrap().bytes().await.unwrap();
    }
    let found = scrape(&server).await;
    assert_eq!(found.get("slipway_served_bytes_total{kind=\"image\"}"), 100.0 + IMAGE.len() as f64);
    assert_eq!(found.get("slipway_served_bytes_total{kind=\"boot_file\"}"), 3000.0);
    let requests = |route: &str, status: &str| {
        found.get(&format!("slipway_http_requests_total{{route=\"{route}\",status=\"{status}\"}}"))
    };
    assert_eq!(requests("/images/{digest}", "2xx"), 2.0);
    assert_eq!(requests("/images/{digest}", "4xx"), 1.0);
    assert_eq!((requests("/boot/{*path}", "2xx"), requests("/boot/{*path}", "4xx")), (1.0, 1.0));
    assert_eq!(requests("none", "4xx"), 1.0);
    assert_eq!(found.get("slipway_http_request_seconds_count{route=\"/images/{digest}\"}"), 3.0);
    assert!(!found.text.contains("vmlinuz") && !found.text.contains("such"), "{}", found.text);
}

#[tokio::test]
async fn open_polls_and_connections_are_counted_while_they_are_open() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    assert_eq!(scrape(&server).await.get("slipway_open_polls"), 0.0);
    let poll = crate::work::polling(&server, &node).await;
    let found = scrape(&server).await;
    assert_eq!(found.get("slipway_open_polls"), 1.0);
    assert!(found.get("slipway_connections{port=\"https\"}") >= 1.0);
    assert!(found.get("slipway_connections{port=\"metrics\"}") >= 1.0, "that of this question");
    for queue in ["writers", "strangers", "bodies"] {
        assert_eq!(found.get(&format!("slipway_queue_depth{{queue=\"{queue}\"}}")), 0.0);
    }
    // Another writer holds the database.
    let store = server.store().await;
    let other = store.write().await.unwrap();
    let client = node.client.clone();
    let url = server.url("/v1/node/logs?boot_id=b&offset=0");
    let waiting = tokio::spawn(client.post(url).body("line").send());
    let deadline = Instant::now() + Duration::from_secs(30);
    while scrape(&server).await.get("slipway_queue_depth{queue=\"writers\"}") == 0.0 {
        assert!(Instant::now() < deadline, "nobody waits");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(other);
    assert_eq!(waiting.await.unwrap().unwrap().status(), StatusCode::NO_CONTENT);
    server.stop().await;
    assert_eq!(poll.await.unwrap().unwrap().status(), StatusCode::NO_CONTENT);
}

/// The names of our metrics in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let is_end = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    text.split(is_end).filter(|word| word.starts_with("slipway_")).collect()
}

#[tokio::test]
async fn alerts_and_the_manual_ask_for_metrics_that_there_are() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let run = operate::start_run(&server.store().await, &server.ca(), "web1", new_run(TWO_STEPS)).await.unwrap().id;
    let workflow = node.workflow(&server).await.unwrap();
    assert_eq!(workflow.run, run);
    Node::finish(&node, &server, &workflow).await;
    std::fs::write(server.folder.path().join("boot/x86_64/vmlinuz"), [7; 3000]).unwrap();
    let file = server.client().get(server.boot_url("/boot/x86_64/vmlinuz")).send().await.unwrap();
    file.bytes().await.unwrap();
    let found = scrape(&server).await;
    let mut known = found.names();
    // What only one of the databases has.
    known.insert("slipway_database_wal_bytes");
    let file =
        |path: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap();
    let (alerts, manual) = (file("packaging/prometheus/slipway-alerts.yml"), file("docs/how-to/monitor.md"));
    let is_known =
        |name: &&str| known.iter().any(|known| *known == *name || known.strip_suffix("_bucket") == Some(name));
    for text in [&alerts, &manual] {
        let unknown: Vec<_> = names(text).into_iter().filter(|name| !is_known(name)).collect();
        assert!(unknown.is_empty() && names(text).len() > 8, "{unknown:?}");
    }
    let histograms = ["_bucket", "_sum", "_count"];
    let families: BTreeSet<&str> =
        known.iter().map(|name| histograms.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name)).collect();
    let missing: Vec<_> = families.iter().filter(|name| !manual.contains(**name)).collect();
    assert!(missing.is_empty(), "the manual does not explain {missing:?}");
}
