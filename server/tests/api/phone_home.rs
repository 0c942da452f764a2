//! From an image to a machine that runs it.

use reqwest::StatusCode;
use slipway_protocol::{ErrorCode, NodeState};

use crate::installing::{add_system, install, report_path, seed, start, web1};
use crate::support::{TestServer, refusal};
use crate::work::new_run;

async fn state(server: &TestServer) -> NodeState {
    web1(server).await.state
}

#[tokio::test]
async fn a_machine_is_running_when_its_system_reports() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let system = add_system(&server, |_| {}).await.unwrap();
    assert_eq!(system.raw_size, Some(5), "known with the image");
    let workflow = install(&server, &node).await;
    let seed = seed(&workflow);
    assert_eq!(seed.hostname.as_deref(), Some("web1"));
    let ca = server.ca().lines().nth(1).unwrap().to_owned();
    assert!(seed.vendor_data.as_ref().unwrap().contains(&ca), "the system is made to trust the server");
    let path = report_path(&workflow);

    let form = "hostname=web1&instance_id=i&pub_key_ed25519=ssh-ed25519+AAAA%2B";
    let post = async |path: &str| server.client().post(server.url(path)).body(form).send().await.unwrap();
    assert_eq!(state(&server).await, NodeState::Booting);
    assert_eq!(refusal(post("/v1/phone-home/nonsense").await).await.code, ErrorCode::NotFound);
    assert_eq!(state(&server).await, NodeState::Booting);

    assert_eq!(post(&path).await.status(), StatusCode::OK);
    assert_eq!(state(&server).await, NodeState::Running);
    let run = web1(&server).await.run.unwrap();
    assert_eq!(run.phone_home["pub_key_ed25519"], "ssh-ed25519 AAAA+");
    assert_eq!(post(&path).await.status(), StatusCode::OK, "again");
    assert_eq!(web1(&server).await.run.unwrap(), run, "a repetition changes nothing");
}

#[tokio::test]
async fn a_system_may_report_as_to_a_metadata_service() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    add_system(&server, |_| {}).await.unwrap();
    let workflow = install(&server, &node).await;
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
    start(&server, new_run("steps: [{name: a, action: {seed-cloud-init: {instance_id: web1-1}}}]")).await.unwrap();
    let url = server.url("/latest/meta-data/phone_home");
    let refused = server.client().post(url).body("instance_id=web1-1").send().await.unwrap();
    assert_eq!(refusal(refused).await.code, ErrorCode::NotFound);
}

#[tokio::test]
async fn the_report_of_an_old_run_does_not_make_a_new_one_run() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    add_system(&server, |_| {}).await.unwrap();
    let mut paths = Vec::new();
    for _ in 0..2 {
        paths.push(report_path(&install(&server, &node).await));
    }
    let post = async |path: &str| server.client().post(server.url(path)).send().await.unwrap().status();
    assert_eq!(post(&paths[0]).await, StatusCode::OK);
    assert_eq!(state(&server).await, NodeState::Booting);
    assert_eq!(post(&paths[1]).await, StatusCode::OK);
    assert_eq!(state(&server).await, NodeState::Running);
}

#[tokio::test]
async fn a_form_that_is_too_long_is_refused() {
    let server = TestServer::start().await;
    let form = vec![b'a'; (64 << 10) + 1];
    let response = server.client().post(server.url("/v1/phone-home/t")).body(form).send().await.unwrap();
    assert_eq!(refusal(response).await.code, ErrorCode::TooLarge);
}
