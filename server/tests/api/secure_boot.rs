//! Runs that give machines the site's keys for Secure Boot.

use reqwest::StatusCode;
use slipway_protocol::{Action, EnrolSecureBoot, ErrorCode, SecureBootVariable, Workflow, signed_lists};
use slipway_server::keys::secure_boot::{Beginning, SecureBoot};
use slipway_server::operate::{self, NewRun};
use time::OffsetDateTime;

use crate::program::{fail, made, succeed};
use crate::support::{TestServer, UUID, refusal};
use crate::work::new_run;

const STEPS: &str = "steps:\n- {name: keys, action: {enrol-secure-boot: {}}}\n";

fn enrolment(workflow: &Workflow) -> &EnrolSecureBoot {
    match &workflow.steps[0].action {
        Action::EnrolSecureBoot(enrol) => enrol,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_server_fills_in_its_own_keys_and_refuses_while_it_has_none() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let start = async || {
        let request = server.client().post(server.url("/v1/operator/nodes/web1/runs")).json(&new_run(STEPS));
        request.bearer_auth(server.operator_token()).send().await.unwrap()
    };
    let refused = start().await;
    assert_eq!(refused.status(), StatusCode::NOT_FOUND);
    let refused = refusal(refused).await;
    assert_eq!(refused.code, ErrorCode::NotFound);
    assert!(refused.message.contains("make them with `slipway-server keys init`"), "{refused:?}");

    let keys = SecureBoot::begin(&server.data(), Beginning::default(), OffsetDateTime::now_utc()).unwrap();
    assert_eq!(start().await.status(), StatusCode::CREATED);
    let workflow = node.workflow(&server).await.unwrap();
    let found: Vec<_> = enrolment(&workflow).updates.iter().map(|update| (update.variable, update.append)).collect();
    let expect = [SecureBootVariable::Db, SecureBootVariable::Kek, SecureBootVariable::Pk];
    assert_eq!(found, expect.map(|variable| (variable, false)));
    for (update, expect) in enrolment(&workflow).updates.iter().zip(keys.updates(OffsetDateTime::now_utc()).unwrap()) {
        assert_eq!(signed_lists(&update.decode().unwrap()), Some(&expect.lists[..]), "{}", update.variable);
    }

    // What must not start any more is added to what the firmware has.
    SecureBoot::revoke(&server.data(), [7; 32]).unwrap();
    let again = NewRun { replace: true, ..NewRun::enrolling_keys() };
    let again = again.with_keys(&server.store().await, &server.data()).await.unwrap();
    operate::start_run(&server.store().await, &server.ca(), "web1", again).await.unwrap();
    let workflow = node.workflow(&server).await.unwrap();
    let first = &enrolment(&workflow).updates[0];
    assert_eq!((first.variable, first.append, workflow.steps.len()), (SecureBootVariable::Dbx, true, 2));
}

#[test]
fn an_operator_starts_such_a_run_with_one_option() {
    let folder = tempfile::tempdir().unwrap();
    made(folder.path());
    succeed(folder.path(), &["node", "add", "--name", "web1", "--uuid", UUID]);
    let start = ["run", "start", "web1", "--secure-boot"];
    assert!(fail(folder.path(), &start).contains("make them with `slipway-server keys init`"));
    succeed(folder.path(), &["keys", "init"]);
    succeed(folder.path(), &start);
    assert!(succeed(folder.path(), &["run", "list"]).contains("0/2"));
}
