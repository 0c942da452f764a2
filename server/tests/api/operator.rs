//! What operators do over HTTPS.

use reqwest::{RequestBuilder, StatusCode};
use serde_json::{Value, json};
use slipway_protocol::{ErrorCode, RecoveryKey};
use slipway_server::image;
use slipway_server::store::recovery_keys;

use crate::support::{Machine, Node, TestServer, UUID, refusal};

#[tokio::test]
async fn operators_need_their_token() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let url = server.url("/v1/operator/nodes");
    let requests = [
        server.client().get(&url),
        server.client().get(&url).bearer_auth("nonsense"),
        server.client().get(&url).bearer_auth(&node.enrolment.jwt),
        node.client.get(&url),
    ];
    for request in requests {
        assert_eq!(refusal(request.send().await.unwrap()).await.code, ErrorCode::Unauthenticated);
    }
}

#[tokio::test]
async fn operators_do_everything_over_https() {
    let server = TestServer::start().await;
    let token = server.operator_token();
    let client = server.client();
    let call = async |request: RequestBuilder, expect: StatusCode| -> Value {
        let response = request.bearer_auth(&token).send().await.unwrap();
        assert_eq!(response.status(), expect);
        response.json().await.unwrap()
    };
    let url = |path: &str| server.url(&format!("/v1/operator{path}"));

    let new = json!({ "name": "web1", "identity": { "uuid": UUID } });
    let node = call(client.post(url("/nodes")).json(&new), StatusCode::CREATED).await;
    assert_eq!((&node["state"], &node["released"]), (&json!("registered"), &json!(false)));
    let again = client.post(url("/nodes")).json(&new);
    assert_eq!(call(again, StatusCode::CONFLICT).await["code"], "conflict");
    let released = call(client.post(url("/nodes/web1/release?name=db1")), StatusCode::OK).await;
    assert_eq!((&released["released"], &released["name"]), (&json!(true), &json!("db1")));
    let renamed = call(client.patch(url("/nodes/db1")).json(&json!({ "name": "web1" })), StatusCode::OK).await;
    assert_eq!(renamed["name"], "web1");

    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA";
    let lan = json!({ "interfaces": [{ "name": "lan0", "mac": "52:54:00:12:34:56", "addresses": ["192.0.2.5/24"] }] });
    let change = json!({ "network": lan, "ssh_keys": [key] });
    let changed = call(client.patch(url("/nodes/web1")).json(&change), StatusCode::OK).await;
    assert_eq!((&changed["network"]["interfaces"][0]["name"], &changed["ssh_keys"][0]), (&json!("lan0"), &json!(key)));
    let wrong = json!({ "network": { "interfaces": [{ "name": "lan0" }] } });
    let refused = call(client.patch(url("/nodes/web1")).json(&wrong), StatusCode::BAD_REQUEST).await;
    assert!(refused["message"].as_str().unwrap().contains("needs one of mac, bond and vlan"), "{refused}");

    let no_image = json!({ "name": "debian", "image": format!("sha256:{}", "0".repeat(64)) });
    let refused = call(client.post(url("/os")).json(&no_image), StatusCode::NOT_FOUND).await;
    assert!(refused["message"].as_str().unwrap().starts_with("there is no image sha256:00"));

    let steps = json!([{ "name": "leave", "action": { "reboot": {} } }]);
    let new = json!({ "task": { "workflow": { "steps": steps } } });
    let run = call(client.post(url("/nodes/web1/runs")).json(&new), StatusCode::CREATED).await;
    assert_eq!(run["steps"][0]["state"], "pending");
    let run_url = url(&format!("/runs/{}", run["id"].as_str().unwrap()));
    assert_eq!(call(client.get(&run_url), StatusCode::OK).await["node"], node["id"]);
    assert_eq!(call(client.get(run_url + "/events"), StatusCode::OK).await, json!([]));
    assert_eq!(call(client.get(url("/nodes")), StatusCode::OK).await[0]["run"]["id"], run["id"]);
    assert_eq!(call(client.get(url("/nodes/web1")), StatusCode::OK).await["name"], "web1");
    assert_eq!(call(client.get(url("/images")), StatusCode::OK).await, json!([]));
    assert_eq!(call(client.get(url("/os")), StatusCode::OK).await, json!([]));
    assert_eq!(call(client.get(url("/nodes/web1/metadata-url")), StatusCode::NOT_FOUND).await["code"], "not-found");
    call(client.get(url("/nodes/web2")), StatusCode::NOT_FOUND).await;

    let issued = call(client.post(url("/tokens")).json(&json!({ "expires_in": 60 })), StatusCode::CREATED).await;
    let mut machine = Machine::with_uuid("5d5d4544-0042-3010-8058-b7c04f503432");
    machine.token = issued["token"].as_str().map(str::to_owned);
    Node::enrol(&server, machine).await;
}

