//! Handing out workflows, and receiving events and logs.

use std::io::Write;
use std::time::{Duration, Instant};

use reqwest::{Response, StatusCode};
use slipway_protocol::{ErrorCode, Event, EventAck, EventKind, Failure, NodeState, Progress, RunState, StepState};
use slipway_server::operate::{self, LogType, NewRun, Task};
use slipway_server::store::{db, events, node_contacts};
use tokio::task::JoinHandle;

use crate::support::{Node, TestServer, refusal};

pub fn new_run(yaml: &str) -> NewRun {
    NewRun::new(Task::Workflow(operate::parse_workflow(yaml).unwrap()))
}

pub const TWO_STEPS: &str =
    "steps:\n- {name: erase, action: {erase-disk: {}}}\n- {name: leave, action: {reboot: {}}}\n";

async fn start(server: &TestServer) -> String {
    operate::start_run(&server.store().await, &server.ca(), "web1", new_run(TWO_STEPS)).await.unwrap().id
}

async fn state(server: &TestServer) -> (NodeState, RunState) {
    let node = operate::show_node(&server.store().await, "web1").await.unwrap();
    (node.state, node.run.unwrap().state)
}

fn event(seq: u64, step: u32, kind: EventKind) -> Event {
    Event { seq, at: 1, step, attempt: 1, kind }
}

async fn ack(server: &TestServer, node: &Node, run: &str, events: &[Event]) -> u64 {
    let response = node.post_events(server, run, events).await;
    assert_eq!(response.status(), StatusCode::OK);
    response.json::<EventAck>().await.unwrap().seq
}

/// A node asks for work. Returns when the server has begun to answer.
pub async fn polling(server: &TestServer, node: &Node) -> JoinHandle<reqwest::Result<Response>> {
    let store = server.store().await;
    node_contacts::seen(&mut store.read().await.unwrap(), &node.enrolment.node, 0).await.unwrap();
    let poll = tokio::spawn(node.client.get(server.url("/v1/node/workflow")).send());
    while operate::show_node(&store, "web1").await.unwrap().last_seen == Some(0) {
        assert!(!poll.is_finished());
    }
    poll
}

#[tokio::test]
async fn a_poll_ends_after_the_time_it_asked_for_or_when_a_run_starts() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    assert_eq!(node.workflow(&server).await, None);

    let poll = polling(&server, &node).await;
    let began = Instant::now();
    let shorter = node.client.get(server.url("/v1/node/workflow?wait=1")).send().await.unwrap();
    assert_eq!(shorter.status(), StatusCode::NO_CONTENT);
    // The server leaves out up to a tenth.
    assert!(began.elapsed() >= Duration::from_millis(900), "{:?}", began.elapsed());
    let run = start(&server).await;
    let response = poll.await.unwrap().unwrap();
    assert_eq!(response.status(), StatusCode::OK, "the one that began before was still waiting");
    let workflow: slipway_protocol::Workflow = response.json().await.unwrap();
    assert_eq!((workflow.run.as_str(), workflow.next_seq, workflow.steps.len()), (run.as_str(), 1, 2));
    assert_eq!(state(&server).await, (NodeState::Enrolled, RunState::Running));
}

#[tokio::test]
async fn a_stopping_server_answers_its_polls() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let poll = polling(&server, &node).await;
    server.stop().await;
    assert_eq!(poll.await.unwrap().unwrap().status(), StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn events_are_stored_once_and_a_restart_loses_none() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let run = start(&server).await;
    node.workflow(&server).await.unwrap();
    let progress = EventKind::Progress(Progress { bytes: 5, total: Some(10), ..Progress::default() });
    let first =
        [event(1, 0, EventKind::Started), event(2, 0, EventKind::Note("/dev/sda".to_owned())), event(4, 0, progress)];
    assert_eq!(ack(&server, &node, &run, &first).await, 4);
    assert_eq!(ack(&server, &node, &run, &first).await, 4);
    assert_eq!(state(&server).await, (NodeState::Installing, RunState::Running));

    let server = server.restart().await;
    assert_eq!(ack(&server, &node, &run, &first[..1]).await, 4);
    let again = node.workflow(&server).await.unwrap();
    assert_eq!((again.run.as_str(), again.next_seq), (run.as_str(), 5), "a power-cycled machine gets its run again");
    let status = operate::show_node(&server.store().await, "web1").await.unwrap().run.unwrap();
    assert_eq!(status.steps[0].notes, ["/dev/sda"]);
    assert_eq!(status.steps[0].progress.as_ref().unwrap().bytes, 5);
    let history = events::of_run(&mut server.store().await.read().await.unwrap(), &run).await.unwrap();
    assert_eq!(history, first[..2], "progress is not history");
}

