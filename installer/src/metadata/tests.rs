use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use slipway_protocol::Failure;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const META: &str = r#"{"uuid": "x", "keys": null, "meta": {"slipway.server": "https://s:8443", "slipway.token": "t"}}"#;
const DATA: &str = "#cloud-config\nusers: [a]\nslipway: {server: 'https://s:8443', token: t}\n";
/// A secret that no message may show.
const SECRET: &str = "s3cret";

/// A service on loopback, which answers with the bytes that `answer` makes of the first line of a request. `{}` in an
/// answer is its own URL.
struct Fake {
    url: reqwest::Url,
    /// The requests, each with its headers in lower case.
    requests: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    async fn start(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url: reqwest::Url = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (answer, seen) = (Arc::new(answer), Arc::clone(&requests));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&answer), Arc::clone(&seen)));
            }
        });
        Self { url, requests }
    }

    async fn ask(&self, allowed: &[MetadataSource]) -> Result<Answer, String> {
        crate::server::tls::install_provider();
        let service = Service::new(self.url.clone(), None).unwrap();
        let allowed: BTreeSet<MetadataSource> = allowed.iter().copied().collect();
        service.ask(&allowed).await.map_err(|error| Failure::of(&error).in_one_line())
    }

    fn paths(&self) -> Vec<String> {
        let line = |request: &String| request.lines().next().unwrap().replace(" http/1.1", "");
        self.requests.lock().unwrap().iter().map(line).collect()
    }
}

async fn serve(mut stream: TcpStream, answer: Arc<impl Fn(&str) -> Vec<u8>>, seen: Arc<Mutex<Vec<String>>>) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return };
        request.push(byte);
    }
    let request = String::from_utf8(request).unwrap().to_lowercase();
    let bytes = answer(request.lines().next().unwrap());
    seen.lock().unwrap().push(request);
    let (endless, slow) = (bytes.ends_with(b"ENDLESS"), bytes.ends_with(b"SLOW"));
    // A client that has had enough closes the connection.
    let _ = stream.write_all(&bytes).await;
    let piece = vec![b' '; if slow { 1 } else { 1 << 16 }];
    if !endless && !slow {
        return;
    }
    while stream.write_all(&piece).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(if slow { 50 } else { 0 })).await;
    }
}

