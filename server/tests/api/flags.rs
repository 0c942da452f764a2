//! Trouble that the server notices by itself: in the status of nodes, in the history, and in what ends a run.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use slipway_protocol::{
    Event, EventAck, EventKind, Flag, FlagKind, NodeState, NodeStatus, Progress, RunState, Severity, SiteEvent,
    SiteEventKind, SiteStatus,
};
use slipway_server::base::time::{Millis, now};
use slipway_server::boot_files::outdated;
use slipway_server::node::noticing;
use slipway_server::operate;
use slipway_server::rules::limits::Change;
use slipway_server::store::history::{self, Filter, Place};
use slipway_server::store::run_tokens::Purpose;
use slipway_server::store::{self, db, node_contacts};

use crate::installing::{add_system, debian, install, start, web1};
use crate::program::{fail, run, succeed};
use crate::support::{Node, TestServer};
use crate::work::new_run;

const MINUTE: Millis = 60_000;
const WORKFLOW: &str = "steps:\n- {name: erase, action: {erase-disk: {}}}\n- {name: leave, action: {reboot: {}}}\n";

/// A server that has run for long, so that it may judge who is silent.
async fn server() -> TestServer {
    let server = TestServer::start().await;
    change_time(&server, "UPDATE servers SET started_at = $1", 0).await;
    server
}

/// Changes a time in the database.
async fn change_time(server: &TestServer, sql: &'static str, at: Millis) {
    let store = server.store().await;
    let mut transaction = store.write().await.unwrap();
    db::query(sql).bind(at.cast_signed()).execute(&mut transaction).await.unwrap();
    store::commit(transaction).await.unwrap();
}

/// Has the server look for trouble, as it does every few seconds.
async fn look(server: &TestServer) {
    noticing::look(&server.store().await, 0, now()).await.unwrap();
}

fn kinds(node: &NodeStatus) -> Vec<FlagKind> {
    node.flags.iter().map(|flag| flag.kind).collect()
}

/// The flags of web1, over HTTPS. Their commands are ones that the program has.
async fn flags(server: &TestServer) -> Vec<Flag> {
    let request = server.client().get(server.url("/v1/operator/nodes/web1")).bearer_auth(server.operator_token());
    let flags = request.send().await.unwrap().json::<NodeStatus>().await.unwrap().flags;
    for flag in &flags {
        let words: Vec<&str> = flag.command.split(' ').collect();
        assert_eq!(words[0], "slipway-server");
        // Nothing may be logged or good to compare with yet, which ends with 1.
        let output = run(&server.data_path(), &words[1..]);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{}: {output:?}", flag.command);
    }
    flags
}

/// The events of flags.
async fn flagged(server: &TestServer) -> Vec<SiteEvent> {
    events(server, &[SiteEventKind::Flagged, SiteEventKind::Unflagged]).await
}

/// The events of these kinds, oldest first.
async fn events(server: &TestServer, kinds: &[SiteEventKind]) -> Vec<SiteEvent> {
    let filter = Filter { kinds: Some(kinds.to_vec()), ..Filter::default() };
    let store = server.store().await;
    history::read(&mut store.read().await.unwrap(), &filter, Place::After(0), 100).await.unwrap()
}

fn event(seq: u64, kind: EventKind) -> Event {
    Event { seq, at: 1, step: 0, attempt: 1, kind }
}

/// A node in the first step of a run.
async fn in_a_step(server: &TestServer) -> (Node, String) {
    let node = server.enrolled("web1").await;
    let run = start(server, new_run(WORKFLOW)).await.unwrap().id;
    node.workflow(server).await.unwrap();
    assert_eq!(node.post_events(server, &run, &[event(1, EventKind::Started)]).await.status(), StatusCode::OK);
    (node, run)
}

async fn last_heard(server: &TestServer, node: &Node, at: Millis) {
    let store = server.store().await;
    let mut transaction = store.write().await.unwrap();
    node_contacts::seen(&mut transaction, &node.enrolment.node, at).await.unwrap();
    store::commit(transaction).await.unwrap();
}

