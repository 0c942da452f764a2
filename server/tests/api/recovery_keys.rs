//! Recovery keys: nodes store them, operators retrieve them.

use reqwest::{Response, StatusCode};
use serde_json::json;
use slipway_protocol::{Action, EncryptRoot, ErrorCode, Reboot, RecoveryKey, Step};
use slipway_server::node::recovery_keys;
use slipway_server::operate::{self, NewRun, Task, WorkflowFile};
use slipway_server::store;
use slipway_server::store::Store;
use slipway_server::store::recovery_keys as stored_keys;

use crate::program::{fail, succeed};
use crate::support::{Node, TestServer, is_stored, refusal};

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
    let shown = recovery_keys::show_keys(&store, &id, "m1", &[]).await.unwrap();
    assert_eq!(shown.len(), 1);
    assert_eq!((shown[0].run.as_str(), shown[0].key.key.reveal()), (run.as_str(), key("c").as_str()));
    assert_eq!(shown[0].shown_at, None, "not before this");
    assert!(recovery_keys::show_keys(&store, &id, "m1", &[]).await.unwrap()[0].shown_at.is_some());
    // Printed nodes and runs contain no key.
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
    let error = recovery_keys::show_keys(&store, &id, "m1", &[]).await.unwrap_err();
    assert_eq!(error.to_string(), "node m1 has no recovery keys");
}

#[tokio::test]
async fn keys_are_encrypted_to_operators_and_the_server_cannot_read_them() {
    let server = TestServer::start().await;
    let node = server.enrolled("m1").await;
    let data = &server.data_path();
    let run = start_run(&server, "m1", Action::EncryptRoot(EncryptRoot::default())).await;
    assert_eq!(post(&server, &node, &run, &volume(1), &key("c")).await.status(), StatusCode::NO_CONTENT);
    assert!(is_stored(&server.data_path(), &key("c")), "in clear");
    let operator = age::x25519::Identity::generate();
    let public = operator.to_public().to_string();
    succeed(data, &["escrow", "recipient", "add", &public]);
    assert_eq!(succeed(data, &["escrow", "recipient", "list"]), format!("{public}\n"));
    assert!(!is_stored(&server.data_path(), &key("c")), "what was in clear is encrypted and erased");
    assert!(!is_stored(&server.data_path(), &"c".repeat(8)));
    for (digit, status) in [("d", StatusCode::NO_CONTENT), ("d", StatusCode::NO_CONTENT), ("e", StatusCode::CONFLICT)] {
        assert_eq!(post(&server, &node, &run, &volume(2), &key(digit)).await.status(), status, "{digit}");
    }
    assert_eq!(post(&server, &node, &run, &volume(1), &key("c")).await.status(), StatusCode::NO_CONTENT, "the same");
    for (number, digit) in [(1, "c"), (2, "d")] {
        assert!(!is_stored(&server.data_path(), &digit.repeat(8)), "{digit}");
        let printed = succeed(data, &["node", "recovery-key", "m1", "--volume", &volume(number)]);
        let opened = age::decrypt(&operator, printed.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(opened).unwrap(), format!("{} {}\n", volume(number), key(digit)));
    }
    let refused = fail(data, &["escrow", "recipient", "add", "AGE-SECRET-KEY-1QQ"]);
    assert!(refused.contains("is not an age public key") && !refused.contains("AGE-SECRET"), "{refused}");
    succeed(data, &["escrow", "recipient", "remove", &public]);
    assert_eq!(succeed(data, &["escrow", "recipient", "list"]), "");
}

#[tokio::test]
async fn a_key_that_was_forgotten_is_erased() {
    let server = TestServer::start().await;
    let node = server.enrolled("m1").await;
    let run = start_run(&server, "m1", Action::EncryptRoot(EncryptRoot::default())).await;
    assert_eq!(post(&server, &node, &run, VOLUME, &key("c")).await.status(), StatusCode::NO_CONTENT);
    operate::decommission_node(&server.store().await, "m1").await.unwrap();
    assert!(is_stored(&server.data_path(), &key("c")));
    let printed = succeed(&server.data_path(), &["node", "recovery-key", "m1", "--forget", VOLUME]);
    assert_eq!(printed, format!("{VOLUME} {}\n", key("c")));
    assert!(!is_stored(&server.data_path(), &key("c")) && !is_stored(&server.data_path(), &"c".repeat(8)));
    // Who had it printed and removed stays known, without the key.
    let events = succeed(&server.data_path(), &["events", "--node", "m1", "--kind", "operator"]);
    for what in ["shown", "removed"] {
        assert!(events.contains(&format!("the recovery keys of these volumes were {what}: {VOLUME} (by ")), "{events}");
    }
}

