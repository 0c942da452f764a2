//! Classes of nodes: ephemeral ones are reinstalled at each boot of slipway, and erased at the end.

use reqwest::StatusCode;
use slipway_protocol::{ClaimReason, EraseMode, Identity, NodeClass, NodeState, Proof, RunState};
use slipway_server::operate;
use slipway_server::store::run_requests;

use crate::enrolment::{reason, waits};
use crate::installing::{add_system, install, report_path, web1};
use crate::program::{fail, succeed};
use crate::support::{Machine, Node, TestServer, UUID, refusal};

/// The node's machine, when it boots slipway once more.
fn boot(number: u32) -> Machine {
    Machine { boot_id: format!("boot-{number}"), ..Machine::with_uuid(UUID) }
}

/// A server with an operating system and an ephemeral node whose machine is enrolled.
async fn ephemeral() -> (TestServer, Node) {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    succeed(&server.data_path(), &["node", "set", "web1", "--class", "ephemeral"]);
    add_system(&server, |_| {}).await.unwrap();
    (server, node)
}

/// Whether the server keeps what a run was asked for.
async fn kept(server: &TestServer, run: &str) -> bool {
    let store = server.store().await;
    run_requests::get_by_run(&mut store.read().await.unwrap(), run).await.unwrap().is_some()
}