#[tokio::test]
async fn a_silent_machine_is_flagged_and_unflagged() {
    let server = server().await;
    let (node, run) = in_a_step(&server).await;
    assert_eq!(flags(&server).await, []);
    look(&server).await;
    assert_eq!(flagged(&server).await, []);

    let heard = now() - 5 * MINUTE;
    last_heard(&server, &node, heard).await;
    let found = flags(&server).await;
    let expect = Flag {
        kind: FlagKind::Silent,
        severity: Severity::Bad,
        since: heard,
        step: None,
        limit: Some("silent.step".to_owned()),
        reason: "has been silent in step 1/2 erase".to_owned(),
        cause: found[0].cause.clone(),
        command: "slipway-server node log web1".to_owned(),
    };
    assert_eq!(found, std::slice::from_ref(&expect));
    for _ in 0..2 {
        look(&server).await;
    }
    let [begun] = flagged(&server).await.try_into().unwrap();
    assert_eq!((begun.kind, begun.node.as_deref()), (SiteEventKind::Flagged, Some(node.enrolment.node.as_str())));
    assert_eq!(
        (begun.name.as_deref(), begun.message.as_str()),
        (Some("web1"), "the machine has been silent in step 1/2 erase")
    );
    assert_eq!(serde_json::from_value::<Flag>(begun.report.unwrap()).unwrap(), expect);

    let table = succeed(&server.data_path(), &["status"]);
    let message = "has been silent in step 1/2 erase for 5 min ";
    assert!(table.contains(message) && table.contains(" s → slipway-server node log web1\n"), "{table}");
    let text = succeed(&server.data_path(), &["status", "web1"]);
    assert!(
        text.contains("\nsilent, for 5 min ") && text.contains("\n  next: slipway-server node log web1\n"),
        "{text}"
    );
    let json = succeed(&server.data_path(), &["status", "--json"]);
    assert_eq!(serde_json::from_str::<NodeStatus>(&json).unwrap().flags, [expect]);
    assert!(json.contains("\"since_rfc3339\""), "{json}");

    let progress = EventKind::Progress(Progress { bytes: 5, ..Progress::default() });
    assert_eq!(node.post_events(&server, &run, &[event(2, progress)]).await.status(), StatusCode::OK);
    look(&server).await;
    assert_eq!(flags(&server).await, []);
    let [_, over] = flagged(&server).await.try_into().unwrap();
    assert_eq!(
        (over.kind, over.message.as_str()),
        (SiteEventKind::Unflagged, "over: the machine has been silent in step 1/2 erase")
    );
}

#[tokio::test]
async fn silence_before_the_server_listened_is_not_trouble() {
    let server = server().await;
    let (node, _) = in_a_step(&server).await;
    last_heard(&server, &node, now() - 5 * MINUTE).await;
    assert_eq!(flags(&server).await.len(), 1);
    change_time(&server, "UPDATE servers SET started_at = $1", now() - 1000).await;
    assert_eq!(flags(&server).await, []);
    look(&server).await;
    assert_eq!(flagged(&server).await, []);
    // What was noticed before is not over by the start of a server.
    change_time(&server, "UPDATE servers SET started_at = $1", 0).await;
    look(&server).await;
    change_time(&server, "UPDATE servers SET started_at = $1", now() - 1000).await;
    look(&server).await;
    assert_eq!((flags(&server).await.len(), flagged(&server).await.len()), (1, 1));
}

#[tokio::test]
async fn a_machine_that_waits_for_work_and_vanishes_is_flagged() {
    let server = server().await;
    let node = server.enrolled("web1").await;
    last_heard(&server, &node, now() - 4 * MINUTE).await;
    assert_eq!(flags(&server).await, []);
    last_heard(&server, &node, now() - 5 * MINUTE).await;
    let [flag] = flags(&server).await.try_into().unwrap();
    assert_eq!((flag.kind, flag.severity), (FlagKind::Silent, Severity::Warn));
    assert_eq!(flag.reason, "has been silent while it waited for work");
}