#[tokio::test]
async fn a_run_that_ended_is_not_handed_out_again() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let run = start(&server).await;
    node.workflow(&server).await.unwrap();
    let failure = Failure { reason: "choosing a disk".to_owned(), ..Failure::default() };
    let failed = [event(1, 0, EventKind::Started), event(2, 0, EventKind::Failed(failure.clone()))];
    ack(&server, &node, &run, &failed).await;
    assert_eq!(state(&server).await, (NodeState::Failed, RunState::Failed));
    assert_eq!(node.workflow(&server).await, None);
    let status = operate::show_node(&server.store().await, "web1").await.unwrap().run.unwrap();
    assert_eq!(status.steps[0].failure, Some(failure));
    assert_eq!(status.steps[1].state, StepState::Skipped);

    // The node gets the next run without a power cycle. This one succeeds.
    start(&server).await;
    let workflow = node.workflow(&server).await.unwrap();
    node.finish(&server, &workflow).await;
    assert_eq!(state(&server).await, (NodeState::Installed, RunState::Succeeded));
    assert_eq!(node.workflow(&server).await, None);
}

#[tokio::test]
async fn a_second_run_needs_the_first_to_end_or_to_be_replaced() {
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    let (first, store) = (start(&server).await, server.store().await);
    let refused = operate::start_run(&store, &server.ca(), "web1", new_run(TWO_STEPS)).await.expect_err("conflict");
    assert_eq!(refused.body().code, ErrorCode::Conflict);
    let replacing = NewRun { replace: true, ..new_run(TWO_STEPS) };
    let second = operate::start_run(&store, &server.ca(), "web1", replacing).await.unwrap().id;
    let response = server.client().get(server.url(&format!("/v1/operator/runs/{first}")));
    let response = response.bearer_auth(server.operator_token()).send().await.unwrap();
    let replaced: slipway_protocol::RunStatus = response.json().await.unwrap();
    assert_eq!(replaced.state, RunState::Failed);
    assert_eq!(replaced.steps[0].failure.as_ref().unwrap().reason, format!("replaced by run {second}"));
}

#[tokio::test]
async fn a_node_is_told_that_its_run_was_replaced() {
    let server = TestServer::start().await;
    let (node, store) = (server.enrolled("web1").await, server.store().await);
    let first = start(&server).await;
    node.workflow(&server).await.unwrap();
    let told = async |run: &str, events: &[Event]| {
        let response = node.post_events(&server, run, events).await;
        assert_eq!(response.status(), StatusCode::OK);
        response.json::<EventAck>().await.unwrap()
    };
    let started = event(1, 0, EventKind::Started);
    assert_eq!(told(&first, std::slice::from_ref(&started)).await, EventAck { seq: 1, ended: false });
    let replacing = NewRun { replace: true, ..new_run(TWO_STEPS) };
    let second = operate::start_run(&store, &server.ca(), "web1", replacing).await.unwrap().id;
    let note = event(2, 0, EventKind::Note("half-way".to_owned()));
    assert_eq!(told(&first, std::slice::from_ref(&note)).await, EventAck { seq: 2, ended: true });
    assert_eq!(told(&second, &[started]).await, EventAck { seq: 1, ended: false });

    // A run that failed was not ended by the operator, even if another run follows.
    let failed = event(2, 0, EventKind::Failed(Failure::default()));
    assert_eq!(told(&second, std::slice::from_ref(&failed)).await, EventAck { seq: 2, ended: false });
    start(&server).await;
    assert_eq!(told(&second, &[failed]).await, EventAck { seq: 2, ended: false });
    assert_eq!(told(&first, &[note]).await, EventAck { seq: 2, ended: true });
}