#[tokio::test]
async fn operators_clear_up_over_https() {
    let server = TestServer::start().await;
    let token = server.operator_token();
    let client = server.client();
    let url = |path: &str| server.url(&format!("/v1/operator{path}"));
    let call = async |request: RequestBuilder, expect: StatusCode| -> Value {
        let response = request.bearer_auth(&token).send().await.unwrap();
        assert_eq!(response.status(), expect);
        let body = response.bytes().await.unwrap();
        if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() }
    };
    let message = |refused: Value| refused["message"].as_str().unwrap().to_owned();
    let (gone, conflict, none) = (StatusCode::NO_CONTENT, StatusCode::CONFLICT, StatusCode::NOT_FOUND);

    let file = server.folder.path().join("disk.img");
    std::fs::write(&file, [0xAA; 512]).unwrap();
    let image =
        image::add(&server.store().await, &server.data(), &file, image::Known::default(), |_| {}).await.unwrap().image;
    let node = server.enrolled("web1").await;
    let system = json!({ "name": "debian", "image": image.digest });
    call(client.post(url("/os")).json(&system), StatusCode::CREATED).await;
    let run =
        call(client.post(url("/nodes/web1/runs")).json(&json!({ "task": { "os": "debian" } })), StatusCode::CREATED);
    let run = run.await["id"].as_str().unwrap().to_owned();
    assert_eq!(call(client.get(url("/nodes/web1/runs")), StatusCode::OK).await[0]["id"], *run);

    let remove_image = || client.delete(url("/images/disk.img"));
    let used = message(call(remove_image(), conflict).await);
    assert!(
        used.ends_with("operating system debian uses it; remove the operating system first (`os remove debian`)"),
        "{used}"
    );
    call(client.delete(url("/os/debian")), gone).await;
    call(client.delete(url("/os/debian")), none).await;
    let used = message(call(remove_image(), conflict).await);
    assert!(used.contains(&format!("run {run} of node web1 has a step that uses it")), "{used}");
    let cancelled = call(client.post(url(&format!("/runs/{run}/cancel"))), StatusCode::OK).await;
    assert_eq!(cancelled["state"], "failed");
    call(client.post(url("/runs/web1/cancel")), conflict).await;
    call(client.post(url("/runs/web2/cancel")), none).await;
    call(remove_image(), gone).await;
    call(remove_image(), none).await;
    assert!(!server.data().image(&image.digest).exists());

    let refused = message(call(client.delete(url("/nodes/web1")), conflict).await);
    assert_eq!(refused, "node web1 is in service; take it out of service first (`node decommission web1`)");
    call(client.post(url("/nodes/web1/decommission")), StatusCode::OK).await;
    let key = RecoveryKey { volume: "v".to_owned(), key: "k".to_owned().into() };
    let store = server.store().await;
    recovery_keys::insert(&mut store.read().await.unwrap(), &node.enrolment.node, &run, &key, None, 1).await.unwrap();
    let refused = message(call(client.delete(url("/nodes/web1")), conflict).await);
    assert!(refused.starts_with("recovery keys of disks are stored for node web1"), "{refused}");
    recovery_keys::remove(&mut store.read().await.unwrap(), &node.enrolment.node, "v").await.unwrap();
    call(client.delete(url("/nodes/web1")), gone).await;
    call(client.delete(url("/nodes/web1")), none).await;
    assert_eq!(call(client.get(url("/runs")), StatusCode::OK).await, json!([]), "its runs went with it");
    let heartbeat = node.client.post(server.url("/v1/node/heartbeat")).send().await.unwrap();
    assert_eq!(refusal(heartbeat).await.code, ErrorCode::Unauthenticated);

    let tokens = async || call(client.get(url("/tokens")), StatusCode::OK).await;
    let issue = async || {
        let issued = call(client.post(url("/tokens")).json(&json!({})), StatusCode::CREATED).await;
        issued["token"].as_str().unwrap().to_owned()
    };
    let (by_id, by_itself) = (issue().await, issue().await);
    assert!(!tokens().await.to_string().contains(&by_id), "the list lets nobody in");
    call(client.delete(url(&format!("/tokens/{by_itself}"))), gone).await;
    let id = tokens().await[0]["id"].as_str().unwrap().to_owned();
    let mut machine = Machine::with_uuid(UUID);
    machine.token = Some(by_itself);
    assert_eq!(refusal(machine.try_enrol(&server).await).await.code, ErrorCode::TokenUnknown);
    machine.token = Some(by_id);
    let node = Node::enrol(&server, machine).await;
    assert_eq!(tokens().await[0]["node"], *node.enrolment.node);
    let refused = message(call(client.delete(url(&format!("/tokens/{id}"))), conflict).await);
    assert!(refused.starts_with(&format!("the token was used: it let {} in", node.enrolment.node)), "{refused}");
    call(client.delete(url("/tokens/0123456789ab")), none).await;
}
