//! Nodes that operators select by site, label, state and name, and wait for.

use serde_json::{Value, json};
use slipway_protocol::{NodeState, RunStatus};
use slipway_server::operate::{self, NewNode, NodeChange};

use crate::program::{fail, run, succeed};
use crate::support::{IMAGE, Node, TestServer};
use crate::work::new_run;

const REBOOT: &str = "steps:\n- {name: leave, action: {reboot: {}}}\n";

async fn add(server: &TestServer, name: &str, site: &str, labels: &[(&str, &str)]) {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let identity = serde_json::from_value(json!({ "serial": format!("serial-{name}") })).unwrap();
    let new =
        NewNode { name: Some(name.to_owned()), site: Some(site.to_owned()), labels, identity, ..NewNode::default() };
    operate::add_node(&server.store().await, new).await.unwrap();
}

/// The names that `status` shows with these options.
fn names(server: &TestServer, options: &[&str]) -> Vec<String> {
    let arguments: Vec<&str> = ["status", "--json"].into_iter().chain(options.iter().copied()).collect();
    let name = |line: &str| serde_json::from_str::<Value>(line).unwrap()["name"].as_str().unwrap().to_owned();
    succeed(&server.data_path(), &arguments).lines().map(name).collect()
}

#[tokio::test]
async fn status_shows_the_nodes_that_are_asked_for() {
    let server = TestServer::start().await;
    add(&server, "web1", "fra", &[("role", "web"), ("rack", "12")]).await;
    add(&server, "web2", "ams", &[("role", "web")]).await;
    add(&server, "db1", "fra", &[("role", "db")]).await;
    assert_eq!(names(&server, &["web*"]), ["web1", "web2"]);
    assert_eq!(names(&server, &["db1", "web2"]), ["web2", "db1"]);
    assert_eq!(names(&server, &["--site", "fra"]), ["web1", "db1"]);
    assert_eq!(names(&server, &["--dc", "fra", "--label", "role=web"]), ["web1"]);
    assert_eq!(names(&server, &["--label", "rack"]), ["web1"]);
    assert_eq!(names(&server, &["--state", "held,running"]), [""; 0]);
    assert_eq!(names(&server, &["--state", "registered", "web?"]), ["web1", "web2"]);
    assert_eq!(names(&server, &["--model", "R650"]), [""; 0]);
    let refused = fail(&server.data_path(), &["status", "web1", "nobody"]);
    assert!(refused.contains("no node has the id, name or claim code \"nobody\""), "{refused}");
}

#[tokio::test]
async fn site_and_labels_change_and_are_removed() {
    let server = TestServer::start().await;
    let data = server.data_path();
    add(&server, "web1", "fra", &[("role", "web"), ("rack", "12")]).await;
    succeed(&data, &["node", "set", "web1", "--site", "ams", "--label", "owner=anna"]);
    let shown: Value = serde_json::from_str(&succeed(&data, &["node", "show", "web1"])).unwrap();
    assert_eq!((&shown["site"], &shown["labels"]), (&json!("ams"), &json!({ "owner": "anna" })));
    succeed(&data, &["node", "set", "web1", "--no-site", "--no-labels"]);
    let shown: Value = serde_json::from_str(&succeed(&data, &["node", "show", "web1"])).unwrap();
    assert_eq!((&shown["site"], &shown["labels"]), (&Value::Null, &Value::Null));
    for bad in [["--site", "two words"], ["--label", "a=b c"], ["--label", "=b"]] {
        let refused = fail(&data, &[&["node", "set", "web1"], bad.as_slice()].concat());
        assert!(refused.contains("is not a valid"), "{refused}");
    }
    let labels = (0..33).map(|number| (format!("key{number}"), "v".to_owned())).collect();
    let change = NodeChange { labels: Some(labels), ..NodeChange::default() };
    let refused = operate::change_node(&server.store().await, "web1", change).await.unwrap_err();
    assert_eq!(refused.to_string(), "the node has 33 labels, but may have at most 32");
}

