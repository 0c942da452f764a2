//! Boot files that machines fetched: whose they are, how many are kept, and what operators see.

use std::net::IpAddr;

use reqwest::{Client, StatusCode};
use slipway_protocol::{BootWay, Identity, NodeState};
use slipway_server::base::data::DataDir;
use slipway_server::base::time::{Millis, now};
use slipway_server::boot_files::fetches::BootFetches;
use slipway_server::node::status;
use slipway_server::store;
use slipway_server::store::boot_fetches::{self, Fetched};
use slipway_server::store::nodes::{self, Node as Stored};
use slipway_server::store::{Store, claimants, db, node_contacts};

use crate::installing::web1;
use crate::postgres;
use crate::program;
use crate::support::{Machine, Node, PROXY, TestServer, UUID};

const MINUTE: Millis = 60 * 1000;
const HOUR: Millis = 60 * MINUTE;

fn fetch(at: Millis, address: &str, file: &str) -> Fetched {
    let (address, file) = (address.parse().unwrap(), file.to_owned());
    Fetched { at, address, file, bytes: 5, way: BootWay::Tftp, to_disk: false, node: None }
}

async fn record(store: &Store, fetched: &Fetched) {
    let mut transaction = store.write().await.unwrap();
    boot_fetches::record(&mut transaction, fetched).await.unwrap();
    store::commit(transaction).await.unwrap();
}

async fn met(store: &Store, node: &str, address: &str, at: Millis) {
    let mut transaction = store.write().await.unwrap();
    boot_fetches::met(&mut transaction, node, address.parse().unwrap(), at).await.unwrap();
    store::commit(transaction).await.unwrap();
}

async fn add(store: &Store, name: &str, change: impl FnOnce(&mut Stored)) -> String {
    let mut node = Stored::new(Identity { serial: Some(name.to_owned()), ..Identity::default() }, 0);
    node.name = Some(name.to_owned());
    change(&mut node);
    let mut transaction = store.write().await.unwrap();
    nodes::save(&mut transaction, &node).await.unwrap();
    store::commit(transaction).await.unwrap();
    node.id
}

async fn open() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let data = DataDir::make(postgres::place(folder.path())).unwrap();
    let store = Store::of(&data).await.unwrap();
    (folder, store)
}

/// The files that a node fetched since it was heard from, with their addresses.
async fn files(store: &Store, node: &str) -> Vec<String> {
    let mut connection = store.read().await.unwrap();
    let of_node = boot_fetches::since_heard(&mut connection, Some(node)).await.unwrap().remove(node);
    of_node.unwrap_or_default().iter().map(|fetch| format!("{} {}", fetch.address, fetch.file)).collect()
}

async fn strangers_in(store: &Store, at: Millis) -> Vec<String> {
    let fetches = boot_fetches::of_strangers(&mut store.read().await.unwrap(), at).await.unwrap();
    fetches.iter().map(|fetch| format!("{} {}", fetch.address, fetch.file)).collect()
}

/// Puts boot files into the folder of a server.
fn fill(server: &TestServer, names: &[&str]) {
    for name in names {
        std::fs::write(server.folder.path().join("boot/x86_64").join(name), "0123456789").unwrap();
    }
}