fn ok(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn status(line: &str) -> Vec<u8> {
    format!("HTTP/1.1 {line}\r\nConnection: close\r\nContent-Length: 6\r\n\r\n{SECRET}").into_bytes()
}

fn not_found() -> Vec<u8> {
    status("404 Not Found")
}

fn expected(by: MetadataSource) -> Answer {
    Answer::new(by, "https://s:8443".to_owned(), Some("t".to_owned()), Vec::new())
}

const OPENSTACK: &str = "get /openstack/latest/meta_data.json";

#[tokio::test]
async fn openstack_says_it_in_metadata_or_else_in_user_data() {
    let by_key = Fake::start(|line| if line.starts_with(OPENSTACK) { ok(META) } else { not_found() }).await;
    assert_eq!(by_key.ask(&MetadataSource::ALL).await, Ok(expected(MetadataSource::Openstack)));
    assert_eq!(by_key.paths(), [OPENSTACK]);
    let other = |line: &str| match line {
        line if line.starts_with(OPENSTACK) => ok(r#"{"meta": {"role": "x"}}"#),
        line if line.starts_with("get /openstack/latest/user_data") => ok(DATA),
        _ => not_found(),
    };
    let by_user_data = Fake::start(other).await;
    assert_eq!(by_user_data.ask(&[MetadataSource::Openstack]).await, Ok(expected(MetadataSource::Openstack)));
}

#[tokio::test]
async fn ec2_is_asked_with_a_token_if_it_has_tokens() {
    let with_tokens = |line: &str| match line {
        "put /latest/api/token http/1.1" => ok("ABC==\n"),
        "get /latest/user-data http/1.1" => ok(DATA),
        _ => not_found(),
    };
    let ec2 = Fake::start(with_tokens).await;
    assert_eq!(ec2.ask(&MetadataSource::ALL).await, Ok(expected(MetadataSource::Ec2)));
    let requests = ec2.requests.lock().unwrap().clone();
    let [.., put, get] = &requests[..] else { panic!("{requests:?}") };
    assert!(put.contains("\r\nx-aws-ec2-metadata-token-ttl-seconds: 60\r\n"), "{put}");
    assert!(get.contains("\r\nx-aws-ec2-metadata-token: abc==\r\n"), "{get}");

    for older in ["404 Not Found", "405 Method Not Allowed", "501 Not Implemented"] {
        let answer = move |line: &str| if line.starts_with("put") { status(older) } else { ok(DATA) };
        let ec2 = Fake::start(answer).await;
        assert_eq!(ec2.ask(&[MetadataSource::Ec2]).await, Ok(expected(MetadataSource::Ec2)), "{older}");
        assert!(!ec2.requests.lock().unwrap()[1].contains("token"));
    }
    // Whoever refuses a token is not asked without one.
    for refusal in ["403 Forbidden", "401 Unauthorized", "500 Oops"] {
        let answer = move |line: &str| if line.starts_with("put") { status(refusal) } else { ok(DATA) };
        let ec2 = Fake::start(answer).await;
        let error = ec2.ask(&[MetadataSource::Ec2]).await.unwrap_err();
        assert!(error.contains("/latest/api/token: the answer has the status") && !error.contains(SECRET), "{error}");
        assert_eq!(ec2.paths().len(), 1);
    }
}

#[tokio::test]
async fn only_what_is_allowed_is_asked() {
    let answer = |line: &str| match line {
        line if line.contains("meta_data.json") => ok(META),
        line if line.starts_with("put") => ok("token"),
        _ => ok(DATA),
    };
    let all = Fake::start(answer).await;
    assert_eq!(all.ask(&[MetadataSource::Ec2]).await, Ok(expected(MetadataSource::Ec2)));
    assert!(all.paths().iter().all(|path| path.contains("/latest/") && !path.contains("openstack")));
    let before = all.paths().len();
    assert!(all.ask(&[MetadataSource::ConfigDrive]).await.is_err());
    assert_eq!(all.paths().len(), before);
}

#[tokio::test]
async fn a_hostile_answer_is_bounded_and_not_shown() {
    let openstack = async |answer: Vec<u8>, expect: &str| {
        let began = Instant::now();
        let fake = Fake::start(move |_| answer.clone()).await;
        let error = fake.ask(&[MetadataSource::Openstack]).await.unwrap_err();
        assert!(error.contains(expect), "{expect:?} is not in {error:?}");
        assert!(!error.contains(SECRET) && !error.contains('\u{1b}'), "{error}");
        assert!(began.elapsed() < Duration::from_secs(7), "{error}: {:?}", began.elapsed());
        assert_eq!(fake.paths().len(), 1, "{error}");
    };
    let head = "HTTP/1.1 200 OK\r\n";
    let large = format!("{head}Content-Length: 10000000000\r\n\r\nENDLESS");
    openstack(large.into_bytes(), "the answer has more than 64 KiB").await;
    openstack(format!("{head}\r\nENDLESS").into_bytes(), "the answer has more than 64 KiB").await;
    openstack(format!("{head}X: ENDLESS").into_bytes(), "requesting /openstack/latest/meta_data.json").await;
    openstack(format!("{head}\r\nSLOW").into_bytes(), "operation timed out").await;
    openstack(ok(&format!("{{\"meta\": {{}}, \"x\": \"{}\"}}", "x".repeat(64 << 10))), "more than 64 KiB").await;
    for redirect in ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"] {
        let answer = format!("HTTP/1.1 {redirect}\r\nLocation: /{SECRET}\r\nContent-Length: 0\r\n\r\n");
        openstack(answer.into_bytes(), "the answer has the status 30").await;
    }
    openstack(status("500 Oops"), "the answer has the status 500").await;
    openstack(ok("\u{1b}[2J s3cret"), "it is not JSON").await;
    openstack([&ok("ab")[..ok("ab").len() - 2], b"\xff\xfe"].concat(), "no text in UTF-8").await;
    openstack(b"s3cret\r\n\r\n".to_vec(), "requesting /openstack/latest/meta_data.json").await;
}

#[tokio::test]
async fn a_machine_without_a_service_is_not_held_up() {
    crate::server::tls::install_provider();
    let allowed = BTreeSet::from(MetadataSource::ALL);
    // Nobody listens; and the network swallows packets (RFC 5737 has the address for documents).
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for base in [format!("http://{closed}/"), "http://192.0.2.1:9/".to_owned()] {
        let began = Instant::now();
        let service = Service::new(base.parse().unwrap(), None).unwrap();
        let error = Failure::of(&service.ask(&allowed).await.unwrap_err()).in_one_line();
        assert!(error.starts_with(&format!("asking {base} for the server: requesting /")), "{error}");
        assert!(began.elapsed() < Duration::from_millis(3500), "{:?}", began.elapsed());
    }
}

#[test]
fn metadata_in_json_has_texts_and_the_rest_does_not_matter() {
    let of = |json: &str| of_meta_data(MetadataSource::Openstack, json).map_err(|error| error.to_string());
    assert_eq!(of(META), Ok(Some(expected(MetadataSource::Openstack))));
    for none in [r#"{}"#, r#"{"meta": {}}"#, r#"{"meta": {"server": "x", "a": [{}]}}"#, r#"{"slipway.server": "x"}"#] {
        assert_eq!(of(none), Ok(None), "{none}");
    }
    let more = r#"{"meta": {"slipway.ca": "x", "slipway.s3cret": {}, "slipway.require": 1, "slipway.server": "s"}}"#;
    let ignored = ["slipway.ca", "a key that slipway does not know", "slipway.require"];
    assert_eq!(of(more).unwrap().unwrap().ignored, ignored);
    let deep = |open: &str, close: &str| format!("{{\"meta\": {}{}}}", open.repeat(9000), close.repeat(9000));
    let check = |json: &str, expect: &str| {
        let error = of(json).unwrap_err();
        assert!(error.contains(expect) && !error.contains(SECRET), "{json:?}: {error}");
    };
    check(r#"{"meta": {"slipway.server": 5}}"#, "slipway.server in it is not a text");
    check(r#"{"meta": {"slipway.server": null}}"#, "slipway.server in it is not a text");
    check(r#"{"meta": {"slipway.server": "s", "slipway.token": ["s3cret"]}}"#, "slipway.token in it is not a text");
    check(r#"{"meta": {"slipway.server": "a", "slipway.server": "s3cret"}}"#, "slipway.server is in it twice");
    check(r#"{"meta": {"slipway.server": "a"}, "meta": {"slipway.server": "b"}}"#, "slipway.server is in it twice");
    for wrong in ["", "s3cret", "[]", "5", r#"{"meta": "s3cret"}"#, r#"{"meta": ["s3cret"]}"#, r#"{"meta": null}"#] {
        check(wrong, "it is not JSON with an object of texts under meta, at line 1, column ");
    }
    check(&format!("{META} s3cret"), "it is not JSON");
    check(&META[..META.len() - 1], "it is not JSON");
    for (open, close) in [("[", "]"), ("{\"slipway.server\":", "}")] {
        check(&deep(open, close), "it is not JSON");
        check(&deep(&format!("{{\"a\":{open}"), close), "it is not JSON");
    }
}

#[test]
fn user_data_has_texts_below_one_key() {
    let of = |text: &str| of_user_data(MetadataSource::Ec2, text).map_err(|error| error.to_string());
    assert_eq!(of(DATA), Ok(Some(expected(MetadataSource::Ec2))));
    for none in ["", "#cloud-config\n", "#cloud-config\nserver: x\n", "slipway:\n", "slipway: {token: t}\n"] {
        assert_eq!(of(none), Ok(None), "{none}");
    }
    let more = "slipway: {server: s, ca: x, network: x, s3cret: x}\n";
    assert_eq!(
        of(more).unwrap().unwrap().ignored,
        ["slipway.ca", "slipway.network", "a key that slipway does not know"]
    );
    for (text, expect) in [
        ("#!/bin/sh\necho s3cret\n", "line 2, column 1: this is not a mapping"),
        ("slipway: {server: [s3cret]}", "line 1, column 19: a value must be text"),
        ("slipway: s3cret", "line 1, column 10: this is not a mapping"),
        ("slipway: {server: a, server: s3cret}", "line 1, column 22: this key is already set"),
        ("\u{1b}[2Js3cret", "line 1, column 1: this is not YAML"),
        ("a: @s3cret", "line 1, column 4: this is not YAML"),
    ] {
        let error = of(text).unwrap_err();
        assert!(error.starts_with(expect) && !error.contains(SECRET), "{text:?}: {error}");
        assert!(!error.contains(['\u{1b}', '@']), "{error}");
    }
    for open in ["[", "{a: ", "- "] {
        // Whether it is refused or without a server: it ends.
        let _ = of(&format!("x: {}", open.repeat(20_000)));
        let _ = of(&format!("slipway: {}", open.repeat(20_000)));
    }
}

#[test]
fn a_config_drive_says_it_in_metadata_or_else_in_user_data() {
    let read = |meta: Option<&str>, data: Option<&str>| {
        read_drive(|path| Ok(if path == META_DATA { meta } else { data }.map(str::to_owned)))
    };
    let expect = expected(MetadataSource::ConfigDrive);
    for (meta, data) in [(Some(META), Some("{")), (Some("{}"), Some(DATA)), (None, Some(DATA)), (Some(META), None)] {
        assert_eq!(read(meta, data).unwrap(), expect);
    }
    assert!(matches!(read(None, None), Err(DriveError::NoServer)));
    assert!(matches!(read(Some("{}"), Some("a: b")), Err(DriveError::NoServer)));
    let error = Failure::of(&read(Some(SECRET), None).unwrap_err()).in_one_line();
    assert!(error.contains("reading openstack/latest/meta_data.json: it is not JSON"), "{error}");
}