#[tokio::test]
async fn what_does_not_get_on_is_flagged() {
    let server = server().await;
    let node = server.enrolled("web1").await;
    add_system(&server, |_| {}).await.unwrap();
    start(&server, debian()).await.unwrap();
    change_time(&server, "UPDATE runs SET created_at = $1", now() - 16 * MINUTE).await;
    assert_eq!(flags(&server).await[0].reason, "has not fetched its run");
    look(&server).await;

    let workflow = node.workflow(&server).await.unwrap();
    assert_eq!(flags(&server).await, []);
    let fetched = now() - 6 * MINUTE;
    change_time(&server, "UPDATE runs SET started_at = $1", fetched).await;
    // Trouble of the same kind that took the place of the first one has its own time.
    let [flag] = flags(&server).await.try_into().unwrap();
    assert_eq!((flag.reason.as_str(), flag.since), ("has not begun its run", fetched));
    assert_eq!(flag.limit.as_deref(), Some("stuck.enrolled"));
    look(&server).await;
    let kinds: Vec<SiteEventKind> = flagged(&server).await.iter().map(|event| event.kind).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == SiteEventKind::Flagged).count(), 2, "{kinds:?}");
    assert_eq!(kinds.len(), 3, "{kinds:?}");

    node.finish(&server, &workflow).await;
    assert_eq!(web1(&server).await.state, NodeState::Booting);
    assert_eq!(flags(&server).await, []);
    // Before that, its machine started slipway.
    change_time(&server, "UPDATE nodes SET enrolled_at = $1", now() - 20 * MINUTE).await;
    change_time(&server, "UPDATE runs SET finished_at = $1", now() - 16 * MINUTE).await;
    let [flag] = flags(&server).await.try_into().unwrap();
    assert_eq!(flag.reason, "has not reported from its installed system");
    assert_eq!(flag.command, "slipway-server events --node web1");
}

#[tokio::test]
async fn a_step_without_progress_is_stuck_until_bytes_move() {
    let server = server().await;
    let (node, run) = in_a_step(&server).await;
    let steps = web1(&server).await.run.unwrap().steps;
    let began = steps[0].progressed_at.unwrap();
    let at = began - 61 * MINUTE;
    let store = server.store().await;
    let mut transaction = store.write().await.unwrap();
    let json = serde_json::to_string(&steps).unwrap().replace(&began.to_string(), &at.to_string());
    let sql = "UPDATE runs SET steps_json = $1";
    db::query(sql).bind(json).execute(&mut transaction).await.unwrap();
    store::commit(transaction).await.unwrap();
    let [flag] = flags(&server).await.try_into().unwrap();
    assert_eq!((flag.reason.as_str(), flag.since), ("has made no progress in step 1/2 erase", at));
    assert_eq!(flag.step.as_deref(), Some("erase"));
    let progress = |bytes| EventKind::Progress(Progress { bytes, ..Progress::default() });
    assert_eq!(node.post_events(&server, &run, &[event(2, progress(5))]).await.status(), StatusCode::OK);
    assert_eq!(flags(&server).await, []);
}

#[tokio::test]
async fn a_run_that_is_begun_again_and_again_loops() {
    let server = server().await;
    let (node, run) = in_a_step(&server).await;
    assert_eq!(node.post_events(&server, &run, &[event(2, EventKind::Started)]).await.status(), StatusCode::OK);
    let shown = web1(&server).await;
    assert_eq!((shown.run.as_ref().unwrap().begins, kinds(&shown)), (2, vec![]));
    assert_eq!(node.post_events(&server, &run, &[event(3, EventKind::Started)]).await.status(), StatusCode::OK);
    let [flag] = flags(&server).await.try_into().unwrap();
    assert_eq!((flag.kind, flag.reason.as_str()), (FlagKind::Looping, "began its run 3 times"));
}