async fn report(server: &TestServer, path: &str) {
    let answer = server.client().post(server.url(path)).body("hostname=web1").send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ephemeral_node_is_installed_anew_whenever_its_machine_boots_slipway() {
    let (server, node) = ephemeral().await;
    let data = server.data_path();
    let first = install(&server, &node).await;
    assert_eq!(node.workflow(&server).await, None, "it is still in the boot that installed the system");

    // A machine whose system never came up is not installed again and again. Nor is one that has been waiting since
    // before, which may be another one with the same identifiers.
    let early = boot(2);
    waits(&server, &early).await;
    report(&server, &report_path(&first)).await;
    assert_eq!(web1(&server).await.state, NodeState::Running);
    waits(&server, &early).await;
    assert_eq!(reason(&server).await, ClaimReason::NothingToDo);
    let node = Node::enrol(&server, boot(3)).await;
    let second = node.workflow(&server).await.expect("a run");
    assert_ne!(second.run, first.run);
    let names = |workflow: &slipway_protocol::Workflow| workflow.steps.iter().map(|step| step.name.clone()).collect();
    let steps: [Vec<String>; 2] = [names(&first), names(&second)];
    assert_eq!(steps[0], steps[1]);
    assert_eq!(node.workflow(&server).await.expect("the same run").run, second.run);
    let told = succeed(&data, &["events", "--node", "web1", "--kind", "run-started"]);
    let expect = format!(
        "run {} installs debian again, as run {} did: the node is ephemeral, and its machine has booted slipway",
        second.run, first.run
    );
    assert_eq!(told.matches(&expect).count(), 1, "{told}");

    // Nor is one that lost power in the middle given another run.
    let node = Node::enrol(&server, Machine { boot_id: "boot-4".to_owned(), ..node.machine }).await;
    assert_eq!(node.workflow(&server).await.expect("the same run").run, second.run);
    node.finish(&server, &second).await;
    report(&server, &report_path(&second)).await;
    assert_eq!(node.workflow(&server).await, None);
    let node = Node::enrol(&server, boot(5)).await;
    let third = node.workflow(&server).await.expect("a run");
    assert!(third.run != second.run && third.run != first.run);
    node.finish(&server, &third).await;
    report(&server, &report_path(&third)).await;

    // What cannot be started is said once in each boot.
    succeed(&data, &["os", "remove", "--yes", "debian"]);
    let node = Node::enrol(&server, boot(6)).await;
    for _ in 0..3 {
        assert_eq!(node.workflow(&server).await, None);
    }
    let told = succeed(&data, &["events", "--node", "web1", "--kind", "run-refused"]);
    let expect = "the node is ephemeral, and could not be reinstalled: there is no operating system \"debian\"";
    assert_eq!(told.matches(expect).count(), 1, "{told}");
    assert_eq!(web1(&server).await.run.unwrap().state, RunState::Succeeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_class_of_a_node_is_fixed_after_its_first_run_unless_it_is_forced() {
    let (server, node) = ephemeral().await;
    let data = server.data_path();
    for class in ["spot", "ephemeral"] {
        succeed(&data, &["node", "set", "web1", "--class", class]);
    }
    let installed = install(&server, &node).await;
    report(&server, &report_path(&installed)).await;
    let refused = fail(&data, &["node", "set", "web1", "--class", "persistent"]);
    assert!(refused.contains("`node set web1 --class persistent --force`"), "{refused}");
    assert_eq!(web1(&server).await.class, NodeClass::Ephemeral);
    assert!(kept(&server, &installed.run).await);
    let patch = server.client().patch(server.url("/v1/operator/nodes/web1")).bearer_auth(server.operator_token());
    let patch = patch.json(&serde_json::json!({ "class": "persistent" })).send().await.unwrap();
    assert_eq!(patch.status(), StatusCode::CONFLICT);
    succeed(&data, &["node", "set", "web1", "--site", "fra", "--class", "ephemeral"]);
    succeed(&data, &["node", "set", "web1", "--class", "persistent", "--force"]);
    assert!(!kept(&server, &installed.run).await);
    let again = boot(2);
    waits(&server, &again).await;
    assert_eq!(reason(&server).await, ClaimReason::NothingToDo);
    succeed(&data, &["node", "set", "web1", "--class", "ephemeral", "--force"]);
    waits(&server, &again).await;
    assert_eq!(reason(&server).await, ClaimReason::NothingToDo);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_installed_anew_on_a_machine_that_an_operator_let_in_or_that_is_another() {
    let (server, node) = ephemeral().await;
    let data = server.data_path();
    let installed = install(&server, &node).await;
    report(&server, &report_path(&installed)).await;
    // A run that is taken back before the machine has it changes nothing.
    succeed(&data, &["node", "decommission", "--yes", "web1"]);
    succeed(&data, &["run", "cancel", "--yes", "web1"]);
    assert_eq!(web1(&server).await.state, NodeState::Running);
    let node = Node::enrol(&server, boot(2)).await;
    let second = node.workflow(&server).await.expect("a run");
    assert_eq!(second.steps.len(), installed.steps.len());
    node.finish(&server, &second).await;
    report(&server, &report_path(&second)).await;

    assert!(kept(&server, &second.run).await);
    succeed(&data, &["node", "set", "web1", "--serial", "7CZ1234"]);
    assert!(!kept(&server, &second.run).await);
    let repaired = Identity { serial: Some("7CZ1234".to_owned()), ..boot(3).identity };
    let repaired = Machine { identity: repaired, ..boot(3) };
    waits(&server, &repaired).await;
    let code = web1(&server).await.claim_code.expect("a claim code");
    succeed(&data, &["node", "release", &code]);
    assert_eq!(Node::enrol(&server, repaired).await.workflow(&server).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_proves_too_little_is_not_installed_anew() {
    let server = TestServer::start().await;
    server.add_released("web1").await;
    let data = server.data_path();
    succeed(&data, &["node", "set", "web1", "--class", "ephemeral"]);
    let token = succeed(&data, &["token", "add", "--node", "web1"]).trim().to_owned();
    let with_token = |number| Machine { token: Some(token.clone()), ..boot(number) };
    let node = Node::enrol(&server, with_token(1)).await;
    add_system(&server, |system| system.require = Proof::Token).await.unwrap();
    let installed = install(&server, &node).await;
    report(&server, &report_path(&installed)).await;
    waits(&server, &boot(2)).await;
    assert_eq!(reason(&server).await, ClaimReason::ProofMissing);
    assert_eq!(web1(&server).await.run.unwrap().id, installed.run, "no run was started");
    let node = Node::enrol(&server, with_token(3)).await;
    assert_ne!(node.workflow(&server).await.expect("a run").run, installed.run);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_disks_of_an_ephemeral_node_are_erased_before_it_goes_out_of_service() {
    let (server, node) = ephemeral().await;
    let data = server.data_path();
    install(&server, &node).await;
    let ask = async |query: &str| {
        let url = server.url(&format!("/v1/operator/nodes/web1/decommission{query}"));
        server.client().post(url).bearer_auth(server.operator_token()).send().await.unwrap()
    };
    let both = refusal(ask("?keep_disks=true&erase=zero").await).await;
    assert_eq!(both.message, "`keep_disks` and `erase` exclude each other");
    let said = succeed(&data, &["node", "decommission", "--yes", "web1"]);
    assert!(said.contains("erases web1; when it succeeded, the node goes out of service"), "{said}");
    succeed(&data, &["run", "cancel", "--yes", "web1"]);

    assert_eq!(ask("").await.status(), StatusCode::OK);
    let workflow = node.workflow(&server).await.unwrap();
    let [step] = workflow.steps.as_slice() else { panic!("{workflow:?}") };
    let slipway_protocol::Action::EraseDisk(erase) = &step.action else { panic!("{step:?}") };
    assert_eq!(erase.mode, EraseMode::Secure);
    assert_eq!(web1(&server).await.state, NodeState::Terminating);
    succeed(&data, &["run", "cancel", "--yes", "web1"]);
    let never_used = ["node", "add", "--name", "spare", "--serial", "S1", "--class", "ephemeral"];
    succeed(&data, &never_used);
    assert!(succeed(&data, &["node", "decommission", "--yes", "spare"]).contains("spare is out of service"));

    let said = succeed(&data, &["node", "decommission", "--yes", "--keep-disks", "web1"]);
    assert!(said.contains("web1 is out of service"), "{said}");
    let known = operate::show_node(&server.store().await, "web1").await.unwrap();
    assert_eq!((known.state, known.class), (NodeState::Decommissioned, NodeClass::Ephemeral));
}
