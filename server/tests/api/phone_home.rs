//! From an image to a machine that runs it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::StatusCode;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use slipway_protocol::{ErrorCode, Event, EventKind, NodeState, RunState, RunStatus};
use slipway_server::base::rate::Rate;
use slipway_server::node::reports::phone_home::{self, Caller};
use slipway_server::operate;
use slipway_server::store::db;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::installing::{add_system, debian, install, report_path, seed, start, web1};
use crate::program::run as run_program;
use crate::support::{Node, TestServer, UUID, refusal};
use crate::work::new_run;
use tokio_rustls::TlsConnector;

/// A server, and a machine that has installed the system and is restarting into it.
async fn booting() -> (TestServer, Node, String) {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    add_system(&server, |_| {}).await.unwrap();
    let path = report_path(&install(&server, &node).await);
    (server, node, path)
}

async fn post(server: &TestServer, path: &str, form: impl Into<reqwest::Body>) -> reqwest::Response {
    server.client().post(server.url(path)).body(form).send().await.unwrap()
}

async fn run(server: &TestServer) -> RunStatus {
    web1(server).await.run.unwrap()
}

async fn state(server: &TestServer) -> NodeState {
    web1(server).await.state
}

#[tokio::test]
async fn a_machine_is_running_when_its_system_reports() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let system = add_system(&server, |_| {}).await.unwrap();
    assert_eq!(system.raw_size, Some(512), "known with the image");
    let workflow = install(&server, &node).await;
    let seed = seed(&workflow);
    assert_eq!(seed.hostname.as_deref(), Some("web1"));
    let ca = server.ca().lines().nth(1).unwrap().to_owned();
    assert!(seed.vendor_data.as_ref().unwrap().contains(&ca), "the system is made to trust the server");

    assert_eq!(state(&server).await, NodeState::Booting);
    assert_eq!(refusal(post(&server, "/v1/phone-home/nonsense", "").await).await.code, ErrorCode::NotFound);
    assert_eq!(state(&server).await, NodeState::Booting);
    let form = "hostname=web1&instance_id=i&pub_key_ed25519=ssh-ed25519+AAAA%2B";
    assert_eq!(post(&server, &report_path(&workflow), form).await.status(), StatusCode::OK);
    assert_eq!(state(&server).await, NodeState::Running);
    assert_eq!(run(&server).await.phone_home["pub_key_ed25519"], "ssh-ed25519 AAAA+");
}

#[tokio::test]
async fn later_reports_leave_the_keys_as_they_are() {
    let (server, _, path) = booting().await;
    let (store, rate) = (server.store().await, Rate::new("reports", 10, Instant::now));
    let token = path.strip_prefix("/v1/phone-home/").unwrap();
    for (key, now) in [("first", 1000), ("second", 2000)] {
        let form = BTreeMap::from([("pub_key_rsa".to_owned(), key.to_owned())]);
        phone_home::phone_home(&store, &rate, Caller::Token(token), form, now).await.unwrap();
    }
    let run = run(&server).await;
    assert_eq!((run.phoned_home_at, run.last_contact_at), (Some(1000), Some(2000)));
    assert_eq!(run.phone_home, BTreeMap::from([("pub_key_rsa".to_owned(), "first".to_owned())]));
}

#[tokio::test]
async fn a_new_run_waits_for_a_report_of_its_own() {
    let (server, node, first) = booting().await;
    assert_eq!(post(&server, &first, "").await.status(), StatusCode::OK);
    assert_eq!(state(&server).await, NodeState::Running);
    let server = server.restart().await;
    start(&server, debian()).await.unwrap();
    assert_eq!(state(&server).await, NodeState::Running, "until its machine takes the run");
    let workflow = node.workflow(&server).await.unwrap();
    assert_eq!(state(&server).await, NodeState::Enrolled, "the system that ran is not that of the newest run");
    assert_eq!(post(&server, &first, "").await.status(), StatusCode::OK);
    assert_eq!(state(&server).await, NodeState::Enrolled);
    assert_eq!(run(&server).await.last_contact_at, None, "that was the run before");

    let second = report_path(&workflow);
    assert_ne!(second, first);
    node.finish(&server, &workflow).await;
    let server = server.restart().await;
    assert_eq!(state(&server).await, NodeState::Booting);
    assert_eq!(post(&server, &second, "").await.status(), StatusCode::OK);
    assert_eq!(state(&server).await, NodeState::Running);
}

