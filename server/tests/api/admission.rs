//! Whose machine is let in as a node: strangers who know its identifiers, restarted machines, proofs.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use reqwest::StatusCode;
use slipway_protocol::{ClaimReason, ErrorCode, Identity, KeyOrigin, NodeState, NodeStatus, Proof};
use slipway_server::base::time;
use slipway_server::node::admission::{Policy, SILENT};
use slipway_server::node::status;
use slipway_server::operate::{self, NewNode, NodeChange};
use slipway_server::store;
use slipway_server::store::{node_contacts, nodes};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{SqlSafeStr, SqlitePool};

use crate::enrolment::{reason, waits};
use crate::installing::{add_system, debian, install, start, web1};
use crate::program::{fail, succeed};
use slipway_server::base::limits::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Machine, Node, TestServer, UUID, refusal};

const SERIAL: &str = "7CZ1";
const MAC: &str = "52:54:00:12:34:56";

fn identity(uuid: bool, serial: bool, macs: &[&str]) -> Identity {
    Identity {
        uuid: uuid.then(|| UUID.to_owned()),
        serial: serial.then(|| SERIAL.to_owned()),
        macs: macs.iter().map(|mac| (*mac).to_owned()).collect(),
    }
}

fn all() -> Identity {
    identity(true, true, &[MAC])
}

/// A released node with all kinds of identifiers.
async fn add_web1(server: &TestServer, require: Proof) -> String {
    let new = NewNode { name: Some("web1".to_owned()), identity: all(), release: true, require, ..NewNode::default() };
    operate::add_node(&server.store().await, new).await.unwrap().id
}

/// Makes the machine of web1 silent for as long as it takes.
async fn fall_silent(server: &TestServer) {
    server.has_listened_long();
    store_silence(server).await;
}

/// Stores that the machine of web1 has been silent for as long as it takes.
async fn store_silence(server: &TestServer) {
    let store = server.store().await;
    let mut transaction = store.write().await.unwrap();
    let node = nodes::find(&mut transaction, "web1").await.unwrap().unwrap();
    node_contacts::seen(&mut transaction, &node.id, time::now() - SILENT - 1000).await.unwrap();
    store::commit(transaction).await.unwrap();
}

async fn heartbeat(server: &TestServer, node: &Node) -> StatusCode {
    node.client.post(server.url("/v1/node/heartbeat")).send().await.unwrap().status()
}

#[tokio::test]
async fn some_identifiers_of_a_node_let_nobody_in() {
    let server = TestServer::start().await;
    let id = add_web1(&server, Proof::Registered).await;
    let strangers = [
        identity(false, false, &[MAC]),
        identity(true, false, &[]),
        identity(false, true, &[]),
        identity(true, true, &[]),
        identity(true, true, &["52:54:00:00:00:01"]),
        Identity { uuid: Some("5d5d4544-0042-3010-8058-b7c04f503432".to_owned()), ..all() },
    ];
    for stranger in strangers {
        let wait = waits(&server, &Machine::new(stranger.clone())).await;
        assert_eq!(reason(&server).await, ClaimReason::IdentifiersDiffer, "{stranger:?}");
        operate::remove_node(&server.store().await, &wait.claim_code).await.unwrap();
    }
    waits(&server, &Machine::new(identity(false, false, &[MAC]))).await;
    assert_eq!(Node::enrol(&server, Machine::new(all())).await.enrolment.node, id, "nothing is in its way");
}

#[tokio::test]
async fn a_mac_address_alone_is_accepted_only_if_the_operator_says_so() {
    let server = TestServer::start().await;
    let store = server.store().await;
    let new = || NewNode { identity: identity(false, false, &[MAC]), release: true, ..NewNode::default() };
    let refused = operate::add_node(&store, new()).await.unwrap_err().to_string();
    assert!(refused.contains("--mac-only"), "{refused}");
    let added = operate::add_node(&store, NewNode { mac_only: true, ..new() }).await.unwrap();
    assert!(added.mac_only);
    assert_eq!(Node::enrol(&server, Machine::new(all())).await.enrolment.node, added.id);
}

