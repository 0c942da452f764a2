//! Which machines may enrol, and as which node.

use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::RETRY_AFTER;
use slipway_protocol::{ClaimReason, Disk, Enrolment, ErrorCode, Identity, Inventory, NodeState, RenewRequest, Wait};
use slipway_server::base::{random, time};
use slipway_server::keys::jwt;
use slipway_server::node::status;
use slipway_server::operate::{self, NewNode};
use slipway_server::store;
use slipway_server::store::claimants::{self, Claimant};
use slipway_server::store::run_tokens::{self, Purpose};

use crate::installing::{add_system, debian, start};
use crate::support::{Machine, Node, TestServer, UUID, is_stored, refusal, trusting, with_certificate};

pub const OTHER_UUID: &str = "5d5d4544-0042-3010-8058-b7c04f503432";

pub async fn waits(server: &TestServer, machine: &Machine) -> Wait {
    let response = machine.try_enrol(server).await;
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    assert_eq!(response.headers()[RETRY_AFTER], "2");
    response.json().await.unwrap()
}

/// Why the only machine that waits does.
pub async fn reason(server: &TestServer) -> ClaimReason {
    let nodes = status::all(&server.store().await).await.unwrap();
    let mut claims: Vec<_> = nodes.into_iter().flat_map(|node| node.claims).collect();
    claims.dedup();
    assert_eq!(claims.len(), 1, "{claims:?}");
    claims[0].reason
}

async fn refused(server: &TestServer, machine: &Machine) -> ErrorCode {
    refusal(machine.try_enrol(server).await).await.code
}

#[tokio::test]
async fn an_unknown_machine_waits_until_its_claim_code_is_released() {
    let server = TestServer::start().await;
    let machine = Machine::with_uuid(UUID);
    let wait = waits(&server, &machine).await;
    assert_eq!(reason(&server).await, ClaimReason::Unregistered);
    assert_eq!(waits(&server, &machine).await, wait, "the code stays the same");

    let store = server.store().await;
    let released = operate::release_node(&store, &wait.claim_code.to_lowercase(), None).await.unwrap();
    assert_eq!(released.state, NodeState::Held);
    let node = Node::enrol(&server, machine).await;
    assert_eq!(node.enrolment.node, released.id);
    let shown = operate::show_node(&store, &released.id).await.unwrap();
    assert_eq!((shown.state, shown.claim_code), (NodeState::Enrolled, None));
    assert!(shown.enrolled_at.is_some() && shown.inventory.is_some());
}

#[tokio::test]
async fn a_registered_machine_waits_until_it_is_released() {
    let server = TestServer::start().await;
    let store = server.store().await;
    let identity = Identity { serial: Some("7CZ1".to_owned()), ..Identity::default() };
    let new = NewNode { name: Some("web1".to_owned()), identity, release: false, ..NewNode::default() };
    operate::add_node(&store, new).await.unwrap();

    let identity = Identity { uuid: Some(UUID.to_owned()), serial: Some(" 7CZ1".to_owned()), macs: Vec::new() };
    let machine = Machine::new(identity);
    waits(&server, &machine).await;
    assert_eq!(reason(&server).await, ClaimReason::NotReleased);
    assert_eq!(operate::show_node(&store, "web1").await.unwrap().state, NodeState::Held);
    operate::release_node(&store, "web1", None).await.unwrap();
    Node::enrol(&server, machine).await;

    // The UUID that the machine reported says nothing: the operator registered only the serial number.
    waits(&server, &Machine::with_uuid(UUID)).await;
    assert_eq!(reason(&server).await, ClaimReason::Unregistered);
}

