//! What operators do is in the history, whichever way they do it, and without secrets.

use std::collections::BTreeSet;

use reqwest::{Method, Response};
use serde_json::{Value, json};
use slipway_parts::Arch;
use slipway_protocol::{AgentStatus, SiteEvent, SiteEventKind};
use slipway_server::operate;
use slipway_server::store::agents::{self, Agent};
use slipway_server::store::history::{self, Filter, Place};
use slipway_server::store::{self, nodes, runs};

use crate::enrolment::{OTHER_UUID, waits};
use crate::installing::add_system;
use crate::media::write_parts;
use crate::page::Browser;
use crate::program::succeed;
use crate::support::{Machine, TestServer, UUID};

/// The events after a number.
async fn after(server: &TestServer, number: u64) -> Vec<SiteEvent> {
    let store = server.store().await;
    history::read(&mut store.read().await.unwrap(), &Filter::default(), Place::After(number), 1000).await.unwrap()
}

async fn newest(server: &TestServer) -> u64 {
    history::range(&mut server.store().await.read().await.unwrap()).await.unwrap().1
}

async fn send(server: &TestServer, method: &str, path: &str, body: &Value) -> Response {
    let request = server.client().request(Method::from_bytes(method.as_bytes()).unwrap(), server.url(path));
    let request = request.bearer_auth(server.operator_token());
    let request = if body.is_null() { request } else { request.json(body) };
    request.send().await.unwrap()
}

/// An agent that may send the log of web1's system.
async fn have_agent(server: &TestServer) {
    let store = server.store().await;
    let mut transaction = store.write().await.unwrap();
    let node = nodes::find(&mut transaction, "web1").await.unwrap().unwrap();
    let status = AgentStatus { tasks: vec!["logs".to_owned()], ..AgentStatus::default() };
    let agent = Agent {
        run: node.run.unwrap(),
        node: node.id,
        token_hash: "h".to_owned(),
        next_hash: None,
        issued_at: 0,
        is_used: true,
        removed: false,
        status: Some(status),
    };
    agents::save(&mut transaction, &agent).await.unwrap();
    let mut node = nodes::find(&mut transaction, "web1").await.unwrap().unwrap();
    (node.key_left, node.enrolled_at) = (true, None);
    nodes::save(&mut transaction, &node).await.unwrap();
    store::commit(transaction).await.unwrap();
}

/// A node with an unfinished run that waits to be confirmed.
async fn hold_runs(server: &TestServer) {
    let store = server.store().await;
    let mut transaction = store.write().await.unwrap();
    runs::hold_restored(&mut transaction).await.unwrap();
    store::commit(transaction).await.unwrap();
}

/// Each route that changes something, called once: method and route, values of its parameters, body, and what the
/// history says then.
#[tokio::test]
async fn each_change_over_https_is_in_the_history_with_who_made_it() {
    let server = TestServer::start().await;
    std::fs::remove_dir(server.folder.path().join("boot/x86_64")).unwrap();
    write_parts(&server.folder.path().join("parts"), Arch::X86_64, 1);
    let system = add_system(&server, |_| {}).await.unwrap();
    let token = operate::add_token(&server.store().await, None, None).await.unwrap().token;
    let id = operate::list_tokens(&server.store().await).await.unwrap().remove(0).id;
    let image = system.image.to_string();
    let by = json!({ "by": waits(&server, &Machine::with_uuid(OTHER_UUID)).await.claim_code });
    let (system, none) = (serde_json::to_value(system).unwrap(), Value::Null);
    let acts = [
        ("POST", "/os", "", system, "the operating system debian"),
        ("POST", "/nodes", "", json!({ "name": "web1", "identity": { "uuid": UUID } }), "the node was added"),
        ("PATCH", "/nodes/{node}", "web1", json!({ "site": "fra" }), "settings of the node were changed: site"),
        ("POST", "/nodes/{node}/release", "web1", none.clone(), "was released"),
        ("POST", "/nodes/{node}/replace", "web1", by, "takes the place of the node's machine"),
        ("POST", "/nodes/{node}/runs", "web1", json!({ "task": { "os": "debian" } }), "installs debian"),
        ("POST", "/runs/{run}/confirm", "web1", none.clone(), "was confirmed"),
        ("POST", "/runs/{run}/cancel", "web1", none.clone(), "the run was cancelled"),
        ("POST", "/runs/{run}/retry", "web1", none.clone(), "installs debian: it tries run"),
        ("PATCH", "/nodes/{node}/power", "web1", json!({ "hook": "ipmi" }), "the hook \"ipmi\" switches the power"),
        ("POST", "/nodes/{node}/power", "web1", json!({ "act": "on" }), "the machine is to be switched on"),
        ("POST", "/nodes/{node}/tasks", "web1", json!({ "name": "logs" }), "is to be asked for its log by its agent"),
        ("DELETE", "/nodes/{node}/tasks", "web1", none.clone(), "was not asked for its log: cancelled by an operator"),
        ("DELETE", "/nodes/{node}/agent", "web1", none.clone(), "the agent was removed"),
        ("POST", "/nodes/{node}/reboot", "web1", none.clone(), "the machine is to be switched off and on again"),
        ("POST", "/nodes/{node}/decommission", "web1", none.clone(), "was taken out of service"),
        ("POST", "/nodes/{node}/recommission", "web1", none.clone(), "was put back into service"),
        ("DELETE", "/nodes/{node}", "web1", none.clone(), "the node was removed"),
        ("POST", "/tokens", "", json!({}), "was issued"),
        ("DELETE", "/tokens/{token}", &id, none.clone(), "was revoked"),
        ("PUT", "/limits/{limit}", "stuck.booting", json!({ "flag_after": 60 }), "the limit stuck.booting was changed"),
        ("DELETE", "/limits/{limit}", "stuck.booting", none.clone(), "has its default again"),
        ("POST", "/operators", "", json!({ "name": "anna" }), "the operator anna was added"),
        ("POST", "/operators/{operator}/rotate", "anna", none.clone(), "the operator anna has a new token"),
        ("DELETE", "/operators/{operator}", "anna", none.clone(), "the operator anna was removed"),
        ("POST", "/media", "", json!({}), "were made, for https://server.test:8443"),
        ("POST", "/media", "", json!({ "url": "https://other.example" }), "were made, for https://other.example"),
        ("DELETE", "/os/{name}", "debian", none.clone(), "the operating system debian was removed"),
        ("DELETE", "/images/{image}", &image, none, "was removed"),
    ];
    let mut secrets = vec![token];
    for (method, route, value, body, expect) in &acts {
        if (*method, *route) == ("POST", "/nodes/{node}/tasks") {
            have_agent(&server).await;
        }
        if route.ends_with("/confirm") {
            hold_runs(&server).await;
        }
        let before = newest(&server).await;
        let parts = route.split('/').map(|part| if part.starts_with('{') { *value } else { part });
        let path = format!("/v1/operator{}", parts.collect::<Vec<_>>().join("/"));
        let answer = send(&server, method, &path, body).await;
        let (status, answer) = (answer.status(), answer.text().await.unwrap());
        assert!(status.is_success(), "{method} {path}: {status}: {answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
        secrets.extend(answer["token"].as_str().map(str::to_owned));
        let found = after(&server, before).await;
        let told = found.iter().find(|event| event.message.contains(expect));
        let told = told.unwrap_or_else(|| panic!("{method} {path}: {expect:?} is not in {found:#?}"));
        assert_eq!(told.operator.as_deref(), Some("first"), "{told:?}");
    }
    assert_eq!(secrets.len(), 4);
    let all = serde_json::to_string(&after(&server, 0).await).unwrap();
    assert!(secrets.iter().all(|secret| !all.contains(secret)), "{all}");

    let document: Value = serde_json::from_str(include_str!("../../openapi.json")).unwrap();
    let mut changing = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let Some(route) = path.strip_prefix("/v1/operator") else { continue };
        let methods = methods.as_object().unwrap().keys().map(|method| method.to_uppercase());
        changing.extend(methods.filter(|method| method != "GET").map(|method| (method, route.to_owned())));
    }
    let called = acts.iter().map(|(method, route, ..)| ((*method).to_owned(), (*route).to_owned())).collect();
    assert_eq!(changing, called, "a new route needs an event, and a line above");
}