#[tokio::test]
async fn a_second_machine_with_all_identifiers_is_held_and_seen() {
    let server = TestServer::start().await;
    add_web1(&server, Proof::Registered).await;
    add_system(&server, |_| {}).await.unwrap();
    let node = Node::enrol(&server, Machine::new(all())).await;
    start(&server, debian()).await.unwrap();

    let other = Machine::new(all());
    let wait = waits(&server, &other).await;
    let shown = web1(&server).await;
    let [claim] = shown.claims.as_slice() else { panic!("{:?}", shown.claims) };
    assert_eq!((claim.reason, &claim.code), (ClaimReason::KeyInUse, &wait.claim_code));
    assert_eq!((claim.address.as_str(), &claim.identity), ("127.0.0.1", &all()));
    assert_eq!(heartbeat(&server, &node).await, StatusCode::NO_CONTENT, "the first is undisturbed");
    assert!(node.workflow(&server).await.is_some());
    assert_eq!(waits(&server, &other).await, wait);

    // The operator knows better.
    operate::release_node(&server.store().await, &wait.claim_code, None).await.unwrap();
    assert_eq!(heartbeat(&server, &node).await, StatusCode::UNAUTHORIZED);
    let by_jwt = server.client().post(server.url("/v1/node/heartbeat")).bearer_auth(&node.enrolment.jwt);
    assert_eq!(refusal(by_jwt.send().await.unwrap()).await.code, ErrorCode::Unauthenticated);
    let other = Node::enrol(&server, other).await;
    assert!(other.workflow(&server).await.is_some());
    assert_eq!(web1(&server).await.key.unwrap().origin, KeyOrigin::Operator);
}

#[tokio::test]
async fn a_machine_is_not_silent_because_the_server_could_not_hear_it_or_has_not_stored_it() {
    let server = TestServer::start().await;
    add_web1(&server, Proof::Registered).await;
    add_system(&server, |_| {}).await.unwrap();
    let node = Node::enrol(&server, Machine::new(all())).await;
    start(&server, debian()).await.unwrap();
    store_silence(&server).await;
    let server = server.restart().await;
    let other = Machine::new(all());
    waits(&server, &other).await;
    assert_eq!(reason(&server).await, ClaimReason::KeyInUse, "the server has just started");

    fall_silent(&server).await;
    assert_eq!(heartbeat(&server, &node).await, StatusCode::NO_CONTENT);
    waits(&server, &other).await;
    fall_silent(&server).await;
    Node::enrol(&server, other).await;
}