#[tokio::test]
async fn every_way_of_fetching_a_whole_file_is_recorded() {
    let server = TestServer::start().await;
    fill(&server, &["vmlinuz", "initrd", "parts", "head", "begun", "slipway"]);
    server.add_released("web1").await;
    let (tls, plain) = (server.client(), Client::new());
    let get = async |client: &Client, url: String, range: &str| {
        let response = client.get(url).header("range", range).send().await.unwrap();
        assert!(response.status().is_success());
        response.bytes().await.unwrap();
    };
    get(&tls, server.url("/boot/x86_64/vmlinuz"), "").await;
    get(&plain, server.boot_url("/boot/x86_64//initrd"), "").await;
    get(&plain, server.boot_url("/boot/x86_64/initrd"), "").await;
    get(&plain, server.boot_url("/boot/x86_64/parts"), "bytes=0-4").await;
    get(&plain, server.boot_url("/boot/x86_64/parts"), "bytes=5-9").await;
    get(&plain, server.boot_url("/boot/x86_64/begun"), "bytes=0-8").await;
    // An installed system fetches its boot reporter. That is no boot of slipway.
    get(&tls, server.url("/boot/x86_64/slipway"), "").await;
    let script = server.boot_url(&format!("/boot/ipxe?uuid={UUID}&arch=x86_64"));
    for url in [server.boot_url("/boot/x86_64/head"), script.clone()] {
        assert_eq!(plain.head(url).send().await.unwrap().status(), StatusCode::OK);
    }
    assert_eq!(plain.get(server.boot_url("/boot/x86_64/none")).send().await.unwrap().status(), StatusCode::NOT_FOUND);

    // What is noted is stored when the server stops, if not before.
    let server = server.restart().await;
    let fetched = status::strange_fetches(&server.store().await).await.unwrap();
    assert_eq!(fetched.len(), 1, "one address: {fetched:?}");
    assert_eq!(web1(&server).await.boot_files_fetched, None);

    // Now the machine says which it is.
    let script = script.replace(script.split("/boot/").next().unwrap(), &server.boot_url(""));
    get(&plain, script, "").await;
    let server = server.restart().await;
    let fetched = web1(&server).await.boot_files_fetched.unwrap();
    let told: Vec<_> = fetched.files.iter().map(|file| (file.file.as_str(), file.way, file.bytes)).collect();
    let script_bytes = fetched.files.last().unwrap().bytes;
    let expect = [
        ("x86_64/vmlinuz", BootWay::Https, 10),
        ("x86_64/initrd", BootWay::Http, 10),
        ("x86_64/parts", BootWay::Http, 10),
        ("ipxe", BootWay::IpxeScript, script_bytes),
    ];
    assert_eq!((told.as_slice(), fetched.silent_since), (&expect[..], None));
    assert!(fetched.files.iter().all(|file| file.address == "127.0.0.1"), "{fetched:?}");
    assert_eq!(status::strange_fetches(&server.store().await).await.unwrap(), []);
}

#[tokio::test]
async fn a_trusted_proxy_says_whose_fetch_it_is_and_nobody_else_does() {
    let server = TestServer::start().await;
    fill(&server, &["vmlinuz", "initramfs"]);
    let url = server.boot_url("/boot/x86_64/");
    let get = async |client: Client, file: &str, address: &str| {
        let request = client.get(format!("{url}{file}")).header("x-forwarded-for", address);
        request.send().await.unwrap().error_for_status().unwrap().bytes().await.unwrap();
    };
    let proxy = Client::builder().local_address(PROXY).build().unwrap();
    get(proxy, "vmlinuz", "198.51.100.1, 192.0.2.7").await;
    get(Client::new(), "initramfs", "192.0.2.8").await;
    let server = server.restart().await;
    let mut strangers = strangers_in(&server.store().await, now()).await;
    strangers.sort();
    assert_eq!(strangers, ["127.0.0.1 x86_64/initramfs", "192.0.2.7 x86_64/vmlinuz"]);
}

#[tokio::test]
async fn a_machine_that_enrols_gets_what_its_address_fetched_before() {
    let server = TestServer::start().await;
    let id = server.add_released("web1").await;
    let store = server.store().await;
    record(&store, &fetch(now() - 20 * MINUTE, "127.0.0.1", "old")).await;
    record(&store, &fetch(now() - MINUTE, "127.0.0.1", "x86_64/slipway.efi")).await;
    assert_eq!(strangers_in(&store, now()).await, ["127.0.0.1 x86_64/slipway.efi"]);
    let node = Node::enrol(&server, Machine::with_uuid(UUID)).await;
    assert_eq!((web1(&server).await.boot_files_fetched, strangers_in(&store, now()).await), (None, vec![]));

    // It was heard from since, so look behind that.
    let mut transaction = store.write().await.unwrap();
    node_contacts::seen(&mut transaction, &id, 0).await.unwrap();
    store::commit(transaction).await.unwrap();
    assert_eq!(files(&store, &id).await, ["127.0.0.1 x86_64/slipway.efi"]);
    assert!(node.workflow(&server).await.is_none());
    assert_eq!(files(&server.store().await, &id).await, [""; 0]);
}