#[tokio::test]
async fn identifiers_of_another_machine_cannot_be_taken() {
    let server = TestServer::start().await;
    let mut node = server.enrolled("web1").await;
    let mac = "52:54:00:12:34:56".to_owned();
    let greedy = Identity { uuid: Some(UUID.to_owned()), serial: Some("7CZ1".to_owned()), macs: vec![mac.clone()] };
    node.machine.identity = greedy;
    assert_eq!(Node::enrol(&server, node.machine).await.enrolment.node, node.enrolment.node);

    let other = Identity { serial: Some("7CZ1".to_owned()), macs: vec![mac], ..Identity::default() };
    let new = NewNode { name: Some("web2".to_owned()), identity: other.clone(), release: true, ..NewNode::default() };
    let id = operate::add_node(&server.store().await, new).await.unwrap().id;
    assert_eq!(Node::enrol(&server, Machine::new(other)).await.enrolment.node, id);
}

#[tokio::test]
async fn an_identity_no_machine_has_is_refused() {
    let server = TestServer::start().await;
    let macs = |count: usize| (1..=count).map(|n| format!("52:54:00:00:00:{n:02x}")).collect();
    let many = Machine::new(Identity { macs: macs(65), ..Identity::default() });
    assert_eq!(refused(&server, &many).await, ErrorCode::InvalidRequest);
    let serial = |length: usize| {
        Machine::new(Identity { serial: Some(format!("C{}", "7".repeat(length - 1))), ..Identity::default() })
    };
    assert_eq!(refused(&server, &serial(257)).await, ErrorCode::InvalidRequest);
    let mut long = Machine::with_uuid(UUID);
    long.boot_id = "b".repeat(256 << 10);
    assert_eq!(refused(&server, &long).await, ErrorCode::InvalidRequest);
    assert_eq!(status::all(&server.store().await).await.unwrap(), [], "nothing was stored");

    waits(&server, &Machine::new(Identity { macs: macs(64), ..Identity::default() })).await;
    waits(&server, &serial(256)).await;
}

#[tokio::test]
async fn a_machine_without_a_usable_key_is_refused() {
    let server = TestServer::start().await;
    let identity = Identity {
        uuid: Some("ffffffff-ffff-ffff-ffff-ffffffffffff".to_owned()),
        serial: Some("Default string".to_owned()),
        macs: vec!["00:00:00:00:00:00".to_owned()],
    };
    assert_eq!(refused(&server, &Machine::new(identity)).await, ErrorCode::IdentityMissing);
}

#[tokio::test]
async fn a_machine_with_the_identifiers_of_two_nodes_is_neither() {
    let server = TestServer::start().await;
    server.add_released("web1").await;
    let mac = "52:54:00:12:34:56".to_owned();
    let identity = Identity { macs: vec![mac.clone()], ..Identity::default() };
    let new = NewNode { name: Some("web2".to_owned()), identity, release: true, mac_only: true, ..NewNode::default() };
    operate::add_node(&server.store().await, new).await.unwrap();

    let both = Identity { uuid: Some(UUID.to_owned()), serial: None, macs: vec![mac.clone()] };
    let wait = waits(&server, &Machine::new(both)).await;
    assert_eq!(reason(&server).await, ClaimReason::SeveralNodes);
    let refused = operate::release_node(&server.store().await, &wait.claim_code, None).await.unwrap_err().to_string();
    assert!(refused.contains("web1 and web2"), "{refused}");
}

#[tokio::test]
async fn a_swapped_board_comes_in_after_the_old_node_is_out_of_service() {
    let server = TestServer::start().await;
    let store = server.store().await;
    let identity = |uuid: &str| Identity { uuid: Some(uuid.to_owned()), serial: Some("7CZ1".to_owned()), macs: vec![] };
    let new = NewNode { name: Some("web1".to_owned()), identity: identity(UUID), release: true, ..NewNode::default() };
    let old = operate::add_node(&store, new).await.unwrap();
    let machine = Machine::new(identity(OTHER_UUID));
    let wait = waits(&server, &machine).await;
    let refused = operate::release_node(&store, &wait.claim_code, None).await.unwrap_err().to_string();
    assert!(refused.contains("has some identifiers of web1, but not all"), "{refused}");

    operate::decommission_node(&store, "web1").await.unwrap();
    assert_eq!(waits(&server, &machine).await, wait);
    operate::release_node(&store, &wait.claim_code, None).await.unwrap();
    assert_ne!(Node::enrol(&server, machine).await.enrolment.node, old.id);
    assert_eq!(operate::show_node(&store, "web1").await.unwrap().identity, identity(UUID), "kept for the history");
}