#[tokio::test]
async fn taking_a_node_out_of_service_ends_its_run() {
    let server = TestServer::start().await;
    let (node, store) = (server.enrolled("web1").await, server.store().await);
    let run = start(&server).await;
    node.workflow(&server).await.unwrap();
    operate::decommission_node(&store, "web1").await.unwrap();
    assert_eq!(state(&server).await, (NodeState::Decommissioned, RunState::Failed));
    let response = node.post_events(&server, &run, &[event(1, 0, EventKind::Started)]).await;
    assert_eq!(refusal(response).await.code, ErrorCode::Decommissioned);
    let status = operate::show_node(&store, "web1").await.unwrap().run.unwrap();
    assert_eq!(status.steps[0].failure.as_ref().unwrap().reason, "the node was taken out of service");
}

#[tokio::test]
async fn steps_that_cannot_work_are_refused_before_the_machine_sees_them() {
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    let first = start(&server).await;
    let store = server.store().await;
    let table = [
        ("[]", "the workflow has no steps"),
        (
            "[{name: a, action: {reboot: {}}}, {name: b, action: {erase-disk: {}}}]",
            "step 1 (\"a\") reboots, but 1 more",
        ),
        ("[{name: a, retries: 101, action: {reboot: {}}}]", "step 1 (\"a\") has 101 retries"),
        (
            "[{name: a, action: {stream-image: {url: 'ftp://s/x'}}}]",
            "step 1 (\"a\") fetches \"ftp://s/x\", which is neither",
        ),
        (
            "[{name: a, action: {kernel-args: {append: [quiet splash]}}}]",
            "step 1 (\"a\") cannot add the kernel argument",
        ),
    ];
    for (steps, expect) in table {
        let new = NewRun { replace: true, ..new_run(&format!("steps: {steps}\n")) };
        let refused = operate::start_run(&store, &server.ca(), "web1", new).await.expect_err(steps);
        assert_eq!(refused.body().code, ErrorCode::InvalidRequest, "{steps}");
        assert!(refused.to_string().starts_with(expect), "{refused}");
    }
    let run = operate::show_node(&store, "web1").await.unwrap().run.unwrap();
    assert_eq!((run.id, run.state), (first, RunState::Pending), "the run there is was not replaced");
}

#[tokio::test]
async fn events_that_mean_nothing_are_refused() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let run = start(&server).await;
    let code = async |run: &str, events: &[Event]| refusal(node.post_events(&server, run, events).await).await.code;
    assert_eq!(code("nonsense", &[event(1, 0, EventKind::Started)]).await, ErrorCode::NotFound);
    assert_eq!(code(&run, &[event(1, 2, EventKind::Started)]).await, ErrorCode::InvalidRequest);
    let backwards = [event(2, 0, EventKind::Started), event(1, 0, EventKind::Started)];
    assert_eq!(code(&run, &backwards).await, ErrorCode::InvalidRequest);
    assert_eq!(code(&run, &[event(0, 0, EventKind::Started)]).await, ErrorCode::InvalidRequest);
}

#[tokio::test]
async fn a_run_is_cancelled_and_its_machine_holds() {
    let server = TestServer::start().await;
    let (node, store) = (server.enrolled("web1").await, server.store().await);
    let refused = |error: slipway_server::Error| (error.body().code, error.to_string());
    let none = operate::cancel_run(&store, "web1").await.map_err(refused).expect_err("no run");
    assert_eq!(none, (ErrorCode::Conflict, "node web1 has no run".to_owned()));

    let first = start(&server).await;
    operate::cancel_run(&store, &first).await.unwrap();
    assert_eq!(state(&server).await, (NodeState::Enrolled, RunState::Failed), "nothing was done");
    assert_eq!(node.workflow(&server).await, None);

    let second = start(&server).await;
    node.workflow(&server).await.unwrap();
    ack(&server, &node, &second, &[event(1, 0, EventKind::Started)]).await;
    let cancelled = operate::cancel_run(&store, "web1").await.unwrap();
    assert_eq!(cancelled.id, second);
    assert_eq!(cancelled.steps[0].failure.as_ref().unwrap().reason, "cancelled by an operator");
    assert_eq!(state(&server).await, (NodeState::Failed, RunState::Failed));
    let note = event(2, 0, EventKind::Note("half-way".to_owned()));
    let told: EventAck = node.post_events(&server, &second, &[note]).await.json().await.unwrap();
    assert_eq!(told, EventAck { seq: 2, ended: true });
    assert_eq!(node.workflow(&server).await, None);
    let over = operate::cancel_run(&store, &second).await.map_err(refused).expect_err("over");
    assert_eq!(over, (ErrorCode::Conflict, format!("run {second} is over; there is nothing to cancel")));

    let third = start(&server).await;
    assert_eq!(node.workflow(&server).await.unwrap().run, third);
    let ids = |runs: Vec<slipway_protocol::RunStatus>| runs.into_iter().map(|run| run.id).collect::<Vec<_>>();
    let mut all = ids(operate::list_runs(&store, Some("web1")).await.unwrap());
    assert_eq!(ids(operate::list_runs(&store, None).await.unwrap()), all);
    all.sort();
    let mut expect = [first, second, third];
    expect.sort();
    assert_eq!(all, expect);
}

