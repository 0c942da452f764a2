//! Artifacts from registries: login where the registry requires it, and verification by digest.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::process::Command;
use std::sync::{Arc, Mutex};

use common::disk_image::{Part, ROOT, can_mount, make, read_file};
use common::tls::{Acceptor, Authority, authority};
use common::written::{check_untouched, check_untouched_or_does_not_boot, fails_for};
use common::{Answer, Bench, MIB, ReceivedRequest, Server, chain, image, ok, ranges, sha256, status, stream};
use serde_json::json;
use slipway_protocol::{Action, Digest, RegistryAuth, Secret, StreamImage, UnpackArchive, WriteFile};

const DISK: usize = 4 * MIB;

/// A registry with the artifact `org/os:12`, its token server and its storage, all over TLS.
struct Hub {
    authority: Authority,
    tokens: Server,
    storage: Server,
    registry: Server,
    /// Digest of the index that `:12` names.
    digest: Digest,
}

/// What the registry serves that is wrong.
#[derive(Clone, Copy, PartialEq)]
enum Twist {
    None,
    /// The blob does not match the manifest.
    Blob,
    /// The manifest does not match the index.
    Manifest,
    /// The registry's digest header differs from the digest of the index.
    Told,
}

impl Hub {
    /// `login` is the login the token server requires. Each token is good for one blob. Storage breaks off the first
    /// transfer after two MiB.
    fn start(raw: &[u8], login: Option<&'static str>, twist: Twist) -> Self {
        let authority = authority();
        let tls = || Some(Acceptor::new(&authority));
        let tokens = Server::start_with(tls(), move |n, asked| match asked.authorization.as_deref() == login {
            true => Answer::Bytes(ok(format!("{{\"token\": \"t{n}\"}}").as_bytes())),
            false => status("401 Unauthorized", ""),
        });
        let flip = |bytes: &[u8], is_wrong: bool| {
            let mut bytes = bytes.to_vec();
            bytes[10] ^= u8::from(is_wrong);
            bytes
        };
        let body = Arc::new(flip(raw, twist == Twist::Blob));
        let storage = Server::start_with(tls(), move |n, _| {
            let until = if n == 0 { 2 * MIB } else { usize::MAX };
            Answer::File { body: Arc::clone(&body), etag: Some("\"s\""), until }
        });
        let title = "org.opencontainers.image.title";
        let blob = sha256(raw).to_string();
        let manifest = json!({
            "config": {"mediaType": "application/vnd.oci.empty.v1+json"},
            "layers": [{"digest": blob, "size": raw.len(), "annotations": {title: "os.raw"}}]
        });
        let manifest = manifest.to_string().into_bytes();
        let entry = |architecture: &str| {
            let platform = json!({"os": "linux", "architecture": architecture});
            json!({"digest": sha256(&manifest).to_string(), "platform": platform})
        };
        let index = json!({"manifests": [entry("amd64"), entry("arm64")]}).to_string().into_bytes();
        let digest = sha256(&index);
        let told = if twist == Twist::Told { sha256(b"another") } else { digest.clone() };
        let index =
            [format!("HTTP/1.1 200 OK\r\nDocker-Content-Digest: {told}\r\n").as_bytes(), &ok(&index)[17..]].concat();
        let at = |digest: &Digest| format!("/v2/org/os/manifests/{digest}");
        let (index_path, other_path, manifest_path) = (at(&digest), at(&sha256(b"another")), at(&sha256(&manifest)));
        let manifest = ok(&flip(&manifest, twist == Twist::Manifest));
        let challenge = format!("WWW-Authenticate: Bearer realm=\"{}\",service=\"hub\"\r\n", tokens.at("/token"));
        let location = format!("Location: {}\r\n", storage.at("/stored"));
        let used = Mutex::new(Vec::new());
        let registry = Server::start_with(tls(), move |_, asked| {
            let is_blob = asked.path == format!("/v2/org/os/blobs/{blob}");
            let mut used = used.lock().unwrap();
            match &asked.authorization {
                Some(token) if token.starts_with("Bearer t") && !used.contains(token) => {
                    if is_blob {
                        used.push(token.clone());
                        return status("307 Temporary Redirect", &location);
                    }
                }
                _ => return status("401 Unauthorized", &challenge),
            }
            match asked.path.as_str() {
                "/v2/org/os/manifests/12" => Answer::Bytes(index.clone()),
                // The index is also served for another digest.
                path if path == index_path || path == other_path => Answer::Bytes(index.clone()),
                path if path == manifest_path => Answer::Bytes(manifest.clone()),
                _ => status("404 Not Found", ""),
            }
        });
        Self { authority, tokens, storage, registry, digest }
    }