#[tokio::test]
async fn a_machine_that_starts_slipway_again_and_again_loops() {
    let server = server().await;
    let mut node = server.enrolled("web1").await;
    for boot in 2..=3 {
        assert_eq!(flags(&server).await, [], "{boot}");
        node.machine.boot_id = format!("boot-{boot}");
        assert_eq!(node.machine.try_enrol(&server).await.status(), StatusCode::OK);
    }
    let [flag] = flags(&server).await.try_into().unwrap();
    assert_eq!((flag.kind, flag.reason.as_str()), (FlagKind::Looping, "started slipway 3 times within an hour"));
    change_time(&server, "UPDATE history SET at = $1 WHERE kind = 'enrolled'", now() - 61 * MINUTE).await;
    assert_eq!(flags(&server).await, []);
}

#[tokio::test]
async fn times_of_steps_are_kept_and_a_slow_step_is_flagged() {
    let server = server().await;
    let node = server.enrolled("web1").await;
    add_system(&server, |_| {}).await.unwrap();
    for _ in 0..5 {
        install(&server, &node).await;
    }
    let run = start(&server, debian()).await.unwrap().id;
    let workflow = node.workflow(&server).await.unwrap();
    let begin = Event { seq: workflow.next_seq, ..event(0, EventKind::Started) };
    assert_eq!(node.post_events(&server, &run, &[begin]).await.status(), StatusCode::OK);
    assert_eq!(flags(&server).await, []);
    let steps = web1(&server).await.run.unwrap().steps;
    let began = steps[0].started_at.unwrap();
    let store = server.store().await;
    let mut transaction = store.write().await.unwrap();
    let json = serde_json::to_string(&steps).unwrap().replace(&began.to_string(), &(began - MINUTE).to_string());
    let sql = "UPDATE runs SET steps_json = $1 WHERE id = $2";
    db::query(sql).bind(json).bind(&run).execute(&mut transaction).await.unwrap();
    store::commit(transaction).await.unwrap();
    let [flag] = flags(&server).await.try_into().unwrap();
    assert_eq!((flag.kind, flag.severity), (FlagKind::Slow, Severity::Warn));
    assert!(flag.reason.starts_with("is slow in step 1/5 erase-disk, which usually takes 0 s"), "{flag:?}");
}

#[tokio::test]
async fn trouble_with_a_node_ends_when_it_is_taken_out_of_service() {
    let server = server().await;
    let node = server.enrolled("web1").await;
    last_heard(&server, &node, now() - 6 * MINUTE).await;
    look(&server).await;
    operate::decommission_node(&server.store().await, "web1").await.unwrap();
    look(&server).await;
    let kinds: Vec<_> = flagged(&server).await.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [SiteEventKind::Flagged, SiteEventKind::Unflagged]);
    assert_eq!(flags(&server).await, []);
}

#[tokio::test]
async fn the_flags_of_a_removed_node_are_gone() {
    let server = server().await;
    let (node, run) = in_a_step(&server).await;
    last_heard(&server, &node, now() - MINUTE).await;
    look(&server).await;
    assert_eq!(flagged(&server).await.len(), 1);
    let store = server.store().await;
    assert_eq!(operate::cancel_run(&store, &run).await.unwrap().state, RunState::Failed);
    operate::decommission_node(&store, "web1").await.unwrap();
    operate::remove_node(&store, "web1").await.unwrap();
    let mut connection = store.read().await.unwrap();
    assert_eq!(store::flags::all(&mut connection, None).await.unwrap(), []);
}

async fn report_step(server: &TestServer, token: &str, body: &str) -> StatusCode {
    let form = "application/x-www-form-urlencoded";
    let request = server.client().post(server.url("/v1/report")).bearer_auth(token).header("content-type", form);
    request.body(body.to_owned()).send().await.unwrap().status()
}

