//! What changed between a bad run and the last good one.

use reqwest::{Response, StatusCode};
use slipway_protocol::{
    Chosen, ComparedFact, Comparison, Disk, EnrolRequest, ErrorCode, Event, EventKind, Failure, Identity, Inventory,
};
use slipway_server::operate::{self, NewNode};
use slipway_server::store::db;
use slipway_server::store::systems::System;

use crate::installing::{add_system, debian, install, start};
use crate::page::Browser;
use crate::program::{fail, succeed};
use crate::support::{Machine, Node, TestServer, UUID, refusal};
use crate::work::new_run;

const SECRET: &str = "correct-horse-battery";

async fn get(server: &TestServer, path: &str) -> Response {
    let request = server.client().get(server.url(&format!("/v1/operator/runs/{path}")));
    request.bearer_auth(server.operator_token()).send().await.unwrap()
}

async fn compared(server: &TestServer, path: &str) -> Comparison {
    let response = get(server, path).await;
    assert_eq!(response.status(), StatusCode::OK);
    response.json().await.unwrap()
}

/// The facts that differ, as names with both values.
fn differing(comparison: &Comparison) -> Vec<(&str, Option<&str>, Option<&str>)> {
    let differ = comparison.facts.iter().filter(|fact| fact.differs);
    differ.map(|fact| (fact.what.as_str(), fact.then.as_deref(), fact.now.as_deref())).collect()
}

/// What a machine of a model says of itself.
fn described(machine: &Machine, version: &str, firmware: &str) -> EnrolRequest {
    let mut inventory = Inventory { memory: 1 << 30, ..Inventory::default() };
    inventory.system.vendor = Some("Acme".to_owned());
    inventory.system.model = Some("Anvil".to_owned());
    inventory.firmware.version = Some(firmware.to_owned());
    let serial = Some(format!("S-{}", machine.identity.uuid.as_deref().unwrap_or_default()));
    inventory.disks = vec![Disk { path: "/dev/vda".to_owned(), size: 10 << 30, serial, ..Disk::default() }];
    EnrolRequest { agent_version: version.to_owned(), inventory, ..machine.request() }
}

async fn enrol(server: &TestServer, machine: &Machine, version: &str, firmware: &str) {
    let request = server.client().post(server.url("/v1/enrol")).json(&described(machine, version, firmware));
    assert_eq!(request.send().await.unwrap().status(), StatusCode::OK);
}

/// A second machine, as the node web2.
async fn another(server: &TestServer) -> Node {
    let identity = Identity { uuid: Some(UUID.replace('4', "5")), ..Identity::default() };
    let new =
        NewNode { name: Some("web2".to_owned()), identity: identity.clone(), release: true, ..NewNode::default() };
    operate::add_node(&server.store().await, new).await.unwrap();
    Node::enrol(server, Machine::new(identity)).await
}

async fn system(server: &TestServer, change: impl FnOnce(&mut System)) {
    let user_data = format!("#cloud-config\npassword: {SECRET}\n");
    let changed = |system: &mut System| {
        system.user_data = Some(user_data);
        change(system);
    };
    add_system(server, changed).await.unwrap();
}

/// The machine of a node begins its run, chooses a disk and fails.
async fn begin_and_fail(server: &TestServer, node: &Node) -> String {
    let workflow = node.workflow(server).await.unwrap();
    let event = |seq, kind| Event { seq, at: 1, step: 0, attempt: 1, kind };
    let failure = Failure { reason: "the disk is gone".to_owned(), ..Failure::default() };
    let events = [
        event(1, EventKind::Started),
        event(2, EventKind::Note("chose /dev/vda (serial S-1, 10 GiB): the only disk".to_owned())),
        event(3, EventKind::Failed(failure)),
    ];
    assert_eq!(node.post_events(server, &workflow.run, &events).await.status(), StatusCode::OK);
    workflow.run
}

/// The number of runs of which something is known, and of those whose settings are like a pattern.
async fn on_facts(server: &TestServer, pattern: &str) -> (i64, i64) {
    let sql = "SELECT COUNT(*) AS runs, COUNT(CASE WHEN settings_json LIKE $1 THEN 1 END) AS found FROM run_facts";
    let store = server.store().await;
    let row = db::query(sql).bind(pattern).fetch_one(&mut store.read().await.unwrap()).await.unwrap();
    (row.get("runs").unwrap(), row.get("found").unwrap())
}

