//! From an image to a machine that runs it.

use std::io::Write;

use reqwest::StatusCode;
use slipway_protocol::{Action, DiskHints, ErrorCode, NodeState, RunStatus, SeedCloudInit, Workflow};
use slipway_server::operate::{self, NewRun, Task};
use slipway_server::store::systems::System;
use slipway_server::{Error, image};

use crate::support::{TestServer, refusal};
use crate::work::new_run;

async fn add_system(server: &TestServer, user_data: &str) -> System {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"image").unwrap();
    let (store, data) = (server.store().await, server.data());
    let known = image::Known { raw_size: Some(5), raw_digest: None };
    let image = image::add(&store, &data, file.path(), known).await.unwrap();
    let system = System {
        name: "debian".to_owned(),
        image: image.digest,
        raw_size: None,
        raw_digest: None,
        user_data: Some(user_data.to_owned()),
        vendor_data: None,
        kernel_args: Vec::new(),
        phone_home: true,
        disk: DiskHints::default(),
    };
    operate::add_system(&store, system).await.unwrap()
}

async fn install(server: &TestServer, user_data: Option<&str>) -> Result<RunStatus, Error> {
    let task = Task::Os("debian".to_owned());
    let new = NewRun { task, user_data: user_data.map(str::to_owned), replace: false };
    operate::start_run(&server.store().await, &server.ca(), "web1", new).await
}

fn seed(workflow: &Workflow) -> &SeedCloudInit {
    let seed = workflow.steps.iter().find_map(|step| match &step.action {
        Action::SeedCloudInit(seed) => Some(seed),
        _ => None,
    });
    seed.unwrap()
}

async fn state(server: &TestServer) -> NodeState {
    operate::show_node(&server.store().await, "web1").await.unwrap().state
}

#[tokio::test]
async fn a_machine_is_running_when_its_system_reports() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let system = add_system(&server, "#cloud-config\n").await;
    assert_eq!(system.raw_size, Some(5), "known with the image");
    install(&server, None).await.unwrap();
    let workflow = node.workflow(&server).await.unwrap();
    let seed = seed(&workflow);
    assert_eq!(seed.hostname.as_deref(), Some("web1"));
    let ca = server.ca().lines().nth(1).unwrap().to_owned();
    assert!(seed.vendor_data.as_ref().unwrap().contains(&ca), "the system is made to trust the server");
    let path = seed.phone_home.as_ref().unwrap().url.strip_prefix("https://server.test:8443").unwrap().to_owned();

    let form = "hostname=web1&instance_id=i&pub_key_ed25519=ssh-ed25519+AAAA%2B";
    let post = async |path: &str| server.client().post(server.url(path)).body(form).send().await.unwrap();
    node.finish(&server, &workflow).await;
    assert_eq!(state(&server).await, NodeState::Booting);
    assert_eq!(refusal(post("/v1/phone-home/nonsense").await).await.code, ErrorCode::NotFound);
    assert_eq!(state(&server).await, NodeState::Booting);

    assert_eq!(post(&path).await.status(), StatusCode::OK);
    assert_eq!(state(&server).await, NodeState::Running);
    let run = operate::show_node(&server.store().await, "web1").await.unwrap().run.unwrap();
    assert_eq!(run.phone_home["pub_key_ed25519"], "ssh-ed25519 AAAA+");
    assert_eq!(post(&path).await.status(), StatusCode::OK, "again");
    let again = operate::show_node(&server.store().await, "web1").await.unwrap().run.unwrap();
    assert_eq!(again, run, "a repetition changes nothing");
}

#[tokio::test]
async fn a_system_may_report_as_to_a_metadata_service() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    add_system(&server, "#cloud-config\n").await;
    install(&server, None).await.unwrap();
    let workflow = node.workflow(&server).await.unwrap();
    node.finish(&server, &workflow).await;
    let post = async |instance: &str| {
        let url = server.url("/latest/meta-data/phone_home");
        server.client().post(url).body(format!("instance_id={instance}")).send().await.unwrap()
    };
    for wrong in ["", "i-1", "N%2FA"] {
        assert_eq!(refusal(post(wrong).await).await.code, ErrorCode::NotFound, "{wrong:?}");
    }
    assert_eq!(post(&seed(&workflow).instance_id).await.status(), StatusCode::OK);
    assert_eq!(state(&server).await, NodeState::Running);
}

#[tokio::test]
async fn an_instance_id_that_can_be_guessed_is_no_proof() {
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    let new = new_run("steps: [{name: a, action: {seed-cloud-init: {instance_id: web1-1}}}]");
    operate::start_run(&server.store().await, &server.ca(), "web1", new).await.unwrap();
    let url = server.url("/latest/meta-data/phone_home");
    let refused = server.client().post(url).body("instance_id=web1-1").send().await.unwrap();
    assert_eq!(refusal(refused).await.code, ErrorCode::NotFound);
}

#[tokio::test]
async fn every_run_of_a_workflow_has_an_instance_id_of_its_own() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let mut found = Vec::new();
    for _ in 0..2 {
        let new = NewRun { replace: true, ..new_run("steps: [{name: a, action: {seed-cloud-init: {}}}]") };
        operate::start_run(&server.store().await, &server.ca(), "web1", new).await.unwrap();
        found.push(seed(&node.workflow(&server).await.unwrap()).instance_id.clone());
    }
    assert_ne!(found[0], found[1]);
    assert!(found.iter().all(|id| id.starts_with("slipway-") && id.len() == 40), "{found:?}");
}

#[tokio::test]
async fn the_report_of_an_old_run_does_not_make_a_new_one_run() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    add_system(&server, "#cloud-config\n").await;
    let mut paths = Vec::new();
    for _ in 0..2 {
        install(&server, None).await.unwrap();
        let workflow = node.workflow(&server).await.unwrap();
        node.finish(&server, &workflow).await;
        let url = &seed(&workflow).phone_home.as_ref().unwrap().url;
        paths.push(url.strip_prefix("https://server.test:8443").unwrap().to_owned());
    }
    let post = async |path: &str| server.client().post(server.url(path)).send().await.unwrap().status();
    assert_eq!(post(&paths[0]).await, StatusCode::OK);
    assert_eq!(state(&server).await, NodeState::Booting);
    assert_eq!(post(&paths[1]).await, StatusCode::OK);
    assert_eq!(state(&server).await, NodeState::Running);
}

#[tokio::test]
async fn user_data_that_cannot_report_is_refused_when_the_run_is_started() {
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    add_system(&server, "#cloud-config\n").await;
    let refused = install(&server, Some("#cloud-config\npackages: [a\n")).await.expect_err("broken YAML").to_string();
    assert!(refused.starts_with("the user-data cannot be made to report: line "), "{refused}");
    install(&server, Some("#cloud-config\npackages: [a]\n")).await.unwrap();
}

#[tokio::test]
async fn a_form_that_is_too_long_is_refused() {
    let server = TestServer::start().await;
    let form = vec![b'a'; (64 << 10) + 1];
    let response = server.client().post(server.url("/v1/phone-home/t")).body(form).send().await.unwrap();
    assert_eq!(refusal(response).await.code, ErrorCode::TooLarge);
}