#[tokio::test]
async fn a_run_that_its_machine_does_not_fetch_leaves_the_installed_system_alone() {
    let (server, node, path) = booting().await;
    let script = async || {
        let url = server.boot_url(&format!("/boot/ipxe?uuid={UUID}&arch=x86_64"));
        server.client().get(url).send().await.unwrap().text().await.unwrap()
    };
    let boots_from_disk = async || script().await.contains("\nexit 1\n");
    assert!(boots_from_disk().await);
    start(&server, debian()).await.unwrap();
    assert_eq!(state(&server).await, NodeState::Booting);
    assert!(!boots_from_disk().await, "it is to take the run");
    operate::cancel_run(&server.store().await, "web1").await.unwrap();
    assert!(boots_from_disk().await);
    assert_eq!((state(&server).await, web1(&server).await.flags.len()), (NodeState::Booting, 0));

    // Its report is awaited and accepted.
    assert_eq!(post(&server, &path, "hostname=web1").await.status(), StatusCode::OK);
    assert_eq!(state(&server).await, NodeState::Running);
    for _ in 0..2 {
        start(&server, debian()).await.unwrap();
        operate::cancel_run(&server.store().await, "web1").await.unwrap();
    }
    assert_eq!(state(&server).await, NodeState::Running);
    let wait =
        |timeout| run_program(&server.data_path(), &["status", "web1", "--wait", "running", "--timeout", timeout]);
    assert_eq!(wait("9s").status.code(), Some(3), "the run was cancelled, and its system is not there");

    start(&server, debian()).await.unwrap();
    assert_eq!(wait("1s").status.code(), Some(4), "the system that is there is not what is awaited");
    node.workflow(&server).await.unwrap();
    assert_eq!(state(&server).await, NodeState::Enrolled);
    // The machine is in slipway now, and what it had is not what runs.
    operate::cancel_run(&server.store().await, "web1").await.unwrap();
    assert_eq!((state(&server).await, run(&server).await.state), (NodeState::Enrolled, RunState::Failed));
}

#[tokio::test]
async fn a_report_from_before_the_disk_was_written_again_does_not_count() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    add_system(&server, |_| {}).await.unwrap();
    start(&server, debian()).await.unwrap();
    let workflow = node.workflow(&server).await.unwrap();
    let begin = |seq| Event { seq, at: 1, step: 0, attempt: 1, kind: EventKind::Started };
    node.post_events(&server, &workflow.run, &[begin(1)]).await;
    // The machine is switched off after the seed step and booted from its disk, and reports. Then it boots from the
    // network again.
    assert_eq!(post(&server, &report_path(&workflow), "pub_key_rsa=old").await.status(), StatusCode::OK);
    assert!(run(&server).await.phoned_home_at.is_some());
    let again = node.workflow(&server).await.unwrap();
    node.finish(&server, &again).await;
    assert_eq!(state(&server).await, NodeState::Booting);
    assert_eq!((run(&server).await.phoned_home_at, run(&server).await.phone_home.len()), (None, 0));
    assert_eq!(post(&server, &report_path(&again), "").await.status(), StatusCode::OK);
    assert_eq!(state(&server).await, NodeState::Running);
}