#[tokio::test]
async fn the_connections_of_a_revoked_key_are_closed() {
    // Nothing else closes the connection.
    let long = Duration::from_secs(24 * 60 * 60);
    let limits = Limits { node_idle: long, connection_age: long, ..Limits::default() };
    let server = TestServer::start_with(limits).await;
    add_web1(&server, Proof::Registered).await;
    let node = Node::enrol(&server, Machine::new(all())).await;
    let mut open = node.connect(&server).await;
    let request = "POST /v1/node/heartbeat HTTP/1.1\r\nhost: server.test\r\ncontent-length: 0\r\n\r\n";
    open.write_all(request.as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    open.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 204");
    operate::decommission_node(&server.store().await, "web1").await.unwrap();
    // Ends when the server closes the connection.
    let _ = open.read_to_end(&mut answer).await;
}

#[tokio::test]
async fn a_restarted_machine_takes_over_once_it_was_silent() {
    let server = TestServer::start().await;
    add_web1(&server, Proof::Registered).await;
    add_system(&server, |_| {}).await.unwrap();
    let before = Node::enrol(&server, Machine::new(all())).await;
    start(&server, debian()).await.unwrap();
    before.workflow(&server).await.unwrap();

    let restarted = Machine::new(all());
    waits(&server, &restarted).await;
    fall_silent(&server).await;
    let after = Node::enrol(&server, restarted).await;
    assert_eq!(after.enrolment.node, before.enrolment.node);
    assert!(after.workflow(&server).await.is_some());
    assert_eq!(heartbeat(&server, &before).await, StatusCode::UNAUTHORIZED);

    let shown = operate::show_node(&server.store().await, "web1").await.unwrap();
    assert!(shown.claims.is_empty());
    assert_eq!(shown.key.unwrap().origin, KeyOrigin::AfterSilence);
    assert_eq!(shown.earlier_keys.len(), 1);
    assert_eq!(shown.earlier_keys[0].origin, KeyOrigin::First);
}

#[tokio::test]
async fn nobody_is_let_in_when_there_is_nothing_to_do() {
    let server = TestServer::start().await;
    add_web1(&server, Proof::Registered).await;
    add_system(&server, |_| {}).await.unwrap();
    let node = Node::enrol(&server, Machine::new(all())).await;
    install(&server, &node).await;
    fall_silent(&server).await;

    let again = Machine::new(all());
    waits(&server, &again).await;
    assert_eq!(reason(&server).await, ClaimReason::NothingToDo);
    assert!(web1(&server).await.came_back_at.is_some());
    assert_eq!(Node::enrol(&server, node.machine).await.enrolment.node, node.enrolment.node, "its own key");

    start(&server, debian()).await.unwrap();
    fall_silent(&server).await;
    let again = Node::enrol(&server, again).await;
    assert!(again.workflow(&server).await.is_some());
}

#[tokio::test]
async fn a_machine_that_left_for_its_system_need_not_be_silent_first() {
    let server = TestServer::start().await;
    add_web1(&server, Proof::Registered).await;
    add_system(&server, |_| {}).await.unwrap();
    let node = Node::enrol(&server, Machine::new(all())).await;
    install(&server, &node).await;
    start(&server, debian()).await.unwrap();
    let again = Node::enrol(&server, Machine::new(all())).await;
    assert!(again.workflow(&server).await.is_some());
    assert_eq!(web1(&server).await.key.unwrap().origin, KeyOrigin::AfterInstallation);
}

#[tokio::test]
async fn a_claim_code_releases_one_key() {
    let server = TestServer::start().await;
    let store = server.store().await;
    let (first, second) = (Machine::new(all()), Machine::new(all()));
    let (one, two) = (waits(&server, &first).await, waits(&server, &second).await);
    assert_ne!(one, two);
    operate::release_node(&store, &one.claim_code, Some("web1".to_owned())).await.unwrap();
    assert_eq!(waits(&server, &second).await, two);
    Node::enrol(&server, first).await;
    assert_eq!(waits(&server, &second).await, two);
    assert_eq!(reason(&server).await, ClaimReason::KeyInUse);
}

#[tokio::test]
async fn a_node_is_not_released_for_one_of_several_machines() {
    let server = TestServer::start().await;
    let store = server.store().await;
    let new = NewNode { name: Some("web1".to_owned()), identity: all(), ..NewNode::default() };
    operate::add_node(&store, new).await.unwrap();
    let (first, second) = (Machine::new(all()), Machine::new(all()));
    let (one, two) = (waits(&server, &first).await, waits(&server, &second).await);
    let refused = operate::release_node(&store, "web1", None).await.unwrap_err().to_string();
    assert!(refused.contains(&one.claim_code) && refused.contains(&two.claim_code), "{refused}");
    operate::release_node(&store, &two.claim_code, None).await.unwrap();
    Node::enrol(&server, second).await;
    waits(&server, &first).await;
}

#[tokio::test]
async fn a_registered_node_has_the_identifiers_it_was_given() {
    let server = TestServer::start().await;
    let wider = Identity { uuid: Some("5d5d4544-0042-3010-8058-b7c04f503432".to_owned()), ..all() };
    let stranger = Machine::new(wider);
    waits(&server, &stranger).await;
    let new = NewNode {
        name: Some("web1".to_owned()),
        identity: identity(true, false, &[MAC]),
        release: true,
        ..NewNode::default()
    };
    let added = operate::add_node(&server.store().await, new).await.unwrap();
    assert_eq!(added.identity, identity(true, false, &[MAC]));
    waits(&server, &stranger).await;
    Node::enrol(&server, Machine::new(all())).await;
}

#[tokio::test]
async fn a_machine_that_waits_learns_nothing_about_nodes() {
    let server = TestServer::start().await;
    add_web1(&server, Proof::Registered).await;
    Node::enrol(&server, Machine::new(all())).await;
    let answers = [all(), identity(false, false, &[MAC]), identity(false, false, &["52:54:00:00:00:01"])];
    for identity in answers {
        let response = Machine::new(identity).try_enrol(&server).await;
        let body: serde_json::Value = response.json().await.unwrap();
        let fields: Vec<_> = body.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["claim_code"]);
    }
}

