//! Machines whose disks are erased before they go out of service.

use std::path::Path;

use reqwest::StatusCode;
use slipway_protocol::{
    Action, Afterwards, DiskChoice, DiskErasure, EraseMode, Erasure, Event, EventKind, Failure, NodeState, Outcome,
    PowerAct, RunState, Workflow,
};
use slipway_server::operate;

use crate::installing::{add_system, debian, install, start, web1};
use crate::program::{fail, run, succeed};
use crate::support::{Node, TestServer, refusal};

const ERASE: [&str; 5] = ["node", "decommission", "--yes", "--erase", "web1"];

/// Events of the only step, from the next number on.
fn events(workflow: &Workflow, kinds: Vec<EventKind>) -> Vec<Event> {
    let event = |(seq, kind)| Event { seq, at: 1, step: 0, attempt: 1, kind };
    (workflow.next_seq..).zip(kinds).map(event).collect()
}

/// Exit status of a script's wait for the machine to be out of service.
fn wait(data: &Path) -> Option<i32> {
    run(data, &["status", "web1", "--wait", "decommissioned", "--timeout", "1s"]).status.code()
}

async fn state(server: &TestServer) -> NodeState {
    web1(server).await.state
}

/// A machine whose system is installed.
async fn installed(server: &TestServer) -> Node {
    let node = server.enrolled("web1").await;
    add_system(server, |_| {}).await.unwrap();
    install(server, &node).await;
    node
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_goes_out_of_service_once_its_disks_are_erased() {
    let server = TestServer::start().await;
    let data = server.data_path();
    let node = installed(&server).await;
    let before = state(&server).await;
    let said = succeed(&data, &ERASE);
    assert!(
        said.contains("erases web1; when it succeeded, the node goes out of service: `status web1` says"),
        "{said}"
    );
    let asked = web1(&server).await.run.unwrap();
    assert_eq!((state(&server).await, asked.state), (before, RunState::Pending), "the system goes on until then");
    assert_eq!(asked.afterwards, Some(Afterwards::Decommission));

    let workflow = node.workflow(&server).await.unwrap();
    let [step] = workflow.steps.as_slice() else { panic!("{workflow:?}") };
    let Action::EraseDisk(erase) = &step.action else { panic!("{step:?}") };
    assert_eq!((erase.disk.choose, erase.mode, erase.strict), (DiskChoice::All, EraseMode::Secure, true));
    assert_eq!(erase.fallback, [EraseMode::Zero]);
    assert_eq!(state(&server).await, NodeState::Terminating);
    let erased = Erasure::Erased { method: "NVMe format".to_owned(), millis: 3000, samples: 64 };
    let disk = DiskErasure { path: "/dev/nvme0n1".to_owned(), serial: Some("S5".to_owned()), result: erased };
    let done = Outcome { summary: "erased the disk".to_owned(), disks: vec![disk], ..Outcome::default() };
    // The machine loses power in the middle, and begins again.
    let all = events(&workflow, vec![EventKind::Started, EventKind::Started, EventKind::Succeeded(done)]);
    assert_eq!(node.post_events(&server, &workflow.run, &all[..2]).await.status(), StatusCode::OK);
    assert_eq!(state(&server).await, NodeState::Terminating);
    assert_eq!(wait(&data), Some(4), "the time is over");
    assert_eq!(node.post_events(&server, &workflow.run, &all).await.status(), StatusCode::OK);
    assert_eq!(wait(&data), Some(0));

    let retired = web1(&server).await;
    assert_eq!((retired.state, retired.released), (NodeState::Decommissioned, false));
    assert_eq!(retired.run.unwrap().state, RunState::Succeeded);
    let again = node.post_events(&server, &workflow.run, &all).await;
    assert_eq!(again.status(), StatusCode::GONE, "its credentials are refused");
    let shown = succeed(&data, &["run", "show", &workflow.run]);
    assert!(shown.contains("Afterwards  the node goes out of service\n"), "{shown}");
    let proof = "    -> /dev/nvme0n1, serial number S5: erased by NVMe format in 3 s, and read back at 64 places\n";
    assert!(shown.contains(proof), "the proof stays: {shown}");
    let told = succeed(&data, &["events", "--node", "web1"]);
    for message in [
        "erases disks; when it succeeded, the node goes out of service",
        "the node is terminating",
        "the node was taken out of service after its last run",
    ] {
        assert_eq!(told.matches(message).count(), 1, "{message}: {told}");
    }

    // The run is history for a node that is back.
    succeed(&data, &["node", "recommission", "--release", "web1"]);
    let node = Node::enrol(&server, crate::support::Machine::with_uuid(crate::support::UUID)).await;
    assert_eq!((state(&server).await, node.workflow(&server).await), (NodeState::Enrolled, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_could_not_be_erased_stays_in_service() {
    let server = TestServer::start().await;
    let data = server.data_path();
    let node = installed(&server).await;
    let before = state(&server).await;
    // Taken back before the machine has it.
    succeed(&data, &ERASE);
    succeed(&data, &["run", "cancel", "--yes", "web1"]);
    assert_eq!(state(&server).await, before, "its system goes on");
    // Taken back after that.
    succeed(&data, &ERASE);
    node.workflow(&server).await.unwrap();
    assert_eq!(state(&server).await, NodeState::Terminating);
    succeed(&data, &["run", "cancel", "--yes", "web1"]);
    assert_eq!(state(&server).await, NodeState::Enrolled);

    // In place of a run that is not over, but only once.
    start(&server, debian()).await.unwrap();
    succeed(&data, &ERASE);
    let twice = fail(&data, &ERASE);
    assert!(twice.contains("erases node web1 already; to begin again, cancel it"), "{twice}");
    let first = node.workflow(&server).await.unwrap();
    let failure = Failure { reason: "sdb is not erased".to_owned(), ..Failure::default() };
    let failed = events(&first, vec![EventKind::Started, EventKind::Failed(failure)]);
    assert_eq!(node.post_events(&server, &first.run, &failed).await.status(), StatusCode::OK);
    let kept = web1(&server).await;
    assert_eq!((kept.state, kept.released), (NodeState::Failed, true));
    assert_eq!(wait(&data), Some(3), "the run failed");
    // What becomes of the node is kept with the run.
    succeed(&data, &["run", "retry", "--yes", "web1"]);
    let second = node.workflow(&server).await.unwrap();
    assert_eq!(state(&server).await, NodeState::Terminating);
    node.finish(&server, &second).await;
    assert_eq!(state(&server).await, NodeState::Decommissioned);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_is_switched_off_once_its_disks_are_erased() {
    let server = TestServer::start().await;
    let data = server.data_path();
    let node = installed(&server).await;
    let ask = async |query: &str| {
        let url = server.url(&format!("/v1/operator/nodes/web1/decommission?{query}"));
        server.client().post(url).bearer_auth(server.operator_token()).send().await.unwrap()
    };
    let before = web1(&server).await.run.unwrap().id;
    let refused = refusal(ask("erase=discard&power_off=true").await).await;
    assert!(refused.message.contains("nothing switches the power of node web1"), "{}", refused.message);
    assert_eq!(web1(&server).await.run.unwrap().id, before, "nothing was done");
    let own = operate::NewRun { afterwards: Some(Afterwards::Decommission), ..debian() };
    let own = start(&server, own).await.unwrap_err().to_string();
    assert!(own.contains("`afterwards` is for runs that do nothing but erase disks"), "{own}");
    assert_eq!(ask("erase=thoroughly").await.status(), StatusCode::BAD_REQUEST);

    succeed(&data, &["node", "power", "set", "web1", "--hook", "test", "--mode", "recorder"]);
    assert_eq!(ask("erase=discard&power_off=true").await.status(), StatusCode::OK);
    let workflow = node.workflow(&server).await.unwrap();
    let Action::EraseDisk(erase) = &workflow.steps[0].action else { panic!("{workflow:?}") };
    assert_eq!((erase.mode, erase.fallback.as_slice()), (EraseMode::Discard, &[EraseMode::Zero][..]));
    node.finish(&server, &workflow).await;
    assert_eq!(state(&server).await, NodeState::Decommissioned);
    let asked = operate::show_power(&server.store().await, "web1").await.unwrap();
    assert_eq!(asked.act.unwrap().act, PowerAct::Off);

    // What could switch it may be gone by then. It goes out of service all the same.
    succeed(&data, &["node", "recommission", "--release", "web1"]);
    let node = Node::enrol(&server, crate::support::Machine::with_uuid(crate::support::UUID)).await;
    assert_eq!(ask("erase=zero&power_off=true").await.status(), StatusCode::OK);
    let workflow = node.workflow(&server).await.unwrap();
    succeed(&data, &["node", "power", "set", "web1", "--mode", "disabled"]);
    node.finish(&server, &workflow).await;
    assert_eq!(state(&server).await, NodeState::Decommissioned);
    let told = succeed(&data, &["events", "--node", "web1", "--kind", "power-failed"]);
    assert!(told.contains("the machine was not switched off: switching the power of node web1 is disabled"), "{told}");
}
