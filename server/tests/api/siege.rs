//! What strangers and nodes may cost the server, and that they keep nobody else out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::StatusCode;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use slipway_protocol::{
    ErrorCode, Event, EventKind, Failure, Identity, MAX_EVENT_TEXT_BYTES, MAX_SEQ_GAP, Outcome, RunState,
};
use slipway_server::base::limits::{Connections, Limits, Pace};
use slipway_server::node::status;
use slipway_server::operate;
use slipway_server::store::{events, runs};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::support::{Machine, Node, TestServer, refusal, trusting};
use crate::work::new_run;

const ONE_STEP: &str = "steps: [{name: erase, action: {erase-disk: {}}}]";
/// Long enough that it is never reached, however slow the machine is.
const GUARD: Duration = Duration::from_secs(60);

fn few(of_address: usize) -> Connections {
    Connections { total: 16, strangers: 8, of_address, of_node: 4 }
}

/// Connects from a loopback address of its own.
async fn connect_from(last: u8, url: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, last], 0).into()).unwrap();
    let (_, address) = url.split_once("://").unwrap();
    socket.connect(address.parse().unwrap()).await.unwrap()
}

async fn tls(server: &TestServer) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(server.ca().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let stream = connect_from(1, &server.url("")).await;
    TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), stream).await
}

/// What the server still sends until it closes the connection.
async fn rest(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut answer = Vec::new();
    let read = tokio::time::timeout(GUARD, stream.read_to_end(&mut answer)).await;
    // A connection that is reset is closed too.
    drop(read.expect("the server closes the connection"));
    String::from_utf8_lossy(&answer).into_owned()
}

fn event(seq: u64, kind: EventKind) -> Event {
    Event { seq, at: 1, step: 0, attempt: 1, kind }
}

fn note(seq: u64, bytes: usize) -> Event {
    event(seq, EventKind::Note("x".repeat(bytes)))
}

/// A node with a run of one step.
async fn working(server: &TestServer) -> (Node, String) {
    let node = server.enrolled("web1").await;
    let run = operate::start_run(&server.store().await, &server.ca(), "web1", new_run(ONE_STEP)).await.unwrap();
    (node, run.id)
}

async fn report(server: &TestServer, node: &Node, run: &str, events: &[Event]) {
    let response = node.post_events(server, run, events).await;
    assert_eq!(response.status(), StatusCode::OK, "{}", response.text().await.unwrap());
}