#[tokio::test]
async fn a_script_waits_until_nodes_are_in_a_state() {
    let server = TestServer::start().await;
    let data = server.data_path();
    let node = server.enrolled("web1").await;
    let code = |arguments: &[&str]| run(&data, arguments).status.code();
    assert_eq!(code(&["status", "web1", "--wait", "running", "--timeout", "1s"]), Some(4));
    operate::start_run(&server.store().await, &server.ca(), "web1", new_run(REBOOT)).await.unwrap();
    let waiting = std::thread::spawn({
        let data = data.clone();
        move || run(&data, &["status", "web*", "--wait", "installed"])
    });
    let workflow = node.workflow(&server).await.unwrap();
    node.finish(&server, &workflow).await;
    let output = tokio::task::spawn_blocking(|| waiting.join().unwrap()).await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap().matches("Machine").count(), 1, "only the last state");
    operate::start_run(&server.store().await, &server.ca(), "web1", new_run(REBOOT)).await.unwrap();
    operate::cancel_run(&server.store().await, "web1").await.unwrap();
    assert_eq!(code(&["status", "web1", "--wait", "running"]), Some(3));
    assert_eq!(code(&["status", "web1", "--wait", "failed"]), Some(0));
    assert_eq!(code(&["status", "web1", "--timeout", "1s"]), Some(2), "a time without a wait");
    assert_eq!(code(&["status", "--site", "nowhere", "--wait", "running"]), Some(1), "nothing to wait for");
    // The machines that were selected, whatever becomes of them.
    assert_eq!(code(&["status", "--state", "enrolled,installed,booting", "--wait", "running"]), Some(3));
    let output = run(&data, &["status", "web1", "--state", "running"]);
    assert!(!String::from_utf8(output.stdout).unwrap().contains("web1"), "it is in another state");
}

#[tokio::test]
async fn a_node_shows_which_image_it_has_and_when_it_is_behind() {
    let server = TestServer::start().await;
    let data = server.data_path();
    let file = server.folder.path().join("one.img");
    let add = |image: &[u8]| {
        std::fs::write(&file, image).unwrap();
        succeed(&data, &["image", "add", file.to_str().unwrap()]).split_whitespace().last().unwrap().to_owned()
    };
    let first = add(&IMAGE);
    succeed(&data, &["os", "add", "small", "--image", &first]);
    let node = server.enrolled("web1").await;
    let run = succeed(&data, &["run", "start", "--yes", "web1", "--os", "small"]).trim().to_owned();
    let workflow = node.workflow(&server).await.unwrap();
    node.finish(&server, &workflow).await;
    let shown = || serde_json::from_str::<Value>(&succeed(&data, &["node", "show", "web1"])).unwrap();
    let installed = shown()["installed"].clone();
    assert_eq!(
        (&installed["image"], &installed["os"], &installed["run"]),
        (&json!(first), &json!("small"), &json!(run))
    );
    assert_eq!(installed["behind"], Value::Null);
    assert!(shown()["run"]["image"] == json!(first) && shown()["run"]["os"] == json!("small"));

    let second = add(&[IMAGE.as_slice(), &[0; 512]].concat());
    succeed(&data, &["os", "add", "small", "--image", &second]);
    assert_eq!(shown()["installed"]["behind"], json!(true));
    // Work that writes to no disk leaves the system as it is.
    operate::start_run(&server.store().await, &server.ca(), "web1", new_run(REBOOT)).await.unwrap();
    let workflow = node.workflow(&server).await.unwrap();
    node.finish(&server, &workflow).await;
    assert_eq!(shown()["installed"]["image"], json!(first));
    // A run that began to write and did not end leaves nothing that is known.
    succeed(&data, &["run", "start", "--yes", "web1", "--os", "small"]);
    begin(&server, &node).await;
    succeed(&data, &["run", "cancel", "--yes", "web1"]);
    assert_eq!(shown()["installed"], Value::Null);
}