#[tokio::test]
async fn fifteen_minutes_of_silence_after_the_last_fetch_are_flagged_until_the_first_report() {
    let server = TestServer::start().await;
    let machine = server.enrolled("web1").await;
    let store = server.store().await;
    let web2 = add(&store, "web2", |_| {}).await;
    let mut transaction = store.write().await.unwrap();
    let stored = nodes::find(&mut transaction, "web1").await.unwrap().unwrap();
    node_contacts::seen(&mut transaction, &stored.id, now() - HOUR).await.unwrap();
    store::commit(transaction).await.unwrap();
    let newest = now() - 15 * MINUTE;
    record(&store, &fetch(newest - MINUTE, "127.0.0.1", "x86_64/vmlinuz")).await;
    record(&store, &fetch(newest, "127.0.0.1", "x86_64/initrd")).await;
    for at in [newest - MINUTE, newest + MINUTE] {
        let fetched = fetch(at, "192.0.2.2", "ipxe");
        record(&store, &Fetched { node: Some(web2.clone()), ..fetched }).await;
    }

    let shown = status::all(&store).await.unwrap();
    let of = |name: &str| {
        let node = shown.iter().find(|node| node.name.as_deref() == Some(name)).unwrap();
        let fetched = node.boot_files_fetched.clone().unwrap();
        (node.state, fetched.files.len(), fetched.silent_since)
    };
    assert_eq!(of("web1"), (NodeState::Enrolled, 2, Some(newest)));
    assert_eq!(of("web2"), (NodeState::Registered, 2, None));
    let table = program::succeed(&server.data_path(), &["status"]);
    assert!(table.contains("silent for 15 min "), "{table}");
    assert!(table.contains("boot files fetched: ipxe 14 min "), "{table}");
    let alone = program::succeed(&server.data_path(), &["status", "web1"]);
    assert!(alone.contains("  x86_64/initrd, 5 bytes, by tftp from 127.0.0.1, 15 min "), "{alone}");

    assert!(machine.workflow(&server).await.is_none());
    assert_eq!(web1(&server).await.boot_files_fetched, None);
}

#[tokio::test]
async fn a_script_that_sends_its_machine_to_its_disk_ends_the_wait() {
    let server = TestServer::start().await;
    let store = server.store().await;
    let id = add(&store, "web1", |node| node.state = NodeState::Running).await;
    record(&store, &fetch(now() - MINUTE, "127.0.0.1", "x86_64/ipxe.efi")).await;
    let ask = async |server: &TestServer| {
        let url = server.boot_url("/boot/ipxe?serial=web1&arch=x86_64");
        Client::new().get(url).send().await.unwrap().text().await.unwrap()
    };
    assert!(!ask(&server).await.contains("vmlinuz"));
    let server = server.restart().await;
    assert_eq!(web1(&server).await.boot_files_fetched, None);
    assert_eq!(strangers_in(&store, now()).await, [""; 0], "the address is a node's");
    record(&store, &fetch(now() + 1, "127.0.0.1", "x86_64/slipway.efi")).await;
    assert_eq!(files(&store, &id).await, ["127.0.0.1 x86_64/slipway.efi"]);
}

#[tokio::test]
async fn an_address_tells_a_node_only_if_no_other_was_there_in_the_last_day() {
    let (_folder, store) = open().await;
    let (a, b) = (add(&store, "a", |_| {}).await, add(&store, "b", |_| {}).await);
    let day = 24 * HOUR;
    record(&store, &fetch(10 * MINUTE, "192.0.2.1", "nobody's")).await;
    met(&store, &a, "192.0.2.1", 26 * MINUTE).await;
    record(&store, &fetch(30 * MINUTE, "192.0.2.1", "a's")).await;
    record(&store, &fetch(31 * MINUTE, "::ffff:192.0.2.1", "also a's")).await;
    met(&store, &b, "192.0.2.1", 32 * MINUTE).await;
    record(&store, &fetch(32 * MINUTE, "192.0.2.1", "either's")).await;
    met(&store, &a, "192.0.2.1", 33 * MINUTE).await;
    // Who says which node it is needs no address.
    record(&store, &Fetched { node: Some(b.clone()), ..fetch(34 * MINUTE, "192.0.2.1", "b's") }).await;
    record(&store, &fetch(33 * MINUTE + day, "192.0.2.1", "still either's")).await;
    record(&store, &fetch(34 * MINUTE + day, "192.0.2.1", "b's again")).await;
    assert_eq!(files(&store, &a).await, ["192.0.2.1 a's", "192.0.2.1 also a's"]);
    assert_eq!(files(&store, &b).await, ["192.0.2.1 b's", "192.0.2.1 b's again"]);
}