#[tokio::test]
async fn what_a_run_that_ended_is_told_to_begin_leaves_its_report() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    add_system(&server, |_| {}).await.unwrap();
    let workflow = install(&server, &node).await;
    assert_eq!(post(&server, &report_path(&workflow), "pub_key_rsa=key").await.status(), StatusCode::OK);
    let before = run(&server).await;
    assert!(before.phoned_home_at.is_some() && before.last_contact_at.is_some(), "{before:?}");
    let seq = workflow.next_seq + 2 * workflow.steps.len() as u64;
    let late = Event { seq, at: 1, step: 0, attempt: 1, kind: EventKind::Started };
    assert_eq!(node.post_events(&server, &workflow.run, &[late]).await.status(), StatusCode::OK);
    let after = run(&server).await;
    assert_eq!(after.phone_home["pub_key_rsa"], "key");
    assert_eq!((after.phoned_home_at, after.last_contact_at), (before.phoned_home_at, before.last_contact_at));
    assert_eq!(state(&server).await, NodeState::Running);
}

#[tokio::test]
async fn a_node_out_of_service_does_not_report() {
    let (server, _, path) = booting().await;
    operate::decommission_node(&server.store().await, "web1").await.unwrap();
    let by_instance = format!("instance_id={}", instance_of_newest_run(&server).await);
    for (path, form) in [(path.as_str(), String::new()), ("/latest/meta-data/phone_home", by_instance)] {
        assert_eq!(refusal(post(&server, path, form).await).await.code, ErrorCode::Decommissioned);
    }
    let node = web1(&server).await;
    assert_eq!((node.state, node.run.unwrap().last_contact_at), (NodeState::Decommissioned, None));
}

#[tokio::test]
async fn a_node_reports_ten_times_a_minute_at_most() {
    let (server, _, path) = booting().await;
    for _ in 0..10 {
        assert_eq!(post(&server, &path, "").await.status(), StatusCode::OK);
    }
    let known = run(&server).await.last_contact_at;
    let refused = post(&server, &path, "").await;
    assert_eq!(refused.headers()["retry-after"], "61", "what is left of the minute, rounded up");
    let refused = refusal(refused).await;
    assert_eq!(refused.code, ErrorCode::TooManyRequests);
    assert_eq!(refused.message, "more than 10 reports about one run within a minute; try again in 61 s");
    assert_eq!(run(&server).await.last_contact_at, known);
}

#[tokio::test]
async fn of_two_reports_at_once_one_is_the_first() {
    let (server, _, path) = booting().await;
    let forms = ["a=1&b=1", "a=2&b=2"].map(|form| post(&server, &path, form));
    let [one, other] = forms;
    let (one, other) = tokio::join!(one, other);
    assert_eq!((one.status(), other.status()), (StatusCode::OK, StatusCode::OK));
    let form = run(&server).await.phone_home;
    assert_eq!(form["a"], form["b"], "{form:?}");
    assert_eq!(state(&server).await, NodeState::Running);
}

#[tokio::test]
async fn a_form_nobody_sends_by_right_is_refused() {
    let (server, _, path) = booting().await;
    let million = (0..1_000_000).map(|key| format!("{key}&")).collect::<String>();
    let many = (0..33).map(|key| format!("{key}=&")).collect::<String>();
    let table: [(Vec<u8>, ErrorCode); 6] = [
        (vec![b'a'; (64 << 10) + 1], ErrorCode::TooLarge),
        (million.into_bytes(), ErrorCode::TooLarge),
        (many.into_bytes(), ErrorCode::InvalidRequest),
        (b"hostname=\xff".to_vec(), ErrorCode::InvalidRequest),
        (b"%C3%28=web1".to_vec(), ErrorCode::InvalidRequest),
        (b"pub_key_rsa=a&pub_key_rsa=b".to_vec(), ErrorCode::InvalidRequest),
    ];
    for (form, expect) in table {
        let shown = String::from_utf8_lossy(&form[..form.len().min(30)]).into_owned();
        assert_eq!(refusal(post(&server, &path, form).await).await.code, expect, "{shown:?}");
    }
    assert_eq!(refusal(post(&server, "/v1/phone-home/%FF", "").await).await.code, ErrorCode::InvalidRequest);
    assert_eq!((state(&server).await, run(&server).await.last_contact_at), (NodeState::Booting, None));
}