    fn bench(&self) -> Bench {
        let mut bench = Bench::with_trust(vec![self.authority.pem()]);
        bench.add_disk("disk", DISK);
        bench
    }

    fn artifact(&self, version: &str) -> StreamImage {
        stream(self.registry.at(&format!("/org/os{version}")).replace("https://", "oci://"))
    }
}

fn login(password: &str) -> Option<RegistryAuth> {
    Some(RegistryAuth { username: "user".to_owned(), password: Secret::from(password.to_owned()) })
}

#[test]
fn an_artifact_is_pulled_anonymously_and_resumed_with_a_new_token() {
    let raw = image(3 * MIB);
    let hub = Hub::start(&raw, None, Twist::None);
    let bench = hub.bench();
    let (done, reports) = bench.streams(hub.artifact(":12"));
    assert!(bench.disk().starts_with(&raw));
    // Three tries: the blob, its rest with a token that was used up, and its rest with a new token.
    assert_eq!(done.outcome.warnings, ["fetching took 3 attempts"]);
    assert_eq!(ranges(&hub.storage), [None, Some(2 * MIB as u64)]);
    assert!(hub.storage.asked().iter().all(|asked| asked.authorization.is_none()), "the token is not for the storage");
    let asked = hub.tokens.asked();
    assert_eq!(asked.len(), 2);
    let path = "/token?service=hub&scope=repository%3Aorg%2Fos%3Apull";
    assert!(asked.iter().all(|asked| asked.path == path), "{asked:?}");
    assert!(asked.iter().all(|asked| asked.authorization.is_none()));
    let expect = format!("the image must have the digest {} and 3 MiB", sha256(&raw));
    assert!(reports.notes[0].starts_with(&expect), "{reports:?}");
    assert!(hub.registry.asked()[0].accept.as_ref().unwrap().contains("application/vnd.oci.image.index.v1+json"));
}

#[test]
fn an_artifact_is_pulled_by_its_digest_and_another_in_its_place_is_refused() {
    let raw = image(3 * MIB);
    let hub = Hub::start(&raw, None, Twist::None);
    let bench = hub.bench();
    let another = hub.artifact(&format!("@{}", sha256(b"another")));
    fails_for(&bench, another, &format!("checking the digest of the manifest: expected {}", sha256(b"another")));
    check_untouched(&bench);
    fails_for(&bench, hub.artifact(&format!("@{}", sha256(b"missing"))), "the server answered 404");
    check_untouched(&bench);
    let image = hub.artifact(&format!("@{}#os.raw", hub.digest));
    bench.streams(image);
    assert!(bench.disk().starts_with(&raw));
}

#[test]
fn a_registry_that_wants_a_login_is_given_it_and_nobody_else_is() {
    let raw = image(3 * MIB);
    // user:hidden
    let hub = Hub::start(&raw, Some("Basic dXNlcjpoaWRkZW4="), Twist::None);
    let bench = hub.bench();
    for registry_auth in [None, login("hidden away")] {
        let error = fails_for(&bench, StreamImage { registry_auth, ..hub.artifact(":12") }, "the server answered 401");
        assert!(chain(&error).starts_with(&format!("fetching {}", hub.tokens.at("/token"))), "{}", chain(&error));
        assert!(!format!("{error:?}{}", chain(&error)).contains("hidden"));
        check_untouched(&bench);
    }
    bench.streams(StreamImage { registry_auth: login("hidden"), ..hub.artifact(":12#os.raw") });
    assert!(bench.disk().starts_with(&raw));
    let bearer =
        |asked: &ReceivedRequest| asked.authorization.as_ref().is_none_or(|value| value.starts_with("Bearer "));
    assert!(hub.registry.asked().iter().all(bearer), "the password is for the token server");
}

