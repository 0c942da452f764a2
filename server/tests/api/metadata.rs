//! The metadata service, used in the way of cloud-init's data sources.

use std::path::Path;
use std::process::Command;

use reqwest::{Response, StatusCode};
use slipway_protocol::ErrorCode;
use slipway_server::keys::jwt::Signer;
use slipway_server::operate;

use crate::installing::{add_system, debian, seed, start};
use crate::packages::packages;
use crate::support::{Node, TestServer, refusal};
use crate::work::new_run;

/// A server, the machine "web1" with a run that installs a system, and the path of the run's metadata.
async fn installing() -> (TestServer, Node, String) {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let secret = |system: &mut slipway_server::store::systems::System| {
        system.user_data = Some("#cloud-config\npassword: x\n".to_owned());
    };
    add_system(&server, secret).await.unwrap();
    start(&server, debian()).await.unwrap();
    let path = path(&server).await;
    (server, node, path)
}

async fn path(server: &TestServer) -> String {
    let signer = Signer::open(&server.data()).unwrap();
    let url = operate::metadata_url(&server.store().await, &signer, "web1").await.unwrap().url;
    url.strip_prefix("https://server.test:8443").unwrap().to_owned()
}

async fn get(server: &TestServer, path: &str, token: Option<&str>) -> Response {
    let request = server.client().get(server.url(path));
    let request = token.iter().fold(request, |request, token| request.header("X-aws-ec2-metadata-token", *token));
    request.send().await.unwrap()
}

async fn text(server: &TestServer, path: &str, token: Option<&str>) -> String {
    let response = get(server, path, token).await;
    assert_eq!(
        (response.status(), &response.headers()["cache-control"]),
        (StatusCode::OK, &"no-store".parse().unwrap())
    );
    response.text().await.unwrap()
}

#[tokio::test]
async fn a_system_finds_what_its_run_seeds() {
    let (server, node, url) = installing().await;
    let workflow = node.workflow(&server).await.unwrap();
    let (token, seed) = (url.rsplit('/').next().unwrap(), seed(&workflow));
    for version in ["latest", "2009-04-04"] {
        for (tree, token) in [(format!("{url}/{version}"), None), (format!("/{version}"), Some(token))] {
            let text = async |path: &str| text(&server, &format!("{tree}/{path}"), token).await;
            assert_eq!(text("user-data").await, seed.user_data);
            assert!(seed.user_data.contains("phone_home"), "with the block");
            assert_eq!(text("vendor-data").await, *seed.vendor_data.as_ref().unwrap());
            assert_eq!(text("network-config").await, "");
            assert!(text("meta-data/").await.starts_with("hostname\ninstance-id\n"));
            assert_eq!(text("meta-data/instance-id").await, seed.instance_id);
            assert_eq!(text("meta-data/local-hostname").await, "web1");
            assert_eq!(text("meta-data/sitename").await, "server.test");
            assert!(text("meta-data").await.contains(&format!("\ninstance-id: \"{}\"\n", seed.instance_id)));
            let nothing = get(&server, &format!("{tree}/meta-data/ami-id"), token).await;
            assert_eq!(refusal(nothing).await.code, ErrorCode::NotFound);
        }
    }
    let newer = get(&server, &format!("{url}/2021-03-23/meta-data/instance-id"), None).await;
    assert_eq!(refusal(newer).await.code, ErrorCode::NotFound, "cloud-init goes on with an older version");
}

#[tokio::test]
async fn a_run_that_only_waits_closes_no_metadata() {
    let (server, node, url) = installing().await;
    let workflow = node.workflow(&server).await.unwrap();
    node.finish(&server, &workflow).await;
    let (path, store) = (format!("{url}/latest/meta-data/instance-id"), server.store().await);
    for _ in 0..2 {
        start(&server, debian()).await.unwrap();
        assert_eq!(text(&server, &path, None).await, seed(&workflow).instance_id);
        operate::cancel_run(&store, "web1").await.unwrap();
        assert_eq!(text(&server, &path, None).await, seed(&workflow).instance_id);
    }
    start(&server, debian()).await.unwrap();
    node.workflow(&server).await.unwrap();
    assert_eq!(refusal(get(&server, &path, None).await).await.code, ErrorCode::NotFound);
}

#[tokio::test]
async fn cloud_init_finds_what_a_run_seeds_by_either_data_source() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA operator".to_owned();
    add_system(&server, |system| system.ssh_keys.push(key.clone())).await.unwrap();
    start(&server, debian()).await.unwrap();
    let workflow = node.workflow(&server).await.unwrap();
    let (seed, tree) = (seed(&workflow), server.url(&path(&server).await));
    for (data_source, url) in [("NoCloud", format!("{tree}/latest/")), ("Ec2", tree)] {
        let found = data_source_finds(&server, data_source, url).await;
        assert_eq!(found["instance_id"], seed.instance_id, "{data_source}");
        assert_eq!(found["hostname"], "web1", "{data_source}");
        assert_eq!(found["ssh_keys"], serde_json::json!([key]), "{data_source}");
        assert_eq!(found["user_data"], seed.user_data, "{data_source}");
        assert_eq!(found["metadata"]["sitename"], "server.test", "{data_source}");
        assert_eq!(found["metadata"]["machine-id"], node.enrolment.node, "{data_source}");
    }
}

