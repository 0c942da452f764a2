//! Agents of installed systems: their requests, what operators see of them and have them do.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use slipway_protocol::{
    Agent, AgentCredentials, AgentStatus, Digest, ErrorCode, FlagKind, Heartbeat, HeartbeatAnswer, NodeState,
    NodeStatus, Severity, TaskOptions, TaskProgress, TaskReport, TaskState, TaskStatus,
};
use slipway_server::base::random::token_hash;
use slipway_server::base::time::{Millis, now};
use slipway_server::node::noticing;
use slipway_server::node::reports::agent::{self, Telling};
use slipway_server::node::tasks;
use slipway_server::operate;
use slipway_server::rules::drain::{self, Recipe};
use slipway_server::store::{self, agents, db, history, nodes};

use crate::installing::{add_system, install, report_path, web1};
use crate::program::{fail, succeed};
use crate::support::{Node, TestServer, refusal};

const MINUTE: Millis = 60_000;

/// A server and a node whose system runs and has an agent, with its token.
pub async fn with_agent() -> (TestServer, Node, String) {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let token = give_agent(&server, &node).await;
    (server, node, token)
}

/// Installs a system with an agent that drains a unit on a node, and returns the token of the agent.
pub async fn give_agent(server: &TestServer, node: &Node) -> String {
    let recipe: Recipe = "systemd=app.service".parse().unwrap();
    let mut settings = Agent::default();
    drain::add(&mut settings, &[recipe]);
    add_system(server, |system| system.agent = Some(settings)).await.unwrap();
    let run = install(server, node).await;
    let reporter = run.steps.iter().find_map(|step| match &step.action {
        slipway_protocol::Action::BootReporter(reporter) => Some(reporter.clone()),
        _ => None,
    });
    let reporter = reporter.expect("a step that installs the agent");
    assert!(reporter.agent.as_ref().is_some_and(|agent| agent.image.is_some()), "{reporter:?}");
    let answer = server.client().post(server.url(&report_path(&run))).body("hostname=web1").send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let answer = post(server, "/v1/agent", reporter.token.reveal(), &Value::Null).await;
    let token = answer.json::<AgentCredentials>().await.unwrap().token.reveal().to_owned();
    beat(server, &token, None).await;
    token
}

/// Stores an agent that drains a node, and what it did, as if it had reported.
pub async fn pretend(server: &TestServer, node: &str) {
    let store = server.store().await;
    let mut transaction = store.write().await.unwrap();
    let mut node = nodes::find(&mut transaction, node).await.unwrap().unwrap();
    let tasks = ["logs", "reboot", "boot-slipway", "drain", "rotate-keys"].map(str::to_owned).into();
    let status = AgentStatus {
        run: node.run.clone().unwrap(),
        version: "0.1.0".to_owned(),
        up_since: now() - 50 * MINUTE,
        boot_seen_at: now(),
        system_state: Some("degraded".to_owned()),
        failed_units: vec!["srv-a.mount".to_owned()],
        changed_at: now(),
        tasks,
        ..AgentStatus::default()
    };
    let agent = agents::Agent {
        node: node.id.clone(),
        run: status.run.clone(),
        token_hash: format!("hash of {}", node.id),
        next_hash: None,
        issued_at: now(),
        is_used: true,
        removed: false,
        status: Some(status),
    };
    agents::save(&mut transaction, &agent).await.unwrap();
    for (number, state) in [TaskState::Failed, TaskState::Running].into_iter().enumerate() {
        let line = Some("still runs: app.service".to_owned());
        let task = TaskStatus {
            id: format!("{}{number}", node.id),
            name: "drain".to_owned(),
            how: TaskOptions::default(),
            state,
            limit_seconds: 600,
            asked_at: now(),
            started_at: Some(now()),
            boot_id: Some("boot-1".to_owned()),
            ended_at: Some(now()),
            run: None,
            reason: line.clone(),
            line,
            output: Some("stopping app.service\nstill runs: app.service\n".to_owned()),
        };
        store::tasks::save(&mut transaction, &node.id, &task).await.unwrap();
    }
    (node.state, node.key_left) = (NodeState::Draining, true);
    nodes::save(&mut transaction, &node).await.unwrap();
    store::commit(transaction).await.unwrap();
}