#[tokio::test]
async fn a_token_proves_a_node_at_each_boot() {
    let server = TestServer::start().await;
    add_web1(&server, Proof::Token).await;
    let store = server.store().await;
    let machine = Machine::new(all());
    let wait = waits(&server, &machine).await;
    assert_eq!(reason(&server).await, ClaimReason::ProofMissing);
    operate::release_node(&store, &wait.claim_code, None).await.expect_err("it proved nothing");
    operate::remove_node(&store, &wait.claim_code).await.unwrap();

    let with = |token: &str| Machine { token: Some(token.to_owned()), ..Machine::new(all()) };
    let consent = operate::add_token(&store, None, None).await.unwrap().token;
    waits(&server, &with(&consent)).await;
    assert_eq!(reason(&server).await, ClaimReason::ProofMissing, "it is for no node");

    let token = operate::add_token(&store, Some("web1"), None).await.unwrap().token;
    let node = Node::enrol(&server, with(&token)).await;
    assert_eq!(web1(&server).await.key.unwrap().proof, Proof::Token);
    waits(&server, &with(&token)).await;
    fall_silent(&server).await;
    let restarted = Node::enrol(&server, with(&token)).await;
    assert_eq!(restarted.enrolment.node, node.enrolment.node);

    let elsewhere =
        Machine { token: Some(token.clone()), ..Machine::with_uuid("5d5d4544-0042-3010-8058-b7c04f503432") };
    waits(&server, &elsewhere).await;
    let id = operate::list_tokens(&store).await.unwrap().into_iter().find(|token| token.made_for.is_some()).unwrap().id;
    operate::revoke_token(&store, &id).await.unwrap();
    fall_silent(&server).await;
    waits(&server, &with(&token)).await;
}

#[tokio::test]
async fn an_operating_system_goes_to_machines_that_proved_enough() {
    let server = TestServer::start().await;
    add_web1(&server, Proof::Registered).await;
    add_system(&server, |system| system.require = Proof::Token).await.unwrap();
    let node = Node::enrol(&server, Machine::new(all())).await;
    start(&server, debian()).await.unwrap();
    assert_eq!(node.workflow(&server).await, None);
    let token = operate::add_token(&server.store().await, Some("web1"), None).await.unwrap().token;
    let node = Node::enrol(&server, Machine { token: Some(token), ..node.machine }).await;
    assert!(node.workflow(&server).await.is_some());
}

#[tokio::test]
async fn a_site_may_require_a_proof_or_an_operator_at_each_key() {
    let server = TestServer::start_asking(Policy { require: Proof::Token, strict: false }).await;
    add_web1(&server, Proof::Registered).await;
    waits(&server, &Machine::new(all())).await;
    assert_eq!(reason(&server).await, ClaimReason::ProofMissing);

    let server = TestServer::start_asking(Policy { require: Proof::Registered, strict: true }).await;
    add_web1(&server, Proof::Registered).await;
    Node::enrol(&server, Machine::new(all())).await;
    fall_silent(&server).await;
    let restarted = Machine::new(all());
    let wait = waits(&server, &restarted).await;
    assert_eq!(reason(&server).await, ClaimReason::KeyChanged);
    operate::release_node(&server.store().await, &wait.claim_code, None).await.unwrap();
    Node::enrol(&server, restarted).await;
}

#[tokio::test]
async fn a_repaired_machine_is_registered_by_what_changed() {
    let server = TestServer::start().await;
    add_web1(&server, Proof::Registered).await;
    let store = server.store().await;
    let new_board = Identity { uuid: Some("5d5d4544-0042-3010-8058-b7c04f503432".to_owned()), ..all() };
    let machine = Machine::new(new_board.clone());
    waits(&server, &machine).await;
    let given = Identity { serial: None, macs: Vec::new(), ..new_board.clone() };
    let change = NodeChange { identity: Some(given), ..NodeChange::default() };
    assert_eq!(operate::change_node(&store, "web1", change).await.unwrap().identity, new_board);
    Node::enrol(&server, machine).await;
    waits(&server, &Machine::new(all())).await;
}

