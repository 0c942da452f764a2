//! What the server's log says of machines: who waits, who was let in, why a run failed, whose request was refused.

use serde_json::{Value, json};
use slipway_protocol::Identity;

use crate::output::logged;
use crate::program::succeed;
use crate::support::{Machine, UUID};

#[tokio::test(flavor = "multi_thread")]
async fn lines_about_machines_have_the_reason_and_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    let server = logged(&data, &log, &["--log-format", "json"]);
    let enrol = async |machine: &Machine| {
        let request = json!({ "identity": machine.identity, "inventory": {}, "csr": machine.csr(),
                              "agent_version": "test", "boot_id": "b" });
        let answer = server.client.post(format!("{}/v1/enrol", server.https)).json(&request).send().await.unwrap();
        answer.json::<Value>().await.unwrap()
    };
    let stranger = Machine::new(Identity { serial: Some("7CZ1".to_owned()), ..Identity::default() });
    for _ in 0..2 {
        enrol(&stranger).await;
    }
    succeed(&data, &["node", "add", "--name", "web1", "--uuid", UUID, "--release"]);
    let enrolment = enrol(&Machine::with_uuid(UUID)).await;
    let steps = folder.path().join("steps.yaml");
    std::fs::write(&steps, "steps: [{name: leave, action: {reboot: {}}}]\n").unwrap();
    let run =
        succeed(&data, &["run", "start", "--yes", "web1", "--workflow", steps.to_str().unwrap()]).trim().to_owned();
    let failure = json!({ "reason": "no disk", "causes": ["it is gone"], "log_tail": [] });
    let event = json!({ "seq": 1, "at": 1, "step": 0, "attempt": 1, "kind": { "failed": failure } });
    let events = json!({ "run": run, "events": [event] });
    let post = async |body: &Value| {
        let request = server.client.post(format!("{}/v1/node/events", server.https)).json(body);
        request.bearer_auth(enrolment["jwt"].as_str().unwrap()).send().await.unwrap().status().as_u16()
    };
    assert_eq!(post(&events).await, 200);
    succeed(&data, &["node", "decommission", "--yes", "web1"]);
    assert_eq!(post(&events).await, 410);

    let log = std::fs::read_to_string(log).unwrap();
    let lines: Vec<Value> =
        log.lines().map(|line| serde_json::from_str::<Value>(line).expect(line)["fields"].clone()).collect();
    let with = |message: &str| lines.iter().filter(|line| line["message"] == message).collect::<Vec<_>>();
    let waits = with("machine waits for an operator");
    assert_eq!(waits.len(), 1, "once, however often it asks: {log}");
    assert_eq!((&waits[0]["reason"], waits[0]["claim_code"].is_string()), (&json!("unregistered"), true));
    assert_eq!(
        (&with("node enrolled")[0]["key"], &with("node enrolled")[0]["node"]),
        (&json!("first"), &json!("web1"))
    );
    let changed = with("node changed its state");
    let failed = changed.iter().find(|line| line["to"] == "failed").expect(&log);
    assert_eq!((&failed["from"], &failed["reason"]), (&json!("enrolled"), &json!("step leave: no disk: it is gone")));
    let refused = with("request refused");
    assert_eq!((&refused[0]["code"], &refused[0]["node"]), (&json!("decommissioned"), &enrolment["node"]), "{log}");
    assert!(!log.contains("Some("), "no debug output: {log}");
}
