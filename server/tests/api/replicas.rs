//! Two servers of one site: what one of them was told, the other knows, and what may happen once happens once.

use std::collections::BTreeSet;

use std::time::{Duration, Instant};

use reqwest::StatusCode;
use slipway_protocol::{Enrolment, ErrorCode, Event, EventAck, EventKind, Identity, NodeState, Tpm, Wait};
use slipway_server::base::data::{DataDir, Place, SiteKey};
use slipway_server::keys::ca;
use slipway_server::keys::secure_boot::{Beginning, SecureBoot};
use slipway_server::operate::{self, NewNode, NewRun, site_keys};
use slipway_server::store::{Store, commit, events, nodes, settings};
use time::OffsetDateTime;

use crate::attested::{boot, claim};
use crate::postgres;
use crate::program::command;
use crate::support::{Machine, Node, TestServer, UUID, refusal, with_certificate};
use crate::swtpm::Swtpm;
use crate::work::{TWO_STEPS, new_run, polling};

/// How often a race is run. Without the mend of each race, at least one of ten shows it.
const ROUNDS: u32 = 10;

fn uuid(round: u32) -> String {
    format!("4c4c4544-0042-3010-8058-b7c04f5{round:05x}")
}

async fn add_node(server: &TestServer, name: &str, uuid: &str) {
    let identity = Identity { uuid: Some(uuid.to_owned()), ..Identity::default() };
    let new = NewNode { name: Some(name.to_owned()), identity, release: true, ..NewNode::default() };
    operate::add_node(&server.store().await, new).await.unwrap();
}