/// A store as the last version without keys left it: a node with an open run, one that runs its system, one known by a
/// MAC address, and a machine that nobody registered.
pub async fn old_store(file: &std::path::Path) {
    let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
    let pool = SqlitePool::connect_with(options).await.unwrap();
    let sql = [
        include_str!("../../migrations/sqlite/0001_first.sql"),
        include_str!("../../migrations/sqlite/0002_ended_and_forgotten.sql"),
        include_str!("../../migrations/sqlite/0003_contacts.sql"),
        include_str!("../../migrations/sqlite/0004_recovery_keys.sql"),
        include_str!("../../migrations/sqlite/0005_network_and_keys.sql"),
        include_str!("../../migrations/sqlite/0006_reports.sql"),
        include_str!("../../migrations/sqlite/0007_run_token_uses.sql"),
        include_str!("../../migrations/sqlite/0008_disk_hints.sql"),
    ];
    let names = [
        "first",
        "ended and forgotten",
        "contacts",
        "recovery keys",
        "network and keys",
        "reports",
        "uses of run tokens",
        "disk hints",
    ];
    let migrations = (1..).zip(names.into_iter().zip(sql)).map(|(version, (name, sql))| {
        Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
    });
    Migrator::with_migrations(migrations.collect()).run(&pool).await.unwrap();
    let node =
        "INSERT INTO nodes (id, name, state, registered, released, claim_code, identity_json, created_at, run) VALUES ";
    let rows = [
        format!("{node}('n1', 'web1', 'installing', TRUE, TRUE, NULL, '{{\"uuid\":\"{UUID}\",\"macs\":[]}}', 1, 'r1')"),
        format!(
            "{node}('n2', 'web2', 'running', TRUE, TRUE, NULL, '{{\"serial\":\"{SERIAL}\",\"macs\":[]}}', 1, 'r2')"
        ),
        format!("{node}('n3', 'web3', 'registered', TRUE, TRUE, 'ABCDEF', '{{\"macs\":[\"{MAC}\"]}}', 1, NULL)"),
        format!("{node}('n4', NULL, 'held', FALSE, FALSE, 'GHJKMN', '{{\"serial\":\"8\",\"macs\":[]}}', 1, NULL)"),
        format!(
            "INSERT INTO node_keys VALUES ('uuid', '{UUID}', 'n1'), ('serial', '{SERIAL}', 'n2'), ('mac', '{MAC}', \
             'n3')"
        ),
        "INSERT INTO runs (id, node, state, workflow_json, steps_json, last_seq, phone_home_json, created_at) \
         VALUES ('r1', 'n1', 'running', '[]', '[]', 0, '{}', 1), ('r2', 'n2', 'succeeded', '[]', '[]', 0, '{}', 1)"
            .to_owned(),
    ];
    for row in rows {
        sqlx::query(sqlx::AssertSqlSafe(row)).execute(&pool).await.unwrap();
    }
    pool.close().await;
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
}

#[tokio::test]
async fn a_store_without_keys_lets_the_first_machine_of_a_node_with_work_in() {
    let server = TestServer::start_on(async |data| old_store(&data.join("slipway.db")).await).await;
    let shown = status::all(&server.store().await).await.unwrap();
    let rows: Vec<_> = shown.iter().map(|node| (node.id.as_str(), node.mac_only)).collect();
    assert_eq!(rows, [("n1", false), ("n2", false), ("n3", true)], "who was not registered asks again");
    Node::enrol(&server, Machine::with_uuid(UUID)).await;
    Node::enrol(&server, Machine::new(identity(false, false, &[MAC]))).await;
    waits(&server, &Machine::new(identity(false, true, &[]))).await;
    assert_eq!(reason(&server).await, ClaimReason::NothingToDo);
}

#[tokio::test]
async fn what_waits_is_shown_once() {
    let server = TestServer::start().await;
    add_web1(&server, Proof::Registered).await;
    let wait = waits(&server, &Machine::new(identity(false, false, &[MAC]))).await;
    let shown: Vec<NodeStatus> = status::all(&server.store().await).await.unwrap();
    let rows: Vec<_> = shown.iter().map(|node| (node.name.as_deref(), node.state, node.claims.len())).collect();
    assert_eq!(rows, [(Some("web1"), NodeState::Registered, 1), (None, NodeState::Held, 1)]);
    assert_eq!(shown[1].claim_code.as_deref(), Some(wait.claim_code.as_str()));
    assert_eq!(shown[1].claims[0].node.as_deref(), Some("web1"));
    assert_eq!(operate::show_node(&server.store().await, &wait.claim_code).await.unwrap(), shown[1]);
}

