//! Boot files that operators have made over HTTPS.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use reqwest::StatusCode;
use serde_json::{Value, json};
use slipway_media::Manifest;
use slipway_parts::Arch;
use slipway_protocol::{ErrorBody, ErrorCode, Proof};
use slipway_server::boot_files::builds;
use slipway_server::keys::secure_boot::{Beginning, SecureBoot};
use time::OffsetDateTime;
use tokio::task::JoinSet;

use crate::media::write_parts;
use crate::support::{TestServer, refusal};

/// A server with parts for one architecture and an empty folder of boot files.
async fn start() -> TestServer {
    let server = TestServer::start().await;
    fs::remove_dir(server.folder.path().join("boot/x86_64")).unwrap();
    write_parts(&server.folder.path().join("parts"), Arch::X86_64, 1);
    server
}

async fn asked(server: &TestServer, new: &Value) -> reqwest::Response {
    let post = server.client().post(server.url("/v1/operator/media"));
    post.bearer_auth(server.operator_token()).json(new).send().await.unwrap()
}

async fn made(server: &TestServer, new: &Value) -> Manifest {
    let response = asked(server, new).await;
    assert_eq!(response.status(), StatusCode::CREATED);
    response.json().await.unwrap()
}

async fn refused(server: &TestServer, new: &Value) -> ErrorBody {
    refusal(asked(server, new).await).await
}

fn newest(server: &TestServer) -> reqwest::RequestBuilder {
    server.client().get(server.url("/v1/operator/media"))
}

#[tokio::test]
async fn an_operator_has_boot_files_made_that_the_server_hands_out() {
    let server = start().await;
    let newest = async || newest(&server).bearer_auth(server.operator_token()).send().await.unwrap();
    let none = refusal(newest().await).await;
    assert_eq!((none.code, none.message.as_str()), (ErrorCode::NotFound, "no boot files were made yet"));

    let manifest = made(&server, &json!({})).await;
    assert_eq!(manifest.server.as_deref(), Some("https://server.test:8443"));
    assert_eq!(manifest.ca_sha256, slipway_parts::sha256(server.ca().as_bytes()));
    assert_eq!(newest().await.json::<Manifest>().await.unwrap(), manifest);
    for asset in &manifest.assets {
        let file = server.client().get(server.boot_url(&format!("/boot/{}", asset.path))).send().await.unwrap();
        assert_eq!(slipway_parts::sha256(&file.bytes().await.unwrap()), asset.sha256, "{}", asset.path);
    }
    assert_eq!(made(&server, &json!({})).await.id, manifest.id, "the same inputs");

    let all = json!({
        "url": "https://other.example", "ca": "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        "token": "s3cret", "require": "token", "proxy": "http://p:1", "no_proxy": "a,b",
        "hostname": "rack3-u12", "consoles": ["ttyS1,115200"], "arguments": ["panic=30"],
        "kinds": ["network", "disc"], "archs": ["x86_64"], "kernel": "generic", "unsigned": true
    });
    let manifest = made(&server, &all).await;
    assert_eq!((manifest.server.as_deref(), manifest.has_token), (Some("https://other.example"), true));
    assert_eq!(manifest.require, Proof::Token);
    assert_eq!(manifest.parts[0].cmdline, "console=ttyS1,115200 rootfstype=ramfs panic=30");
    let boot = server.folder.path().join("boot");
    let initramfs = boot.join("x86_64/initramfs");
    let text = String::from_utf8_lossy(&fs::read(&initramfs).unwrap()).into_owned();
    let config = "hostname: \"rack3-u12\"\nno_proxy: \"a,b\"\nproxy: \"http://p:1\"\nrequire: \"token\"\n\
        server: \"https://other.example\"\ntoken: \"s3cret\"\n";
    assert!(text.contains(config), "{text}");
    assert_eq!(fs::metadata(&initramfs).unwrap().permissions().mode() & 0o777, 0o600, "it has a secret");
    assert!(boot.join("slipway.iso").exists());
    assert_eq!(newest().await.json::<Manifest>().await.unwrap(), manifest);
}