async fn post(server: &TestServer, path: &str, token: &str, body: &Value) -> reqwest::Response {
    let request = server.client().request(Method::POST, server.url(path)).bearer_auth(token);
    let request = if body.is_null() { request } else { request.json(body) };
    request.send().await.unwrap()
}

fn heartbeat(server: &TestServer, task: Option<TaskReport>) -> Heartbeat {
    Heartbeat {
        boot_id: "boot-1".to_owned(),
        version: "0.1.0".to_owned(),
        uptime_seconds: 0,
        image: None,
        system_state: Some("running".to_owned()),
        failed_units: Vec::new(),
        tasks: ["logs", "reboot", "boot-slipway", "drain"].map(str::to_owned).into(),
        ca: format!("sha256:{}", token_hash(&server.ca())).parse::<Digest>().unwrap(),
        task,
    }
}

async fn beat(server: &TestServer, token: &str, task: Option<TaskReport>) -> HeartbeatAnswer {
    let beat = serde_json::to_value(heartbeat(server, task)).unwrap();
    let answer = post(server, "/v1/agent/heartbeat", token, &beat).await;
    assert_eq!(answer.status(), StatusCode::OK);
    answer.json().await.unwrap()
}

fn reported(id: &str, progress: TaskProgress, line: &str) -> Option<TaskReport> {
    let line = Some(line.to_owned());
    Some(TaskReport { id: id.to_owned(), progress, reason: line.clone(), line, output: None })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_is_checked_and_its_token_ends_with_the_node() {
    let (server, _, token) = with_agent().await;
    let good = serde_json::to_value(heartbeat(&server, None)).unwrap();
    let with = |key: &str, value: Value| {
        let mut beat = good.clone();
        beat[key] = value;
        beat
    };
    let long = "x".repeat(401);
    let report = |key: &str, value: &str| json!({ "id": "0a", "progress": "failed", key: value });
    for bad in [
        with("boot_id", json!("a b")),
        with("boot_id", json!("")),
        with("version", json!("1\u{1b}[2J")),
        with("failed_units", json!(vec!["a.service"; 33])),
        with("failed_units", json!(["no unit"])),
        with("tasks", json!(["Drain"])),
        with("tasks", json!(vec!["a"; 33])),
        with("ca", json!("md5:00")),
        with("uptime_seconds", json!(-1)),
        with("task", report("line", &long)),
        with("task", report("output", &"x".repeat(16_385))),
        with("unknown", json!(1)),
        json!([]),
    ] {
        let refused = refusal(post(&server, "/v1/agent/heartbeat", &token, &bad).await).await;
        assert_eq!(refused.code, ErrorCode::InvalidRequest, "{bad}: {refused:?}");
    }
    let huge = with("system_state", json!("x".repeat(1 << 20)));
    assert_eq!(refusal(post(&server, "/v1/agent/heartbeat", &token, &huge).await).await.code, ErrorCode::TooLarge);
    // An uptime of ages is no reason to fail.
    let old = with("uptime_seconds", json!(u64::MAX));
    assert_eq!(post(&server, "/v1/agent/heartbeat", &token, &old).await.status(), StatusCode::OK);
    beat(&server, &token, None).await;
    let stranger = refusal(post(&server, "/v1/agent/heartbeat", "guess", &good).await).await;
    assert_eq!(stranger.code, ErrorCode::Unauthenticated);
    // What it prints cannot give orders to a terminal.
    let task: TaskStatus = ask(&server, "logs").await;
    beat(&server, &token, reported(&task.id, TaskProgress::Accepted, "")).await;
    beat(&server, &token, reported(&task.id, TaskProgress::Failed, "\u{1b}[2J\u{202e}x")).await;
    let shown = succeed(&server.data_path(), &["node", "agent", "web1"]);
    assert!(shown.contains("\\u{1b}[2J\\u{202e}x") && !shown.contains('\u{1b}'), "{shown}");

    succeed(&server.data_path(), &["node", "decommission", "--yes", "web1"]);
    let refused = refusal(post(&server, "/v1/agent/heartbeat", &token, &good).await).await;
    assert_eq!(refused.code, ErrorCode::Decommissioned, "{refused:?}");
    assert_eq!(web1(&server).await.agent, None);
}

async fn ask(server: &TestServer, name: &str) -> TaskStatus {
    let path = "/v1/operator/nodes/web1/tasks";
    let answer = post(server, path, &server.operator_token(), &json!({ "name": name })).await;
    assert_eq!(answer.status(), StatusCode::ACCEPTED);
    answer.json().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_drain_reboot_and_reinstall_a_running_machine() {
    let (server, node, token) = with_agent().await;
    let data = server.data_path();
    server.has_listened_long();
    let said = fail(&data, &["node", "drain", "web1"]);
    assert!(said.contains("standard input is not a terminal; give --yes"), "{said}");
    succeed(&data, &["node", "drain", "--yes", "--no-wait", "--timeout", "5m", "web1"]);
    assert_eq!(web1(&server).await.state, NodeState::Draining);
    let task = beat(&server, &token, None).await.task.expect("a task");
    assert_eq!((task.name.as_str(), task.limit_seconds), ("drain", 300));
    beat(&server, &token, reported(&task.id, TaskProgress::Accepted, "")).await;
    beat(&server, &token, reported(&task.id, TaskProgress::Running, "still runs: app.service")).await;
    let said = succeed(&data, &["status"]);
    assert!(said.contains("the machine is being drained: still runs: app.service"), "{said}");
    let said = fail(&data, &["node", "reboot", "--yes", "web1"]);
    assert!(said.contains("is busy: the machine is being drained"), "{said}");
    let done = beat(&server, &token, reported(&task.id, TaskProgress::Succeeded, "stopped: app.service")).await;
    assert_eq!(done.task, None);
    let known = web1(&server).await;
    assert_eq!((known.state, known.task.unwrap().state), (NodeState::Draining, TaskState::Succeeded));
    let said = succeed(&data, &["status"]);
    assert!(said.contains("the installed system is drained"), "{said}");
    // The same report again changes nothing.
    let again = beat(&server, &token, reported(&task.id, TaskProgress::Failed, "no")).await;
    assert_eq!((again.task, web1(&server).await.state), (None, NodeState::Draining));
    succeed(&data, &["node", "drain", "--undo", "--no-wait", "web1"]);
    let task = beat(&server, &token, None).await.task.expect("a task");
    assert!(task.how.undo);
    beat(&server, &token, reported(&task.id, TaskProgress::Accepted, "")).await;
    beat(&server, &token, reported(&task.id, TaskProgress::Succeeded, "")).await;
    assert_eq!(web1(&server).await.state, NodeState::Running);

    let said = fail(&data, &["node", "task", "--yes", "web1", "format"]);
    assert!(said.contains("may not do \"format\", but logs, reboot, boot-slipway, drain"), "{said}");
    let said = fail(&data, &["run", "start", "web1", "--os", "debian"]);
    assert!(said.contains("give --yes"), "{said}");
    succeed(&data, &["run", "start", "--yes", "web1", "--os", "debian"]);
    let task = beat(&server, &token, None).await.task.expect("a task");
    assert_eq!(task.name, "boot-slipway");
    let said = succeed(&data, &["status"]);
    assert!(said.contains("it is to be restarted into slipway by its agent"), "{said}");
    // A run that is taken back before the agent has begun takes the task with it.
    succeed(&data, &["run", "cancel", "--yes", &web1(&server).await.run.unwrap().id]);
    assert_eq!(beat(&server, &token, None).await.task, None);
    assert_eq!(web1(&server).await.task.unwrap().state, TaskState::Withdrawn);
    succeed(&data, &["run", "start", "--yes", "web1", "--os", "debian"]);
    let task = beat(&server, &token, None).await.task.expect("a task");
    beat(&server, &token, reported(&task.id, TaskProgress::Accepted, "")).await;
    let node = Node::enrol(&server, node.machine).await;
    node.workflow(&server).await.expect("the run");
    assert_eq!(web1(&server).await.task.unwrap().state, TaskState::Succeeded);
    let beat = serde_json::to_value(heartbeat(&server, None)).unwrap();
    let over = refusal(post(&server, "/v1/agent/heartbeat", &token, &beat).await).await;
    assert_eq!(over.code, ErrorCode::TokenExpired);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_whose_machine_restarts_ends_as_it_must() {
    let (server, _, token) = with_agent().await;
    let restarted = |boot: &str| {
        let beat = Heartbeat { boot_id: boot.to_owned(), ..heartbeat(&server, None) };
        serde_json::to_value(beat).unwrap()
    };
    for (number, (name, expect, reason)) in [
        ("reboot", TaskState::Succeeded, None),
        ("drain", TaskState::Failed, Some("the machine was restarted before it was done")),
        ("boot-slipway", TaskState::Failed, Some("the machine was restarted, and started its installed system again")),
    ]
    .into_iter()
    .enumerate()
    {
        let boot = format!("boot-{number}");
        post(&server, "/v1/agent/heartbeat", &token, &restarted(&boot)).await;
        let task = ask(&server, name).await;
        let mut accepted = restarted(&boot);
        accepted["task"] = json!({ "id": task.id, "progress": "accepted" });
        post(&server, "/v1/agent/heartbeat", &token, &accepted).await;
        let answer = post(&server, "/v1/agent/heartbeat", &token, &restarted(&format!("boot-{}", number + 1))).await;
        assert_eq!(answer.json::<HeartbeatAnswer>().await.unwrap().task, None, "{name} is not done twice");
        let known = web1(&server).await;
        let ended = known.task.unwrap();
        assert_eq!((ended.state, ended.reason.as_deref(), known.state), (expect, reason, NodeState::Running), "{name}");
    }
    // One of which the agent knows nothing any more, in the same boot.
    let task = ask(&server, "drain").await;
    let mut accepted = restarted("boot-3");
    accepted["task"] = json!({ "id": task.id, "progress": "accepted" });
    post(&server, "/v1/agent/heartbeat", &token, &accepted).await;
    post(&server, "/v1/agent/heartbeat", &token, &restarted("boot-3")).await;
    let ended = web1(&server).await.task.unwrap();
    assert_eq!(ended.state, TaskState::Failed);
    assert!(ended.reason.unwrap().starts_with("the agent was started again"), "{:?}", ended.id);
}

/// The machine crashes between the look at its agent and the task: its power does what the agent cannot.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_agent_falls_silent_is_booted_by_power() {
    let (server, _, _) = with_agent().await;
    let data = server.data_path();
    server.has_listened_long();
    succeed(&data, &["node", "power", "set", "web1", "--hook", "ipmi", "--mode", "recorder"]);
    let said = fail(&data, &["run", "start", "web1", "--os", "debian"]);
    assert!(said.contains("give --yes"), "{said}");
    succeed(&data, &["run", "start", "--yes", "web1", "--os", "debian"]);
    let known = web1(&server).await;
    let asked = known.task.unwrap();
    assert_eq!((asked.name.as_str(), known.power.unwrap().act), ("boot-slipway", None));
    let store = server.store().await;
    let at = asked.asked_at;
    for (later, expect) in [(2 * MINUTE, TaskState::Asked), (4 * MINUTE, TaskState::Failed)] {
        tasks::end_forgotten(&store, 0, at + later).await.unwrap();
        assert_eq!(web1(&server).await.task.unwrap().state, expect, "{later} ms later");
    }
    let act = web1(&server).await.power.unwrap().act.expect("an act");
    assert_eq!((act.act, act.run), (slipway_protocol::PowerAct::Boot, asked.run));
}

/// An answer to an old heartbeat, which is still held when the machine is in another boot, changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_held_heartbeat_counts_for_the_moment_in_which_it_came() {
    let (server, _, token) = with_agent().await;
    let old = serde_json::to_value(heartbeat(&server, None)).unwrap();
    let held = {
        let request = server.client().post(server.url("/v1/agent/heartbeat?wait=5")).bearer_auth(&token).json(&old);
        tokio::spawn(request.send())
    };
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let new = Heartbeat { boot_id: "boot-2".to_owned(), ..heartbeat(&server, None) };
    post(&server, "/v1/agent/heartbeat", &token, &serde_json::to_value(new).unwrap()).await;
    assert_eq!(held.await.unwrap().unwrap().status(), StatusCode::OK);
    assert_eq!(web1(&server).await.agent.unwrap().boot_id, "boot-2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_agent_is_flagged_after_five_minutes() {
    let (server, _, token) = with_agent().await;
    let store = server.store().await;
    let change = async |sql: &'static str, at: Millis| {
        let mut transaction = store.write().await.unwrap();
        db::query(sql).bind(at.cast_signed()).execute(&mut transaction).await.unwrap();
        store::commit(transaction).await.unwrap();
    };
    let flags = async |at: Millis| {
        noticing::look(&store, 0, at).await.unwrap();
        let nodes: Vec<NodeStatus> = slipway_server::node::status::all_at(&store, at).await.unwrap();
        nodes.into_iter().flat_map(|node| node.flags).collect::<Vec<_>>()
    };
    change("UPDATE servers SET started_at = $1", 0).await;
    let heard = now();
    change("UPDATE node_contacts SET at = $1", heard).await;
    assert_eq!(flags(heard + 4 * MINUTE).await, []);
    let silent = flags(heard + 6 * MINUTE).await;
    let [flag] = &silent[..] else { panic!("{silent:?}") };
    assert_eq!(
        (flag.kind, flag.severity, flag.limit.as_deref()),
        (FlagKind::Silent, Severity::Bad, Some("silent.agent"))
    );
    assert_eq!(flag.reason, "has been silent while its system ran");
    succeed(&server.data_path(), &["node", "agent", "web1"]);
    // An agent that was removed on its machine is not missed.
    let left = server.client().delete(server.url("/v1/agent")).bearer_auth(&token).send().await.unwrap();
    assert_eq!(left.status(), StatusCode::NO_CONTENT);
    assert_eq!(flags(heard + 60 * MINUTE).await, []);
}

/// A day of heartbeats, each half a minute apart, by a clock that is set now and then.
#[tokio::test(flavor = "multi_thread")]
async fn a_day_of_heartbeats_renews_the_token_and_fills_no_table() {
    let (server, _, first) = with_agent().await;
    let store = server.store().await;
    let ca = server.ca();
    let telling = Telling { every_seconds: 30, ca: &ca };
    let (mut token, mut at, mut tokens) = (first, now(), 1);
    let events = async || history::range(&mut store.read().await.unwrap()).await.unwrap().1;
    let before = events().await;
    for beat in 0..2880u64 {
        at += 30_000;
        // The clock is set back and forth by an hour, and the answer to some heartbeats is lost.
        at = match beat {
            700 => at - 60 * MINUTE,
            1400 => at + 60 * MINUTE,
            _ => at,
        };
        let told = Heartbeat { uptime_seconds: beat * 30, ..heartbeat(&server, None) };
        let answer = agent::heartbeat(&store, &token, &told, telling, at).await.unwrap();
        if let Some(new) = answer.token.filter(|_| beat % 7 != 0) {
            token = new.reveal().to_owned();
            tokens += 1;
        }
        assert_eq!((answer.task, answer.ca), (None, None));
    }
    assert!((2..=4).contains(&tokens), "{tokens} tokens in a day");
    assert_eq!(events().await, before, "nothing happened");
    let known = agents::get_by_hash(&mut store.read().await.unwrap(), &token_hash(&token)).await.unwrap().unwrap();
    assert!(known.status.is_some_and(|status| status.up_since.abs_diff(now()) < 61 * MINUTE));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_is_rebooted_by_its_power_where_no_agent_is_heard() {
    let server = TestServer::start().await;
    let data = server.data_path();
    server.enrolled("web1").await;
    let said = fail(&data, &["node", "reboot", "--yes", "web1"]);
    assert!(
        said.contains("cannot be rebooted: no agent of its system") && said.contains("node power set web1"),
        "{said}"
    );
    let said = fail(&data, &["node", "drain", "--yes", "web1"]);
    assert!(said.contains("has no agent that reports") && said.contains("os add --agent"), "{said}");
    succeed(&data, &["node", "power", "set", "web1", "--hook", "ipmi", "--mode", "recorder"]);
    let said = succeed(&data, &["node", "reboot", "--yes", "web1"]);
    assert!(said.contains("node power show web1"), "{said}");
    let power = operate::show_power(&server.store().await, "web1").await.unwrap();
    assert_eq!(power.act.unwrap().act, slipway_protocol::PowerAct::Cycle);
}
