//! Disks that nodes store as images.

use std::path::PathBuf;

use reqwest::{Response, StatusCode};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use slipway_protocol::{Action, CaptureDisk, CapturedImage, ErrorCode, Identity, SiteEventKind, Step};
use slipway_server::node::capture::Captures;
use slipway_server::operate::{self, NewNode, NewRun, Task, WorkflowFile};
use slipway_server::store::capture_parts;
use slipway_server::store::history::{self, Filter, Place};
use slipway_server::store::images::{self, Image};

use crate::object_store::{ObjectStore, is_begin};
use crate::objects::bucket;
use crate::support::{MAX_CAPTURE, Machine, Node, TestServer, refusal};

/// A node in a run with a step that captures a disk as "web1.zst".
struct Capturing {
    /// The object store, if images are there.
    objects: Option<ObjectStore>,
    server: TestServer,
    node: Node,
    run: String,
}

impl Capturing {
    /// One with images in the data folder, and one with images in a bucket.
    async fn both() -> [Self; 2] {
        let objects = ObjectStore::start().await;
        let in_bucket = TestServer::start_with_bucket(bucket(&objects)).await;
        [Self::at(TestServer::start().await, None).await, Self::at(in_bucket, Some(objects)).await]
    }

    async fn at(server: TestServer, objects: Option<ObjectStore>) -> Self {
        let node = server.enrolled("m1").await;
        let run = start_run(&server, "m1", "web1.zst").await;
        Self { objects, server, node, run }
    }

    async fn begin(&self) {
        let begun = begin(&self.server, &self.node, &self.run, "web1.zst").await;
        assert_eq!(begun.status(), StatusCode::NO_CONTENT);
    }

    async fn put(&self, offset: u64, piece: &[u8]) -> Response {
        let url = self.server.url(&format!("/v1/node/runs/{}/captures/web1.zst?offset={offset}", self.run));
        self.node.client.put(url).body(piece.to_vec()).send().await.unwrap()
    }

    async fn commit(&self, image: &CapturedImage) -> Response {
        let url = self.server.url(&format!("/v1/node/runs/{}/captures", self.run));
        self.node.client.post(url).json(image).send().await.unwrap()
    }

    async fn images(&self) -> Vec<Image> {
        images::all(&mut self.server.store().await.read().await.unwrap()).await.unwrap()
    }

    /// Names of the incomplete images. Only they have bytes somewhere.
    async fn partial(&self) -> Vec<String> {
        let names = |folder: PathBuf| {
            let entries = std::fs::read_dir(folder).into_iter().flatten();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<String>>()
        };
        let Some(objects) = &self.objects else {
            let folder = self.server.data().captures();
            return names(folder.clone()).iter().flat_map(|run| names(folder.join(run))).collect();
        };
        let store = self.server.store().await;
        let runs = capture_parts::runs(&mut store.read().await.unwrap()).await.unwrap();
        let mut known = 0;
        for run in &runs {
            let parts = capture_parts::all(&mut store.read().await.unwrap(), run, "web1.zst").await.unwrap();
            known += parts.len() - 1;
        }
        let folder = objects.root().join("images/site/captures");
        assert_eq!(names(folder.clone()).iter().flat_map(|run| names(folder.join(run))).count(), known);
        runs.iter().map(|_| "web1.zst".to_owned()).collect()
    }
}

async fn start_run(server: &TestServer, node: &str, image: &str) -> String {
    let action = Action::CaptureDisk(CaptureDisk { name: image.to_owned(), ..CaptureDisk::default() });
    let steps = vec![Step { name: "capture".to_owned(), action, retries: 0, timeout: None }];
    let task = Task::Workflow(WorkflowFile { steps, ..WorkflowFile::default() });
    let new = NewRun { replace: true, ..NewRun::new(task) };
    operate::start_run(&server.store().await, &server.ca(), node, new).await.unwrap().id
}

async fn begin(server: &TestServer, node: &Node, run: &str, name: &str) -> Response {
    node.client.post(server.url(&format!("/v1/node/runs/{run}/captures/{name}"))).send().await.unwrap()
}