#[tokio::test]
async fn a_bootstrap_token_lets_one_machine_in() {
    let server = TestServer::start().await;
    let store = server.store().await;
    let token = operate::add_token(&store, None, None).await.unwrap().token;
    let mut machine = Machine::with_uuid(UUID);
    machine.token = Some(token.clone());
    let node = Node::enrol(&server, machine).await;
    Node::enrol(&server, node.machine).await; // Its answer may have been lost.

    let mut second = Machine::with_uuid(OTHER_UUID);
    second.token = Some(token);
    assert_eq!(refused(&server, &second).await, ErrorCode::TokenUnknown, "used before");
    second.token = Some("nonsense".to_owned());
    assert_eq!(refused(&server, &second).await, ErrorCode::TokenUnknown);
    second.token = Some(operate::add_token(&store, None, Some(1)).await.unwrap().token);
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(refused(&server, &second).await, ErrorCode::TokenExpired);
    let token = second.token.unwrap();
    assert!(is_stored(&server.data_path(), &random::token_hash(&token)), "its hash is");
    assert!(!is_stored(&server.data_path(), &token), "only hashes are stored");
}

#[tokio::test]
async fn a_token_lets_in_one_of_two_machines_that_come_at_once() {
    let server = TestServer::start().await;
    let store = server.store().await;
    let token = operate::add_token(&store, None, None).await.unwrap().token;
    let machine = |uuid| Machine { token: Some(token.clone()), ..Machine::with_uuid(uuid) };
    let (one, two) = (machine(UUID), machine(OTHER_UUID));
    // The server has read what it knows of both before it can store anything.
    let writing = store.write().await.unwrap();
    let both_wait = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        drop(writing);
    };
    let (one, two, ()) = tokio::join!(one.try_enrol(&server), two.try_enrol(&server), both_wait);
    let (let_in, refused) = if one.status() == StatusCode::OK { (one, two) } else { (two, one) };
    assert_eq!(let_in.status(), StatusCode::OK);
    assert_eq!(refusal(refused).await.code, ErrorCode::TokenUnknown);
}

#[tokio::test]
async fn a_machine_that_waits_and_changes_nothing_is_answered_while_another_process_writes() {
    let server = TestServer::start().await;
    let machine = Machine::with_uuid(UUID);
    let wait = waits(&server, &machine).await;
    let store = server.store().await;
    let _writing = store.write().await.unwrap();
    let again = tokio::time::timeout(Duration::from_secs(3), waits(&server, &machine)).await;
    assert_eq!(again.expect("nothing is stored"), wait);
}

#[tokio::test]
async fn a_csr_that_is_none_is_refused_and_costs_no_token() {
    let server = TestServer::start().await;
    let token = operate::add_token(&server.store().await, None, None).await.unwrap().token;
    let body = serde_json::json!({
        "identity": { "uuid": UUID }, "inventory": {}, "csr": "nonsense", "agent_version": "1", "boot_id": "b",
        "bootstrap_token": token,
    });
    let response = server.client().post(server.url("/v1/enrol")).json(&body).send().await.unwrap();
    assert_eq!(refusal(response).await.code, ErrorCode::InvalidRequest);
    let mut machine = Machine::with_uuid(UUID);
    machine.token = Some(token);
    Node::enrol(&server, machine).await;
}

