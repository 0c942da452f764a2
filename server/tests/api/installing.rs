//! Installs a system on the machine "web1", and finds its report URL.

use std::io::Write;

use slipway_protocol::{Action, DiskHints, NodeStatus, Proof, RunStatus, SeedCloudInit, Workflow};
use slipway_server::operate::{self, NewRun, Task};
use slipway_server::store::systems::System;
use slipway_server::{Error, image};

use crate::support::{IMAGE, Node, TestServer};

/// Adds an image and a system with it that reports, after applying a change to the system.
pub async fn add_system(server: &TestServer, change: impl FnOnce(&mut System)) -> Result<System, Error> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&IMAGE).unwrap();
    let (store, data) = (server.store().await, server.data());
    let image = image::add(&store, &data, file.path(), image::Known::default(), |_| {}).await.unwrap().image;
    let mut system = System {
        name: "debian".to_owned(),
        image: image.digest,
        arch: None,
        raw_size: None,
        raw_digest: None,
        user_data: Some("#cloud-config\n".to_owned()),
        vendor_data: None,
        kernel_args: Vec::new(),
        ssh_keys: Vec::new(),
        keep_metadata: false,
        known_steps: Vec::new(),
        boot_reporter: false,
        agent: None,
        phone_home: true,
        phone_home_post: None,
        phone_home_tries: None,
        allow_override: true,
        require: Proof::default(),
        limits: Default::default(),
        disk: DiskHints::default(),
    };
    change(&mut system);
    operate::add_system(&store, system).await
}

/// A run that installs the system and sets nothing else.
pub fn debian() -> NewRun {
    NewRun::new(Task::Os("debian".to_owned()))
}

pub async fn start(server: &TestServer, new: NewRun) -> Result<RunStatus, Error> {
    operate::start_run(&server.store().await, &server.ca(), "web1", new).await
}

/// The machine does a complete run of the system, except the report of the installed system.
pub async fn install(server: &TestServer, node: &Node) -> Workflow {
    start(server, debian()).await.unwrap();
    let workflow = node.workflow(server).await.unwrap();
    node.finish(server, &workflow).await;
    workflow
}

pub fn seed(workflow: &Workflow) -> &SeedCloudInit {
    let seed = workflow.steps.iter().find_map(|step| match &step.action {
        Action::SeedCloudInit(seed) => Some(seed),
        _ => None,
    });
    seed.unwrap()
}

/// The report path of the installed system, from the block in its user-data.
pub fn report_path(workflow: &Workflow) -> String {
    let (_, url) = seed(workflow).user_data.split_once("url: \"https://server.test:8443").unwrap();
    url.split('"').next().unwrap().to_owned()
}

pub async fn web1(server: &TestServer) -> NodeStatus {
    operate::show_node(&server.store().await, "web1").await.unwrap()
}
