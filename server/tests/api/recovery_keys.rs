//! Recovery keys: nodes leave them, operators ask for them.

use reqwest::{Response, StatusCode};
use serde_json::json;
use slipway_protocol::{Action, EncryptRoot, ErrorCode, Reboot, Step};
use slipway_server::escrow;
use slipway_server::operate::{self, NewRun, Task, WorkflowFile};

use crate::support::{Node, TestServer, refusal};

const VOLUME: &str = "0f2a1c1e-5b7d-4c55-9d5e-7a2b8b1f0c11";

fn key(digit: &str) -> String {
    vec![digit.repeat(8); 8].join("-")
}

async fn start_run(server: &TestServer, node: &str, action: Action) -> String {
    let steps = vec![Step { name: "a".to_owned(), action, retries: 0, timeout: None }];
    let task = Task::Workflow(WorkflowFile { steps, ..WorkflowFile::default() });
    let new = NewRun { replace: true, ..NewRun::new(task) };
    operate::start_run(&server.store().await, &server.ca(), node, new).await.unwrap().id
}

async fn post(server: &TestServer, node: &Node, run: &str, volume: &str, key: &str) -> Response {
    let url = server.url(&format!("/v1/node/runs/{run}/recovery-keys"));
    node.client.post(url).json(&json!({"volume": volume, "key": key})).send().await.unwrap()
}

#[tokio::test]
async fn a_key_is_kept_from_the_answer_on_and_shown_to_who_asks() {
    let server = TestServer::start().await;
    let node = server.enrolled("m1").await;
    let run = start_run(&server, "m1", Action::EncryptRoot(EncryptRoot::default())).await;
    for _ in 0..2 {
        assert_eq!(post(&server, &node, &run, VOLUME, &key("c")).await.status(), StatusCode::NO_CONTENT);
    }
    let other = post(&server, &node, &run, VOLUME, &key("d")).await;
    assert_eq!(refusal(other).await.code, ErrorCode::Conflict);

    let store = server.store().await;
    let id = operate::show_node(&store, "m1").await.unwrap().id;
    let shown = escrow::show_keys(&store, &id, "m1").await.unwrap();
    assert_eq!(shown.len(), 1);
    assert_eq!((shown[0].run.as_str(), shown[0].key.key.reveal()), (run.as_str(), key("c").as_str()));
    assert_eq!(shown[0].shown_at, None, "not before this");
    assert!(escrow::show_keys(&store, &id, "m1").await.unwrap()[0].shown_at.is_some());
    // Whatever prints a node or a run has no key in it.
    assert!(!format!("{shown:?}").contains(&key("c")));
}

#[tokio::test]
async fn only_a_run_that_encrypts_may_leave_a_key_and_only_a_key() {
    let server = TestServer::start().await;
    let node = server.enrolled("m1").await;
    let check = async |run: &str, volume: &str, key: &str, code: ErrorCode| {
        let refused = refusal(post(&server, &node, run, volume, key).await).await;
        assert_eq!(refused.code, code, "{volume} {key}");
    };
    check("none", VOLUME, &key("c"), ErrorCode::NotFound).await;
    let run = start_run(&server, "m1", Action::Reboot(Reboot {})).await;
    check(&run, VOLUME, &key("c"), ErrorCode::Forbidden).await;
    let run = start_run(&server, "m1", Action::EncryptRoot(EncryptRoot::default())).await;
    for (volume, key) in [(VOLUME, ""), (VOLUME, &*key("a")), (VOLUME, "c"), ("", &*key("c")), ("../x", &*key("c"))] {
        check(&run, volume, key, ErrorCode::InvalidRequest).await;
    }
    let store = server.store().await;
    let id = operate::show_node(&store, "m1").await.unwrap().id;
    let error = escrow::show_keys(&store, &id, "m1").await.unwrap_err();
    assert_eq!(error.to_string(), "there is no recovery key of node m1");
}
