//! The boot reporter of an installed system, seen from the server.

use std::io::Write;

use reqwest::{Response, StatusCode};
use serde_json::{Value, json};
use slipway_protocol::{
    Action, BootKnown, BootReporter, BootStage, BootStatus, ErrorCode, NodeState, Outcome, Workflow,
};
use slipway_server::operate::{self, LogType, NewRun};

use crate::support::{Node, TestServer, refusal};
use crate::work::new_run;

const REPORTER: &str =
    "steps:\n- {name: report, action: {boot-reporter: {hours: 2}}}\n- {name: leave, action: {reboot: {}}}\n";
const SEED: &str = "- {name: seed, action: {seed-cloud-init: {instance_id: i-1}}}\n";

/// Has the node finish a run. Returns the workflow it got.
async fn finished(server: &TestServer, node: &Node, workflow: &str) -> Workflow {
    let new = NewRun { replace: true, ..new_run(workflow) };
    operate::start_run(&server.store().await, &server.ca(), "web1", new).await.unwrap();
    let workflow = node.workflow(server).await.unwrap();
    node.finish(server, &workflow).await;
    workflow
}

fn reporter(workflow: &Workflow) -> &BootReporter {
    let reporter = workflow.steps.iter().find_map(|step| match &step.action {
        Action::BootReporter(reporter) => Some(reporter),
        _ => None,
    });
    reporter.unwrap()
}

async fn ask(server: &TestServer, token: &str) -> Response {
    server.client().get(server.url("/v1/boot-report")).bearer_auth(token).send().await.unwrap()
}

async fn post(server: &TestServer, token: &str, body: &Value) -> Response {
    server.client().post(server.url("/v1/boot-report")).bearer_auth(token).json(body).send().await.unwrap()
}

async fn tell(server: &TestServer, token: &str, stage: &str, boot_id: &str) -> NodeState {
    let body = json!({"stage": stage, "boot_id": boot_id, "system_state": "starting"});
    let response = post(server, token, &body).await;
    assert_eq!(response.status(), StatusCode::OK);
    response.json::<BootKnown>().await.unwrap().node
}

async fn boot(server: &TestServer) -> BootStatus {
    operate::show_node(&server.store().await, "web1").await.unwrap().run.unwrap().boot.unwrap()
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text).unwrap();
    gzip.finish().unwrap()
}

async fn send_log(server: &TestServer, token: &str, body: Vec<u8>) -> Response {
    let url = server.url("/v1/boot-report/logs?boot_id=b-1");
    let request = server.client().post(url).bearer_auth(token).header("content-encoding", "gzip");
    request.body(body).send().await.unwrap()
}

#[tokio::test]
async fn a_system_is_followed_from_its_first_boot_until_it_runs() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let workflow = finished(&server, &node, REPORTER).await;
    let reporter = reporter(&workflow);
    assert_eq!((reporter.url.as_str(), reporter.hours), ("https://server.test:8443", 2));
    assert_eq!(reporter.ca, server.ca());
    let token = reporter.token.reveal();

    let known: BootKnown = ask(&server, token).await.json().await.unwrap();
    assert_eq!(known, BootKnown { node: NodeState::Booting, last: None });
    assert_eq!(tell(&server, token, "booting", "b-1").await, NodeState::Booting);
    assert_eq!(tell(&server, token, "booting", "b-1").await, NodeState::Booting);
    assert_eq!(tell(&server, token, "restarted", "b-2").await, NodeState::Booting);
    let known: BootKnown = ask(&server, token).await.json().await.unwrap();
    assert_eq!(known.last.map(|last| (last.stage, last.boot_id)), Some((BootStage::Restarted, "b-2".to_owned())));
    let server = server.restart().await;
    assert_eq!(tell(&server, token, "running", "b-2").await, NodeState::Running);
    let boot = boot(&server).await;
    assert_eq!((boot.report.stage, boot.boots), (BootStage::Running, 2));
    assert!(boot.first_at <= boot.at);
}

#[tokio::test]
async fn the_units_that_failed_are_kept_and_shown() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let workflow = finished(&server, &node, REPORTER).await;
    let token = reporter(&workflow).token.reveal();
    let body =
        |units: Value| json!({"stage": "running", "boot_id": "b", "system_state": "degraded", "failed_units": units});
    let units = json!(["cloud-init.service", "srv-my\\x2ddata.mount"]);
    assert_eq!(post(&server, token, &body(units.clone())).await.status(), StatusCode::OK);
    assert_eq!(json!(boot(&server).await.report.failed_units), units);
    let node = operate::show_node(&server.store().await, "web1").await.unwrap();
    assert_eq!(json!(node)["run"]["boot"]["report"]["failed_units"], units);
    for bad in [json!(["a\u{1b}[2J.service"]), json!(["no unit"]), json!(vec!["a.service"; 33]), json!("a.service")] {
        assert_eq!(refusal(post(&server, token, &body(bad)).await).await.code, ErrorCode::InvalidRequest);
    }
}