#[tokio::test]
async fn a_misspelt_field_is_refused_with_its_place() {
    let server = TestServer::start().await;
    let response = server.client().post(server.url("/v1/enrol")).body("{\n  \"identty\": {}\n}").send().await.unwrap();
    let refusal = refusal(response).await;
    assert_eq!(refusal.code, ErrorCode::InvalidRequest);
    let expect = "the body is not valid: a field is not known, expected one of `identity`, ";
    assert!(refusal.message.starts_with(expect) && refusal.message.contains("line 2"), "{}", refusal.message);
}

#[tokio::test]
async fn a_node_shows_its_certificate_or_its_jwt() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let heartbeat = server.url("/v1/node/heartbeat");
    assert_eq!(node.client.post(&heartbeat).send().await.unwrap().status(), StatusCode::NO_CONTENT);

    let plain = server.client();
    let with_jwt = plain.post(&heartbeat).bearer_auth(&node.enrolment.jwt).send().await.unwrap();
    assert_eq!(with_jwt.status(), StatusCode::NO_CONTENT);
    let nothing = plain.post(&heartbeat).send().await.unwrap();
    assert_eq!(refusal(nothing).await.code, ErrorCode::Unauthenticated);

    let signer = jwt::Signer::new(&server.data().read("jwt.key").unwrap().unwrap());
    let subject = signer.verify(&node.enrolment.jwt, time::now()).unwrap();
    let expired = signer.issue(&subject, time::now() - 60_000, 30);
    let expired = plain.post(&heartbeat).bearer_auth(expired).send().await.unwrap();
    assert_eq!(refusal(expired).await.code, ErrorCode::Unauthenticated);
    let unknown = jwt::Subject { node: random::id(), key: subject.key };
    let forgotten = signer.issue(&unknown, time::now(), 30);
    let forgotten = plain.post(&heartbeat).bearer_auth(forgotten).send().await.unwrap();
    assert_eq!(refusal(forgotten).await.code, ErrorCode::Unauthenticated);
}

#[tokio::test]
async fn a_node_renews_its_credentials() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let renew = async |machine: &Machine| {
        let request = RenewRequest { csr: machine.csr() };
        node.client.post(server.url("/v1/node/renew")).json(&request).send().await.unwrap()
    };
    let renewed: Enrolment = renew(&node.machine).await.json().await.unwrap();
    assert_eq!(renewed.node, node.enrolment.node);
    assert_eq!(refusal(renew(&Machine::with_uuid(UUID)).await).await.code, ErrorCode::Forbidden, "another key");
    let client = with_certificate(&server.ca(), &node.machine.key, &renewed.certificate);
    let heartbeat = client.post(server.url("/v1/node/heartbeat")).send().await.unwrap();
    assert_eq!(heartbeat.status(), StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_disk_that_appears_after_enrolment_is_shown() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let disk = Disk { path: "/dev/sda".to_owned(), size: 1 << 30, ..Disk::default() };
    let inventory = Inventory { disks: vec![disk], ..Inventory::default() };
    let tell = async |inventory: &Inventory| {
        node.client.put(server.url("/v1/node/inventory")).json(inventory).send().await.unwrap()
    };
    assert_eq!(tell(&inventory).await.status(), StatusCode::NO_CONTENT);
    let shown = async || operate::show_node(&server.store().await, "web1").await.unwrap().inventory;
    assert_eq!(shown().await.as_ref(), Some(&inventory));

    operate::decommission_node(&server.store().await, "web1").await.unwrap();
    assert_eq!(refusal(tell(&Inventory::default()).await).await.code, ErrorCode::Decommissioned);
    assert_eq!(shown().await, Some(inventory));
}

#[tokio::test]
async fn certificates_of_another_installation_are_worth_nothing() {
    let server = TestServer::start().await;
    let other = TestServer::start().await;
    let node = other.enrolled("web1").await;
    let foreign = with_certificate(&server.ca(), &node.machine.key, &node.enrolment.certificate);
    foreign.post(server.url("/v1/node/heartbeat")).send().await.expect_err("the handshake fails");

    let deceived = trusting(&other.ca()).build().unwrap();
    deceived.get(server.url("/v1/time")).send().await.expect_err("the node refuses the server");
}