#[tokio::test]
async fn what_trusts_somebody_else_is_neither_signed_nor_recorded() {
    let server = start().await;
    SecureBoot::begin(&server.data(), Beginning::default(), OffsetDateTime::now_utc()).unwrap();
    let ours = made(&server, &json!({ "consoles": ["ttyS1"] })).await;
    assert!(ours.signed_by.is_some());
    let ca = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
    for new in
        [json!({ "url": "https://other.example" }), json!({ "ca": ca }), json!({ "arguments": ["init=/bin/sh"] })]
    {
        assert_eq!(made(&server, &new).await.signed_by, None, "{new}");
    }
    let recorded = builds::known(&server.store().await).await.unwrap().builds;
    assert_eq!(recorded.into_iter().map(|build| build.id).collect::<Vec<_>>(), [ours.id]);
}

#[tokio::test]
async fn boot_files_whose_server_metadata_names_are_for_this_site() {
    let server = start().await;
    SecureBoot::begin(&server.data(), Beginning::default(), OffsetDateTime::now_utc()).unwrap();
    let new = json!({ "metadata": ["ec2", "config-drive"], "require": "token", "kinds": ["network"] });
    let manifest = made(&server, &new).await;
    assert_eq!((manifest.server, manifest.metadata.len()), (None, 2));
    assert!(manifest.signed_by.is_some(), "no other server has a certificate of this CA");
    let initramfs = fs::read(server.folder.path().join("boot/x86_64/initramfs")).unwrap();
    let text = String::from_utf8_lossy(&initramfs);
    assert!(text.contains("\nmetadata: \"config-drive,ec2\"\nrequire: \"token\"\n"), "{text}");
    assert!(!text.contains("\nserver: "), "{text}");
}

#[tokio::test]
async fn nobody_else_has_boot_files_made() {
    let server = start().await;
    let node = server.enrolled("web1").await;
    let post = server.client().post(server.url("/v1/operator/media")).json(&json!({}));
    let by_node = node.client.post(server.url("/v1/operator/media")).json(&json!({}));
    for request in [post.try_clone().unwrap(), post.bearer_auth(&node.enrolment.jwt), by_node, newest(&server)] {
        assert_eq!(refusal(request.send().await.unwrap()).await.code, ErrorCode::Unauthenticated);
    }
    assert!(!server.folder.path().join("boot/media").exists());
}

#[tokio::test]
async fn a_wrong_value_is_named_by_its_key_and_not_repeated() {
    let server = start().await;
    let long = "x".repeat(2048);
    let cases = [
        (json!({ "url": "http://sesame.example" }), "url does not begin with https://"),
        (json!({ "url": format!("https://{}", "a".repeat(300)) }), "url has a host name of more than 253 characters"),
        (json!({ "ca": "sesame" }), "ca contains no \"-----BEGIN CERTIFICATE-----\""),
        (json!({ "token": "open sesame" }), "token must be one word"),
        (json!({ "proxy": "http://sesame" }), "proxy has no port"),
        (json!({ "proxy": "http://open:sesame@p:1" }), "proxy must be a host without user name and password"),
        (json!({ "no_proxy": "sesame" }), "no_proxy has no effect without proxy"),
        (
            json!({ "proxy": "http://p:1", "no_proxy": "open sesame" }),
            "no_proxy has an entry, number 1, that is not a name",
        ),
        (json!({ "hostname": "open sesame" }), "hostname is not a host name of at most 64 characters"),
        (json!({ "require": "token" }), "require needs a bootstrap token in the files"),
        (json!({ "require": "sesame" }), "a name is not known, expected one of `registered`, `token`, `attested`"),
        (json!({ "consoles": ["open sesame"] }), "consoles must be one word"),
        (json!({ "arguments": ["open sesame"] }), "arguments must be one word"),
        (json!({ "arguments": [long] }), "arguments makes a command line of 2048 bytes or more"),
        (json!({ "kernel": "generic/../../sesame" }), "kernel must be a name such as generic or cloud"),
        (json!({ "kernel": "" }), "kernel has no value"),
        (json!({ "kinds": ["sesame"] }), "a name is not known, expected one of `network`, `stick`, `disc`"),
        (json!({ "archs": ["sesame"] }), "a name is not known, expected `x86_64` or `aarch64`"),
        // Folders are the server's own.
        (json!({ "parts": "/sesame" }), "a field is not known"),
        (json!({ "out": "/sesame" }), "a field is not known"),
    ];
    for (new, expect) in cases {
        let refused = refused(&server, &new).await;
        assert_eq!(refused.code, ErrorCode::InvalidRequest, "{new}");
        assert!(refused.message.contains(expect) && !refused.message.contains("sesame"), "{new}: {}", refused.message);
    }
    let ca = "-----BEGIN CERTIFICATE-----\n".to_owned() + &"A".repeat(1 << 20);
    assert_eq!(refused(&server, &json!({ "ca": ca })).await.code, ErrorCode::TooLarge);
    let lines = "-----BEGIN CERTIFICATE-----\n".to_owned() + &"A\n".repeat(300_000);
    assert!(
        refused(&server, &json!({ "ca": lines })).await.message.starts_with("ca makes a configuration of more than")
    );
    assert!(!server.folder.path().join("boot/media").exists());
}