#[tokio::test]
async fn a_failed_run_is_shown_beside_the_last_good_one_of_its_node() {
    let server = TestServer::start().await;
    let data = server.data_path();
    let node = server.enrolled("web1").await;
    enrol(&server, &node.machine, "0.1.0", "1.0").await;
    system(&server, |_| {}).await;
    let good = install(&server, &node).await.run;
    system(&server, |system| {
        system.kernel_args = vec!["quiet".to_owned()];
        system.vendor_data = Some("#cloud-config\nlocale: C\n".to_owned());
    })
    .await;
    enrol(&server, &node.machine, "0.2.0", "2.0").await;
    start(&server, debian()).await.unwrap();
    let bad = begin_and_fail(&server, &node).await;

    let comparison = compared(&server, "web1/compare").await;
    assert_eq!((&comparison.run.id, &comparison.with.id, comparison.chosen), (&bad, &good, Chosen::SameNode));
    assert_eq!(comparison.with.name.as_deref(), Some("web1"));
    let found = differing(&comparison);
    let expect = [
        ("slipway", Some("0.1.0"), Some("0.2.0")),
        ("firmware", Some("1.0"), Some("2.0")),
        ("kernel-args: append", None, Some("[\"quiet\"]")),
    ];
    for difference in expect {
        assert!(found.contains(&difference), "{difference:?}: {found:#?}");
    }
    let vendor_data = found.iter().find(|(what, ..)| *what == "seed-cloud-init: vendor_data").unwrap();
    assert!(vendor_data.1.is_none() && vendor_data.2.unwrap().starts_with("(hidden, "), "{vendor_data:?}");
    let count = found.len();
    assert!(comparison.facts[..count].iter().all(|fact| fact.differs), "differences first");
    let same = |what: &str| comparison.facts[count..].iter().find(|fact| fact.what == what);
    assert_eq!(same("operating system").unwrap().now.as_deref(), Some("debian"));
    assert!(same("image").is_some() && same("address").is_some() && same("disk /dev/vda").is_some());
    let user_data = same("seed-cloud-init: user_data").unwrap().now.as_deref().unwrap();
    assert!(user_data.starts_with("(hidden, "), "{user_data}");
    let disk = comparison.facts.iter().find(|fact| fact.what == "disk").unwrap();
    assert_eq!(disk.now.as_deref(), Some(format!("/dev/vda, serial S-{UUID}, 10 GiB").as_str()));

    let text = succeed(&data, &["run", "compare", "web1"]);
    assert!(text.contains("the last good run of this machine\n\nWhat changed "), "{text}");
    assert!(text.contains("\nslipway ") && text.contains(" 0.1.0 ") && text.contains("\nThe same "), "{text}");
    let json = succeed(&data, &["run", "compare", &bad, &good, "--json"]);
    let given: Comparison = serde_json::from_str(&json).unwrap();
    assert_eq!((given.chosen, &given.facts), (Chosen::Given, &comparison.facts));
    let status = succeed(&data, &["status", "web1"]);
    assert!(status.contains("slipway-server run compare web1\n"), "{status}");
    let browser = Browser::signed_in(&server, &server.operator_token()).await;
    let page = browser.page(&format!("/nodes/{}", node.enrolment.node)).await;
    let (_, section) = page.split_once("What changed").unwrap();
    assert!(section.contains("<td data-title=\"Then\">0.1.0</td><td data-title=\"Now\">0.2.0</td>"), "{section}");
    for shown in [&json, &text, &page] {
        assert!(!shown.contains(SECRET), "{shown}");
    }
}

#[tokio::test]
async fn without_a_good_run_of_its_own_a_machine_is_compared_with_one_of_its_model() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    enrol(&server, &node.machine, "0.1.0", "1.0").await;
    system(&server, |_| {}).await;
    start(&server, debian()).await.unwrap();
    begin_and_fail(&server, &node).await;
    let refused = refusal(get(&server, "web1/compare").await).await;
    assert_eq!(refused.code, ErrorCode::Conflict);
    assert!(refused.message.contains("no earlier run of its node succeeded, and none of another Anvil"), "{refused:?}");
    let browser = Browser::signed_in(&server, &server.operator_token()).await;
    let page = browser.page(&format!("/nodes/{}", node.enrolment.node)).await;
    assert!(page.contains("has no run to compare with"), "{page}");

    let other = another(&server).await;
    let machine = &other.machine;
    enrol(&server, machine, "0.1.0", "0.9").await;
    operate::start_run(&server.store().await, &server.ca(), "web2", debian()).await.unwrap();
    let workflow = other.workflow(&server).await.unwrap();
    other.finish(&server, &workflow).await;
    // It succeeded later than the run that failed, and earlier than the next one that does.
    refusal(get(&server, "web1/compare").await).await;
    start(&server, debian()).await.unwrap();
    let bad = begin_and_fail(&server, &node).await;
    let comparison = compared(&server, &format!("{bad}/compare")).await;
    assert_eq!((&comparison.with.id, comparison.chosen), (&workflow.run, Chosen::SameModel));
    assert_eq!(comparison.with.name.as_deref(), Some("web2"));
    // What each machine has of its own does not count, so that the rest is seen.
    let found: Vec<&ComparedFact> = comparison.facts.iter().filter(|fact| fact.differs).collect();
    assert_eq!(found.iter().map(|fact| fact.what.as_str()).collect::<Vec<_>>(), ["firmware", "disk"], "{found:#?}");
}

#[tokio::test]
async fn runs_that_cannot_be_compared_are_refused_and_what_is_known_goes_with_the_run() {
    let server = TestServer::start().await;
    let data = server.data_path();
    let node = server.enrolled("web1").await;
    let script = format!(
        "steps:\n- {{name: s, action: {{run-in-target: {{script: {SECRET}}}}}}}\n\
         - {{name: leave, action: {{reboot: {{}}}}}}\n"
    );
    let run = start(&server, new_run(&script)).await.unwrap().id;
    begin_and_fail(&server, &node).await;
    let row = on_facts(&server, &format!("%{SECRET}%")).await;
    assert_eq!(row, (1, 0), "the script is not among them");
    let itself = fail(&data, &["run", "compare", "web1", &run]);
    assert!(itself.contains("cannot be compared with itself"), "{itself}");
    assert_eq!(get(&server, "nobody/compare").await.status(), StatusCode::NOT_FOUND);
    assert_eq!(get(&server, "web1/compare?with=nobody").await.status(), StatusCode::NOT_FOUND);
    assert_eq!(get(&server, "web1/compare?other=x").await.status(), StatusCode::BAD_REQUEST);
    let unknown = fail(&data, &["run", "compare", "web1"]);
    assert!(unknown.contains("the model of its machine is not known"), "{unknown}");

    operate::decommission_node(&server.store().await, "web1").await.unwrap();
    operate::remove_node(&server.store().await, "web1").await.unwrap();
    assert_eq!(on_facts(&server, "%").await, (0, 0));
    assert_eq!(get(&server, &format!("{run}/compare")).await.status(), StatusCode::NOT_FOUND);
}