#[tokio::test]
async fn a_report_of_an_earlier_run_is_recorded_and_flagged_until_one_is_accepted() {
    let server = server().await;
    let node = server.enrolled("web1").await;
    start(&server, new_run(WORKFLOW)).await.unwrap();
    let store = server.store().await;
    let (old, _) = operate::add_run_token(&store, "web1", Purpose::Steps).await.unwrap();
    let workflow = node.workflow(&server).await.unwrap();
    node.finish(&server, &workflow).await;
    start(&server, new_run(WORKFLOW)).await.unwrap();
    assert_eq!(report_step(&server, &old, "name=packages&status=init").await, StatusCode::OK, "its system goes on");
    node.workflow(&server).await.unwrap();
    for _ in 0..3 {
        assert_eq!(report_step(&server, &old, "name=packages&status=init").await, StatusCode::GONE);
    }
    let [event] = events(&server, &[SiteEventKind::ReportRefused]).await.try_into().unwrap();
    assert_eq!(event.name.as_deref(), Some("web1"));
    let expect =
        format!("external step from 127.0.0.1: run {} is over: node web1 has fetched a newer run", workflow.run);
    assert_eq!(event.message, expect);
    let [flag] = flags(&server).await.try_into().unwrap();
    assert_eq!((flag.kind, flag.since), (FlagKind::ReportRefused, event.at));
    assert_eq!(flag.reason, format!("sent a report that was not accepted: {expect}"));
    assert_eq!(flag.command, "slipway-server events --node web1 --kind report-refused");

    let (new, _) = operate::add_run_token(&store, "web1", Purpose::Steps).await.unwrap();
    assert_eq!(report_step(&server, &new, "name=packages&status=done").await, StatusCode::OK);
    assert_eq!(flags(&server).await, []);
}

#[tokio::test]
async fn a_report_without_a_known_token_is_the_nodes_at_its_address_and_never_a_strangers() {
    let server = server().await;
    let post = async |path: &str| {
        let client = server.client();
        client.post(server.url(path)).body("hostname=web1").send().await.unwrap().status()
    };
    assert_eq!(post("/v1/phone-home/nonsense").await, StatusCode::NOT_FOUND);
    assert_eq!(report_step(&server, "nonsense", "name=a").await, StatusCode::NOT_FOUND);
    assert_eq!(events(&server, &[SiteEventKind::ReportRefused]).await, []);

    server.enrolled("web1").await;
    assert_eq!(post("/v1/phone-home/nonsense").await, StatusCode::NOT_FOUND);
    let [event] = events(&server, &[SiteEventKind::ReportRefused]).await.try_into().unwrap();
    assert_eq!(event.name.as_deref(), Some("web1"));
    assert!(event.message.starts_with("phone home from 127.0.0.1: no run issued the token"), "{event:?}");
    assert!(!event.message.contains("nonsense"), "{event:?}");
    let bad = server.client().post(server.url("/v1/boot-report")).bearer_auth("nonsense").body("{}");
    assert_eq!(bad.send().await.unwrap().status(), StatusCode::NOT_FOUND);
    let found = events(&server, &[SiteEventKind::ReportRefused]).await;
    assert!(found[1].message.starts_with("boot report from 127.0.0.1: "), "{found:?}");
}

#[tokio::test]
async fn credentials_that_are_not_accepted_are_recorded_once() {
    let server = server().await;
    let node = server.enrolled("web1").await;
    operate::decommission_node(&server.store().await, "web1").await.unwrap();
    for path in ["/v1/node/heartbeat", "/v1/node/heartbeat"] {
        let refused = node.client.post(server.url(path)).send().await.unwrap();
        assert_eq!(refused.status(), StatusCode::GONE);
    }
    let refused = node.client.get(server.url("/v1/node/workflow?wait=0")).send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::GONE);
    let [event] = events(&server, &[SiteEventKind::CredentialRefused]).await.try_into().unwrap();
    let expect = "a request from 127.0.0.1 had credentials that were not accepted: an operator took this node out of \
                  service";
    assert_eq!((event.name.as_deref(), event.message.as_str()), (Some("web1"), expect));
}

