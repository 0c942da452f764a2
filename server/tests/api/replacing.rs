//! A machine takes the place of a node's machine, after a repair.

use reqwest::StatusCode;
use slipway_protocol::{Identity, NodeState, Proof};
use slipway_server::operate::{self, NewNode, NodeChange};

use crate::enrolment::{OTHER_UUID, waits};
use crate::installing::{add_system, debian, start};
use crate::page::Browser;
use crate::program::{fail, succeed};
use crate::support::{Machine, Node, TestServer, UUID};

const EK: &str = "sha256:b4fe9c1ab3a0d22ae21a0eb86b3a5ef3b27a8e6ab2b6f8fa8f8a4d2fe9a7c6d1";

fn board() -> Identity {
    Identity { serial: Some("7CZ2".to_owned()), ..Machine::with_uuid(OTHER_UUID).identity }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_takes_the_place_of_one_that_was_replaced() {
    let server = TestServer::start().await;
    let (store, data) = (server.store().await, server.data_path());
    let old = server.enrolled("web1").await;
    add_system(&server, |_| {}).await.unwrap();
    let machine = Machine::new(board());
    let code = waits(&server, &machine).await.claim_code;
    let replace = ["node", "replace", "--yes", "--by", &code, "web1"];

    let asked = fail(&data, &["node", "replace", "--by", &code, "web1"]);
    assert!(asked.ends_with("standard input is not a terminal; give --yes to continue without asking"), "{asked}");
    let run = start(&server, debian()).await.unwrap().id;
    let open = fail(&data, &replace);
    assert!(open.contains(&format!("run {run} of node web1 is not over; cancel it first")), "{open}");
    succeed(&data, &["run", "cancel", "--yes", "web1"]);
    let unknown = fail(&data, &["node", "replace", "--yes", "--by", "AAAAAA", "web1"]);
    assert!(unknown.contains("no waiting machine shows the claim code \"AAAAAA\""), "{unknown}");
    // Another node may not lose its identifiers.
    let other = NewNode { identity: Identity { uuid: None, ..board() }, ..NewNode::default() };
    let other = operate::add_node(&store, other).await.unwrap().id;
    let taken = fail(&data, &replace);
    assert!(taken.contains(&format!("has an identifier of node {other}")), "{taken}");
    operate::remove_node(&store, &other).await.unwrap();
    // It proves as much as any machine of the node has to.
    let change = async |change: NodeChange| drop(operate::change_node(&store, "web1", change).await.unwrap());
    change(NodeChange { require: Some(Proof::Attested), ..NodeChange::default() }).await;
    let unproved = fail(&data, &replace);
    assert!(unproved.contains("did not prove what node web1 requires"), "{unproved}");
    let registered = Some(vec![EK.to_owned()]);
    change(NodeChange { require: Some(Proof::Registered), ek: registered, ..NodeChange::default() }).await;
    let without = fail(&data, &replace);
    assert!(without.contains("does not have the TPM that was registered for node web1"), "{without}");
    change(NodeChange { ek: Some(Vec::new()), ..NodeChange::default() }).await;

    // What the operator agreed to is not what it is any more.
    let agreed = operate::plan_replacement(&store, "web1", &code).await.unwrap();
    let more = Identity { macs: vec!["52:54:00:12:34:57".to_owned()], ..Identity::default() };
    change(NodeChange { identity: Some(more), ..NodeChange::default() }).await;
    let other = operate::replace_machine(&store, "web1", &code, Some(&agreed)).await.unwrap_err().to_string();
    assert!(other.starts_with("nothing was done: the node or the machine is another by now"), "{other}");

    let said = succeed(&data, &replace);
    assert_eq!(said, format!("the machine with the claim code {code} is web1 from now on\n"));
    let new = Node::enrol(&server, machine).await;
    assert_eq!(new.enrolment.node, old.enrolment.node);
    assert_eq!(operate::show_node(&store, "web1").await.unwrap().identity, board());
    let heartbeat = old.client.post(server.url("/v1/node/heartbeat")).send().await.unwrap();
    assert_eq!(heartbeat.status(), StatusCode::UNAUTHORIZED);
    waits(&server, &old.machine).await;
    let events = succeed(&data, &["events", "--node", "web1", "--kind", "released"]);
    assert!(events.contains(&format!("uuid {OTHER_UUID}, serial 7CZ2 instead of uuid {UUID}")), "{events}");

    succeed(&data, &["node", "decommission", "--yes", "web1"]);
    let code = waits(&server, &Machine::with_uuid("6d5d4544-0042-3010-8058-b7c04f503432")).await.claim_code;
    let gone = fail(&data, &["node", "replace", "--yes", "--by", &code, "web1"]);
    assert!(gone.contains("node web1 is out of service; put it back first"), "{gone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_says_what_takes_the_place_of_what_and_asks() {
    let server = TestServer::start().await;
    let old = server.enrolled("web1").await.enrolment.node;
    let code = waits(&server, &Machine::new(board())).await.claim_code;
    let browser = Browser::signed_in(&server, &server.operator_token()).await;
    let stranger = browser.page(&format!("/act/release?node={code}")).await;
    assert!(stranger.contains(&format!("href=\"/replace?by={code}\"")), "{stranger}");
    assert!(browser.page(&format!("/replace?by={code}")).await.contains("Name or id of the node"));
    let page = browser.page(&format!("/replace?by={code}&node=web1")).await;
    for part in [
        &format!("{OTHER_UUID}, serial 7CZ2 instead of uuid {UUID}")[..],
        "the server refuses the key of its earlier machine",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let said = page.split("name=\"said\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    let send = async |said: &str, typed: &str| {
        let fields = [("node", old.as_str()), ("by", &code), ("said", said), ("confirm", typed)];
        browser.send("/replace", &fields).await.status()
    };
    assert_eq!(send(said, "web2").await, StatusCode::BAD_REQUEST);
    assert_eq!(send("0123456789abcdef", "web1").await, StatusCode::CONFLICT);
    let show = async || operate::show_node(&server.store().await, "web1").await.unwrap();
    assert_eq!(show().await.identity.uuid.as_deref(), Some(UUID), "nothing was done");
    assert_eq!(send(said, "web1").await, StatusCode::SEE_OTHER);
    let node = show().await;
    assert_eq!((node.id, node.identity, node.state), (old, board(), NodeState::Enrolled));
}