#[tokio::test]
async fn a_node_out_of_service_is_refused_at_every_request() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    operate::decommission_node(&server.store().await, "web1").await.unwrap();
    let heartbeat = node.client.post(server.url("/v1/node/heartbeat")).send().await.unwrap();
    assert_eq!(refusal(heartbeat).await.code, ErrorCode::Decommissioned);

    // The machine is now unknown and comes in as such. That does not restore the old credentials.
    let wait = waits(&server, &node.machine).await;
    assert_eq!(reason(&server).await, ClaimReason::Unregistered);
    operate::release_node(&server.store().await, "web1", None).await.expect_err("it is out of service");
    operate::release_node(&server.store().await, &wait.claim_code, None).await.unwrap();
    let (old, jwt) = (node.client, node.enrolment.jwt);
    let again = Node::enrol(&server, node.machine).await;
    assert_ne!(again.enrolment.node, node.enrolment.node);
    let heartbeat = server.url("/v1/node/heartbeat");
    let by_certificate = old.post(&heartbeat).send().await.unwrap();
    assert_eq!(refusal(by_certificate).await.code, ErrorCode::Decommissioned);
    let by_jwt = server.client().post(&heartbeat).bearer_auth(jwt).send().await.unwrap();
    assert_eq!(refusal(by_jwt).await.code, ErrorCode::Decommissioned);
    assert_eq!(again.client.post(&heartbeat).send().await.unwrap().status(), StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_node_that_is_put_back_into_service_keeps_its_name_and_history() {
    let server = TestServer::start().await;
    let store = server.store().await;
    let node = server.enrolled("web1").await;
    operate::recommission_node(&store, "web1", false).await.expect_err("it is in service");
    add_system(&server, |_| {}).await.unwrap();
    let before = start(&server, debian()).await.unwrap().id;
    let own = operate::add_token(&store, Some("web1"), None).await.unwrap().token;
    let steps = operate::add_run_token(&store, "web1", Purpose::Steps).await.unwrap();
    operate::decommission_node(&store, "web1").await.unwrap();
    // As long as another node has its identifiers, it stays out.
    let other = NewNode { identity: node.machine.identity.clone(), ..NewNode::default() };
    let other = operate::add_node(&store, other).await.unwrap().id;
    let taken = operate::recommission_node(&store, "web1", false).await.unwrap_err().to_string();
    assert!(taken.contains(&format!("node {other} is registered with an identifier of node web1")), "{taken}");
    operate::remove_node(&store, &other).await.unwrap();

    let back = operate::recommission_node(&store, "web1", false).await.unwrap();
    assert!(back.state == NodeState::Registered && !back.released && back.id == node.enrolment.node);
    let heartbeat = node.client.post(server.url("/v1/node/heartbeat")).send().await.unwrap();
    assert!(heartbeat.status().is_client_error(), "{heartbeat:?}");
    // What was given out before lets nobody in, and reports nothing.
    let machine = Machine { token: Some(own), ..Machine::with_uuid(UUID) };
    assert_eq!(refused(&server, &machine).await, ErrorCode::TokenUnknown);
    let machine = Machine { token: None, ..machine };
    waits(&server, &machine).await;
    assert_eq!(reason(&server).await, ClaimReason::NotReleased);
    let mut connection = store.read().await.unwrap();
    let steps = [steps.0, steps.1].map(|token| random::token_hash(&token));
    for hash in steps {
        assert_eq!(run_tokens::run_of(&mut connection, &hash, Purpose::Steps).await.unwrap(), None);
    }
    drop(connection);
    operate::release_node(&store, "web1", None).await.unwrap();
    let again = Node::enrol(&server, machine).await;
    assert_eq!(again.enrolment.node, node.enrolment.node);
    assert_eq!(again.workflow(&server).await, None, "the run of its last life is over");
    let runs = operate::list_runs(&store, Some("web1")).await.unwrap();
    assert_eq!(runs.iter().map(|run| run.id.as_str()).collect::<Vec<_>>(), [before]);
    operate::decommission_node(&store, "web1").await.unwrap();
    operate::recommission_node(&store, "web1", true).await.unwrap();
    assert_eq!(Node::enrol(&server, Machine::with_uuid(UUID)).await.enrolment.node, node.enrolment.node);
}

#[tokio::test]
async fn a_restarted_server_knows_its_nodes() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let (ca, before) = (server.ca(), status::all(&server.store().await).await.unwrap());
    let server = server.restart().await;
    assert_eq!(server.ca(), ca);
    assert_eq!(status::all(&server.store().await).await.unwrap(), before);
    let heartbeat = node.client.post(server.url("/v1/node/heartbeat")).send().await.unwrap();
    assert_eq!(heartbeat.status(), StatusCode::NO_CONTENT);
    let with_jwt = server.client().post(server.url("/v1/node/heartbeat")).bearer_auth(&node.enrolment.jwt);
    assert_eq!(with_jwt.send().await.unwrap().status(), StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_machine_that_waits_becomes_the_node_registered_later() {
    let server = TestServer::start().await;
    let machine = Machine::with_uuid(UUID);
    waits(&server, &machine).await;
    let id = server.add_released("web1").await;
    assert_eq!(Node::enrol(&server, machine).await.enrolment.node, id);
    assert_eq!(status::all(&server.store().await).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_machine_keeps_its_place_while_it_asks() {
    let server = TestServer::start().await;
    let waiting = Machine::with_uuid(UUID);
    let wait = waits(&server, &waiting).await;
    let store = server.store().await;
    let template = claimants::find(&mut store.read().await.unwrap(), &wait.claim_code).await.unwrap().unwrap();
    // The other places of this address are taken by machines that asked at this time.
    let crowd = async |last_asked: u64| {
        let mut transaction = store.write().await.unwrap();
        for n in 1..250 {
            let [key, id, code] = [n.to_string(), n.to_string(), n.to_string()];
            let claimant = Claimant { key, id, code, last_asked, ..template.clone() };
            claimants::save(&mut transaction, &claimant).await.unwrap();
        }
        store::commit(transaction).await.unwrap();
    };
    crowd(time::now()).await;
    let late = Machine::with_uuid(OTHER_UUID);
    assert_eq!(refused(&server, &late).await, ErrorCode::Unavailable);
    assert_eq!(waits(&server, &waiting).await, wait, "it has its place and its code");

    crowd(time::now() - 120_000).await;
    waits(&server, &late).await;
    assert_eq!(waits(&server, &waiting).await, wait);
}

#[tokio::test]
async fn strangers_keep_no_registered_machine_out() {
    let server = TestServer::start().await;
    server.add_released("web1").await;
    let identity = Identity { serial: Some("7CZ1".to_owned()), ..Identity::default() };
    let new = NewNode { name: Some("web2".to_owned()), identity: identity.clone(), ..NewNode::default() };
    operate::add_node(&server.store().await, new).await.unwrap();
    let wait = waits(&server, &Machine::with_uuid(OTHER_UUID)).await;
    let store = server.store().await;
    let mut transaction = store.write().await.unwrap();
    let template = claimants::find(&mut transaction, &wait.claim_code).await.unwrap().unwrap();
    for n in 1..1000 {
        let [key, id, code] = [n.to_string(), n.to_string(), n.to_string()];
        let claimant = Claimant { key, id, code, ..template.clone() };
        claimants::save(&mut transaction, &claimant).await.unwrap();
    }
    store::commit(transaction).await.unwrap();
    Node::enrol(&server, Machine::with_uuid(UUID)).await;
    waits(&server, &Machine::new(identity)).await;
}