/// What a data source of Debian's cloud-init finds at a URL.
async fn data_source_finds(server: &TestServer, data_source: &'static str, url: String) -> serde_json::Value {
    let ca = server.folder.path().join("ca.pem");
    std::fs::write(&ca, server.ca()).unwrap();
    let scratch = server.folder.path().join("cloud-init");
    let run = move || {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/api/data_sources.py");
        let mut python = Command::new("/usr/bin/python3");
        python.arg(program).args([data_source, &url]).arg(scratch);
        python.env("PYTHONPATH", packages()).env("PYTHONDONTWRITEBYTECODE", "1").env("REQUESTS_CA_BUNDLE", ca);
        python.output().unwrap()
    };
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    assert!(output.status.success(), "{data_source}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test]
async fn nobody_else_finds_anything() {
    let (server, node, url) = installing().await;
    for path in ["/latest/user-data", "/2009-04-04/meta-data/instance-id"] {
        assert_eq!(refusal(get(&server, path, None).await).await.code, ErrorCode::Unauthenticated);
        assert_eq!(refusal(get(&server, path, Some("nonsense")).await).await.code, ErrorCode::NotFound);
        assert_eq!(refusal(get(&server, path, Some(&node.enrolment.jwt)).await).await.code, ErrorCode::NotFound);
    }
    let put = server.client().put(server.url("/latest/api/token")).send().await.unwrap();
    assert_eq!(put.status(), StatusCode::METHOD_NOT_ALLOWED);
    let http = reqwest::get(server.boot_url(&format!("{url}/latest/user-data"))).await.unwrap();
    assert_eq!(http.status(), StatusCode::NOT_FOUND, "not without TLS");
    let (token, cut) = (format!("{url}/latest/user-data"), format!("{}/latest/user-data", &url[..url.len() - 1]));
    assert_eq!(get(&server, &token, None).await.status(), StatusCode::OK);
    assert_eq!(refusal(get(&server, &cut, None).await).await.code, ErrorCode::NotFound);
}

#[tokio::test]
async fn an_old_systems_token_opens_nothing() {
    let (server, _, first) = installing().await;
    start(&server, operate::NewRun { replace: true, ..debian() }).await.unwrap();
    let second = path(&server).await;
    let code = async |url: &str| get(&server, &format!("{url}/latest/user-data"), None).await.status();
    assert_eq!((code(&first).await, code(&second).await), (StatusCode::NOT_FOUND, StatusCode::OK));
    operate::decommission_node(&server.store().await, "web1").await.unwrap();
    assert_eq!(code(&second).await, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_run_without_a_seed_has_no_metadata() {
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    let (store, signer) = (server.store().await, Signer::open(&server.data()).unwrap());
    let refused = async |expect: &str| {
        let body = operate::metadata_url(&store, &signer, "web1").await.expect_err("no metadata").body();
        assert_eq!((body.code, body.message.as_str()), (ErrorCode::NotFound, expect));
    };
    refused("node web1 has no run, and therefore no metadata; start one with `run start`").await;
    let run = start(&server, new_run("steps: [{name: a, action: {reboot: {}}}]")).await.unwrap();
    let id = &run.id;
    refused(&format!("run {id}, the newest of node web1, has no seed-cloud-init step, and therefore no metadata"))
        .await;
    let path = format!("/v1/metadata/{}/latest/user-data", signer.metadata_token(&run.id));
    assert_eq!(get(&server, &path, None).await.status(), StatusCode::NOT_FOUND);
    operate::decommission_node(&store, "web1").await.unwrap();
    refused("node web1 is out of service, and therefore has no metadata").await;
}

#[tokio::test]
async fn a_node_asks_a_hundred_and_twenty_times_a_minute_at_most() {
    let (server, _, url) = installing().await;
    let (client, url) = (server.client(), server.url(&format!("{url}/latest/meta-data/instance-id")));
    for _ in 0..120 {
        assert_eq!(client.get(&url).send().await.unwrap().status(), StatusCode::OK);
    }
    let refused = client.get(&url).send().await.unwrap();
    assert_eq!(refused.headers()["retry-after"], "61", "what is left of the minute, rounded up");
    let refused = refusal(refused).await;
    assert_eq!(refused.code, ErrorCode::TooManyRequests);
    assert_eq!(refused.message, "more than 120 requests for metadata from one node within a minute; try again in 61 s");
}