#[tokio::test]
async fn a_node_whose_reporter_was_left_out_is_not_awaited() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let new = new_run(REPORTER);
    operate::start_run(&server.store().await, &server.ca(), "web1", new).await.unwrap();
    let workflow = node.workflow(&server).await.unwrap();
    assert!(reporter(&workflow).optional, "unless the workflow says otherwise");
    let outcome =
        |action: &Action| Outcome { left_out: matches!(action, Action::BootReporter(_)), ..Outcome::default() };
    node.finish_with(&server, &workflow, outcome).await;
    let state = operate::show_node(&server.store().await, "web1").await.unwrap().state;
    assert_eq!(state, NodeState::Installed);
}

#[tokio::test]
async fn a_system_whose_cloud_init_is_awaited_runs_when_that_has_reported() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let workflow = finished(
        &server,
        &node,
        &format!("phone_home: true\n{REPORTER}{SEED}").replace("- {name: leave, action: {reboot: {}}}\n", ""),
    )
    .await;
    let token = reporter(&workflow).token.reveal();
    assert_eq!(tell(&server, token, "running", "b-1").await, NodeState::Booting);
    let url = server.url(&crate::installing::report_path(&workflow));
    server.client().post(url).body("hostname=web1").send().await.unwrap();
    assert_eq!(tell(&server, token, "running", "b-1").await, NodeState::Running);
}

#[tokio::test]
async fn a_reporter_nobody_waits_for_is_told_so() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let workflow = finished(&server, &node, REPORTER).await;
    let token = reporter(&workflow).token.reveal();
    assert_eq!(refusal(ask(&server, "nonsense").await).await.code, ErrorCode::NotFound);
    let newer = finished(&server, &node, REPORTER).await;
    assert_eq!(refusal(ask(&server, token).await).await.code, ErrorCode::TokenExpired);
    let body = json!({"stage": "running", "boot_id": "b"});
    assert_eq!(refusal(post(&server, token, &body).await).await.code, ErrorCode::TokenExpired);
    let state = operate::show_node(&server.store().await, "web1").await.unwrap().state;
    assert_eq!(state, NodeState::Booting, "an old system says nothing of the new one");
    operate::decommission_node(&server.store().await, "web1").await.unwrap();
    let token = reporter(&newer).token.reveal();
    assert_eq!(refusal(ask(&server, token).await).await.code, ErrorCode::Decommissioned);
}

#[tokio::test]
async fn a_reporter_that_says_nothing_of_sense_is_counted() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let workflow = finished(&server, &node, REPORTER).await;
    let token = reporter(&workflow).token.reveal();
    for _ in 0..60 {
        assert_eq!(refusal(post(&server, token, &json!([])).await).await.code, ErrorCode::InvalidRequest);
        assert_eq!(refusal(send_log(&server, token, b"plain".to_vec()).await).await.code, ErrorCode::InvalidRequest);
    }
    assert_eq!(refusal(ask(&server, token).await).await.code, ErrorCode::TooManyRequests);
}

#[tokio::test]
async fn the_logs_of_a_boot_are_kept_by_their_type() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let workflow = finished(&server, &node, REPORTER).await;
    let token = reporter(&workflow).token.reveal();
    let log = async |kind| operate::node_log(&server.store().await, "web1", kind, None).await.unwrap();
    assert_eq!(log(LogType::HostBoot).await, "");
    for number in 0..20 {
        let body = gzip(format!("log {number}\n").as_bytes());
        assert_eq!(send_log(&server, token, body).await.status(), StatusCode::NO_CONTENT);
    }
    assert_eq!(log(LogType::HostBoot).await, "log 19\n");
    assert_eq!(log(LogType::Installer).await, "");
    let operator = server.operator_token();
    let url = server.url("/v1/operator/nodes/web1/log?type=host_boot");
    let text = server.client().get(url).bearer_auth(operator).send().await.unwrap().text().await.unwrap();
    assert_eq!(text, "log 19\n");

    assert_eq!(refusal(send_log(&server, token, b"plain".to_vec()).await).await.code, ErrorCode::InvalidRequest);
    assert_eq!(refusal(send_log(&server, token, gzip(&vec![0; 5 << 20])).await).await.code, ErrorCode::TooLarge);
    let noise: Vec<u8> =
        (0..2_000_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[..1].to_vec()).collect();
    assert_eq!(send_log(&server, token, gzip(&noise)).await.status(), StatusCode::NO_CONTENT);
    assert!(!log(LogType::HostBoot).await.is_empty(), "however large, the newest stays");
    let bad = json!({"stage": "running", "boot_id": "a\u{1b}[2J"});
    assert_eq!(refusal(post(&server, token, &bad).await).await.code, ErrorCode::InvalidRequest);
}

#[tokio::test]
async fn a_reporter_goes_on_while_a_newer_run_only_waits() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let workflow = finished(&server, &node, REPORTER).await;
    let token = reporter(&workflow).token.reveal();
    let store = server.store().await;
    operate::start_run(&store, &server.ca(), "web1", new_run(REPORTER)).await.unwrap();
    assert_eq!(tell(&server, token, "booting", "b-1").await, NodeState::Booting);
    operate::cancel_run(&store, "web1").await.unwrap();
    assert_eq!(tell(&server, token, "running", "b-1").await, NodeState::Running);

    operate::start_run(&store, &server.ca(), "web1", new_run(REPORTER)).await.unwrap();
    node.workflow(&server).await.unwrap();
    assert_eq!(refusal(ask(&server, token).await).await.code, ErrorCode::TokenExpired);
}