#[tokio::test]
async fn what_the_server_lacks_is_said() {
    let server = TestServer::start().await;
    let missing = refused(&server, &json!({})).await;
    assert_eq!(missing.code, ErrorCode::NotFound);
    assert!(missing.message.contains("install the package slipway-parts, or name their folder with --parts"));

    let server = start().await;
    let missing = refused(&server, &json!({ "kernel": "cloud" })).await;
    assert!(missing.message.contains("there are none for any architecture with kernel cloud"), "{}", missing.message);
    let missing = refused(&server, &json!({ "archs": ["aarch64"] })).await;
    assert!(missing.message.contains("there are none for aarch64 with kernel generic"), "{}", missing.message);

    // What an operator put there by hand stays.
    fs::create_dir(server.folder.path().join("boot/x86_64")).unwrap();
    let in_the_way = refused(&server, &json!({ "kinds": ["network"] })).await;
    assert_eq!(in_the_way.code, ErrorCode::Conflict);
    assert!(in_the_way.message.contains("is not a link from an earlier build"), "{}", in_the_way.message);

    // Damaged parts are the server's fault.
    fs::write(server.folder.path().join("parts/x86_64-generic/vmlinuz"), "damaged").unwrap();
    let fault = refused(&server, &json!({})).await;
    assert_eq!(fault.code, ErrorCode::Internal);
    assert!(fault.message.contains("the server failed while making boot files"), "{}", fault.message);
}

#[tokio::test]
async fn a_server_without_a_folder_of_boot_files_says_how_to_get_one() {
    let server = TestServer::start_without_boot_folder().await;
    let get = newest(&server).bearer_auth(server.operator_token()).send().await.unwrap();
    for refused in [refused(&server, &json!({})).await, refusal(get).await] {
        assert_eq!(refused.code, ErrorCode::Conflict);
        assert!(refused.message.contains("start it with `serve --boot FOLDER`"), "{}", refused.message);
    }
}

/// Asks for two builds at once. One is refused. The other waits for a build on the command line, which has this lock.
async fn two_builds(server: &TestServer) -> (JoinSet<StatusCode>, fs::File) {
    let builds = server.folder.path().join("boot/media");
    fs::create_dir(&builds).unwrap();
    let lock = fs::File::open(&builds).unwrap();
    lock.lock().unwrap();
    let mut asking = JoinSet::new();
    for _ in 0..2 {
        let post = server.client().post(server.url("/v1/operator/media")).bearer_auth(server.operator_token());
        asking.spawn(async move { post.json(&json!({})).send().await.unwrap().status() });
    }
    assert_eq!(asking.join_next().await.unwrap().unwrap(), StatusCode::CONFLICT);
    (asking, lock)
}

#[tokio::test]
async fn one_build_is_made_at_a_time() {
    let server = start().await;
    let (mut asking, other) = two_builds(&server).await;
    other.unlock().unwrap();
    assert_eq!(asking.join_next().await.unwrap().unwrap(), StatusCode::CREATED);
    made(&server, &json!({})).await;
}

#[tokio::test]
async fn a_build_whose_caller_goes_away_is_recorded() {
    let server = start().await;
    let (mut asking, other) = two_builds(&server).await;
    asking.shutdown().await;
    other.unlock().unwrap();
    // The turn ends when it is recorded.
    let next = json!({ "consoles": ["ttyS1"] });
    while asked(&server, &next).await.status() == StatusCode::CONFLICT {}
    assert_eq!(builds::known(&server.store().await).await.unwrap().builds.len(), 2);
}