fn volume(number: u64) -> String {
    format!("0f2a1c1e-5b7d-4c55-9d5e-{number:012x}")
}

/// Stores keys of these volumes as if a run had left them, one millisecond apart.
async fn put_keys(store: &Store, node: &str, run: &str, volumes: std::ops::Range<u64>) {
    let mut transaction = store.write().await.unwrap();
    for number in volumes {
        let stored = RecoveryKey { volume: volume(number), key: key("c").into() };
        stored_keys::insert(&mut transaction, node, run, &stored, None, number).await.unwrap();
    }
    store::commit(transaction).await.unwrap();
}

#[tokio::test]
async fn a_node_whose_room_for_keys_is_used_up_has_a_way_out() {
    let server = TestServer::start().await;
    let node = server.enrolled("m1").await;
    let store = server.store().await;
    let id = operate::show_node(&store, "m1").await.unwrap().id;
    put_keys(&store, &id, "old", 0..1000).await;
    let run = start_run(&server, "m1", Action::EncryptRoot(EncryptRoot::default())).await;
    let refused = refusal(post(&server, &node, &run, VOLUME, &key("d")).await).await;
    assert_eq!(refused.code, ErrorCode::TooLarge);
    assert!(refused.message.contains("`node recovery-key --forget`"), "{}", refused.message);
    recovery_keys::forget_keys(&store, &id, "m1", &[volume(0), volume(1)]).await.unwrap();
    assert_eq!(post(&server, &node, &run, VOLUME, &key("d")).await.status(), StatusCode::NO_CONTENT);
    assert_eq!(recovery_keys::list_keys(&store, &id, "m1").await.unwrap().len(), 999);
}

#[tokio::test]
async fn a_key_that_may_be_in_use_is_not_forgotten() {
    let server = TestServer::start().await;
    let node = server.enrolled("m1").await;
    let store = server.store().await;
    let id = operate::show_node(&store, "m1").await.unwrap().id;
    // Four runs that encrypt a disk: one at its first attempt, one at its second, one ended by an operator, and one
    // still running.
    for (volumes, finishes) in [(0..1, true), (1..3, true), (3..5, false), (5..7, false)] {
        let run = start_run(&server, "m1", Action::EncryptRoot(EncryptRoot::default())).await;
        put_keys(&store, &id, &run, volumes).await;
        if finishes {
            node.finish(&server, &node.workflow(&server).await.unwrap()).await;
        }
    }
    let forget = async |numbers: &[u64]| {
        let volumes: Vec<String> = numbers.iter().map(|number| volume(*number)).collect();
        recovery_keys::forget_keys(&store, &id, "m1", &volumes).await.map_err(|error| error.body().code)
    };
    for numbers in [&[1][..], &[2], &[5], &[6], &[0, 2]] {
        assert_eq!(forget(numbers).await, Err(ErrorCode::Conflict), "{numbers:?}");
    }
    assert_eq!(forget(&[0, 9]).await, Err(ErrorCode::NotFound));
    assert!(recovery_keys::check_unused(&store, &id, "m1", &[volume(1)]).await.is_err());
    let shown = recovery_keys::show_keys(&store, &id, "m1", &[volume(0)]).await.unwrap();
    assert_eq!(shown.iter().map(|stored| &stored.key.volume).collect::<Vec<_>>(), [&volume(0)]);
    let listed = recovery_keys::list_keys(&store, &id, "m1").await.unwrap();
    let noted = listed.iter().filter(|stored| stored.shown_at.is_some());
    assert_eq!(noted.map(|stored| &stored.key.volume).collect::<Vec<_>>(), [&volume(0)], "only what was shown");
    assert_eq!(recovery_keys::list_keys(&store, &id, "m1").await.unwrap().len(), 7, "all that are named, or none");
    assert_eq!(forget(&[0, 3, 4]).await, Ok(()));
    operate::decommission_node(&store, "m1").await.unwrap();
    assert_eq!(forget(&[1, 2, 5, 6]).await, Ok(()));
}