#[test]
fn what_is_not_in_a_registry_as_named_leaves_the_disk_as_it_was() {
    let raw = image(3 * MIB);
    let hub = Hub::start(&raw, None, Twist::None);
    let bench = hub.bench();
    fails_for(&bench, hub.artifact(":13"), "the server answered 404");
    fails_for(&bench, hub.artifact(":12#other"), "it has no file with that title; its files are \"os.raw\"");
    fails_for(&bench, hub.artifact(""), "it has neither tag nor digest");
    let digest = Some(sha256(b"another"));
    fails_for(&bench, StreamImage { digest, ..hub.artifact(":12") }, "the step has the digest sha256:");
    check_untouched(&bench);
    for twist in [Twist::Manifest, Twist::Told] {
        let hub = Hub::start(&raw, None, twist);
        let bench = hub.bench();
        fails_for(&bench, hub.artifact(":12"), "checking the digest of the manifest: expected sha256:");
        check_untouched(&bench);
    }
}

#[test]
fn a_blob_that_is_not_that_of_the_manifest_does_not_boot() {
    let raw = image(3 * MIB);
    let hub = Hub::start(&raw, None, Twist::Blob);
    let bench = hub.bench();
    fails_for(&bench, hub.artifact(":12"), "checking the digest of the stream: expected sha256:");
    check_untouched_or_does_not_boot(&bench);
}

#[test]
fn an_artifact_is_pulled_from_another_registry_where_one_fails_or_gives_another_blob() {
    let raw = image(3 * MIB);
    for twist in [Twist::Manifest, Twist::Told, Twist::Blob] {
        let first = Hub::start(&raw, Some("Basic dXNlcjpoaWRkZW4="), twist);
        let second = Hub::start(&raw, None, Twist::None);
        let mut bench = Bench::with_trust(vec![first.authority.pem(), second.authority.pem()]);
        bench.add_disk("disk", DISK);
        let registry_auth = login("hidden");
        let mirrors = vec![second.artifact(":12").url];
        let image = StreamImage { mirrors, registry_auth, ..first.artifact(":12") };
        let reports = bench.streams(image).1;
        assert!(bench.disk().starts_with(&raw));
        let expect = match twist {
            Twist::Blob => format!("starting over with {}", second.registry.at("/v2/org/os/blobs/")),
            _ => format!("did not find the image in {}: checking the digest", first.artifact(":12").url),
        };
        reports.tell(&expect);
        assert!(first.tokens.asked().iter().all(|asked| asked.authorization.is_some()));
        assert!(second.tokens.asked().iter().all(|asked| asked.authorization.is_none()), "the login is for the first");
        // No place has these tags.
        let mirrors = vec![second.artifact(":13").url];
        let error = fails_for(&bench, StreamImage { mirrors, ..second.artifact(":14") }, "all 2 URLs failed: oci://");
        assert_eq!(chain(&error).matches("the server answered 404 Not Found").count(), 2, "{}", chain(&error));
    }
}

#[test]
fn archives_and_files_are_pulled_with_a_login_too() {
    let true = can_mount() else { return };
    let tree = tempfile::tempdir().unwrap();
    std::fs::write(tree.path().join("motd"), "welcome home").unwrap();
    let tar = Command::new("tar").arg("-C").arg(tree.path()).args(["-c", "motd"]).output().unwrap().stdout;
    let registry_auth = login("hidden");
    let pulled = |bytes: &[u8], action: &dyn Fn(String, Option<RegistryAuth>) -> Action, path: &str| {
        // user:hidden
        let hub = Hub::start(bytes, Some("Basic dXNlcjpoaWRkZW4="), Twist::None);
        let bench = hub.bench();
        let files = [("etc/os-release", "NAME=Debian")];
        make(&bench.path("disk"), 40, &[Part { mib: 1..39, type_guid: ROOT, name: "system", files: &files }]);
        let url = hub.artifact(":12").url;
        let error = bench.refusal(&action(url.clone(), None));
        assert!(error.contains("the server answered 401"), "{error}");
        assert_eq!(read_file(&bench.path("disk"), 1, path), None);
        let (done, reports) = bench.succeeds(&action(url, registry_auth.clone()));
        assert_eq!(read_file(&bench.path("disk"), 1, path).unwrap().0, "welcome home");
        let is_told = |note: &String| note.contains(&format!("must have the digest {}", sha256(bytes)));
        assert!(reports.notes.iter().any(is_told), "{:?}", reports.notes);
        assert!(!done.outcome.warnings.iter().any(|warning| warning.contains("digest")), "{:?}", done.outcome.warnings);
    };
    let file = |url, registry_auth| {
        Action::WriteFile(WriteFile { path: "/x".to_owned(), url: Some(url), registry_auth, ..WriteFile::default() })
    };
    pulled(b"welcome home", &file, "/x");
    let archive =
        |url, registry_auth| Action::UnpackArchive(UnpackArchive { url, registry_auth, ..UnpackArchive::default() });
    pulled(&tar, &archive, "/motd");
}