/// Begins every step of the node's run.
async fn begin(server: &TestServer, node: &Node) {
    use slipway_protocol::{Event, EventKind};
    let workflow = node.workflow(server).await.unwrap();
    let event = |(seq, step)| Event { seq, at: 1, step, attempt: 1, kind: EventKind::Started };
    let steps = u32::try_from(workflow.steps.len()).unwrap();
    let events: Vec<Event> = (workflow.next_seq..).zip(0..steps).map(event).collect();
    assert!(node.post_events(server, &workflow.run, &events).await.status().is_success());
}

#[tokio::test]
async fn a_run_is_shown_with_the_options_of_its_steps_and_without_secrets() {
    let server = TestServer::start().await;
    let data = server.data_path();
    let node = server.enrolled("web1").await;
    let workflow = "steps:\n\
        - {name: file, action: {write-file: {partition: 1, path: /etc/motd, \
           url: 'https://login:hidden1@files.example/motd', digest: \
           'sha256:b5bb9d8014a0f9b1d61e21e796d78dccdf1352f23cd32812f4850b878ae4944c'}}}\n\
        - {name: seed, action: {seed-cloud-init: {user_data: \"#cloud-config\\nlocale: C\\n\"}}}\n\
        - {name: leave, action: {reboot: {}}}\n";
    let new = operate::NewRun { phone_home: Some(true), ..new_run(workflow) };
    let run: RunStatus = operate::start_run(&server.store().await, &server.ca(), "web1", new).await.unwrap();
    let text = succeed(&data, &["run", "show", "web1"]);
    assert!(text.contains("1 file (write-file): pending\n") && text.contains("        locale: C\n"), "{text}");
    let json = succeed(&data, &["run", "show", &run.id, "--json"]);
    let url = server.url(&format!("/v1/operator/runs/{}/workflow", run.id));
    let over_https = server.client().get(url).bearer_auth(server.operator_token()).send().await.unwrap().text().await;
    let over_https = over_https.unwrap();
    let token = node.workflow(&server).await.unwrap();
    let token = serde_json::to_string(&token).unwrap();
    let token = token.split("/v1/phone-home/").nth(1).unwrap().split('"').next().unwrap().to_owned();
    for shown in [&text, &json, &over_https] {
        assert!(!shown.contains("hidden1") && !shown.contains(&token), "{shown}");
        assert!(shown.contains("files.example/motd") && shown.contains("/v1/phone-home/(secret)"), "{shown}");
    }
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["state"], json!("pending"));
    assert_eq!(operate::show_node(&server.store().await, "web1").await.unwrap().state, NodeState::Enrolled);
}

#[tokio::test]
async fn the_log_of_an_earlier_boot_is_read_by_its_number_or_id() {
    let server = TestServer::start().await;
    let data = server.data_path();
    let node = server.enrolled("web1").await;
    for (boot, offset, text) in [("boot-1", 0, "one\n"), ("boot-2", 0, "tw"), ("boot-2", 2, "o\n")] {
        let url = server.url(&format!("/v1/node/logs?boot_id={boot}&offset={offset}"));
        let sent = node.client.post(url).body(text).send().await.unwrap();
        assert!(sent.status().is_success(), "{sent:?}");
    }
    assert_eq!(succeed(&data, &["node", "log", "web1"]), "two\n");
    assert_eq!(succeed(&data, &["node", "log", "web1", "--boot", "2"]), "one\n");
    assert_eq!(succeed(&data, &["node", "log", "web1", "--boot", "boot-1"]), "one\n");
    let list = succeed(&data, &["node", "log", "web1", "--list"]);
    let boots: Vec<&str> = list.lines().skip(1).map(|line| line.split_whitespace().last().unwrap()).collect();
    assert_eq!(boots, ["boot-2", "boot-1"], "{list}");
    let refused = fail(&data, &["node", "log", "web1", "--boot", "3"]);
    assert!(refused.contains("no log of boot \"3\" of node web1 is kept"), "{refused}");
    let url = server.url("/v1/operator/nodes/web1/log?boot=2");
    let text = server.client().get(url).bearer_auth(server.operator_token()).send().await.unwrap().text().await;
    assert_eq!(text.unwrap(), "one\n");
}