/// Posts a body shorter than its Content-Length, and returns the response.
async fn post_half(server: &TestServer, path: &str) -> String {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(server.ca().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let url = server.url("");
    let stream = TcpStream::connect(url.strip_prefix("https://").unwrap()).await.unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect("localhost".try_into().unwrap(), stream).await.unwrap();
    let request = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\npub_key_rsa=ab");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut answer)).await;
    drop(read.expect("the server closes the connection"));
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn a_report_that_is_cut_off_is_none() {
    let (server, _, path) = booting().await;
    let answer = post_half(&server, &path).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert_eq!((state(&server).await, run(&server).await.last_contact_at), (NodeState::Booting, None));
    assert_eq!(post(&server, &path, "pub_key_rsa=abc").await.status(), StatusCode::OK);
    assert_eq!(run(&server).await.phone_home["pub_key_rsa"], "abc");
}

async fn instance_of_newest_run(server: &TestServer) -> String {
    let mut connection = server.store().await.read().await.unwrap();
    let id = "SELECT instance_id FROM run_instances JOIN nodes ON nodes.run = run_instances.run";
    db::query(id).fetch_one(&mut connection).await.unwrap().get("instance_id").unwrap()
}

#[tokio::test]
async fn a_system_may_report_as_to_a_metadata_service() {
    for version in ["latest", "2009-04-04"] {
        let server = TestServer::start().await;
        let node = server.enrolled("web1").await;
        add_system(&server, |_| {}).await.unwrap();
        let workflow = install(&server, &node).await;
        let path = format!("/{version}/meta-data/phone_home");
        let post = async |instance: &str| post(&server, &path, format!("instance_id={instance}")).await;
        for wrong in ["", "i-1", "N%2FA"] {
            assert_eq!(refusal(post(wrong).await).await.code, ErrorCode::NotFound, "{wrong:?}");
        }
        assert_eq!(post(&seed(&workflow).instance_id).await.status(), StatusCode::OK);
        assert_eq!(state(&server).await, NodeState::Running);
    }
}

#[tokio::test]
async fn an_instance_id_of_an_older_run_in_a_workflow_is_not_the_new_runs() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    add_system(&server, |_| {}).await.unwrap();
    let old = seed(&install(&server, &node).await).instance_id.clone();
    let steps = [&*old, &*old.to_uppercase().replace("SLIPWAY", "slipway")]
        .map(|id| json!({"name": id, "action": {"seed-cloud-init": {"instance_id": id}}}));
    let body = json!({"task": {"workflow": {"steps": steps, "phone_home": true}}});
    let operator = server.operator_token();
    let request = server.client().post(server.url("/v1/operator/nodes/web1/runs")).bearer_auth(operator);
    assert_eq!(request.json(&body).send().await.unwrap().status(), StatusCode::CREATED);

    let workflow = node.workflow(&server).await.unwrap();
    let text = serde_json::to_string(&workflow.steps[0].action).unwrap();
    assert!(!text.contains(&old), "{text}");
    node.finish(&server, &workflow).await;
    let post = async |id: &str| post(&server, "/latest/meta-data/phone_home", format!("instance_id={id}")).await;
    assert_eq!(post(&old).await.status(), StatusCode::OK, "it is the older run's still");
    assert_eq!((state(&server).await, run(&server).await.last_contact_at), (NodeState::Booting, None));
    assert_eq!(post(&seed(&workflow).instance_id).await.status(), StatusCode::OK);
    assert_eq!(state(&server).await, NodeState::Running);
}

#[tokio::test]
async fn an_instance_id_that_can_be_guessed_is_no_proof() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let steps = "steps: [{name: a, action: {seed-cloud-init: {instance_id: web1-1}}}]";
    start(&server, new_run(steps)).await.unwrap();
    node.finish(&server, &node.workflow(&server).await.unwrap()).await;
    let refused = post(&server, "/latest/meta-data/phone_home", "instance_id=web1-1").await;
    assert_eq!(refusal(refused).await.code, ErrorCode::NotFound);
}