#[tokio::test]
async fn idle_connections_to_either_port_make_room_for_others() {
    let server = TestServer::start_with(Limits { https: few(8), boot: few(8), ..Limits::default() }).await;
    let (node, run) = working(&server).await;
    report(&server, &node, &run, &[event(1, EventKind::Started)]).await;
    for port in [server.boot_url(""), server.url("")] {
        let mut idle = Vec::new();
        for connection in 0..40 {
            idle.push(connect_from(connection % 4 + 1, &port).await);
        }
        for stream in &mut idle[..32] {
            assert_eq!(rest(stream).await, "");
        }
        // The node's address is among theirs.
        report(&server, &node, &run, &[event(2, EventKind::Started)]).await;
        assert_eq!(server.client().get(server.url("/v1/time")).send().await.unwrap().status(), StatusCode::NO_CONTENT);
        let script = server.client().get(server.boot_url("/boot/ipxe")).send().await.unwrap();
        assert_eq!(script.status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn an_address_has_its_share_of_connections() {
    let server = TestServer::start_with(Limits { boot: few(2), ..Limits::default() }).await;
    let mut first = connect_from(2, &server.boot_url("")).await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(connect_from(3, &server.boot_url("")).await);
    }
    assert_eq!(rest(&mut streams[0]).await, "", "the address has two others");
    first.write_all(b"GET /boot/ipxe HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    assert!(rest(&mut first).await.starts_with("HTTP/1.1 200 OK"), "an older connection of another address stays");
}

#[tokio::test]
async fn a_connection_without_a_request_is_closed_soon() {
    let first_request = Duration::from_millis(100);
    let server = TestServer::start_with(Limits { first_request, ..Limits::default() }).await;
    assert_eq!(rest(&mut connect_from(1, &server.boot_url("")).await).await, "");
    assert_eq!(rest(&mut connect_from(1, &server.url("")).await).await, "");
    // On a slow machine, the time may be over before the handshake.
    if let Ok(mut stream) = tls(&server).await {
        assert_eq!(rest(&mut stream).await, "");
    }
    let mut half = connect_from(1, &server.boot_url("")).await;
    half.write_all(b"GET /boot/ipxe HTTP/1.1\r\n").await.unwrap();
    assert_eq!(rest(&mut half).await, "");
}

#[tokio::test]
async fn an_old_connection_is_closed_after_the_request_in_progress() {
    let connection_age = Duration::from_millis(100);
    let server = TestServer::start_with(Limits { connection_age, ..Limits::default() }).await;
    let node = server.enrolled("web1").await;
    let poll = node.client.get(server.url("/v1/node/workflow?wait=1")).send().await.unwrap();
    assert_eq!(poll.status(), StatusCode::NO_CONTENT);
    let mut stream = connect_from(1, &server.boot_url("")).await;
    stream.write_all(b"GET /boot/ipxe HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    assert!(rest(&mut stream).await.starts_with("HTTP/1.1 200 OK"));
}

#[tokio::test]
async fn headers_have_a_limit() {
    let server = TestServer::start().await;
    for (header, count) in [("x".repeat(20 << 10), 1), ("x".to_owned(), 80)] {
        let headers: String = (0..count).map(|number| format!("x-{number}: {header}\r\n")).collect();
        let mut stream = connect_from(1, &server.boot_url("")).await;
        let request = format!("GET /boot/ipxe HTTP/1.1\r\nhost: a\r\n{headers}\r\n");
        // The server may close the connection before it has everything.
        drop(stream.write_all(request.as_bytes()).await);
        let answer = rest(&mut stream).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    }
}

#[tokio::test]
async fn a_body_that_does_not_go_on_is_refused() {
    let stall = Duration::from_millis(100);
    let server = TestServer::start_with(Limits { stall, ..Limits::default() }).await;
    let mut stream = tls(&server).await.unwrap();
    let request = format!("POST /v1/enrol HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n{}", "x".repeat(20_000));
    stream.write_all(request.as_bytes()).await.unwrap();
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("the body did not arrive in time"), "{answer}");
}

#[tokio::test]
async fn a_body_is_read_only_of_whom_is_known() {
    let server = TestServer::start().await;
    for (request, expect) in [
        ("POST /v1/report HTTP/1.1\r\nauthorization: Bearer guessed", "HTTP/1.1 404"),
        ("POST /v1/boot-report HTTP/1.1\r\nauthorization: Bearer guessed", "HTTP/1.1 404"),
        ("POST /v1/boot-report/logs?boot_id=a HTTP/1.1\r\nauthorization: Bearer guessed", "HTTP/1.1 404"),
        ("POST /v1/node/events HTTP/1.1\r\nauthorization: Bearer guessed", "HTTP/1.1 401"),
        ("POST /v1/operator/os HTTP/1.1\r\nauthorization: Bearer guessed", "HTTP/1.1 401"),
    ] {
        let mut stream = tls(&server).await.unwrap();
        let request = format!("{request}\r\nhost: a\r\ncontent-length: 60000\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&answer), expect, "{request}");
    }
    let mut stream = tls(&server).await.unwrap();
    stream.write_all(b"POST /v1/enrol HTTP/1.1\r\nhost: a\r\ncontent-length: 300000\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 400", "a stranger's body is small");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_closed() {
    let stall = Duration::from_millis(300);
    let server = TestServer::start_with(Limits { stall, boot: few(2), ..Limits::default() }).await;
    let file = std::fs::File::create(server.folder.path().join("boot/large")).unwrap();
    file.set_len(256 << 20).unwrap();
    let mut deaf = connect_from(1, &server.boot_url("")).await;
    deaf.write_all(b"GET /boot/large HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut first = [0; 12];
    deaf.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    // One request of two connections is all that an address may have.
    let script = async || server.client().get(server.boot_url("/boot/ipxe")).send().await.unwrap().status();
    assert_eq!(script().await, StatusCode::SERVICE_UNAVAILABLE);
    let closed = async { while script().await != StatusCode::OK {} };
    tokio::time::timeout(GUARD, closed).await.expect("the server closes the connection");
    let sent = deaf.read_to_end(&mut Vec::new()).await.unwrap_or(0);
    assert!(sent < 256 << 20, "{sent}");
}

#[tokio::test]
async fn an_address_that_asks_too_often_is_refused_before_anything_is_done() {
    let requests = Pace { per_second: 1, burst: 3 };
    let refusal_pause = Duration::ZERO;
    let server = TestServer::start_with(Limits { requests, refusal_pause, ..Limits::default() }).await;
    let enrol = async |machine: u8| {
        let uuid = format!("4c4c4544-0042-3010-8058-b7c04f5034{machine:02x}");
        Machine::with_uuid(&uuid).try_enrol(&server).await
    };
    for machine in 0..3 {
        assert_eq!(enrol(machine).await.status(), StatusCode::ACCEPTED);
    }
    let response = enrol(3).await;
    assert_eq!(response.headers()["retry-after"], "1");
    let refused = refusal(response).await;
    assert_eq!(refused.code, ErrorCode::TooManyRequests);
    assert_eq!(
        refused.message,
        "more than 1 requests of unknown clients in a second from one address; try again in 1 s"
    );
    assert_eq!(status::all(&server.store().await).await.unwrap().len(), 3, "nothing is stored");
    for path in ["/boot/ipxe?arch=x86_64", "/v1/metadata/a/latest/user-data", "/latest/user-data"] {
        let response = server.client().get(server.url(path)).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "{path}");
    }
    for path in ["/v1/phone-home/a", "/latest/meta-data/phone_home", "/v1/report", "/v1/boot-report"] {
        let response = server.client().post(server.url(path)).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "{path}");
    }
    let other = trusting(&server.ca()).local_address(Some([127, 0, 0, 2].into())).build().unwrap();
    let other = other.get(server.url("/boot/ipxe")).send().await.unwrap();
    assert_eq!(other.status(), StatusCode::OK, "another address");
}

#[tokio::test]
async fn machines_that_enrol_without_a_pause_do_not_hold_up_a_node() {
    let requests = Pace { per_second: 1_000_000, burst: 1_000_000 };
    let server = Arc::new(TestServer::start_with(Limits { requests, ..Limits::default() }).await);
    let (node, run) = working(&server).await;
    let done = Arc::new(AtomicBool::new(false));
    let enrolling: Vec<_> = (0..24u8)
        .map(|machine| {
            let (server, done) = (Arc::clone(&server), Arc::clone(&done));
            tokio::spawn(async move {
                let mac = format!("52:54:00:00:00:{machine:02x}");
                let machine = Machine::new(Identity { macs: vec![mac], ..Identity::default() });
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(machine.try_enrol(&server).await.status(), StatusCode::ACCEPTED);
                }
            })
        })
        .collect();
    for seq in 1..=100 {
        report(&server, &node, &run, &[note(seq, 10)]).await;
    }
    done.store(true, Ordering::Relaxed);
    for machine in enrolling {
        machine.await.unwrap();
    }
}

#[tokio::test]
async fn texts_beyond_the_bounds_are_refused_and_change_nothing() {
    let server = TestServer::start().await;
    let (node, run) = working(&server).await;
    report(&server, &node, &run, &[event(1, EventKind::Started), note(2, MAX_EVENT_TEXT_BYTES)]).await;
    let long = || "x".repeat(MAX_EVENT_TEXT_BYTES + 1);
    let many = vec!["x".repeat(100); 1000];
    for kind in [
        EventKind::Note(long()),
        EventKind::Retrying(Failure { reason: long(), ..Failure::default() }),
        EventKind::Failed(Failure { causes: vec![long()], ..Failure::default() }),
        EventKind::TimedOut(Failure { log_tail: many.clone(), ..Failure::default() }),
        EventKind::Succeeded(Outcome { summary: long(), ..Outcome::default() }),
        EventKind::Succeeded(Outcome { warnings: many.clone(), ..Outcome::default() }),
    ] {
        let refused = refusal(node.post_events(&server, &run, &[event(3, kind)]).await).await;
        assert_eq!(refused.code, ErrorCode::InvalidRequest);
        assert!(refused.message.starts_with("event 3 has "), "{}", refused.message);
    }
    assert_eq!(node.workflow(&server).await.unwrap().next_seq, 3);
}

#[tokio::test]
async fn a_sequence_number_that_no_node_comes_to_changes_nothing() {
    let server = TestServer::start().await;
    let (node, run) = working(&server).await;
    report(&server, &node, &run, &[event(1, EventKind::Started)]).await;
    for seq in [u64::MAX, i64::MAX as u64, MAX_SEQ_GAP + 2] {
        let refused = refusal(node.post_events(&server, &run, &[note(2, 1), note(seq, 1)]).await).await;
        assert_eq!(refused.code, ErrorCode::InvalidRequest);
        let message = format!("event {seq} comes too far after event 1, the last one stored");
        assert!(refused.message.starts_with(&message), "{}", refused.message);
    }
    assert_eq!(node.workflow(&server).await.unwrap().next_seq, 2);
    report(&server, &node, &run, &[note(MAX_SEQ_GAP + 1, 1)]).await;
    report(&server, &node, &run, &[event(MAX_SEQ_GAP + 2, EventKind::Succeeded(Outcome::default()))]).await;
    assert_eq!(
        operate::show_node(&server.store().await, "web1").await.unwrap().run.unwrap().state,
        RunState::Succeeded
    );
}

#[tokio::test]
async fn notes_do_not_grow_the_row_of_their_run() {
    let server = TestServer::start().await;
    let (node, run) = working(&server).await;
    let notes: Vec<_> = (2..152).map(|seq| note(seq, 2000)).collect();
    report(&server, &node, &run, &[event(1, EventKind::Started)]).await;
    report(&server, &node, &run, &notes).await;
    let store = server.store().await;
    let stored = runs::get_by_id(&mut store.read().await.unwrap(), &run).await.unwrap().unwrap();
    assert_eq!(stored.progress.steps[0].notes, [""; 0]);
    let status = async || operate::show_node(&store, "web1").await.unwrap().run.unwrap().steps.remove(0).notes;
    assert_eq!(status().await.len(), 33, "the first 64 KiB");
    assert_eq!(operate::list_runs(&store, None).await.unwrap()[0].steps[0].notes.len(), 33);
    let history = events::of_run(&mut store.read().await.unwrap(), &run).await.unwrap();
    assert_eq!(history.len(), 151, "the others are in the history");
    report(&server, &node, &run, &[event(152, EventKind::Started)]).await;
    assert!(status().await.is_empty(), "the step began again");
}

#[tokio::test]
async fn a_run_that_spent_its_bytes_still_ends_as_its_steps_do() {
    let server = TestServer::start_with(Limits { run_bytes: 5000, ..Limits::default() }).await;
    let (node, run) = working(&server).await;
    report(&server, &node, &run, &[event(1, EventKind::Started)]).await;
    let notes: Vec<_> = (2..100).map(|seq| note(seq, 1000)).collect();
    report(&server, &node, &run, &notes).await;
    report(&server, &node, &run, &[note(100, 1), note(101, 5000)]).await;
    let response = node.client.get(server.url("/v1/node/workflow?wait=0")).send().await.unwrap();
    assert_eq!(response.json::<serde_json::Value>().await.unwrap()["next_seq"], json!(102));
    report(&server, &node, &run, &[event(102, EventKind::Succeeded(Outcome::default()))]).await;

    let store = server.store().await;
    let history = events::of_run(&mut store.read().await.unwrap(), &run).await.unwrap();
    let spent = "the events of this run have reached the server's limit; further notes are dropped";
    let is_mark = |event: &&Event| event.kind == EventKind::Note(spent.to_owned());
    assert_eq!(history.iter().filter(is_mark).count(), 1);
    assert_eq!(history.len(), 1 + 4 + 1 + 1, "begun, four notes, the mark, done");
    let run = operate::show_node(&store, "web1").await.unwrap().run.unwrap();
    assert_eq!(run.state, RunState::Succeeded);
    assert_eq!(run.steps[0].notes.last().unwrap(), spent);
}
