//! Which disk an operating system is installed on: the run's hint, else the node's, else its own.

use slipway_protocol::{Action, DiskChoice, DiskHints};
use slipway_server::Error;
use slipway_server::operate::{self, NewRun, NodeChange, Task};

use crate::installing::{add_system, debian, start, web1};
use crate::support::TestServer;

fn serial(serial: &str) -> DiskHints {
    DiskHints { serial: Some(serial.parse().unwrap()), ..DiskHints::default() }
}

/// Starts a run with this hint. Returns the hints of its steps that use a disk.
async fn hints_of_run(server: &TestServer, node: &crate::support::Node, disk: Option<DiskHints>) -> Vec<DiskHints> {
    start(server, NewRun { disk, replace: true, ..debian() }).await.unwrap();
    let steps = node.workflow(server).await.unwrap().steps;
    let hint = |action| match action {
        Action::EraseDisk(erase) => Some(erase.disk),
        Action::StreamImage(stream) => Some(stream.disk),
        Action::SeedCloudInit(seed) => Some(seed.disk),
        _ => None,
    };
    steps.into_iter().filter_map(|step| hint(step.action)).collect()
}

async fn change(server: &TestServer, disk: DiskHints) -> Result<(), Error> {
    let change = NodeChange { disk: Some(disk), ..NodeChange::default() };
    operate::change_node(&server.store().await, "web1", change).await.map(drop)
}

#[tokio::test]
async fn the_hint_of_the_run_counts_before_that_of_the_node_and_that_before_the_systems() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let of_system = DiskHints { min_size: Some(1), ..serial("system") };
    add_system(&server, |system| system.disk = of_system.clone()).await.unwrap();

    assert_eq!(hints_of_run(&server, &node, None).await, vec![of_system.clone(); 3]);
    change(&server, serial("node")).await.unwrap();
    assert_eq!(web1(&server).await.disk, Some(serial("node")));
    assert_eq!(hints_of_run(&server, &node, None).await, vec![serial("node"); 3], "a hint counts as a whole");
    assert_eq!(hints_of_run(&server, &node, Some(serial("run"))).await, vec![serial("run"); 3]);
    assert_eq!(hints_of_run(&server, &node, None).await, vec![serial("node"); 3], "a run's hint is of that run alone");
    change(&server, DiskHints::default()).await.unwrap();
    assert_eq!(web1(&server).await.disk, None);
    assert_eq!(hints_of_run(&server, &node, None).await, vec![of_system; 3]);
}

#[tokio::test]
async fn a_hint_that_cannot_be_used_is_refused_where_it_is_given() {
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    add_system(&server, |_| {}).await.unwrap();
    let all = DiskHints { choose: DiskChoice::All, ..DiskHints::default() };
    let refused =
        [change(&server, all.clone()).await, start(&server, NewRun { disk: Some(all), ..debian() }).await.map(drop)];
    for refused in refused {
        let error = refused.unwrap_err();
        assert!(error.to_string().contains("it takes one disk: it cannot choose all"), "{error}");
    }
    let workflow = operate::parse_workflow("steps:\n- name: end\n  action:\n    reboot: {}\n").unwrap();
    let new = NewRun { disk: Some(serial("run")), ..NewRun::new(Task::Workflow(workflow)) };
    let error = start(&server, new).await.unwrap_err();
    assert!(error.to_string().contains("set `disk` in the steps of the workflow"), "{error}");
}
