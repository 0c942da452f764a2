//! How much of a whole run is done, by how long its steps usually take.

use serde_json::Value;
use slipway_protocol::{Event, EventKind, Outcome, Progress};
use slipway_server::store::{self, db};

use crate::installing::{add_system, debian, install, start};
use crate::page::Browser;
use crate::program::succeed;
use crate::support::{Node, TestServer};

/// Has the steps of runs so far have taken this long.
async fn set_times(server: &TestServer, sql: &'static str) {
    let store = server.store().await;
    let mut transaction = store.write().await.unwrap();
    db::query(sql).execute(&mut transaction).await.unwrap();
    store::commit(transaction).await.unwrap();
}

async fn percent(server: &TestServer, path: &str) -> u64 {
    let request = server.client().get(server.url(&format!("/v1/operator/{path}"))).bearer_auth(server.operator_token());
    let answer: Value = request.send().await.unwrap().json().await.unwrap();
    answer.get("run").unwrap_or(&answer)["percent"].as_u64().unwrap()
}

async fn report(server: &TestServer, node: &Node, run: &str, events: &[(u64, u32, EventKind)]) {
    let event = |(seq, step, kind): &(u64, u32, EventKind)| Event {
        seq: *seq,
        at: 1,
        step: *step,
        attempt: 1,
        kind: kind.clone(),
    };
    let events: Vec<Event> = events.iter().map(event).collect();
    assert!(node.post_events(server, run, &events).await.status().is_success());
}

#[tokio::test]
async fn a_run_says_how_much_of_it_is_done() {
    let server = TestServer::start().await;
    let data = server.data_path();
    let node = server.enrolled("web1").await;
    add_system(&server, |_| {}).await.unwrap();
    install(&server, &node).await;
    set_times(&server, "UPDATE step_times SET millis = 1000, bytes = 0").await;
    set_times(&server, "UPDATE step_times SET millis = 96000, bytes = 96 WHERE action = 'stream-image'").await;
    let run = start(&server, debian()).await.unwrap().id;
    let of_run = format!("runs/{run}");
    assert_eq!(percent(&server, &of_run).await, 0);
    let workflow = node.workflow(&server).await.unwrap();
    assert_eq!(workflow.steps.len(), 5, "the shares below are of five steps");
    let done = || EventKind::Succeeded(Outcome::default());
    let half = Progress { bytes: 50, total: Some(100), ..Progress::default() };
    let events =
        [(1, 0, EventKind::Started), (2, 0, done()), (3, 1, EventKind::Started), (4, 1, EventKind::Progress(half))];
    report(&server, &node, &run, &events[..3]).await;
    assert_eq!(percent(&server, &of_run).await, 1);
    report(&server, &node, &run, &events[3..]).await;
    // What other machines do meanwhile does not change it.
    set_times(&server, "UPDATE step_times SET millis = 1").await;
    assert_eq!((percent(&server, &of_run).await, percent(&server, "nodes/web1").await), (49, 49));

    let table = succeed(&data, &["status"]);
    assert!(table.contains(" 49 % · 2/5 50 %"), "{table}");
    let shown = succeed(&data, &["run", "show", "web1"]);
    assert!(shown.contains("running, 49 % done\n") && shown.contains(", usually 1 min 36 s\n"), "{shown}");
    let browser = Browser::signed_in(&server, &server.operator_token()).await;
    let page = browser.page(&format!("/nodes/{}", node.enrolment.node)).await;
    assert!(page.contains("aria-label=\"progress of the run\"></progress> <span class=\"number\">49 %"), "{page}");
    assert!(browser.page("/fleet").await.contains("2/5 stream-image, 49 % of the run"));
    assert!(browser.page("/runs").await.contains("2/5 stream-image, 49 % of the run"));

    // Its machine was power-cycled.
    report(&server, &node, &run, &[(5, 0, EventKind::Started)]).await;
    assert_eq!(percent(&server, &of_run).await, 0);
    report(&server, &node, &run, &[(6, 0, done()), (7, 1, EventKind::Started), (8, 1, done())]).await;
    assert_eq!(percent(&server, &of_run).await, 97, "the times are those of before");
    let rest = (2..5).flat_map(|step| {
        [(u64::from(step) * 2 + 5, step, EventKind::Started), (u64::from(step) * 2 + 6, step, done())]
    });
    report(&server, &node, &run, &rest.collect::<Vec<_>>()).await;
    assert_eq!(percent(&server, &of_run).await, 100);
}