async fn limits(server: &TestServer, method: Method, name: &str, body: Option<Value>) -> (StatusCode, Value) {
    let path = if name.is_empty() { "/v1/operator/limits".to_owned() } else { format!("/v1/operator/limits/{name}") };
    let request = server.client().request(method, server.url(&path)).bearer_auth(server.operator_token());
    let request = body.into_iter().fold(request, |request, body| request.json(&body));
    let response = request.send().await.unwrap();
    (response.status(), response.json().await.unwrap())
}

#[tokio::test]
async fn limits_are_set_for_a_site_and_for_an_operating_system() {
    let server = server().await;
    let node = server.enrolled("web1").await;
    last_heard(&server, &node, now() - 2 * MINUTE).await;
    assert_eq!(flags(&server).await, []);
    let said = succeed(&server.data_path(), &["limits", "set", "silent.waiting", "1m"]);
    assert_eq!(said, "silent.waiting flags after 1 min 0 s\n");
    assert_eq!(flags(&server).await.len(), 1);
    let table = succeed(&server.data_path(), &["limits", "list"]);
    assert!(table.contains("silent.waiting") && table.contains("1 min 0 s (changed)"), "{table}");
    let (status, all) = limits(&server, Method::GET, "", None).await;
    assert_eq!(status, StatusCode::OK);
    let waiting = all.as_array().unwrap().iter().find(|limit| limit["name"] == "silent.waiting").unwrap();
    assert_eq!((&waiting["flag_after"], &waiting["changed"]), (&json!(60), &json!(true)));
    let (status, reset) = limits(&server, Method::DELETE, "silent.waiting", None).await;
    assert_eq!((status, &reset["flag_after"]), (StatusCode::OK, &json!(300)));
    assert_eq!(flags(&server).await, []);

    for (name, body, code) in [
        ("silent.nothing", json!({"flag_after": 5}), StatusCode::NOT_FOUND),
        ("silent.waiting", json!({"flag_after": 0}), StatusCode::BAD_REQUEST),
        ("silent.waiting", json!({}), StatusCode::BAD_REQUEST),
        ("stuck.booting", json!({"end_after": 5000}), StatusCode::BAD_REQUEST),
        ("stuck.pending", json!({"end_after": 5}), StatusCode::BAD_REQUEST),
    ] {
        assert_eq!(limits(&server, Method::PUT, name, Some(body.clone())).await.0, code, "{name} {body}");
    }
    let refused = fail(&server.data_path(), &["limits", "set", "stuck.pending", "1h", "--end-after", "5m"]);
    assert!(refused.contains("would end a run before it flags"), "{refused}");

    let change = Change { flag_after: Some(60), end_after: None };
    add_system(&server, |system| _ = system.limits.insert("stuck.pending".to_owned(), change)).await.unwrap();
    start(&server, debian()).await.unwrap();
    change_time(&server, "UPDATE runs SET created_at = $1", now() - 2 * MINUTE).await;
    assert_eq!(flags(&server).await[0].reason, "has not fetched its run");
    let unknown = add_system(&server, |system| _ = system.limits.insert("nothing".to_owned(), change)).await;
    assert!(unknown.is_err_and(|error| error.to_string().contains("there is no limit \"nothing\"")));
}

