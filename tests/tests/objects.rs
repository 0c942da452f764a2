//! Machines fetch images from the bucket that the server redirects them to.
#![allow(clippy::unwrap_used, reason = "tests")]

#[allow(dead_code, reason = "shared with other tests")]
#[path = "../../server/tests/api/object_store.rs"]
mod object_store;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hyper::http::HeaderValue;
use hyper::{HeaderMap, Method, Uri};
use reqwest::header::{AUTHORIZATION, COOKIE, LOCATION, RANGE, REFERER};
use reqwest::{Certificate, Client, StatusCode, redirect};
use sha2::{Digest as _, Sha256};
use slipway_installer::End;
use slipway_protocol::{Action, CaptureDisk, Digest, ErrorCode, Reboot, Step, StreamImage};
use slipway_server::base::limits::Limits;
use slipway_server::base::objects::{Bucket, Defaults, Keys};
use slipway_server::image::{self, Known};
use slipway_tests::{DISK, Lab};
use tokio::sync::watch;

use object_store::{KEY_ID, ObjectStore, Program, SECRET, is_begin, is_second_part};

const MIB: usize = 1 << 20;

fn step(name: &str, action: Action) -> Step {
    Step { name: name.to_owned(), action, retries: 0, timeout: Some(600) }
}

/// A server that redirects machines to the object store.
async fn lab(objects: &ObjectStore) -> Lab {
    lab_of(objects, "", true, Limits::default()).await
}

/// A server of its own site in the bucket.
async fn lab_of(objects: &ObjectStore, site: &str, redirects: bool, limits: Limits) -> Lab {
    let mut lab = Lab::start().await;
    lab.stop_server().await;
    let ca = lab.folder.path().join("objects-ca.pem");
    std::fs::write(&ca, objects.ca()).unwrap();
    let keys = Keys { id: KEY_ID.to_owned(), secret: SECRET.to_owned(), session: None };
    let url = format!("{}&ca={}", objects.url_of(site), ca.display());
    lab.bucket = Some(Bucket::open(&url, Defaults::default(), keys).unwrap());
    lab.redirect = Some(ca).filter(|_| redirects);
    lab.limits = limits;
    lab.start_server().await;
    lab
}

async fn add(lab: &Lab, content: &[u8]) -> Digest {
    let file = lab.folder.path().join("disk.img");
    std::fs::write(&file, content).unwrap();
    image::add(&lab.store().await, &lab.data(), &file, Known::default(), |_| {}).await.unwrap().image.digest
}

fn write(lab: &Lab, digest: &Digest) -> Vec<Step> {
    let image = StreamImage {
        url: format!("{}/images/{digest}", lab.url()),
        digest: Some(digest.clone()),
        disk: lab.disk_hints(),
        ..StreamImage::default()
    };
    vec![step("write", Action::StreamImage(image)), step("leave", Action::Reboot(Reboot::default()))]
}

