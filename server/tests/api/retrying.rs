//! A failed run is tried again with what it was asked for.

use reqwest::StatusCode;
use slipway_protocol::{
    DiskErasure, DiskHints, Erasure, Event, EventKind, Failure, NodeState, Outcome, RunState, RunStatus, StepState,
    Workflow,
};
use slipway_server::operate;
use slipway_server::store::systems::System;

use crate::installing::{add_system, debian, install, report_path, seed, start, web1};
use crate::page::Browser;
use crate::program::{fail, succeed};
use crate::secrets::stored;
use crate::support::{Machine, Node, TestServer};

const OWN: &str = "#cloud-config\nhostname: of-this-run\n";

/// The steps before the one with this name succeed, and that one fails.
pub async fn fails_at(server: &TestServer, node: &Node, workflow: &Workflow, name: &str) {
    fails_after(server, node, workflow, "", name).await;
}

/// The same from the step after one on.
async fn fails_after(server: &TestServer, node: &Node, workflow: &Workflow, after: &str, name: &str) {
    let (mut seq, mut events) = (workflow.next_seq, Vec::new());
    let from = workflow.steps.iter().position(|step| step.name == after).map_or(0, |index| index + 1);
    for (step, known) in (0..).zip(&workflow.steps).skip(from) {
        let failed = known.name == name;
        let end = match failed {
            true => EventKind::Failed(Failure { reason: "out of luck".to_owned(), ..Failure::default() }),
            false => EventKind::Succeeded(Default::default()),
        };
        for kind in [EventKind::Started, end] {
            events.push(Event { seq, at: 1, step, attempt: 1, kind });
            seq += 1;
        }
        if failed {
            break;
        }
    }
    assert_eq!(node.post_events(server, &workflow.run, &events).await.status(), StatusCode::OK);
    assert_eq!(web1(server).await.state, NodeState::Failed);
}