/// The UUID of two machines of which slipway does not know that their vendor gives it to all of them.
#[tokio::test]
async fn an_identifier_that_a_second_machine_has_too_is_named_as_probably_shared() {
    let server = TestServer::start().await;
    add_web1(&server, Proof::Registered).await;
    let (data, second) =
        (server.data_path(), Identity { serial: Some("7CZ2".to_owned()), ..identity(true, false, &[]) });
    let waiting = waits(&server, &Machine::new(second.clone())).await;
    let claims = web1(&server).await.claims;
    assert_eq!(claims[0].shared, [""; 0], "the only machine so far may be web1 after a repair");

    Node::enrol(&server, Machine::new(all())).await;
    let shared = format!("uuid {UUID}");
    assert_eq!(web1(&server).await.claims[0].shared, [shared.as_str()]);
    let status = succeed(&data, &["status"]);
    let code = &waiting.claim_code;
    assert!(status.contains(&format!("another machine ({code}) has {shared} too: probably shared")), "{status}");
    let status = succeed(&data, &["status", code]);
    assert!(status.contains(&format!("claim code {code}; {shared} is probably shared by both")), "{status}");

    succeed(&data, &["node", "set", "web1", "--no-uuid"]);
    assert_eq!(web1(&server).await.identity, identity(false, true, &[MAC]));
    let refused = fail(&data, &["node", "set", "web1", "--no-serial"]);
    assert!(refused.contains("a MAC address alone proves nothing"), "{refused}");
    succeed(&data, &["node", "release", code, "--name", "web2"]);
}

#[tokio::test]
async fn two_strangers_with_the_same_identifier_are_told_apart() {
    let server = TestServer::start().await;
    let stranger = |serial: &str| Identity { serial: Some(serial.to_owned()), ..identity(true, false, &[]) };
    for serial in ["7CZ1", "7CZ2"] {
        waits(&server, &Machine::new(stranger(serial))).await;
    }
    let nodes = status::all(&server.store().await).await.unwrap();
    let shared: Vec<&[String]> = nodes.iter().map(|node| node.claims[0].shared.as_slice()).collect();
    assert_eq!(shared, [[format!("uuid {UUID}")], [format!("uuid {UUID}")]]);
}

/// A store may have identifiers that are known as placeholders only since.
#[tokio::test]
async fn a_placeholder_that_was_registered_counts_for_nothing_and_is_named() {
    let server = TestServer::start().await;
    let id = add_web1(&server, Proof::Registered).await;
    let store = server.store().await;
    let mut transaction = store.write().await.unwrap();
    let mut node = nodes::find(&mut transaction, "web1").await.unwrap().unwrap();
    node.identity.uuid = Some("00020003-0004-0005-0006-000700080009".to_owned());
    nodes::save(&mut transaction, &node).await.unwrap();
    store::commit(transaction).await.unwrap();
    let status = succeed(&server.data_path(), &["status"]);
    let expect = "many machines have uuid 00020003-0004-0005-0006-000700080009, so it is ignored: ";
    assert!(status.contains(expect), "{status}");
    let machine = Machine::new(Identity { uuid: node.identity.uuid.clone(), ..all() });
    assert_eq!(Node::enrol(&server, machine).await.enrolment.node, id, "by its serial number and its network card");
}

#[test]
fn an_identifier_of_many_machines_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    crate::program::made(data);
    succeed(data, &["node", "add", "--name", "web1", "--uuid", UUID]);
    for (option, value) in [
        ("--uuid", "00020003-0004-0005-0006-000700080009"),
        ("--uuid", "{FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFF00}"),
        ("--serial", "Enter Serial"),
        ("--serial", "to be filled by O.E.M"),
        ("--mac", "00-00-00-00-00-00"),
        ("--mac", "01:00:5e:00:00:01"),
    ] {
        for command in [&["node", "add", "--mac-only"] as &[&str], &["node", "set", "web1"]] {
            let refused = fail(data, &[command, &[option, value]].concat());
            assert!(refused.contains(&format!("{value:?} is one that many machines have")), "{refused}");
        }
    }
}
