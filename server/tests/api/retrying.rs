//! A failed run is tried again with what it was asked for: all of it, or from the step that failed.

use reqwest::StatusCode;
use serde_json::{Value, json};
use slipway_protocol::{Event, EventKind, Failure, NodeState, RunState, Workflow};
use slipway_server::operate;

use crate::installing::{add_system, debian, report_path, seed, start, web1};
use crate::program::{fail, succeed};
use crate::secrets::stored;
use crate::support::{Node, TestServer};

const OWN: &str = "#cloud-config\nhostname: of-this-run\n";

/// The steps before the one with this name succeed, and that one fails.
pub async fn fails_at(server: &TestServer, node: &Node, workflow: &Workflow, name: &str) {
    let (mut seq, mut events) = (workflow.next_seq, Vec::new());
    for (step, known) in (0..).zip(&workflow.steps) {
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
    let skipping = fail(&data, &["run", "retry", "web1", "--from", "seed-cloud-init"]);
    assert!(skipping.contains("step \"stream-image\" has not succeeded"), "{skipping}");
    let unknown = fail(&data, &["run", "retry", "web1", "--from", "no-such"]);
    assert!(unknown.contains("has no step \"no-such\"; it has erase-disk, stream-image"), "{unknown}");
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
async fn a_run_goes_on_with_the_step_that_failed_and_its_system_reports_to_it() {
    let server = TestServer::start().await;
    let data = server.data_path();
    let node = server.enrolled("web1").await;
    add_system(&server, |system| system.boot_reporter = true).await.unwrap();
    start(&server, debian()).await.unwrap();
    let first = node.workflow(&server).await.unwrap();
    let last = (*names(&first).last().unwrap()).to_owned();
    fails_at(&server, &node, &first, &last).await;
    let image = web1(&server).await.run.unwrap().image;

    let retry = server.client().post(server.url("/v1/operator/runs/web1/retry")).bearer_auth(server.operator_token());
    let answer = retry.json(&json!({ "from": last })).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::CREATED);
    let answer: Value = answer.json().await.unwrap();
    assert_eq!((answer["state"].as_str(), answer["steps"].as_array().map(Vec::len)), (Some("pending"), Some(1)));
    let second = node.workflow(&server).await.unwrap();
    assert_eq!(names(&second), [last.as_str()]);
    assert_eq!(web1(&server).await.run.unwrap().image, image);
    // It fails once more, and goes on in the same place.
    fails_at(&server, &node, &second, &last).await;
    succeed(&data, &["run", "retry", "--yes", "web1", "--from", "1"]);
    let third = node.workflow(&server).await.unwrap();
    assert_eq!(names(&third), [last.as_str()]);
    node.finish(&server, &third).await;
    assert_eq!(web1(&server).await.state, NodeState::Booting);
    // What was installed in the first run has the tokens of that one.
    let report = server.client().post(server.url(&report_path(&first))).body("hostname=web1").send().await.unwrap();
    assert_eq!(report.status(), StatusCode::OK);
    let node = web1(&server).await;
    let run = node.run.unwrap();
    assert!(node.state == NodeState::Running && run.id == third.run && run.phoned_home_at.is_some());
    assert_eq!(run.state, RunState::Succeeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_system_has_other_steps_now_does_not_go_on_in_the_middle() {
    let server = TestServer::start().await;
    let data = server.data_path();
    let node = server.enrolled("web1").await;
    let system = add_system(&server, |_| {}).await.unwrap();
    start(&server, debian()).await.unwrap();
    let first = node.workflow(&server).await.unwrap();
    fails_at(&server, &node, &first, "seed-cloud-init").await;
    let system = slipway_server::store::systems::System { kernel_args: vec!["quiet".to_owned()], ..system };
    operate::add_system(&server.store().await, system).await.unwrap();
    let other = fail(&data, &["run", "retry", "web1", "--from", "seed-cloud-init"]);
    assert!(other.contains("has other steps than when run"), "{other}");
    // From the beginning, it takes the operating system as it is now.
    succeed(&data, &["run", "retry", "--yes", "web1"]);
    assert!(names(&node.workflow(&server).await.unwrap()).contains(&"kernel-args"));
    succeed(&data, &["node", "decommission", "--yes", "web1"]);
    let gone = fail(&data, &["run", "retry", "web1"]);
    assert!(gone.contains("is not kept"), "{gone}");
}
