//! What happened at the site: the history that operators read and follow.

use std::time::Duration;

use reqwest::{Response, StatusCode};
use slipway_protocol::{ErrorCode, Event, EventKind, Failure, SiteEvent, SiteEventKind};
use slipway_server::base::time::now;
use slipway_server::operate::{self, NewNode};
use slipway_server::store::history::{self, NewEvent};
use slipway_server::store::{self, db};

use crate::program::{fail, succeed};
use crate::support::{Machine, Node, TestServer, UUID, refusal};
use crate::work::new_run;

const WORKFLOW: &str = "steps:\n- {name: erase, action: {erase-disk: {}}}\n- {name: leave, action: {reboot: {}}}\n";

async fn get(server: &TestServer, query: &str) -> Response {
    let request = server.client().get(server.url(&format!("/v1/operator/events{query}")));
    request.bearer_auth(server.operator_token()).send().await.unwrap()
}

async fn events(server: &TestServer, query: &str) -> Vec<SiteEvent> {
    let response = get(server, query).await;
    assert_eq!(response.status(), StatusCode::OK);
    response.json().await.unwrap()
}

fn kinds(events: &[SiteEvent]) -> Vec<SiteEventKind> {
    events.iter().map(|event| event.kind).collect()
}

fn event(seq: u64, step: u32, kind: EventKind) -> Event {
    Event { seq, at: 1, step, attempt: 1, kind }
}

/// A stream of events, read message by message.
struct Stream {
    response: Response,
    text: String,
}

impl Stream {
    async fn open(server: &TestServer, query: &str, last: Option<u64>) -> Self {
        let request = server.client().get(server.url(&format!("/v1/operator/events{query}")));
        let request = request.bearer_auth(server.operator_token()).header("accept", "text/event-stream");
        let request = last.into_iter().fold(request, |request, id| request.header("last-event-id", id.to_string()));
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert_eq!(response.headers()["x-accel-buffering"], "no");
        Self { response, text: String::new() }
    }

    /// The fields of the next message that has data, as lines.
    async fn next(&mut self) -> Option<String> {
        loop {
            while let Some((message, rest)) = self.text.split_once("\n\n") {
                let (message, rest) = (message.to_owned(), rest.to_owned());
                self.text = rest;
                if message.lines().any(|line| line.starts_with("data:")) {
                    return Some(message);
                }
            }
            self.text += std::str::from_utf8(&self.response.chunk().await.unwrap()?).unwrap();
        }
    }

    async fn next_event(&mut self) -> SiteEvent {
        let message = self.next().await.unwrap();
        let data = message.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
        let event: SiteEvent = serde_json::from_str(data).unwrap();
        assert!(message.lines().any(|line| line == format!("id: {}", event.number)), "{message}");
        event
    }
}

#[tokio::test]
async fn the_way_of_a_node_is_in_the_history() {
    let server = TestServer::start().await;
    let machine = Machine::with_uuid(UUID);
    let identity = machine.identity.clone();
    let new = NewNode { name: Some("web1".to_owned()), identity, ..NewNode::default() };
    operate::add_node(&server.store().await.on_behalf_of("anna"), new).await.unwrap();
    assert_eq!(machine.try_enrol(&server).await.status(), StatusCode::ACCEPTED);
    let release = server.client().post(server.url("/v1/operator/nodes/web1/release"));
    let released = release.bearer_auth(server.operator_token()).send().await.unwrap();
    assert_eq!(released.status(), StatusCode::OK);
    let node = Node::enrol(&server, machine).await;
    operate::start_run(&server.store().await, &server.ca(), "web1", new_run(WORKFLOW)).await.unwrap();
    let run = node.workflow(&server).await.unwrap().run;
    let failure = Failure { reason: "the disk is gone".to_owned(), ..Failure::default() };
    let reported = [
        event(1, 0, EventKind::Started),
        event(2, 0, EventKind::Note("of no interest later".to_owned())),
        event(3, 0, EventKind::Started),
        event(4, 0, EventKind::Retrying(failure.clone())),
        event(5, 0, EventKind::Failed(failure)),
    ];
    for _ in 0..2 {
        assert_eq!(node.post_events(&server, &run, &reported).await.status(), StatusCode::OK, "also again");
    }
    let found = events(&server, "?after=0&node=web1").await;
    use SiteEventKind as K;
    let expect = [
        K::Operator,
        K::Held,
        K::Released,
        K::Enrolled,
        K::RunStarted,
        K::RunFetched,
        K::StepStarted,
        K::State,
        K::Restarted,
        K::StepStarted,
        K::StepRetrying,
        K::StepEnded,
        K::State,
        K::RunEnded,
    ];
    assert_eq!(kinds(&found), expect, "{found:#?}");
    assert!(found.windows(2).all(|pair| pair[0].number < pair[1].number));
    assert!(found.iter().all(|event| event.name.as_deref() == Some("web1")), "{found:#?}");
    let of = |kind| found.iter().find(|event| event.kind == kind).unwrap();
    assert_eq!(of(K::Operator).operator.as_deref(), Some("anna"));
    assert_eq!(of(K::Released).operator.as_deref(), Some("first"));
    assert_eq!(of(K::Enrolled).operator, None);
    assert_eq!(of(K::StepStarted).message, "step 1/2 erase began");
    assert_eq!(of(K::StepStarted).step.as_deref(), Some("erase"));
    assert_eq!(of(K::StepEnded).message, "step 1/2 erase failed: the disk is gone");
    assert_eq!(of(K::StepEnded).run.as_ref(), Some(&run));
    assert!(of(K::RunEnded).message.ends_with(", in step erase: the disk is gone"), "{:?}", of(K::RunEnded));

    let some = events(&server, "?kind=step-ended,run-ended&node=web1").await;
    assert_eq!(kinds(&some), [K::StepEnded, K::RunEnded]);
    assert_eq!(events(&server, &format!("?run={run}&limit=2&after=0")).await.len(), 2);
    let before = events(&server, &format!("?before={}&limit=1", found[3].number)).await;
    assert_eq!(before, [found[2].clone()]);
}