#[tokio::test]
async fn nodes_out_of_service_or_removed_have_no_fetches() {
    let (_folder, store) = open().await;
    let gone = add(&store, "gone", |node| node.state = NodeState::Decommissioned).await;
    met(&store, &gone, "192.0.2.1", 1).await;
    record(&store, &fetch(2, "192.0.2.1", "f")).await;
    met(&store, "removed", "192.0.2.3", 2).await;
    record(&store, &Fetched { node: Some("removed".to_owned()), ..fetch(3, "192.0.2.2", "g") }).await;
    assert_eq!(files(&store, &gone).await, [""; 0]);
    assert_eq!(strangers_in(&store, 4).await, ["192.0.2.2 g"]);
}

async fn count(store: &Store, sql: &'static str) -> i64 {
    db::query(sql).fetch_one(&mut store.read().await.unwrap()).await.unwrap().get("n").unwrap()
}

#[tokio::test]
async fn strangers_leave_a_bounded_number_of_fetches_and_those_of_nodes_stay() {
    let (_folder, store) = open().await;
    let node = add(&store, "web1", |_| {}).await;
    record(&store, &Fetched { node: Some(node.clone()), ..fetch(1, "192.0.2.1", "x86_64/vmlinuz") }).await;
    let noted = BootFetches::default();
    // One stranger that asks by as many names as it can.
    for number in 0..100_000 {
        noted.fetched(fetch(now(), "192.0.2.9", &format!("x86_64/{number}")));
        if number % 10_000 == 0 {
            noted.write(&store).await.unwrap();
        }
    }
    noted.write(&store).await.unwrap();
    let strangers = "SELECT COUNT(*) AS n FROM boot_fetches WHERE node IS NULL";
    assert_eq!(count(&store, strangers).await, 16);
    // Many strangers.
    for number in 0..4000_u32 {
        let address = IpAddr::from(number.to_be_bytes());
        noted.fetched(Fetched { address, ..fetch(now(), "::", "x86_64/vmlinuz") });
        if number % 500 == 0 {
            noted.write(&store).await.unwrap();
        }
    }
    noted.write(&store).await.unwrap();
    assert_eq!(count(&store, strangers).await, 1000);
    assert_eq!(files(&store, &node).await, ["192.0.2.1 x86_64/vmlinuz"]);
    // Who pretends to be the node.
    for number in 0..200 {
        let pretended = fetch(100 + number, &format!("192.0.2.{number}"), "ipxe");
        record(&store, &Fetched { node: Some(node.clone()), ..pretended }).await;
    }
    assert_eq!(count(&store, "SELECT COUNT(*) AS n FROM boot_fetches WHERE node IS NOT NULL").await, 64);
    assert_eq!(count(&store, "SELECT COUNT(*) AS n FROM node_addresses").await, 8);
}

#[tokio::test]
async fn a_file_that_is_fetched_again_within_a_minute_counts_once() {
    let (_folder, store) = open().await;
    for at in [0, 50_000, 100_000, 161_000] {
        record(&store, &fetch(at, "192.0.2.9", "x86_64/vmlinuz")).await;
    }
    assert_eq!(count(&store, "SELECT COUNT(*) AS n FROM boot_fetches").await, 2);
    assert_eq!(count(&store, "SELECT MIN(at) AS n FROM boot_fetches").await, 100_000);
}

#[tokio::test]
async fn addresses_that_fetched_and_never_asked_to_be_let_in_are_told() {
    let server = TestServer::start().await;
    let store = server.store().await;
    record(&store, &fetch(now() - 23 * HOUR, "192.0.2.8", "x86_64/slipway.efi")).await;
    record(&store, &fetch(now() - 25 * HOUR, "192.0.2.7", "x86_64/slipway.efi")).await;
    record(&store, &fetch(now() - MINUTE, "127.0.0.1", "x86_64/slipway.efi")).await;
    let table = || program::succeed(&server.data_path(), &["status"]);
    let said = table();
    let line = said.lines().last().unwrap();
    let begin =
        "boot files fetched by machines that have not asked to be let in: 127.0.0.1 (x86_64/slipway.efi, 1 min ";
    assert!(line.starts_with(begin), "{said}");
    assert!(line.contains(", 192.0.2.8 (") && !line.contains("192.0.2.7"), "{said}");

    // Nobody registered it, so it waits.
    assert_eq!(Machine::with_uuid(UUID).try_enrol(&server).await.status(), StatusCode::ACCEPTED);
    assert_eq!(claimants::all(&mut store.read().await.unwrap()).await.unwrap().len(), 1);
    let said = table();
    assert!(said.contains("192.0.2.8") && !said.contains("127.0.0.1 (x86_64"), "{said}");
}
