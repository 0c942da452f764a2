//! States derived from times: machines that fall silent, and machines that come back.

use reqwest::StatusCode;
use slipway_protocol::{Event, EventKind, NodeState, Progress};
use slipway_server::base::time::now;
use slipway_server::node::admission::SILENT;
use slipway_server::rules::trouble::WAITS;
use slipway_server::store::claimants::{self, Claimant};
use slipway_server::store::run_tokens::Purpose;
use slipway_server::store::{node_contacts, nodes};
use slipway_server::{operate, store};

use crate::installing::{add_system, debian, install, report_path, start, web1};
use crate::support::{Machine, TestServer, UUID};

#[tokio::test]
async fn a_machine_that_says_nothing_in_mid_image_is_silent_and_has_no_rate() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    add_system(&server, |_| {}).await.unwrap();
    let run = start(&server, debian()).await.unwrap().id;
    node.workflow(&server).await.unwrap();
    let progress = Progress { bytes: 5, rate: 50_000_000, seconds_left: Some(12), ..Progress::default() };
    let event = |seq, kind| Event { seq, at: 1, step: 0, attempt: 1, kind };
    let events = [event(1, EventKind::Started), event(2, EventKind::Progress(progress.clone()))];
    assert_eq!(node.post_events(&server, &run, &events).await.status(), StatusCode::OK);
    let shown = web1(&server).await;
    assert_eq!((shown.silent_since, shown.run.unwrap().steps[0].progress.as_ref()), (None, Some(&progress)));

    let store = server.store().await;
    let mut transaction = store.write().await.unwrap();
    let stored = nodes::find(&mut transaction, "web1").await.unwrap().unwrap();
    let last = now() - SILENT - 1000;
    node_contacts::seen(&mut transaction, &stored.id, last).await.unwrap();
    store::commit(transaction).await.unwrap();
    let shown = web1(&server).await;
    let silent = Progress { rate: 0, seconds_left: None, ..progress };
    assert_eq!((shown.silent_since, shown.run.unwrap().steps[0].progress.as_ref()), (Some(last), Some(&silent)));

    node.workflow(&server).await;
    assert_eq!(web1(&server).await.silent_since, None);
}

#[tokio::test]
async fn a_machine_that_should_have_started_its_disk_and_enrols_came_back() {
    let server = TestServer::start().await;
    let mut node = server.enrolled("web1").await;
    add_system(&server, |_| {}).await.unwrap();
    let workflow = install(&server, &node).await;
    let shown = web1(&server).await;
    assert_eq!((shown.state, shown.came_back_at), (NodeState::Booting, None));

    node.machine.boot_id = "boot-2".to_owned();
    assert_eq!(node.machine.try_enrol(&server).await.status(), StatusCode::OK);
    let shown = web1(&server).await;
    assert_eq!((shown.state, shown.came_back_at), (NodeState::Booting, shown.enrolled_at));
    assert!(shown.came_back_at.is_some());

    let report = server.client().post(server.url(&report_path(&workflow))).body("hostname=web1");
    assert_eq!(report.send().await.unwrap().status(), StatusCode::OK);
    let shown = web1(&server).await;
    assert_eq!((shown.state, shown.came_back_at), (NodeState::Running, None));

    // Days later, with the boot medium still inserted.
    node.machine.boot_id = "boot-3".to_owned();
    assert_eq!(node.machine.try_enrol(&server).await.status(), StatusCode::OK);
    let shown = web1(&server).await;
    assert_eq!((shown.state, shown.came_back_at), (NodeState::Running, shown.enrolled_at));
    assert!(shown.came_back_at.is_some());
    // Its disk was started at last. That system has phoned home before and does not again, but something in it reports.
    let (token, ..) = operate::add_run_token(&server.store().await, "web1", Purpose::Steps).await.unwrap();
    let report = server.client().post(server.url("/v1/report")).bearer_auth(token).body("name=backup&status=done");
    let report = report.header("content-type", "application/x-www-form-urlencoded");
    assert_eq!(report.send().await.unwrap().status(), StatusCode::OK);
    let shown = web1(&server).await;
    assert_eq!((shown.state, shown.came_back_at), (NodeState::Running, None));
}

#[tokio::test]
async fn a_claim_of_an_earlier_start_is_over_when_the_node_was_heard_from_since() {
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    let other = Machine::with_uuid(UUID);
    assert_eq!(other.try_enrol(&server).await.status(), StatusCode::ACCEPTED);
    let claims = web1(&server).await.claims;
    assert_eq!(claims.len(), 1, "it still asks");
    let store = server.store().await;
    let mut transaction = store.write().await.unwrap();
    let claimant = claimants::find(&mut transaction, &claims[0].code).await.unwrap().unwrap();
    let claimant = Claimant { last_asked: claimant.last_asked - 2 * WAITS, ..claimant };
    claimants::save(&mut transaction, &claimant).await.unwrap();
    store::commit(transaction).await.unwrap();
    assert!(web1(&server).await.claims.is_empty());
}