#[tokio::test]
async fn a_parameter_that_makes_no_sense_is_refused() {
    let server = TestServer::start().await;
    for query in ["?kind=none", "?after=1&before=2", "?limit=0", "?limit=1001", "?after=-1", "?kind="] {
        assert_eq!(refusal(get(&server, query).await).await.code, ErrorCode::InvalidRequest, "{query}");
    }
    assert_eq!(refusal(get(&server, "?node=nobody").await).await.code, ErrorCode::NotFound);
}

#[tokio::test]
async fn a_stream_resumes_where_it_was_cut_off() {
    let server = TestServer::start().await;
    server.add_released("web1").await;
    let first = events(&server, "?after=0").await;
    let mut live = Stream::open(&server, "", None).await;
    let mut of_web1 = Stream::open(&server, "?node=web1&kind=operator", None).await;
    operate::add_token(&server.store().await, None, None).await.unwrap();
    operate::decommission_node(&server.store().await, "web1").await.unwrap();
    let token = live.next_event().await;
    assert!(token.message.starts_with("bootstrap token"), "{token:?}");
    let ended = live.next_event().await;
    assert_eq!((ended.message.as_str(), ended.name.as_deref()), ("the node was taken out of service", Some("web1")));
    assert_eq!(of_web1.next_event().await, ended);
    drop(live);
    operate::add_token(&server.store().await, None, None).await.unwrap();
    let mut resumed = Stream::open(&server, "", Some(token.number)).await;
    assert_eq!(resumed.next_event().await, ended);
    assert_eq!(resumed.next_event().await.kind, SiteEventKind::Operator);
    let mut all = Stream::open(&server, "?after=0", None).await;
    assert_eq!(all.next_event().await, first[0]);
}

#[tokio::test]
async fn a_stream_that_missed_events_says_so() {
    let server = TestServer::start().await;
    let store = server.store().await;
    for _ in 0..5 {
        operate::add_token(&store, None, None).await.unwrap();
    }
    let newest = events(&server, "").await.last().unwrap().number;
    let mut transaction = store.write().await.unwrap();
    let sql = "DELETE FROM history WHERE number < $1";
    db::query(sql).bind(newest.cast_signed()).execute(&mut transaction).await.unwrap();
    store::commit(transaction).await.unwrap();
    for is_too_old in [true, false] {
        let newest = events(&server, "").await.last().unwrap().number;
        let known = if is_too_old { 1 } else { newest + 1 };
        let refused = refusal(get(&server, &format!("?after={known}")).await).await;
        assert_eq!(refused.code, ErrorCode::Conflict);
        assert!(refused.message.ends_with("start again without `after`"), "{}", refused.message);
        let mut stream = Stream::open(&server, "", Some(known)).await;
        let message = stream.next().await.unwrap();
        assert!(message.contains("event: start-again") && message.contains(&format!("id: {newest}")), "{message}");
        operate::add_token(&store, None, None).await.unwrap();
        let next = stream.next_event().await;
        assert!(next.number > newest);
    }
}

#[tokio::test]
async fn a_stream_ends_with_the_server() {
    let server = TestServer::start().await;
    let mut stream = Stream::open(&server, "", None).await;
    let stopped = tokio::time::timeout(Duration::from_secs(30), server.stop());
    let (_, ended) = tokio::join!(stopped, stream.next());
    assert_eq!(ended, None);
}

#[tokio::test]
async fn old_events_are_removed_in_small_parts_and_numbers_go_on() {
    let server = TestServer::start().await;
    let store = server.store().await;
    let mut transaction = store.write().await.unwrap();
    let old = now() - history::KEPT - 1000;
    for _ in 0..700 {
        let event = NewEvent::new("long ago");
        history::record(&mut transaction, SiteEventKind::State, event, old).await.unwrap();
    }
    let newest = history::range(&mut transaction).await.unwrap().1;
    let mut parts = 0;
    while history::has_old(&mut transaction, now()).await.unwrap() {
        history::forget_old(&mut transaction, now()).await.unwrap();
        parts += 1;
    }
    assert_eq!((parts, history::range(&mut transaction).await.unwrap()), (2, (newest, newest)));
    history::record(&mut transaction, SiteEventKind::State, NewEvent::new("now"), now()).await.unwrap();
    assert_eq!(history::range(&mut transaction).await.unwrap(), (newest, newest + 1));
}

#[tokio::test]
async fn the_command_shows_what_happened() {
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    let text = succeed(&server.data_path(), &["events", "--node", "web1"]);
    let last = text.lines().last().unwrap();
    assert!(last.contains("  web1              enrolled            the machine enrolled from 127.0.0.1"), "{text}");
    let added = succeed(&server.data_path(), &["token", "add"]);
    assert!(!added.is_empty());
    let json = succeed(&server.data_path(), &["events", "--kind", "operator", "--limit", "1", "--json"]);
    let event: SiteEvent = serde_json::from_str(&json).unwrap();
    assert!(event.operator.as_ref().unwrap().ends_with(" on the server"), "{event:?}");
    assert_eq!(json.lines().count(), 1);
    let refused = fail(&server.data_path(), &["events", "--after", "900"]);
    assert!(refused.contains("there is no event 900 yet"), "{refused}");
}