#[tokio::test]
async fn logs_are_put_together_and_may_be_compressed() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let post = async |offset: usize, body: Vec<u8>, encoding: Option<&str>| {
        let url = server.url(&format!("/v1/node/logs?boot_id=b1&offset={offset}"));
        let request = encoding
            .iter()
            .fold(node.client.post(url), |request, encoding| request.header("content-encoding", *encoding));
        request.body(body).send().await.unwrap()
    };
    let ok = StatusCode::NO_CONTENT;
    assert_eq!(post(0, b"one\n".to_vec(), None).await.status(), ok);
    let compressed = gzip(b"two\n");
    assert_eq!(post(4, compressed.clone(), Some("gzip")).await.status(), ok);
    assert_eq!(post(4, compressed, Some("gzip")).await.status(), ok, "sent again");
    assert_eq!(operate::node_log(&server.store().await, "web1", LogType::Installer, None).await.unwrap(), "one\ntwo\n");

    let bomb = gzip(&vec![0; slipway_protocol::MAX_REQUEST_BYTES + 1]);
    assert_eq!(refusal(post(8, bomb, Some("gzip")).await).await.code, ErrorCode::TooLarge);
    let big = vec![b'a'; slipway_protocol::MAX_REQUEST_BYTES + 1];
    assert_eq!(refusal(post(8, big, None).await).await.code, ErrorCode::TooLarge);
    assert_eq!(refusal(post(8, b"x".to_vec(), Some("gzip")).await).await.code, ErrorCode::InvalidRequest);
    assert_eq!(refusal(post(8, b"x".to_vec(), Some("br")).await).await.code, ErrorCode::InvalidRequest);
}

#[tokio::test]
async fn the_logs_of_a_node_are_bounded() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let post = async |boot: &str, offset: usize, body: Vec<u8>| {
        let url = server.url(&format!("/v1/node/logs?boot_id={boot}&offset={offset}"));
        let request = node.client.post(url).header("content-encoding", "gzip").body(body);
        request.send().await.unwrap()
    };
    // Each chunk repeats all but one byte of the one before, to keep the offsets small.
    let chunk = gzip(&vec![b'a'; slipway_protocol::MAX_REQUEST_BYTES]);
    for offset in 0..18 {
        assert_eq!(post("b0", offset, chunk.clone()).await.status(), StatusCode::NO_CONTENT);
    }
    let count = async |sql: &'static str| {
        let mut connection = server.store().await.read().await.unwrap();
        db::query(sql).fetch_one(&mut connection).await.unwrap().get::<i64>("n").unwrap()
    };
    let stored = count("SELECT SUM(LENGTH(data)) AS n FROM logs").await;
    assert!((32 << 20..=64 << 20).contains(&stored), "{stored}");

    // None of these begins at the start of its boot's log.
    for boot in 1..=12 {
        assert_eq!(post(&format!("b{boot}"), 5, gzip(b"line\n")).await.status(), StatusCode::NO_CONTENT);
    }
    assert_eq!(count("SELECT COUNT(DISTINCT boot_id) AS n FROM logs").await, 8);
    let long = post(&"b".repeat(65), 0, gzip(b"line\n")).await;
    assert_eq!(refusal(long).await.code, ErrorCode::InvalidRequest);
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn the_time_is_told_to_anyone() {
    let server = TestServer::start().await;
    let response = server.client().get(server.url("/v1/time")).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::NO_CONTENT);
    assert!(response.headers().contains_key("date"));
}

#[tokio::test]
async fn a_refusal_is_heard_by_a_client_that_still_sends() {
    let server = TestServer::start().await;
    for _ in 0..5 {
        let request = server.client().post(server.url("/v1/node/events")).bearer_auth("nobody");
        let answer = request.body(vec![b' '; 6 << 20]).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    }
}
