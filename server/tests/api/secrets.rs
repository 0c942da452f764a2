//! What is secret leaves the store when nobody needs it any more.

use reqwest::StatusCode;
use slipway_protocol::{ErrorCode, RunState};
use slipway_server::keys::jwt::Signer;
use slipway_server::operate::{self, NewRun};
use slipway_server::store::{Erased, runs};

use crate::installing::{add_system, debian, start};
use crate::support::{Node, TestServer, UUID, is_stored, refusal};
use crate::work::new_run;

const WORKFLOW: &str = r##"
steps:
- name: image
  action:
    stream-image:
      url: https://images.test/x.raw?token=QUERY-SECRET
      digest: sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
- name: artifact
  action:
    stream-image:
      url: oci://registry.test/a:b
      registry_auth: { username: u, password: REGISTRY-SECRET }
- { name: seed, action: { seed-cloud-init: { user_data: "#cloud-config\npassword: SEED-SECRET\n" } } }
- { name: file, action: { write-file: { path: /x, content: FILE-SECRET } } }
- { name: script, action: { run-in-target: { script: "echo SCRIPT-SECRET", environment: { A: ENVIRONMENT-SECRET } } } }
- { name: command, action: { run-in-target: { command: [echo, COMMAND-SECRET] } } }
- { name: reporter, action: { boot-reporter: {} } }
- { name: reboot, action: { reboot: {} } }
"##;
const SECRETS: [&str; 7] = [
    "QUERY-SECRET",
    "REGISTRY-SECRET",
    "SEED-SECRET",
    "FILE-SECRET",
    "SCRIPT-SECRET",
    "ENVIRONMENT-SECRET",
    "COMMAND-SECRET",
];

/// Whether a text is in the database, after its log was emptied.
pub async fn stored(server: &TestServer, text: &str) -> bool {
    let store = server.store().await;
    let erased = if server.data().postgres().is_some() { Erased::ByOthers } else { Erased::Now };
    assert_eq!(store.empty_log().await.unwrap(), erased, "nobody else uses the database");
    is_stored(&server.data_path(), text)
}

#[tokio::test]
async fn secrets_of_a_run_go_when_it_is_over() {
    for ends in ["succeeds", "is cancelled", "is replaced", "loses its node"] {
        let server = TestServer::start().await;
        let node = server.enrolled("web1").await;
        let run = start(&server, new_run(WORKFLOW)).await.unwrap().id;
        let workflow = node.workflow(&server).await.unwrap();
        let text = serde_json::to_string(&workflow).unwrap();
        for secret in SECRETS {
            assert!(text.contains(secret) && stored(&server, secret).await, "{secret}");
        }
        let store = server.store().await;
        match ends {
            "succeeds" => node.finish(&server, &workflow).await,
            "is cancelled" => drop(operate::cancel_run(&store, &run).await.unwrap()),
            "is replaced" => {
                let new = NewRun { replace: true, ..new_run("steps: [{name: a, action: {reboot: {}}}]") };
                start(&server, new).await.unwrap();
            }
            _ => drop(operate::decommission_node(&store, "web1").await.unwrap()),
        }
        for secret in SECRETS {
            assert!(!stored(&server, secret).await, "{ends}: {secret}");
        }
        let shown = operate::list_runs(&store, None).await.unwrap().into_iter().find(|shown| shown.id == run).unwrap();
        assert_ne!(shown.state, RunState::Running);
        assert_eq!(shown.steps.len(), 8, "the run is still shown");
        let kept = runs::get_by_id(&mut store.read().await.unwrap(), &run).await.unwrap().unwrap();
        let kept = serde_json::to_string(&kept.workflow).unwrap();
        assert!(
            kept.contains("(removed when the run was over)") && kept.contains("https://images.test/x.raw"),
            "{kept}"
        );
    }
}

async fn metadata(server: &TestServer) -> String {
    let signer = Signer::open(&server.data()).unwrap();
    let url = operate::metadata_url(&server.store().await, &signer, "web1").await.unwrap().url;
    server.url(&format!("{}/latest/user-data", url.strip_prefix("https://server.test:8443").unwrap()))
}

async fn with_metadata(keep_metadata: bool) -> (TestServer, Node, String) {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    add_system(&server, |system| {
        system.keep_metadata = keep_metadata;
    })
    .await
    .unwrap();
    start(&server, NewRun { user_data: Some("#cloud-config\npassword: SEED-SECRET\n".to_owned()), ..debian() })
        .await
        .unwrap();
    let url = metadata(&server).await;
    let workflow = node.workflow(&server).await.unwrap();
    node.finish(&server, &workflow).await;
    let report = crate::installing::seed(&workflow).phone_home.as_ref().map(|block| block.url.clone());
    let report = report.unwrap_or_else(|| {
        let data = &crate::installing::seed(&workflow).user_data;
        data.split_whitespace().find(|word| word.contains("/v1/phone-home/")).unwrap().trim_matches('"').to_owned()
    });
    (server, node, format!("{url} {}", report.strip_prefix("https://server.test:8443").unwrap()))
}

#[tokio::test]
async fn metadata_closes_when_the_system_has_reported() {
    for (keep, status) in [(false, StatusCode::NOT_FOUND), (true, StatusCode::OK)] {
        let (server, node, urls) = with_metadata(keep).await;
        let (url, report) = urls.split_once(' ').unwrap();
        let get = async || server.client().get(url).send().await.unwrap().status();
        assert_eq!(get().await, StatusCode::OK, "its system needs it at its first boot");
        let reported = server.client().post(server.url(report)).send().await.unwrap();
        assert_eq!(reported.status(), StatusCode::OK);
        assert_eq!(get().await, status);
        assert_eq!(stored(&server, "SEED-SECRET").await, keep);
        let again = server.client().post(server.url(report)).send().await.unwrap();
        assert_eq!(again.status(), StatusCode::OK, "later reports are a sign of life");
        if keep {
            start(&server, debian()).await.unwrap();
            assert!(stored(&server, "SEED-SECRET").await, "its system goes on");
            node.workflow(&server).await.unwrap();
            assert!(!stored(&server, "SEED-SECRET").await, "until a newer run is fetched");
        } else {
            let signer = Signer::open(&server.data()).unwrap();
            let refused = operate::metadata_url(&server.store().await, &signer, "web1").await.unwrap_err();
            assert!(refused.to_string().contains("its metadata is closed"), "{refused}");
        }
    }
}

#[tokio::test]
async fn an_instance_id_is_good_for_one_report() {
    let server = TestServer::start().await;
    server.add_released("web1").await;
    let node = Node::enrol(&server, crate::support::Machine::with_uuid(UUID)).await;
    add_system(&server, |_| {}).await.unwrap();
    start(&server, debian()).await.unwrap();
    let workflow = node.workflow(&server).await.unwrap();
    let form = format!("instance_id={}", crate::installing::seed(&workflow).instance_id);
    node.finish(&server, &workflow).await;
    let post = async || {
        server.client().post(server.url("/latest/meta-data/phone_home")).body(form.clone()).send().await.unwrap()
    };
    assert_eq!(post().await.status(), StatusCode::OK);
    assert_eq!(refusal(post().await).await.code, ErrorCode::NotFound);
}