/// Pulls `org/os:12` from a registry that answers 401 with these header lines to whoever does not log in as `accepted`.
/// TOKENS stands for the token server, which gives the token "t" to anybody. Expects a part of the error, if any.
#[track_caller]
fn pulls(
    lines: &'static [&'static str],
    registry_auth: Option<RegistryAuth>,
    accepted: &'static str,
    expect: Result<(), &str>,
) {
    let authority = authority();
    let tls = || Some(Acceptor::new(&authority));
    let tokens = Server::start_with(tls(), |_, asked| match asked.path.starts_with("/token") {
        true => Answer::Bytes(ok(b"{\"token\": \"t\"}")),
        false => status("401 Unauthorized", ""),
    });
    let raw = image(MIB);
    let manifest = json!({"layers": [{"digest": sha256(&raw).to_string(), "size": raw.len()}]}).to_string();
    let lines = lines.iter().map(|line| format!("WWW-Authenticate: {}\r\n", line.replace("TOKENS", &tokens.at(""))));
    let lines: String = lines.collect();
    let body = raw.clone();
    let registry = Server::start_with(tls(), move |_, asked| match asked.authorization.as_deref() == Some(accepted) {
        true if asked.path.contains("/manifests/") => Answer::Bytes(ok(manifest.as_bytes())),
        true => Answer::Bytes(ok(&body)),
        false => status("401 Unauthorized", &lines),
    });
    let mut bench = Bench::with_trust(vec![authority.pem()]);
    bench.add_disk("disk", DISK);
    let url = registry.at("/org/os:12").replace("https://", "oci://");
    let image = StreamImage { registry_auth, ..stream(url) };
    match expect {
        Ok(()) => {
            bench.streams(image);
            assert!(bench.disk().starts_with(&raw));
        }
        Err(part) => {
            fails_for(&bench, image, part);
            check_untouched(&bench);
            assert!(tokens.asked().iter().all(|asked| asked.authorization.is_none()), "nothing was sent");
        }
    }
}

#[test]
fn any_way_to_log_in_that_a_registry_offers_is_taken() {
    const BASIC: &str = "Basic dXNlcjpoaWRkZW4=";
    const TOKEN: &str = "Bearer t";
    // With a login where there is nothing else.
    pulls(&[r#"Negotiate, Basic realm="r""#], login("hidden"), BASIC, Ok(()));
    pulls(
        &["Negotiate abc==", r#"Digest realm="a, b", nonce="x""#, r#"BASIC Realm="r""#],
        login("hidden"),
        BASIC,
        Ok(()),
    );
    // A token, which needs none, wherever it stands.
    pulls(&[r#"Basic realm="r", Bearer realm="TOKENS/token""#], None, TOKEN, Ok(()));
    pulls(&["NTLM", r#"Basic realm="r""#, r#"bearer realm = "TOKENS/token",scope="a b""#], None, TOKEN, Ok(()));
    pulls(&[r#"Bearer realm="TOKENS/token", Basic realm="r""#], login("hidden"), TOKEN, Ok(()));
    // The next one, where one cannot be had.
    pulls(&[r#"Bearer realm="TOKENS/closed", Bearer realm="TOKENS/token""#], None, TOKEN, Ok(()));
    pulls(&[r#"Bearer, Bearer realm="http://127.0.0.1:1/", Basic realm="r""#], login("hidden"), BASIC, Ok(()));
}

#[test]
fn what_a_registry_offers_in_vain_is_named() {
    let refused = |lines, expect| pulls(lines, None, "nothing", Err(expect));
    refused(&[r#"Negotiate, NTLM, Digest realm="x""#], "an unsupported kind of login (Negotiate, NTLM, Digest); Basic");
    refused(&["Bearer"], "an unsupported kind of login (Bearer without a realm); Basic and Bearer are supported");
    refused(&["Negotiate", r#"Basic realm="r""#], "the registry requires a login: give registry_auth");
    refused(&[r#"Bearer realm="/token""#], "token server, \"/token\", does not start with https://");
    refused(
        &[r#"Bearer realm="http://user:x@s/token?y""#],
        "token server, \"http://s/token\", does not start with https://",
    );
    refused(&[r#"Bearer realm="TOKENS/closed", Basic realm="r""#], "/closed: the server answered 401");
}