/// Asks until the answer is right.
async fn until<T>(what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether a server accepts the certificate of a machine on a new connection.
async fn is_known(server: &TestServer, machine: &Machine, enrolment: &Enrolment) -> bool {
    let client = with_certificate(&server.ca(), &machine.key, &enrolment.certificate);
    let response = client.get(server.url("/v1/node/workflow?wait=0")).send().await;
    response.is_ok_and(|response| response.status() == StatusCode::NO_CONTENT)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_may_ask_either_server_at_any_time() {
    let [one, other] = TestServer::start_two().await;
    let node = one.enrolled("web1").await;
    assert_eq!(one.ca(), other.ca());
    assert_eq!(node.workflow(&other).await, None, "its certificate is good there");
    let by_token = other.client().get(other.url("/v1/node/workflow?wait=0")).bearer_auth(&node.enrolment.jwt);
    assert_eq!(by_token.send().await.unwrap().status(), StatusCode::NO_CONTENT, "its JWT too");

    // A poll at one ends when the run is started at the other.
    let poll = polling(&other, &node).await;
    let run = operate::start_run(&one.store().await, &one.ca(), "web1", new_run(TWO_STEPS)).await.unwrap().id;
    let workflow: slipway_protocol::Workflow = poll.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(workflow.run, run);
    let begun = [Event { seq: 1, at: 1, step: 0, attempt: 1, kind: EventKind::Started }];
    assert_eq!(node.post_events(&one, &run, &begun).await.status(), StatusCode::OK);
    node.finish(&other, &node.workflow(&other).await.unwrap()).await;
    let status = operate::show_node(&one.store().await, "web1").await.unwrap();
    assert_eq!(status.state, NodeState::Installed);
}

#[tokio::test(flavor = "multi_thread")]
async fn either_server_goes_on_with_a_challenge_and_a_claim_code() {
    let [one, other] = TestServer::start_two().await;
    let stranger = Machine::with_uuid(UUID);
    let code = |wait: Wait| wait.claim_code;
    let first = code(stranger.try_enrol(&one).await.json().await.unwrap());
    assert_eq!(code(stranger.try_enrol(&other).await.json().await.unwrap()), first);

    add_node(&one, "web2", &uuid(2)).await;
    let mut tpm = Swtpm::start();
    let log = boot(&mut tpm);
    let mut machine = Machine::with_uuid(&uuid(2));
    claim(&mut machine, &tpm);
    let challenge = machine.try_enrol(&one).await;
    assert_eq!(challenge.status(), StatusCode::UNAUTHORIZED);
    let mut attester = tpm.attester();
    let proof = attester.prove(&challenge.json().await.unwrap(), Some(log)).unwrap();
    machine.tpm = Some(Tpm::Present { keys: attester.keys().unwrap(), proof: Some(proof) });
    assert_eq!(machine.try_enrol(&other).await.status(), StatusCode::OK);
}

/// What operators do with commands, from a third host.
#[tokio::test(flavor = "multi_thread")]
async fn both_servers_take_new_keys_over_while_they_run() {
    let [one, other] = TestServer::start_two().await;
    let node = one.enrolled("web1").await;
    let third = tempfile::tempdir().unwrap();
    let data = DataDir::open(Place { root: third.path().join("data"), ..one.place() }).unwrap();
    let store = Store::of(&data).await.unwrap();
    site_keys::change(&store, &data, "x", |data| ca::begin_rotation(data, &BTreeSet::new())).await.unwrap();
    for server in [&one, &other] {
        until("machines get both roots", async || (server.ca().matches("BEGIN").count() == 2).then_some(())).await;
    }
    // From now on the next authority signs. The other server accepts its certificates.
    let second = Machine::with_uuid(&uuid(2));
    add_node(&one, "web2", &uuid(2)).await;
    let enrolment: Enrolment = until("the next authority signs", async || {
        let enrolment: Enrolment = second.try_enrol(&one).await.json().await.unwrap();
        (enrolment.certificate.split("-----END").nth(1) != node.enrolment.certificate.split("-----END").nth(1))
            .then_some(enrolment)
    })
    .await;
    until("it is let in", async || is_known(&other, &second, &enrolment).await.then_some(())).await;
    assert!(is_known(&other, &node.machine, &node.enrolment).await, "so is the first");

    site_keys::change(&store, &data, "x", ca::finish_rotation).await.unwrap();
    for server in [&one, &other] {
        let is_out = async || (!is_known(server, &node.machine, &node.enrolment).await).then_some(());
        until("the first has to enrol again", is_out).await;
        until("the second has not", async || is_known(server, &second, &enrolment).await.then_some(())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_in_the_database_only_encrypted_and_for_the_right_site_key() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let url = postgres::url(&data);
    let key = folder.path().join("site.key");
    let made = command(&data, &["site-key", key.to_str().unwrap()]).output().unwrap();
    assert!(made.status.success() && made.stdout.starts_with(b"age1"), "{made:?}");
    let again = command(&data, &["site-key", key.to_str().unwrap()]).output().unwrap();
    assert!(!again.status.success(), "it is not overwritten");

    // A server that ran without a site key brings its keys along.
    let ca = |arguments: &[&str], root: &str| {
        let all = [&["--database", &url], arguments, &["ca"]].concat();
        let output = command(&folder.path().join(root), &all).output().unwrap();
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let serve = |arguments: &[&str], root: &str| {
        let serve = ["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0"];
        let all = [&["--database", &url], arguments, &serve].concat();
        crate::program::started(command(&folder.path().join(root), &all))
    };
    drop(serve(&[], "data"));
    let (before, _) = ca(&[], "data");
    let site_key = ["--site-key", key.to_str().unwrap()];
    drop(serve(&site_key, "data"));
    let dump = postgres::dump(&data);
    assert!(!dump.windows(11).any(|found| found == b"PRIVATE KEY"), "it is not in the clear");
    drop(serve(&site_key, "other"));
    assert_eq!(ca(&site_key, "other").0, before);
    assert_eq!(ca(&site_key, "third").0, before, "a command needs no server beside it");
    let jwt = |root: &str| std::fs::read_to_string(folder.path().join(root).join("jwt.key")).unwrap();
    assert_eq!(jwt("data"), jwt("other"));

    let wrong = folder.path().join("wrong.key");
    std::fs::write(&wrong, SiteKey::generate().to_text()).unwrap();
    let (_, said) = ca(&["--site-key", wrong.to_str().unwrap()], "fourth");
    assert!(said.contains("another site key than the given one, which has the public key age1"), "{said}");
    std::fs::write(&wrong, "AGE-SECRET-KEY-1NONSENSE").unwrap();
    let (_, said) = ca(&["--site-key", wrong.to_str().unwrap()], "fourth");
    assert!(said.contains("site-key FILE") && !said.contains("NONSENSE"), "{said}");
    let without = ["--database", &url, "serve", "--url", "https://server.test", "--listen", "127.0.0.1:0"];
    let refused = command(&folder.path().join("data"), &without).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--site-key"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_changes_of_the_keys_at_once_one_is_refused() {
    let [one, other] = TestServer::start_two().await;
    let (store, data) = (one.store().await, one.data());
    let (others_store, others) = (other.store().await, other.data());
    let runtime = tokio::runtime::Handle::current();
    let begin = |data: &DataDir| ca::begin_rotation(data, &BTreeSet::new());
    let refused = site_keys::change(&store, &data, "x", |data| {
        begin(data)?;
        // Meanwhile, on another host.
        std::thread::scope(|scope| {
            let change = || runtime.block_on(site_keys::change(&others_store, &others, "x", begin));
            scope.spawn(change).join().expect("no panic")
        })
    });
    let refused = tokio::time::timeout(Duration::from_secs(60), refused).await.unwrap().expect_err("the later one");
    assert_eq!(refused.body().code, ErrorCode::Conflict);
    assert_eq!(ca::anchors(&data).unwrap(), ca::anchors(&others).unwrap(), "it left nothing behind");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_site_key_takes_new_keys_over_too() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let (store, data) = (server.store().await, server.data());
    site_keys::change(&store, &data, "x", |data| ca::begin_rotation(data, &BTreeSet::new())).await.unwrap();
    site_keys::change(&store, &data, "x", ca::finish_rotation).await.unwrap();
    let time = async || server.client().get(server.url("/v1/time")).send().await.ok();
    until("clients that trust only the new root get an answer", time).await;
    assert!(!is_known(&server, &node.machine, &node.enrolment).await);
    let again = Node::enrol(&server, Machine { key: node.machine.key, ..Machine::with_uuid(UUID) }).await;
    assert_eq!(again.workflow(&server).await, None);
}

/// Firmware takes only updates that are later than those it has, to the second.
#[tokio::test(flavor = "multi_thread")]
async fn updates_of_firmware_have_rising_times_whichever_server_signs() {
    let [one, other] = TestServer::start_two().await;
    let (store, data) = (one.store().await, one.data());
    let begin = |data: &DataDir| SecureBoot::begin(data, Beginning::default(), OffsetDateTime::now_utc());
    site_keys::change(&store, &data, "x", begin).await.unwrap();
    site_keys::take_over(&other.store().await, &other.data()).await.unwrap();
    let time = |run: NewRun| {
        // EFI_TIME: year, month, day, hour, minute, second.
        let all: BTreeSet<Vec<u8>> = run.keys.iter().map(|update| update.signed[..8].to_vec()).collect();
        let time = all.first().unwrap().clone();
        assert_eq!(all.len(), 1, "updates of one run have one time");
        [&[time[1], time[0]], &time[2..7]].concat()
    };
    let sign = async |server: &TestServer| {
        NewRun::enrolling_keys().with_keys(&server.store().await, &server.data()).await.unwrap()
    };
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let (first, second) = tokio::join!(sign(&one), sign(&other));
        times.extend([time(first), time(second)]);
    }
    let distinct: BTreeSet<_> = times.iter().cloned().collect();
    assert_eq!(distinct.len(), times.len(), "{times:?}");
    // A clock that was set back does not bring times back.
    let mut transaction = store.write().await.unwrap();
    settings::write(&mut transaction, "secure-boot-time", "4102444800").await.unwrap();
    commit(transaction).await.unwrap();
    assert_eq!(time(sign(&other).await), [0x08, 0x34, 1, 1, 0, 0, 1], "a second after the year 2100 began");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_lets_one_machine_in() {
    let [one, other] = TestServer::start_two().await;
    for round in 0..ROUNDS {
        let token = operate::add_token(&one.store().await, None, None).await.unwrap().token;
        let machine = |number| Machine { token: Some(token.clone()), ..Machine::with_uuid(&uuid(2 * round + number)) };
        let (first, second) = (machine(0), machine(1));
        let (first, second) = tokio::join!(first.try_enrol(&one), second.try_enrol(&other));
        let [one_is, other_is] = [first, second].map(|response| (response.status() == StatusCode::OK, response));
        let refused = match (one_is, other_is) {
            ((true, _), (false, refused)) | ((false, refused), (true, _)) => refusal(refused).await,
            both => panic!("{both:?}"),
        };
        assert_eq!(refused.code, ErrorCode::TokenUnknown, "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_given_to_one_machine() {
    let [one, other] = TestServer::start_two().await;
    for round in 0..ROUNDS {
        add_node(&one, &format!("web{round}"), &uuid(round)).await;
        let (first, second) = (Machine::with_uuid(&uuid(round)), Machine::with_uuid(&uuid(round)));
        let (first, second) = tokio::join!(first.try_enrol(&one), second.try_enrol(&other));
        let statuses = BTreeSet::from([first.status(), second.status()]);
        assert_eq!(statuses, BTreeSet::from([StatusCode::OK, StatusCode::ACCEPTED]));
    }
}

/// A machine may repeat its answer until it gets credentials, but nobody may after another key is the node's.
#[tokio::test(flavor = "multi_thread")]
async fn the_answer_of_a_tpm_is_not_good_for_long() {
    let [one, other] = TestServer::start_two().await;
    let mut tpm = Swtpm::start();
    let log = boot(&mut tpm);
    add_node(&one, "web1", UUID).await;
    let mut last: Option<Machine> = None;
    for _ in 0..ROUNDS {
        let mut machine = Machine::with_uuid(UUID);
        claim(&mut machine, &tpm);
        let challenge = machine.try_enrol(&one).await;
        assert_eq!(challenge.status(), StatusCode::UNAUTHORIZED);
        let mut attester = tpm.attester();
        let proof = attester.prove(&challenge.json().await.unwrap(), Some(log.clone())).unwrap();
        machine.tpm = Some(Tpm::Present { keys: attester.keys().unwrap(), proof: Some(proof) });
        let (first, second) = tokio::join!(machine.try_enrol(&one), machine.try_enrol(&other));
        assert!([first.status(), second.status()].contains(&StatusCode::OK));
        if let Some(last) = last.replace(machine) {
            let (first, second) = tokio::join!(last.try_enrol(&one), last.try_enrol(&other));
            assert_eq!([first.status(), second.status()], [StatusCode::UNAUTHORIZED; 2]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_has_one_open_run() {
    let [one, other] = TestServer::start_two().await;
    for round in 0..ROUNDS {
        let name = format!("web{round}");
        add_node(&one, &name, &uuid(round)).await;
        let (stores, ca) = ([one.store().await, other.store().await], one.ca());
        let start = |store| operate::start_run(store, &ca, &name, new_run(TWO_STEPS));
        let (first, second) = tokio::join!(start(&stores[0]), start(&stores[1]));
        let refused = [first.err(), second.err()].into_iter().flatten().map(|error| error.body().code);
        assert_eq!(refused.collect::<Vec<_>>(), [ErrorCode::Conflict]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_stored_once_by_whichever_server() {
    let [one, other] = TestServer::start_two().await;
    for round in 0..ROUNDS {
        let name = format!("web{round}");
        add_node(&one, &name, &uuid(round)).await;
        let node = Node::enrol(&one, Machine::with_uuid(&uuid(round))).await;
        let run = operate::start_run(&one.store().await, &one.ca(), &name, new_run(TWO_STEPS)).await.unwrap().id;
        let (first, second) = tokio::join!(node.workflow(&one), node.workflow(&other));
        assert_eq!(first.map(|workflow| workflow.run), second.map(|workflow| workflow.run));
        let kind = |seq| match seq {
            1 => EventKind::Started,
            _ => EventKind::Note(format!("note {seq}")),
        };
        let reported: Vec<Event> =
            (1..=20).map(|seq| Event { seq, at: 1, step: 0, attempt: 1, kind: kind(seq) }).collect();
        let posts = |server, from: usize| {
            let (node, run, reported) = (&node, &run, &reported);
            async move {
                // A machine that got no answer asks the other server, with what it has until then.
                for some in from..=reported.len() {
                    let response = node.post_events(server, run, &reported[..some]).await;
                    assert_eq!(response.status(), StatusCode::OK);
                    assert!(response.json::<EventAck>().await.unwrap().seq >= some as u64);
                }
            }
        };
        tokio::join!(posts(&one, 1), posts(&other, 5));
        let stored = events::of_run(&mut one.store().await.read().await.unwrap(), &run).await.unwrap();
        assert_eq!(stored, reported);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_machine_has_one_claim_code() {
    let [one, other] = TestServer::start_two().await;
    for round in 0..ROUNDS {
        let machine = Machine::with_uuid(&uuid(round));
        let (first, second) = tokio::join!(machine.try_enrol(&one), machine.try_enrol(&other));
        let (first, second): (Wait, Wait) = (first.json().await.unwrap(), second.json().await.unwrap());
        assert_eq!(first.claim_code, second.claim_code);
        operate::release_node(&other.store().await, &first.claim_code, None).await.unwrap();
        assert_eq!(machine.try_enrol(&one).await.status(), StatusCode::OK);
        let all = nodes::all(&mut one.store().await.read().await.unwrap()).await.unwrap();
        assert_eq!(all.len(), round as usize + 1);
    }
}