fn disk() -> Vec<u8> {
    let mut disk: Vec<u8> = (0..12 * MIB as u32).map(|n| (n.wrapping_mul(n) >> 9) as u8).collect();
    disk[..512].fill(0);
    (disk[510], disk[511]) = (0x55, 0xAA);
    disk
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_goes_on_at_the_object_store_and_sends_it_no_credentials() {
    let objects = ObjectStore::start_with_tls(Program::S3sFs).await;
    let (lab, disk) = (lab(&objects).await, disk());
    let digest = add(&lab, &disk).await;
    lab.register(true).await;
    lab.start_run(write(&lab, &digest)).await;
    let tests = objects.tests();
    tests.cut_after.store(5 * MIB as u32, Ordering::Relaxed);
    tests.expired.store(1, Ordering::Relaxed);
    tests.heads.lock().unwrap().clear();

    assert_eq!(lab.install().await.unwrap(), End::Reboot);

    assert!(std::fs::read(lab.disk()).unwrap().starts_with(&disk));
    let heads = tests.heads.lock().unwrap();
    let ranges = heads.iter().map(|(_, head)| head.get(RANGE).map(|range| range.to_str().unwrap().to_owned()));
    let ranges: Vec<Option<String>> = ranges.collect();
    // The first request is refused as expired, the second broken off, and the third goes on behind.
    assert_eq!(ranges.len(), 3, "{ranges:?}");
    assert_eq!(ranges[..2], [None, None]);
    let from = ranges[2].as_ref().unwrap().trim_start_matches("bytes=").trim_end_matches('-').parse::<usize>().unwrap();
    assert!(from > 0 && from <= 5 * MIB, "{ranges:?}");
    for (url, head) in heads.iter() {
        assert!(url.query().unwrap().contains("X-Amz-Expires=3600&"), "{url}");
        for secret in [AUTHORIZATION, COOKIE, REFERER] {
            assert!(!head.contains_key(&secret), "{head:?}");
        }
    }
}

/// Whether a request is for the rest of an image.
fn is_image(method: &Method, uri: &Uri) -> bool {
    method == Method::GET && uri.path().contains("/sha256/")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_whose_url_expires_in_the_middle_asks_the_server_for_another() {
    for program in Program::ALL {
        // Much less than a machine waits for an answer.
        let lifetime = Duration::from_secs(4);
        let objects = ObjectStore::start_with_tls(program).await;
        let limits = Limits { redirect_lifetime: lifetime, ..Limits::default() };
        let (lab, disk) = (lab_of(&objects, "", true, limits).await, disk());
        let digest = add(&lab, &disk).await;
        lab.register(true).await;
        lab.start_run(write(&lab, &digest)).await;
        let tests = objects.tests();
        tests.cut_after.store(5 * MIB as u32, Ordering::Relaxed);
        tests.answers.lock().unwrap().clear();
        let expiring = async {
            // The first connection breaks in the middle. What the machine asks for then is on its way for too long.
            until("the machine fetches", async || tests.count(is_image) > 0).await;
            tests.hold(is_image);
            tests.has_held(1).await;
            tokio::time::sleep(lifetime + Duration::from_secs(2)).await;
            tests.release();
        };
        let (end, ()) = tokio::join!(lab.install(), expiring);
        assert_eq!(end.unwrap(), End::Reboot);
        assert!(std::fs::read(lab.disk()).unwrap().starts_with(&disk));
        let answers = tests.answers.lock().unwrap();
        let fetched: Vec<_> = answers.iter().filter(|(method, uri, _)| is_image(method, uri)).collect();
        let statuses: Vec<u16> = fetched.iter().map(|(_, _, status)| status.as_u16()).collect();
        assert_eq!(statuses[..2], [200, 403], "{program:?}: {statuses:?}");
        assert_eq!(statuses.last(), Some(&206), "{program:?}: {statuses:?}");
        assert!(fetched[0].1.query().unwrap().contains("X-Amz-Expires=4&"), "{fetched:?}");
        assert_ne!(fetched[1].1, fetched.last().unwrap().1, "it is another URL");
    }
}

/// The last requests that store an image and a captured disk: the second part of one, and the image of the other.
fn is_storing(method: &Method, uri: &Uri) -> bool {
    let is_added = is_second_part(method, uri) && uri.path().contains("sending/");
    is_added || is_begin(method, uri) && uri.path().contains("capturing/")
}

/// What a server says is the matter.
async fn problems(lab: &Lab) -> String {
    let ca = Certificate::from_pem(lab.ca().as_bytes()).unwrap();
    let client = Client::builder().tls_certs_only([ca]).build().unwrap();
    let answer = client.get(format!("{}/readyz", lab.url())).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    answer.text().await.unwrap()
}

/// The digest of what a server sends as an image.
async fn sent_as(lab: &Lab, digest: &Digest) -> String {
    let ca = Certificate::from_pem(lab.ca().as_bytes()).unwrap();
    let client = Client::builder().tls_certs_only([ca]).build().unwrap();
    let token = lab.data().operator_token().unwrap().unwrap();
    let request = client.get(format!("{}/images/{digest}", lab.url())).bearer_auth(token);
    format!("sha256:{:x}", Sha256::digest(request.send().await.unwrap().bytes().await.unwrap()))
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_half_stored_while_the_object_store_is_killed() {
    for program in Program::ALL {
        check_killed(program).await;
    }
}

/// One machine is redirected, one gets its image from its server, and one stores its disk, while an operator adds an
/// image.
async fn check_killed(program: Program) {
    let mut objects = ObjectStore::start_with_tls(program).await;
    let redirecting = lab_of(&objects, "redirecting", true, Limits::default()).await;
    let sending = lab_of(&objects, "sending", false, Limits::default()).await;
    let capturing = lab_of(&objects, "capturing", false, Limits::default()).await;
    let disk = disk();
    for lab in [&redirecting, &sending] {
        let digest = add(lab, &disk).await;
        lab.register(true).await;
        lab.start_run(write(lab, &digest)).await;
    }
    let raw = disk.iter().copied().cycle().take(DISK as usize).collect::<Vec<u8>>();
    std::fs::write(capturing.disk(), &raw).unwrap();
    capturing.register(true).await;
    let capture = CaptureDisk { disk: capturing.disk_hints(), name: "web1.zst".to_owned() };
    capturing.start_run(vec![step("capture", Action::CaptureDisk(capture))]).await;
    let mut large = disk.clone();
    large.extend_from_slice(&disk);
    let tests = Arc::clone(objects.shared());
    tests.is_slow.store(true, Ordering::Relaxed);
    tests.hold(is_storing);
    let (may_fetch, waiting) = watch::channel(false);

    let fetching = async |lab: &Lab| {
        waiting.clone().wait_for(|may| *may).await.unwrap();
        assert_eq!(lab.install().await.unwrap(), End::Reboot);
        assert!(std::fs::read(lab.disk()).unwrap().starts_with(&disk));
    };
    let adding = async {
        let file = sending.folder.path().join("large.img");
        std::fs::write(&file, &large).unwrap();
        loop {
            // An operator repeats the command.
            match image::add(&sending.store().await, &sending.data(), &file, Known::default(), |_| {}).await {
                Ok(added) => break added.image.digest,
                Err(error) => assert_eq!(error.body().code, ErrorCode::Unavailable, "{error:?}"),
            }
        }
    };
    let capturing_disk = async {
        assert_eq!(capturing.install().await.unwrap(), End::Done);
        capturing.status().await.run.unwrap().steps[0].outcome.clone().unwrap().image.unwrap().digest
    };
    let added = sha256(&large);
    let killing = async {
        // Both are stored but for the last step.
        tests.has_held(2).await;
        objects.stop().await;
        tests.release();
        until("the server says what is the matter", async || problems(&sending).await.contains(AWAY)).await;
        objects.start_again().await;
        assert!(!sending.bucket.as_ref().unwrap().list().await.unwrap().contains_key(&added), "half of it is visible");
        may_fetch.send_replace(true);
        for _ in 0..3 {
            let before = tests.sent.load(Ordering::Relaxed);
            let has_sent = async || tests.sent.load(Ordering::Relaxed) >= before + 3 * MIB as u64;
            until("machines fetch more", has_sent).await;
            objects.stop().await;
            tokio::time::sleep(Duration::from_millis(500)).await;
            objects.start_again().await;
        }
    };
    let (digest, captured, (), (), ()) =
        tokio::join!(adding, capturing_disk, fetching(&redirecting), fetching(&sending), killing);
    assert_eq!(digest, added, "{program:?}");
    let heads = tests.heads.lock().unwrap().clone();
    for site in ["redirecting/", "sending/"] {
        let is_rest = |range: &HeaderValue| !range.to_str().unwrap().starts_with("bytes=0-");
        let goes_on =
            |(url, head): &(Uri, HeaderMap)| url.path().contains(site) && head.get(RANGE).is_some_and(is_rest);
        assert!(heads.iter().any(goes_on), "{program:?}: {site} was not interrupted: {heads:?}");
    }
    tests.is_slow.store(false, Ordering::Relaxed);
    for (lab, digest) in [(&redirecting, sha256(&disk)), (&sending, sha256(&disk)), (&sending, added)] {
        assert_eq!(sent_as(lab, &digest).await, digest.to_string(), "{program:?}");
    }
    assert_eq!(sent_as(&capturing, &captured).await, captured.to_string(), "{program:?}");
    until("there is no problem", async || !problems(&sending).await.contains(AWAY)).await;
}

const AWAY: &str = "the bucket with the images does not answer";

/// Asks until it is so.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(300);
    while !is_so().await {
        assert!(Instant::now() < deadline, "{what}: waited in vain");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn sha256(bytes: &[u8]) -> Digest {
    format!("sha256:{:x}", Sha256::digest(bytes)).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_captured_image_is_behind_a_redirect_only_for_its_run() {
    let objects = ObjectStore::start_with_tls(Program::S3sFs).await;
    let lab = lab(&objects).await;
    let raw = disk().into_iter().cycle().take(DISK as usize).collect::<Vec<u8>>();
    std::fs::write(lab.disk(), &raw).unwrap();
    lab.register(true).await;
    let capture = CaptureDisk { disk: lab.disk_hints(), name: "web1.zst".to_owned() };
    lab.start_run(vec![step("capture", Action::CaptureDisk(capture))]).await;
    assert_eq!(lab.install().await.unwrap(), End::Done);
    let run = lab.status().await.run.unwrap();
    let digest = run.steps[0].outcome.clone().unwrap().image.unwrap().digest;

    let client = Client::builder()
        .tls_certs_only([Certificate::from_pem(lab.ca().as_bytes()).unwrap()])
        .redirect(redirect::Policy::none())
        .build()
        .unwrap();
    let url = format!("{}/images/{digest}?redirect=yes", lab.url());
    assert_eq!(client.get(&url).send().await.unwrap().status(), StatusCode::UNAUTHORIZED);
    let wrong = client.get(format!("{url}&token=guess")).send().await.unwrap();
    assert_eq!(wrong.status(), StatusCode::UNAUTHORIZED);

    std::fs::write(lab.disk(), vec![0xAA; DISK as usize]).unwrap();
    lab.start_run(write(&lab, &digest)).await;
    objects.tests().heads.lock().unwrap().clear();
    assert_eq!(lab.install().await.unwrap(), End::Reboot);
    assert!(std::fs::read(lab.disk()).unwrap() == raw);
    let heads = objects.tests().heads.lock().unwrap();
    assert!(!heads.is_empty());
    assert!(heads.iter().all(|(url, head)| !format!("{url} {head:?}").contains("token")), "{heads:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_ask_for_a_redirect_gets_the_image_from_the_server() {
    let objects = ObjectStore::start_with_tls(Program::S3sFs).await;
    let (mut lab, disk) = (lab(&objects).await, disk());
    let digest = add(&lab, &disk).await;
    let client = Client::builder()
        .tls_certs_only([Certificate::from_pem(lab.ca().as_bytes()).unwrap()])
        .redirect(redirect::Policy::none())
        .build()
        .unwrap();
    let url = format!("{}/images/{digest}", lab.url());
    let direct = client.get(&url).send().await.unwrap();
    assert_eq!(direct.status(), StatusCode::OK);
    assert!(direct.bytes().await.unwrap() == disk);
    let redirected = client.get(format!("{url}?redirect=yes")).send().await.unwrap();
    assert_eq!(redirected.status(), StatusCode::TEMPORARY_REDIRECT);
    assert_eq!(redirected.headers()["cache-control"], "no-store");
    assert!(redirected.headers()[LOCATION].to_str().unwrap().starts_with("https://127.0.0.1:"));
    let head = client.head(format!("{url}?redirect=yes")).send().await.unwrap();
    assert_eq!(head.status(), StatusCode::OK, "the signature is for GET");
    let absent = format!("{}/images/sha256:{}?redirect=yes", lab.url(), "0".repeat(64));
    assert_eq!(client.get(absent).send().await.unwrap().status(), StatusCode::NOT_FOUND);
    // A run that was composed for a redirect also works without one.
    lab.register(true).await;
    lab.start_run(write(&lab, &digest)).await;
    lab.redirect = None;
    lab.stop_server().await;
    lab.start_server().await;
    assert_eq!(lab.install().await.unwrap(), End::Reboot);
    assert!(std::fs::read(lab.disk()).unwrap().starts_with(&disk));
}