fn described(bytes: &[u8]) -> CapturedImage {
    let digest = format!("sha256:{:x}", Sha256::digest(bytes)).parse().unwrap();
    let raw_digest = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
    CapturedImage { name: "web1.zst".to_owned(), size: bytes.len() as u64, digest, raw_size: 4096, raw_digest }
}

fn stored(response: &Response) -> Option<&str> {
    response.headers().get("upload-offset").map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn what_was_stored_is_an_image_once_it_is_committed() {
    for capturing in Capturing::both().await {
        capturing.begin().await;
        let image = described(b"half and half");
        for (offset, piece) in [(0, &b"half "[..]), (5, b"and half")] {
            let answer = capturing.put(offset, piece).await;
            assert_eq!(answer.status(), StatusCode::NO_CONTENT);
            assert_eq!(stored(&answer), Some((offset + piece.len() as u64).to_string().as_str()));
        }
        let url = capturing.server.url(&format!("/images/{}", image.digest));
        let get = || async { capturing.node.client.get(&url).send().await.unwrap() };
        assert_eq!(get().await.status(), StatusCode::NOT_FOUND);
        assert_eq!(capturing.images().await, []);

        // The answer can get lost, so a node may commit twice.
        for _ in 0..2 {
            let answer = capturing.commit(&image).await;
            assert_eq!(answer.status(), StatusCode::OK);
            let known: Image = answer.json().await.unwrap();
            assert_eq!((known.file_name.as_str(), known.size, known.raw_size), ("web1.zst", 13, Some(4096)));
            assert_eq!((known.digest, known.raw_digest), (image.digest.clone(), Some(image.raw_digest.clone())));
        }
        assert_eq!(get().await.bytes().await.unwrap(), "half and half");
        assert_eq!(capturing.images().await.len(), 1);
        assert_eq!(capturing.partial().await, [""; 0]);

        // A complete image cannot be changed.
        let body = refusal(capturing.put(13, b"!").await).await;
        assert_eq!(body.code, ErrorCode::Conflict);
        let body = refusal(begin(&capturing.server, &capturing.node, &capturing.run, "web1.zst").await).await;
        assert!(body.code == ErrorCode::Conflict && body.message.contains("under another name"), "{body:?}");
        assert_eq!(get().await.bytes().await.unwrap(), "half and half");

        let filter = Filter { kinds: Some(vec![SiteEventKind::Capture]), ..Filter::default() };
        let store = capturing.server.store().await;
        let told = history::read(&mut store.read().await.unwrap(), &filter, Place::After(0), 10).await.unwrap();
        let said: Vec<&str> = told.iter().map(|event| event.message.as_str()).collect();
        let captured = format!("the image web1.zst ({}) was captured", image.digest);
        assert_eq!(said, ["a disk is being captured as web1.zst", captured.as_str()]);
        assert!(told.iter().all(|event| event.run.as_ref() == Some(&capturing.run)), "{told:?}");
    }
}

#[tokio::test]
async fn bytes_that_are_an_image_already_stay_what_they_are() {
    for capturing in Capturing::both().await {
        capturing.begin().await;
        capturing.put(0, b"bytes").await;
        assert_eq!(capturing.commit(&described(b"bytes")).await.status(), StatusCode::OK);
        let before = capturing.images().await;

        let run = start_run(&capturing.server, "m1", "web2.zst").await;
        let raw_digest = format!("sha256:{}", "1".repeat(64)).parse().unwrap();
        let lie = CapturedImage { name: "web2.zst".to_owned(), raw_digest, raw_size: 1, ..described(b"bytes") };
        let again = Capturing { run, ..capturing };
        let begun = begin(&again.server, &again.node, &again.run, "web2.zst").await;
        assert_eq!(begun.status(), StatusCode::NO_CONTENT);
        let url = again.server.url(&format!("/v1/node/runs/{}/captures/web2.zst?offset=0", again.run));
        assert_eq!(again.node.client.put(url).body("bytes").send().await.unwrap().status(), StatusCode::NO_CONTENT);
        assert_eq!(again.commit(&lie).await.status(), StatusCode::OK);
        assert_eq!(again.images().await, before);
    }
}

#[tokio::test]
async fn a_piece_that_belongs_elsewhere_is_refused_with_where_it_would_belong() {
    for capturing in Capturing::both().await {
        assert_eq!(refusal(capturing.put(0, b"early").await).await.code, ErrorCode::Conflict);
        capturing.begin().await;
        capturing.put(0, b"one").await;
        for offset in [0, 2, 4, u64::MAX / 2] {
            let answer = capturing.put(offset, b"two").await;
            assert_eq!(stored(&answer), Some("3"), "{offset}");
            assert_eq!(refusal(answer).await.code, ErrorCode::Conflict);
        }
        // Another attempt of the step starts again.
        capturing.begin().await;
        assert_eq!(stored(&capturing.put(0, b"two").await), Some("3"));
        assert_eq!(capturing.commit(&described(b"two")).await.status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn what_is_not_what_it_should_be_is_no_image() {
    for capturing in Capturing::both().await {
        capturing.begin().await;
        capturing.put(0, b"damaged").await;
        let short = CapturedImage { size: 6, ..described(b"damaged") };
        let body = refusal(capturing.commit(&short).await).await;
        assert_eq!(body.message, "7 bytes of the image are stored, but it must have 6");

        let body = refusal(capturing.commit(&described(b"perfect")).await).await;
        assert!(body.message.starts_with("the stored image has the digest sha256:"), "{body:?}");
        assert_eq!(body.code, ErrorCode::InvalidRequest);
        assert_eq!(capturing.images().await, []);
        assert_eq!(capturing.partial().await, [""; 0]);

        capturing.begin().await;
        let empty = capturing.commit(&described(b"")).await;
        assert_eq!(empty.status(), StatusCode::BAD_REQUEST);
    }
}

#[tokio::test]
async fn only_the_node_of_the_run_may_store_what_the_run_captures() {
    for capturing in Capturing::both().await {
        let Capturing { server, node, run, .. } = &capturing;
        let identity = Identity { serial: Some("7CZ1234".to_owned()), ..Identity::default() };
        let new =
            NewNode { name: Some("m2".to_owned()), identity: identity.clone(), release: true, ..NewNode::default() };
        operate::add_node(&server.store().await, new).await.unwrap();
        let other = Node::enrol(server, Machine::new(identity)).await;
        start_run(server, "m2", "web1.zst").await;

        assert_eq!(refusal(begin(server, &other, run, "web1.zst").await).await.code, ErrorCode::NotFound);
        capturing.begin().await;
        let url = server.url(&format!("/v1/node/runs/{run}/captures/web1.zst?offset=0"));
        let put = other.client.put(url).body("x").send().await.unwrap();
        assert_eq!(refusal(put).await.code, ErrorCode::NotFound);
        let url = server.url(&format!("/v1/node/runs/{run}/captures"));
        let commit = other.client.post(url).json(&described(b"x")).send().await.unwrap();
        assert_eq!(refusal(commit).await.code, ErrorCode::NotFound);

        for name in ["web2.zst", "..%2F..%2Fca.pem"] {
            assert_eq!(refusal(begin(server, node, run, name).await).await.code, ErrorCode::Forbidden, "{name}");
        }
        let anybody = server.client().post(server.url(&format!("/v1/node/runs/{run}/captures/web1.zst")));
        assert_eq!(refusal(anybody.send().await.unwrap()).await.code, ErrorCode::Unauthenticated);
    }
}

#[tokio::test]
async fn an_image_has_a_largest_size() {
    for capturing in Capturing::both().await {
        capturing.begin().await;
        let largest = vec![1; MAX_CAPTURE as usize];
        assert_eq!(capturing.put(0, &largest).await.status(), StatusCode::NO_CONTENT);
        let body = refusal(capturing.put(MAX_CAPTURE, b"x").await).await;
        assert!(body.code == ErrorCode::TooLarge && body.message.contains("--max-capture"), "{body:?}");
    }
}

#[tokio::test]
async fn a_run_that_is_over_stores_nothing_and_leaves_nothing() {
    for capturing in Capturing::both().await {
        capturing.begin().await;
        capturing.put(0, b"half").await;
        assert_eq!(capturing.partial().await, ["web1.zst"]);
        let next = start_run(&capturing.server, "m1", "web1.zst").await;

        for answer in [
            begin(&capturing.server, &capturing.node, &capturing.run, "web1.zst").await,
            capturing.put(4, b"half").await,
            capturing.commit(&described(b"half")).await,
        ] {
            let body = refusal(answer).await;
            assert!(body.code == ErrorCode::Conflict && body.message.ends_with("is over"), "{body:?}");
        }
        let of_next = Capturing { run: next.clone(), ..capturing };
        of_next.begin().await;
        let (store, data) = (of_next.server.store().await, of_next.server.data());
        let captures = Captures::new(store, data, u64::MAX, tokio::sync::watch::channel(false).1);
        let open = captures.sweep().await.unwrap();
        assert_eq!(open, [next]);
        assert_eq!(of_next.partial().await, ["web1.zst"], "what the run that goes on has stored stays");

        start_run(&of_next.server, "m1", "web1.zst").await;
        let of_next = Capturing { server: of_next.server.restart().await, ..of_next };
        assert_eq!(of_next.partial().await, [""; 0]);
        assert_eq!(of_next.images().await, []);
    }
}

#[tokio::test]
async fn a_name_that_leads_elsewhere_is_refused_before_a_run_begins() {
    for capturing in Capturing::both().await {
        let step = json!({ "name": "a", "action": { "capture-disk": { "name": "../ca.pem" } } });
        let step: Step = serde_json::from_value(step).unwrap();
        let task = Task::Workflow(WorkflowFile { steps: vec![step], ..WorkflowFile::default() });
        let new = NewRun { replace: true, ..NewRun::new(task) };
        let refused = operate::start_run(&capturing.server.store().await, "", "m1", new).await.unwrap_err();
        assert!(refused.to_string().contains("cannot name an image"), "{refused}");
    }
}

#[tokio::test]
async fn a_captured_disk_is_for_nodes_and_operators() {
    for capturing in Capturing::both().await {
        capturing.begin().await;
        capturing.put(0, b"bytes\0").await;
        assert_eq!(capturing.commit(&described(b"bytes\0")).await.status(), StatusCode::OK);
        let (server, node) = (&capturing.server, &capturing.node);
        let path = format!("/images/{}", described(b"bytes\0").digest);
        let url = server.url(&path);
        let stranger = server.client();
        assert_eq!(refusal(stranger.get(&url).send().await.unwrap()).await.code, ErrorCode::Unauthenticated);
        for wrong in ["?token=", "?token=x"] {
            let refused = stranger.get(format!("{url}{wrong}")).send().await.unwrap();
            assert_eq!(refusal(refused).await.code, ErrorCode::Unauthenticated, "{wrong}");
        }
        let operator = server.operator_token();
        for (client, bearer) in
            [(&node.client, None), (&stranger, Some(&node.enrolment.jwt)), (&stranger, Some(&operator))]
        {
            let request = client.get(&url);
            let answer =
                bearer.into_iter().fold(request, |request, token| request.bearer_auth(token)).send().await.unwrap();
            assert_eq!(answer.headers()["cache-control"], "private, max-age=31536000, immutable");
            assert_eq!(answer.bytes().await.unwrap(), "bytes\0");
        }

        // A machine that installs it needs nothing but what its run says, and only as long as the run goes on.
        let start = async |query: &str| {
            let url = format!("https://server.test:8443{path}{query}");
            let image = json!({ "url": url, "digest": described(b"bytes\0").digest });
            let steps = json!([{ "name": "a", "action": { "stream-image": image } }]);
            let task = Task::Workflow(WorkflowFile {
                steps: serde_json::from_value(steps).unwrap(),
                ..WorkflowFile::default()
            });
            let new = NewRun { replace: true, ..NewRun::new(task) };
            operate::start_run(&server.store().await, &server.ca(), "m1", new).await
        };
        for query in ["?x=1", "?token=x"] {
            let refused = start(query).await.expect_err(query).to_string();
            assert!(refused.contains("the URL in the step has a query already"), "{refused}");
        }
        start("").await.unwrap();
        let workflow = node.workflow(server).await.unwrap();
        let slipway_protocol::Action::StreamImage(image) = &workflow.steps[0].action else { panic!("{workflow:?}") };
        let given = server.url(image.url.strip_prefix("https://server.test:8443").unwrap());
        assert_eq!(stranger.get(&given).send().await.unwrap().bytes().await.unwrap(), "bytes\0");
        node.finish(server, &workflow).await;
        assert_eq!(refusal(stranger.get(&given).send().await.unwrap()).await.code, ErrorCode::Unauthenticated);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_server_of_a_site_can_take_the_next_piece_of_a_disk() {
    let objects = ObjectStore::start().await;
    let [one, other] = TestServer::start_two_with(Some(bucket(&objects))).await;
    let node = one.enrolled("m1").await;
    let run = start_run(&one, "m1", "web1.zst").await;
    assert_eq!(begin(&other, &node, &run, "web1.zst").await.status(), StatusCode::NO_CONTENT);
    let put = async |server: &TestServer, offset: u64, piece: &'static str| {
        let url = server.url(&format!("/v1/node/runs/{run}/captures/web1.zst?offset={offset}"));
        node.client.put(url).body(piece).send().await.unwrap()
    };
    assert_eq!(stored(&put(&one, 0, "half ").await), Some("5"));
    assert_eq!(stored(&put(&other, 5, "and ").await), Some("9"));
    // A piece that was sent to both, because the machine did not hear of the first answer.
    let both = tokio::join!(put(&one, 9, "half"), put(&other, 9, "half"));
    let mut statuses = [both.0.status().as_u16(), both.1.status().as_u16()];
    statuses.sort_unstable();
    assert_eq!((statuses, stored(&both.0), stored(&both.1)), ([204, 409], Some("13"), Some("13")));
    let image = described(b"half and half");
    let commit = |server: &TestServer| {
        node.client.post(server.url(&format!("/v1/node/runs/{run}/captures"))).json(&image).send()
    };
    let committed = tokio::join!(commit(&one), commit(&other));
    assert_eq!((committed.0.unwrap().status(), committed.1.unwrap().status()), (StatusCode::OK, StatusCode::OK));
    for server in [&one, &other] {
        let got = node.client.get(server.url(&format!("/images/{}", image.digest))).send().await.unwrap();
        assert_eq!(got.bytes().await.unwrap(), "half and half");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_is_put_together_once_though_two_servers_are_asked_to() {
    let objects = ObjectStore::start().await;
    let [one, other] = TestServer::start_two_with(Some(bucket(&objects))).await;
    let node = one.enrolled("m1").await;
    let run = start_run(&one, "m1", "web1.zst").await;
    assert_eq!(begin(&one, &node, &run, "web1.zst").await.status(), StatusCode::NO_CONTENT);
    let url = one.url(&format!("/v1/node/runs/{run}/captures/web1.zst?offset=0"));
    assert_eq!(node.client.put(url).body("half and half").send().await.unwrap().status(), StatusCode::NO_CONTENT);
    let image = described(b"half and half");
    let commit = async |server: &TestServer| {
        let url = server.url(&format!("/v1/node/runs/{run}/captures"));
        node.client.post(url).json(&image).send().await.unwrap()
    };
    // The first server has begun when the second one is asked. Neither has an image yet.
    objects.tests().hold(is_begin);
    let first = async {
        let answer = commit(&one).await;
        assert_eq!(answer.status(), StatusCode::ACCEPTED);
    };
    let second = async {
        objects.tests().has_held(1).await;
        let answer = commit(&other).await;
        assert_eq!(answer.status(), StatusCode::ACCEPTED);
    };
    tokio::join!(first, second);
    objects.tests().release();
    for server in [&one, &other] {
        let mut answer = commit(server).await;
        while answer.status() == StatusCode::ACCEPTED {
            answer = commit(server).await;
        }
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.json::<Image>().await.unwrap().digest, image.digest);
        let got = node.client.get(server.url(&format!("/images/{}", image.digest))).send().await.unwrap();
        assert_eq!(got.bytes().await.unwrap(), "half and half");
    }
    assert_eq!(objects.tests().count(is_begin), 1, "it was put together twice");
}