#[tokio::test]
async fn a_run_ends_by_a_limit_that_says_so_and_by_no_other() {
    let server = server().await;
    let (node, run) = in_a_step(&server).await;
    last_heard(&server, &node, now() - 30 * MINUTE).await;
    look(&server).await;
    assert_eq!(web1(&server).await.run.unwrap().state, RunState::Running);
    let (status, set) =
        limits(&server, Method::PUT, "silent.step", Some(json!({"flag_after": 60, "end_after": 1200}))).await;
    assert_eq!((status, &set["end_after"]), (StatusCode::OK, &json!(1200)));
    last_heard(&server, &node, now() - 30 * MINUTE).await;
    for _ in 0..2 {
        look(&server).await;
    }
    let shown = web1(&server).await;
    let step = &shown.run.as_ref().unwrap().steps[0];
    let reason = "ended by a limit: nothing was heard from the machine for 20 min 0 s";
    assert_eq!((shown.state, step.failure.as_ref().unwrap().reason.as_str()), (NodeState::Failed, reason));
    let [ended] = events(&server, &[SiteEventKind::RunEnded]).await.try_into().unwrap();
    assert!(ended.message.starts_with("the run was ended by a limit: nothing was heard"), "{ended:?}");
    // The machine is told when it reports.
    let response = node.post_events(&server, &run, &[event(2, EventKind::Note("here".to_owned()))]).await;
    assert!(response.json::<EventAck>().await.unwrap().ended);
}

/// The flags of the site, over HTTPS.
async fn site_flags(server: &TestServer) -> Vec<Flag> {
    let request = server.client().get(server.url("/v1/operator/site")).bearer_auth(server.operator_token());
    request.send().await.unwrap().json::<SiteStatus>().await.unwrap().flags
}

#[tokio::test]
async fn boot_files_of_another_version_and_their_tokens_are_flagged_for_the_site() {
    let server = server().await;
    let (store, boot) = (server.store().await, server.folder.path().join("boot"));
    let look = async || outdated::look(&store, &server.data(), Some(&boot), now()).await.unwrap();
    look().await;
    assert_eq!(site_flags(&server).await, []);
    let manifest = json!({
        "id": "b1", "version": "0.0.1", "server": "https://server.test:8443", "ca_sha256": "0", "has_token": false,
        "parts": [], "assets": [],
    });
    std::fs::write(boot.join("manifest.json"), manifest.to_string()).unwrap();
    look().await;
    look().await;
    let [flag] = site_flags(&server).await.try_into().unwrap();
    assert_eq!((flag.kind, flag.severity), (FlagKind::BootFilesOutdated, Severity::Warn));
    assert!(flag.reason.contains("version 0.0.1") && flag.reason.contains("certificate authority"), "{flag:?}");
    let table = succeed(&server.data_path(), &["status"]);
    let expect = format!("{} → {}\n  {}\n", flag.reason, flag.command, flag.cause);
    assert!(table.ends_with(&expect), "{table}");
    let [event] = events(&server, &[SiteEventKind::Flagged]).await.try_into().unwrap();
    assert_eq!((event.node, event.message), (None, flag.reason));
    std::fs::remove_file(boot.join("manifest.json")).unwrap();
    look().await;
    assert_eq!(site_flags(&server).await, []);
    assert_eq!(events(&server, &[SiteEventKind::Unflagged]).await.len(), 1);

    let empty = server.folder.path().join("empty");
    outdated::look(&store, &server.data(), Some(&empty), now()).await.unwrap();
    let [flag] = site_flags(&server).await.try_into().unwrap();
    assert!(
        flag.reason.starts_with("there are no boot files in ") && flag.command.ends_with("media build"),
        "{flag:?}"
    );
}

#[tokio::test]
async fn tokens_of_a_node_out_of_service_are_useless() {
    let server = server().await;
    server.add_released("web1").await;
    let store = server.store().await;
    operate::add_token(&store, Some("web1"), None).await.unwrap();
    let table = succeed(&server.data_path(), &["token", "list"]);
    assert!(!table.contains("out of service"), "{table}");
    operate::decommission_node(&store, "web1").await.unwrap();
    let table = succeed(&server.data_path(), &["token", "list"]);
    assert!(table.contains("web1 (out of service)"), "{table}");
    let [token] = operate::list_tokens(&store).await.unwrap().try_into().unwrap();
    assert_eq!(token.useless.as_deref(), Some("node web1 is out of service"));
    let refused = fail(&server.data_path(), &["token", "add", "--node", "web1"]);
    assert!(refused.contains("node web1 is out of service: a token for it would let no machine in"), "{refused}");
}