fn names(workflow: &Workflow) -> Vec<&str> {
    workflow.steps.iter().map(|step| step.name.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_run_is_done_again_with_what_it_was_asked_for() {
    let server = TestServer::start().await;
    let data = server.data_path();
    let node = server.enrolled("web1").await;
    add_system(&server, |_| {}).await.unwrap();
    start(&server, operate::NewRun { user_data: Some(OWN.to_owned()), ..debian() }).await.unwrap();
    let open = fail(&data, &["run", "retry", "web1"]);
    assert!(open.contains("is not over; cancel it first"), "{open}");
    let first = node.workflow(&server).await.unwrap();
    fails_at(&server, &node, &first, "stream-image").await;
    assert!(!stored(&server, "of-this-run").await, "a run that is over leaves none of its secrets in clear text");
    let id = succeed(&data, &["run", "retry", "--yes", "web1"]).trim().to_owned();
    let second = node.workflow(&server).await.unwrap();
    assert!(second.run == id && names(&second) == names(&first));
    assert!(seed(&second).user_data.contains("hostname: of-this-run"));
    assert_ne!(report_path(&second), report_path(&first), "the tokens are others");
    let events = succeed(&data, &["events", "--node", "web1", "--kind", "run-started"]);
    assert!(events.contains(&format!("run {id} installs debian: it tries run {} again", first.run)), "{events}");
    let older = fail(&data, &["run", "retry", &first.run]);
    assert!(older.contains("is not the newest of its node"), "{older}");
    node.finish(&server, &second).await;
    let done = fail(&data, &["run", "retry", "web1"]);
    assert!(done.contains("has succeeded; start another one"), "{done}");
    assert!(!stored(&server, "of-this-run").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_newest_run_is_tried_again_and_with_the_system_as_it_is_now() {
    let server = TestServer::start().await;
    let data = server.data_path();
    let node = server.enrolled("web1").await;
    // Its metadata stays, so the run that went well keeps its secrets.
    let system = add_system(&server, |system| system.keep_metadata = true).await.unwrap();
    install(&server, &node).await;
    start(&server, debian()).await.unwrap();
    let failed = node.workflow(&server).await.unwrap();
    fails_at(&server, &node, &failed, "seed-cloud-init").await;
    let (store, ca) = (server.store().await, server.ca());
    let slow = operate::retry_of(&store, "web1").await.unwrap();
    let system = System { kernel_args: vec!["quiet".to_owned()], ..system };
    operate::add_system(&store, system).await.unwrap();
    let url = server.url("/v1/operator/runs/web1/retry");
    let answer = server.client().post(url).bearer_auth(server.operator_token()).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::CREATED);
    let second = node.workflow(&server).await.unwrap();
    assert!(names(&second).contains(&"kernel-args"));
    // Somebody who was slower does not end it, whether it is over or not.
    for _ in ["open", "over"] {
        let late = operate::retry_run(&store, &ca, slow.clone()).await.unwrap_err().to_string();
        assert_eq!(late, format!("another run was started since run {} failed; nothing was done", failed.run));
        if web1(&server).await.run.unwrap().state != RunState::Failed {
            fails_at(&server, &node, &second, "seed-cloud-init").await;
        }
    }
    assert_eq!(web1(&server).await.run.unwrap().id, second.run);
    succeed(&data, &["node", "decommission", "--yes", "web1"]);
    let gone = fail(&data, &["run", "retry", "web1"]);
    assert!(gone.contains("is not kept"), "{gone}");
}

/// Events of a step that erased a disk.
fn erased(workflow: &Workflow) -> Vec<Event> {
    let result = Erasure::Erased { method: "zeros".to_owned(), millis: 1, samples: 1 };
    let disk = DiskErasure { path: "/dev/sda".to_owned(), serial: Some("S5".to_owned()), result };
    let done = Outcome { disks: vec![disk], ..Outcome::default() };
    let event = |(seq, kind)| Event { seq, at: 1, step: 0, attempt: 1, kind };
    (workflow.next_seq..).zip([EventKind::Started, EventKind::Succeeded(done)]).map(event).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_on_from_the_step_that_failed_with_the_disk_that_was_written() {
    let server = TestServer::start().await;
    let data = server.data_path();
    let node = server.enrolled("web1").await;
    let system = add_system(&server, |_| {}).await.unwrap();
    start(&server, debian()).await.unwrap();
    let first = node.workflow(&server).await.unwrap();
    assert_eq!(names(&first)[..3], ["erase-disk", "stream-image", "seed-cloud-init"]);
    node.post_events(&server, &first.run, &erased(&first)).await;
    let rest = Workflow { next_seq: first.next_seq + 2, ..first.clone() };
    fails_after(&server, &node, &rest, "erase-disk", "seed-cloud-init").await;

    let retry = |from: &'static str| ["run", "retry", "--yes", "web1", "--from", from];
    let unknown = fail(&data, &retry("nothing"));
    assert!(unknown.contains("the run has no step \"nothing\"; its steps are erase-disk, stream-image,"), "{unknown}");
    let later = fail(&data, &retry("4"));
    assert!(later.contains("step seed-cloud-init of run") && later.contains("was not done"), "{later}");
    let image = first.steps[1].clone();
    // The system is another one by now.
    let changed = System { kernel_args: vec!["quiet".to_owned()], ..system.clone() };
    operate::add_system(&server.store().await, changed).await.unwrap();
    let other = fail(&data, &retry("seed-cloud-init"));
    assert!(other.contains("differ, because the operating system, its image or the node was changed"), "{other}");
    operate::add_system(&server.store().await, system).await.unwrap();

    let url = server.url("/v1/operator/runs/web1/retry?from=3");
    let answer = server.client().post(url).bearer_auth(server.operator_token()).send().await.unwrap();
    let id = answer.json::<RunStatus>().await.unwrap().id;
    let second = node.workflow(&server).await.unwrap();
    assert_eq!((second.run.as_str(), second.done, names(&second)), (id.as_str(), 2, names(&first)));
    assert_eq!(second.steps[1], image, "what is done stays as it was");
    let disk = second.steps[2].action.disk().unwrap();
    let written = DiskHints { device: Some("/dev/sda".to_owned()), serial: "S5".parse().ok(), ..DiskHints::default() };
    assert_eq!(*disk, written, "no other disk is written");
    assert_ne!(report_path(&second), report_path(&first), "the tokens are others");
    let run = web1(&server).await.run.unwrap();
    assert!(run.done == 2 && run.steps[..2].iter().all(|step| step.state == StepState::Succeeded), "{run:?}");
    let events = succeed(&data, &["events", "--node", "web1", "--kind", "run-started"]);
    assert!(events.contains(&format!("it tries run {} again from step seed-cloud-init", first.run)), "{events}");
    fails_after(&server, &node, &second, "stream-image", "seed-cloud-init").await;

    // What became of the disk is not known once the machine was restarted: before the retry, and after it.
    let browser = Browser::signed_in(&server, &server.operator_token()).await;
    assert!(browser.page("/nodes/web1/retry").await.contains("/retry?from=seed-cloud-init\""));
    let page = browser.page("/nodes/web1/retry?from=seed-cloud-init").await;
    assert!(page.contains("on. No step of it erases a disk. If the machine is restarted before the end"), "{page}");
    let said = page.split("name=\"said\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    let sent = [("said", said), ("from", "seed-cloud-init"), ("confirm", "web1")];
    assert_eq!(browser.send("/nodes/web1/retry", &sent).await.status(), StatusCode::SEE_OTHER);
    assert_eq!(web1(&server).await.run.unwrap().done, 2);
    let restarted = Machine { boot_id: "boot-2".to_owned(), ..node.machine };
    let node = Node::enrol(&server, restarted).await;
    let third = node.workflow(&server).await.unwrap();
    assert_eq!((third.done, web1(&server).await.run.unwrap().done), (0, 0));
    assert_eq!(third.steps[2].action.disk(), first.steps[2].action.disk(), "a path is of one boot");
    fails_at(&server, &node, &third, "seed-cloud-init").await;
    // A machine that is restarted and does not begin before the run is cancelled.
    succeed(&data, &["run", "retry", "--yes", "web1"]);
    let fourth = node.workflow(&server).await.unwrap();
    node.post_events(&server, &fourth.run, &erased(&fourth)).await;
    let restarted = Machine { boot_id: "boot-3".to_owned(), ..node.machine };
    let node = Node::enrol(&server, restarted).await;
    succeed(&data, &["run", "cancel", "--yes", "web1"]);
    let late = fail(&data, &retry("stream-image"));
    assert!(late.contains("the machine was restarted since run"), "{late}");
    succeed(&data, &["run", "retry", "--yes", "web1"]);
    let last = node.workflow(&server).await.unwrap();
    node.finish(&server, &last).await;
    assert_ne!(web1(&server).await.state, NodeState::Failed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_replaced_another_replaces_none_when_it_is_tried_again() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    add_system(&server, |_| {}).await.unwrap();
    start(&server, debian()).await.unwrap();
    start(&server, operate::NewRun { replace: true, ..debian() }).await.unwrap();
    let failed = node.workflow(&server).await.unwrap();
    fails_at(&server, &node, &failed, "erase-disk").await;
    assert!(!operate::retry_of(&server.store().await, "web1").await.unwrap().new.replace);
}
