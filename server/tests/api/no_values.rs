//! A key that is present has a value, whichever way it comes in. An empty variable of a template must not select more,
//! or set something else, than was meant.

use std::path::Path;

use reqwest::Method;
use serde_json::{Value, json};
use slipway_protocol::ErrorCode;

use crate::program::{command, fail, made, run, serve, succeed};
use crate::support::{IMAGE, TestServer, UUID, refusal};

const NONE: [&str; 8] =
    ["null", r#""""#, r#"" ""#, r#""\t\n""#, r#""\u00a0""#, r#""\u0000""#, r#""\u200b""#, r#""\ufeff""#];

/// What an operator gives, with `@` in place of a value, and the path of its key.
const BODIES: [(&str, &str, &str, &str); 29] = [
    ("POST", "/nodes", r#"{"name": @, "identity": {"serial": "A1"}}"#, "name"),
    (
        "POST",
        "/nodes",
        r#"{"identity": {"serial": @, "macs": ["52:54:00:12:34:56"]}, "mac_only": true}"#,
        "identity.serial",
    ),
    ("POST", "/nodes", r#"{"identity": {"serial": "A1", "uuid": @}}"#, "identity.uuid"),
    ("POST", "/nodes", r#"{"identity": {"serial": "A1", "macs": [@]}}"#, "identity.macs[0]"),
    ("POST", "/nodes", r#"{"identity": {"serial": "A1"}, "ek": [@]}"#, "ek[0]"),
    ("PATCH", "/nodes/web1", r#"{"name": @}"#, "name"),
    ("PATCH", "/nodes/web1", r#"{"disk": {"choose": "largest", "serial": @}}"#, "disk.serial"),
    ("PATCH", "/nodes/web1", r#"{"disk": {"device": @}}"#, "disk.device"),
    ("PATCH", "/nodes/web1", r#"{"ssh_keys": [@]}"#, "ssh_keys[0]"),
    ("PATCH", "/nodes/web1", r#"{"network": {"interfaces": [], "search": [@]}}"#, "network.search[0]"),
    (
        "PATCH",
        "/nodes/web1",
        r#"{"identity": {"serial": @, "uuid": "4c4c4544-0042-3010-8058-b7c04f503432"}}"#,
        "identity.serial",
    ),
    ("POST", "/os", r#"{"name": "x", "image": "IMAGE", "user_data": @}"#, "user_data"),
    ("POST", "/os", r#"{"name": "x", "image": "IMAGE", "vendor_data": @}"#, "vendor_data"),
    ("POST", "/os", r#"{"name": "x", "image": "IMAGE", "phone_home_post": @}"#, "phone_home_post"),
    ("POST", "/os", r#"{"name": "x", "image": "IMAGE", "kernel_args": [@]}"#, "kernel_args[0]"),
    ("POST", "/os", r#"{"name": "x", "image": "IMAGE", "known_steps": [@]}"#, "known_steps[0]"),
    ("POST", "/os", r#"{"name": "x", "image": "IMAGE", "disk": {"choose": "smallest", "model": @}}"#, "disk.model"),
    ("POST", "/os", r#"{"name": "x", "image": "IMAGE", "disk": {"skip": [{"tran": @}]}}"#, "disk.skip[0].tran"),
    ("POST", "/nodes/web1/runs", r#"{"task": {"os": @}}"#, "task.os"),
    ("POST", "/nodes/web1/runs", r#"{"task": {"os": "debian"}, "user_data": @}"#, "user_data"),
    ("POST", "/nodes/web1/runs", r#"{"task": {"os": "debian"}, "disk": {"wwn": @}}"#, "disk.wwn"),
    (
        "POST",
        "/nodes/web1/runs",
        concat!(
            r#"{"task": {"workflow": {"steps": [{"name": "a", "action": {"erase-disk": "#,
            r#"{"disk": {"choose": "all", "serial": @}}}}]}}}"#,
        ),
        "task.workflow.steps[0].action.erase-disk.disk.serial",
    ),
    (
        "POST",
        "/nodes/web1/runs",
        r#"{"task": {"workflow": {"steps": [{"name": "a", "action": {"seed-cloud-init": {"user_data": @}}}]}}}"#,
        "task.workflow.steps[0].action.seed-cloud-init.user_data",
    ),
    (
        "POST",
        "/nodes/web1/runs",
        r#"{"task": {"workflow": {"steps": [{"name": @, "action": {"reboot": {}}}]}}}"#,
        "task.workflow.steps[0].name",
    ),
    ("POST", "/tokens", r#"{"node": @}"#, "node"),
    ("POST", "/operators", r#"{"name": @}"#, "name"),
    ("POST", "/media", r#"{"token": @}"#, "token"),
    ("POST", "/media", r#"{"proxy": "http://p:1", "no_proxy": @}"#, "no_proxy"),
    ("POST", "/media", r#"{"consoles": [@]}"#, "consoles[0]"),
];

#[tokio::test]
async fn requests_have_no_keys_without_a_value() {
    let server = TestServer::start().await;
    server.add_released("web1").await;
    let file = server.folder.path().join("disk.img");
    std::fs::write(&file, IMAGE).unwrap();
    let (store, data) = (server.store().await, server.data());
    let added = slipway_server::image::add(&store, &data, &file, Default::default(), |_| {}).await.unwrap();
    let image = added.image.digest.to_string();
    let token = server.operator_token();
    let refused = async |method: &str, path: &str, body: String| {
        let method: Method = method.parse().unwrap();
        let request = server.client().request(method, server.url(&format!("/v1/operator{path}")));
        let refused = refusal(request.bearer_auth(&token).body(body.clone()).send().await.unwrap()).await;
        assert_eq!(refused.code, ErrorCode::InvalidRequest, "{body}");
        refused.message
    };
    for (method, path, body, key) in BODIES {
        for none in NONE {
            let message = refused(method, path, body.replace('@', none).replace("IMAGE", &image)).await;
            let expect =
                format!("the body is not valid: {key} has no value: leave the key out, or give it one at line 1 ");
            assert!(message.starts_with(&expect), "{body} with {none}: {message}");
        }
    }
    let erase = |disk: &str| {
        let action = r#"{"name": "a", "action": {"erase-disk": {"disk": @}}}"#.replace('@', disk);
        r#"{"task": {"workflow": {"steps": [@]}}}"#.replace('@', &action)
    };
    for (body, part) in [
        (erase("{}"), "disk has no value"),
        (erase("null"), "disk has no value"),
        (erase(r#"{"choose": "all", "skip": []}"#), "skip has no value"),
        (erase("[]"), "a value has the wrong type"),
        (erase(r#"{"choose": "all", "serial": "A", "serial": "B"}"#), "duplicate field `serial`"),
        (erase(r#"{"choose": "all", "Serial": "A"}"#), "a field is not known"),
        (erase(r#"{"choose": "all", "serial": 12}"#), "a value has the wrong type"),
        (erase(r#"{"choose": "all", "serial": "s!= {{ serial }}"}"#), "a variable of a template"),
        (erase(r#"{"choose": "all", "skip": [{"serial": "${SERIAL}"}]}"#), "a variable of a template"),
        (r#"{"task": {"os": "debian"}, "disk": {}}"#.to_owned(), "disk has no value"),
        (r#"{"task": {"os": "debian"}} {}"#.to_owned(), "trailing characters"),
        ("\u{feff}{}".to_owned(), "expected value"),
        ("null".to_owned(), "nothing is given"),
        (String::new(), "EOF"),
    ] {
        let message = refused("POST", "/nodes/web1/runs", body.clone()).await;
        assert!(message.contains(part), "{body}: {message}");
    }
    for query in ["/nodes/web1/release?name=", "/nodes/web1/release?name=%20", "/operators/first/rotate?keep="] {
        let message = refused("POST", query, String::new()).await;
        assert!(message.contains(" has no value"), "{query}: {message}");
    }
    assert!(refused("POST", "/nodes/web1/release?nmae=a", String::new()).await.contains("is not known"));
    assert!(refused("POST", "/nodes/web1/release?name=a&name=b", String::new()).await.contains("duplicate"));
}

#[tokio::test]
async fn what_is_read_can_be_written_back_and_changes_remove() {
    let server = TestServer::start().await;
    server.add_released("web1").await;
    let file = server.folder.path().join("disk.img");
    std::fs::write(&file, IMAGE).unwrap();
    let (store, data) = (server.store().await, server.data());
    let added = slipway_server::image::add(&store, &data, &file, Default::default(), |_| {}).await.unwrap();
    let token = server.operator_token();
    let call = async |method: Method, path: &str, body: &Value| -> Value {
        let request = server.client().request(method, server.url(&format!("/v1/operator{path}")));
        let answer = request.bearer_auth(&token).json(body).send().await.unwrap();
        assert!(answer.status().is_success(), "{path} {body}: {}", answer.status());
        answer.json().await.unwrap()
    };
    let system = json!({ "name": "debian", "image": added.image.digest, "ssh_keys": [], "kernel_args": [] });
    call(Method::POST, "/os", &system).await;
    let listed = call(Method::GET, "/os", &json!({})).await;
    assert_eq!(call(Method::POST, "/os", &listed[0]).await, listed[0]);

    let serial = json!({ "disk": { "serial": "A1" }, "ssh_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA"] });
    assert_eq!(call(Method::PATCH, "/nodes/web1", &serial).await["disk"], serial["disk"]);
    let removed = call(Method::PATCH, "/nodes/web1", &json!({ "disk": {}, "ssh_keys": [] })).await;
    assert_eq!((removed.get("disk"), removed.get("ssh_keys")), (None, None));
}

#[test]
fn options_and_files_have_values() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let _server = serve(data);
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name).to_str().unwrap().to_owned()
    };
    let image = write("disk.img", std::str::from_utf8(&[b'x'; 512]).unwrap());
    let digest = succeed(data, &["image", "add", "--not-an-image", &image]).trim().to_owned();
    succeed(data, &["node", "add", "--name", "web1", "--uuid", UUID]);
    let says = |arguments: &[&str], part: &str| {
        let output = run(data, arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(part), "{arguments:?}: {said}");
    };
    for blank in ["", "  ", "\u{a0}"] {
        says(&["node", "add", "--serial", "A1", "--name", blank], "--name has no value: leave the option out");
        says(&["node", "add", "--serial", blank, "--uuid", UUID], "--serial has no value");
        says(&["node", "add", "--serial", "A1", "--mac", blank], "--mac has no value");
        says(&["node", "set", "web1", "--disk-device", blank], "--disk-device has no value");
        says(&["node", "set", "web1", "--disk-serial", blank], "no value");
        says(&["node", "show", blank], "<NODE> has no value");
        says(&["os", "remove", blank], "<OS> has no value");
        says(&["node", "release", "web1", "--name", blank], "--name has no value");
        says(&["os", "add", "x", "--image", &digest, "--kernel-arg", blank], "--kernel-arg has no value");
        says(&["run", "start", "web1", "--os", blank], "--os has no value");
        says(&["run", "start", "web1", "--os", "x", "--known-step", blank], "--known-step has no value");
        says(&["token", "add", "--node", blank], "--node has no value");
        says(&["media", "build", "--url", blank], "--url has no value");
        says(&["media", "build", "--proxy", "http://p:1", "--no-proxy", blank], "--no-proxy has no value");
    }
    says(&["node", "set", "web1", "--disk-serial", "{{ serial }}"], "a variable of a template");
    let empty = &write("empty", " \n");
    says(&["node", "set", "web1", "--network", empty], "it is empty");
    says(&["os", "add", "x", "--image", &digest, "--user-data", empty], "it is empty: leave the option out");
    says(&["run", "start", "web1", "--os", "x", "--user-data", empty], "it is empty: leave the option out");
    says(&["run", "start", "web1", "--workflow", empty], "it is empty");
    says(&["media", "build", "--ca", empty], "it is empty");
    says(&["media", "settings", &image, "--token-file", empty], "it is empty");
    says(&["media", "settings", &image, "--network", empty], "it is empty");
    let workflow =
        write("null.yaml", "steps:\n- name: a\n  action:\n    erase-disk:\n      disk: {choose: all, serial: }\n");
    let message = fail(data, &["run", "start", "web1", "--workflow", &workflow]);
    let expect = "the workflow is not valid: steps[0].action.erase-disk.disk.serial has no value: leave the key out, \
                  or give it one at line 5, column ";
    assert!(message.contains(expect), "{message}");
    let network = write("network.yaml", "interfaces:\n- {name: lan0, mac: \"52:54:00:12:34:56\", dhcp4: }\n");
    let message = fail(data, &["node", "set", "web1", "--network", &network]);
    assert!(message.contains("interfaces[0].dhcp4 has no value"), "{message}");
    let network = write("empty.yaml", "interfaces: []\n");
    let message = fail(data, &["node", "set", "web1", "--network", &network]);
    assert!(message.ends_with("the network has no interfaces; to remove the network of a node, use --no-network"));
}

#[test]
fn variables_of_the_environment_have_values() {
    let folder = tempfile::tempdir().unwrap();
    made(folder.path());
    let said = |(variable, value): (&str, &str), arguments: &[&str], data: Option<&Path>| {
        let mut command = match data {
            Some(data) => command(data, arguments),
            None => {
                let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_slipway-server"));
                command.args(arguments);
                command
            }
        };
        let output = command.env(variable, value).output().unwrap();
        assert!(!output.status.success(), "{variable}");
        String::from_utf8(output.stderr).unwrap()
    };
    for none in ["", " \t"] {
        let data = said(("SLIPWAY_DATA", none), &["status"], None);
        assert!(data.contains("SLIPWAY_DATA is set but has no value"), "{data}");
        let parts = said(("SLIPWAY_PARTS", none), &["media", "build"], Some(folder.path()));
        assert!(parts.contains("SLIPWAY_PARTS is set but has no value: unset it, or give it one"), "{parts}");
        let url = said(("SLIPWAY_URL", none), &["serve"], Some(folder.path()));
        assert!(url.contains("SLIPWAY_URL is set but has no value: unset it, or give it one"), "{url}");
        let url = said(("SLIPWAY_URL", none), &["serve", "--url", none], Some(folder.path()));
        assert!(url.contains("--url has no value: leave the option out, or give it one"), "{url}");
    }
}