/// What has no route, and what shows a secret.
#[tokio::test]
async fn each_change_by_a_command_is_in_the_history_with_who_made_it() {
    let server = TestServer::start().await;
    let data = server.data_path();
    let node = server.enrolled("web1").await;
    add_system(&server, |_| {}).await.unwrap();
    succeed(&data, &["run", "start", "--yes", "web1", "--os", "debian"]);
    let key_file = server.folder.path().join("root.key");
    let recipient = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p";
    let acts: &[(&[&str], &str)] = &[
        (&["node", "metadata-url", "web1"], "the URL of the metadata of run"),
        (&["token", "boot-reporter", "web1"], "a token for boots of run"),
        (&["snippet", "--for", "shell", "--node", "web1"], "a token for external steps of run"),
        (&["operator-token"], "the token of the operator first was shown"),
        (&["ca", "rotate"], "a new certificate authority was made"),
        (&["ca", "rotate", "--cancel"], "the new certificate authority was removed"),
        (&["ca", "renew"], "the intermediate certificate was replaced"),
        (&["ca", "export-key", key_file.to_str().unwrap()], "the root key was moved out of the data folder"),
        (&["keys", "init"], "keys for Secure Boot were made or imported"),
        (&["media", "require", "any"], "machines that must be attested may have started anything"),
        (&["escrow", "recipient", "add", recipient], "recovery keys are encrypted to age1"),
        (&["escrow", "recipient", "remove", recipient], "recovery keys are no longer encrypted to age1"),
    ];
    for (arguments, expect) in acts {
        let before = newest(&server).await;
        let printed = succeed(&data, arguments);
        let found = after(&server, before).await;
        let told = found.iter().find(|event| event.message.contains(expect));
        let told = told.unwrap_or_else(|| panic!("{arguments:?}: {expect:?} is not in {found:#?}"));
        assert!(told.operator.as_ref().is_some_and(|who| who.ends_with(" on the server")), "{told:?}");
        // Tokens and keys are printed, and long.
        let secret = printed.split(|c: char| c.is_whitespace() || c == '"' || c == '/').find(|word| word.len() >= 40);
        assert!(secret.is_none_or(|secret| !told.message.contains(secret) || secret == recipient), "{told:?}");
    }
    assert_eq!(node.workflow(&server).await.unwrap().steps.len(), 5);
}

#[tokio::test]
async fn who_signs_in_and_out_of_the_page_is_in_the_history() {
    let server = TestServer::start().await;
    let browser = Browser::signed_in(&server, &server.operator_token()).await;
    browser.send("/logout", &[]).await;
    let found = after(&server, 0).await;
    let found: Vec<_> = found.iter().filter(|event| event.kind == SiteEventKind::Operator).collect();
    let said: Vec<_> = found.iter().map(|event| (event.operator.as_deref(), event.message.as_str())).collect();
    let expect = ["the operator signed in to the page", "the operator signed out of the page"];
    assert!(said.ends_with(&expect.map(|message| (Some("first"), message))), "{said:?}");
}
