//! BMCs that lie, hang, redirect, or answer nonsense or gigabytes. What the server asks of a good one is tested with
//! sushy-tools, in `xtask/tests/redfish.rs`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::program::{fail, succeed};
use crate::support::{TestServer, UUID, install_provider};

/// The answer to a request: status line, header lines and body.
type Answer = (&'static str, String, String);

/// How a BMC answers a request for a path, and what the server says of it.
type Case = (Box<dyn Fn(&str) -> Answer + Send + Sync>, &'static str);

/// A BMC that answers each request by a function of method, path and body.
struct Bmc {
    url: String,
    pin: String,
    /// Method, path and body of each request that changes something.
    told: Arc<Mutex<Vec<String>>>,
}

impl Bmc {
    async fn start(answer: impl Fn(&str, &str, &str) -> Answer + Send + Sync + 'static) -> Self {
        install_provider();
        let made = rcgen::generate_simple_self_signed(vec!["another.name".to_owned()]).unwrap();
        let (der, key) = (made.cert.der().to_vec(), made.signing_key.serialize_der());
        let pin = format!("sha256:{}", base16ct::lower::encode_string(&Sha256::digest(&der)));
        let key = PrivateKeyDer::try_from(key).unwrap();
        let config = ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(vec![CertificateDer::from(der)], key).unwrap();
        let (tls, listener) = (TlsAcceptor::from(Arc::new(config)), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let url = format!("https://127.0.0.1:{}", listener.local_addr().unwrap().port());
        let (told, answer) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(answer));
        let noted = Arc::clone(&told);
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (tls, answer, noted) = (tls.clone(), Arc::clone(&answer), Arc::clone(&noted));
                tokio::spawn(async move {
                    let Ok(mut socket) = tls.accept(socket).await else { return };
                    let mut bytes = Vec::new();
                    let (head, body) = loop {
                        let mut part = [0; 4096];
                        let Ok(read @ 1..) = socket.read(&mut part).await else { return };
                        bytes.extend_from_slice(&part[..read]);
                        let text = String::from_utf8_lossy(&bytes).into_owned();
                        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                        let length = head
                            .lines()
                            .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
                        if body.len() >= length.unwrap_or(0usize) {
                            break (head.to_owned(), body.to_owned());
                        }
                    };
                    let mut words = head.split(' ');
                    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
                    if method != "GET" {
                        noted.lock().unwrap().push(format!("{method} {path} {body}"));
                    }
                    let (status, headers, body) = answer(method, path, &body);
                    if status == "hang" {
                        std::future::pending::<()>().await;
                    }
                    let head = format!(
                        "HTTP/1.1 {status}\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n",
                        body.len()
                    );
                    let _ = socket.write_all(head.as_bytes()).await;
                    let _ = socket.write_all(body.as_bytes()).await;
                    let _ = socket.shutdown().await;
                });
            }
        });
        Self { url, pin, told }
    }

    fn told(&self) -> Vec<String> {
        self.told.lock().unwrap().clone()
    }

    /// Has this BMC switch web1.
    fn set(&self, data: &Path, password: &Path, more: &[&str]) {
        let set = ["node", "power", "set", "web1", "--url", &self.url, "--username", "slipway", "--pin", &self.pin];
        let password = ["--limit", "3s", "--password-file", password.to_str().unwrap()];
        succeed(data, &[&set[..], &password, more].concat());
    }
}

fn ok(body: impl Into<String>) -> Answer {
    ("200 OK", String::new(), body.into())
}

/// The resources of a BMC with one machine, which is off.
fn good(path: &str) -> String {
    match path {
        "/redfish/v1/" => r#"{"Systems": {"@odata.id": "/redfish/v1/Systems"}}"#.to_owned(),
        "/redfish/v1/Systems" => r#"{"Members": [{"@odata.id": "/redfish/v1/Systems/1"}]}"#.to_owned(),
        _ => system("/redfish/v1/Systems/1/Actions/Reset", r#""On", "ForceOff""#),
    }
}

fn system(reset: &str, kinds: &str) -> String {
    format!(
        r##"{{"PowerState": "Off",
        "Boot": {{"BootSourceOverrideEnabled": "Disabled", "BootSourceOverrideTarget": "None"}},
        "Actions": {{"#ComputerSystem.Reset":
        {{"target": "{reset}", "ResetType@Redfish.AllowableValues": [{kinds}]}}}}}}"##
    )
}

async fn web1() -> (TestServer, PathBuf, PathBuf) {
    let server = TestServer::start().await;
    server.add_released("web1").await;
    let (data, password) = (server.data_path(), server.folder.path().join("password"));
    std::fs::write(&password, "hunter2\n").unwrap();
    (server, data, password)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bmc_that_answers_nonsense_is_refused_with_the_reason() {
    let (_server, data, password) = web1().await;
    let elsewhere = Bmc::start(|_, _, _| ok("{}")).await;
    let away = elsewhere.url.clone();
    let cases: Vec<Case> = vec![
        (Box::new(|_| ok("<html>")), "is not answered in JSON"),
        (Box::new(|_| ok("{}")), "the BMC names no systems"),
        (Box::new(|_| ok("[".repeat(100_000))), "is not answered in JSON"),
        (Box::new(|_| ok("a".repeat(3 << 20))), "is larger than 1 MiB"),
        (Box::new(|_| ("hang", String::new(), String::new())), "the BMC did not answer within 3 s"),
        (
            Box::new(move |_| ("302 Found", format!("location: {away}/\r\n"), String::new())),
            "redirects GET /redfish/v1/ elsewhere, which is not followed",
        ),
        (Box::new(|_| ("401 Unauthorized", String::new(), String::new())), "does not let the user slipway do this"),
        (
            Box::new(|_| ok(r#"{"Systems": {"@odata.id": "https://evil.example/"}}"#)),
            "refers to \"https://evil.example/\", which is not a path on the BMC",
        ),
        (Box::new(|_| ok(r#"{"Systems": {"@odata.id": "//evil.example/"}}"#)), "which is not a path on the BMC"),
        (
            Box::new(|_| {
                let said = r#"{"error": {"message": "no, hunter2 \u001b[31m"}}"#;
                ("500 Oops", String::new(), said.to_owned())
            }),
            "the BMC answers 500 Internal Server Error to GET /redfish/v1/: no, (secret) \\u{1b}[31m",
        ),
    ];
    for (answer, expect) in cases {
        let bmc = Bmc::start(move |_, path, _| answer(path)).await;
        bmc.set(&data, &password, &[]);
        let refused = fail(&data, &["node", "power", "status", "web1"]);
        assert!(refused.contains(expect) && !refused.contains("hunter2"), "{expect}: {refused}");
    }
    assert_eq!(elsewhere.told(), [""; 0], "nobody else got the password");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bmc_is_told_only_what_it_offers_and_is_asked_whether_it_did() {
    let (_server, data, password) = web1().await;
    let refuses = |act: &[&str], expect: &str| {
        let refused = fail(&data, &[&["node", "power"][..], act, &["web1"]].concat());
        assert!(refused.contains(expect), "{expect}: {refused}");
    };
    let bmc = Bmc::start(|_, path, _| match path {
        "/redfish/v1/Systems/1" => ok(system("/redfish/v1/Systems/1/Actions/Reset", r#""GracefulShutdown""#)),
        _ => ok(good(path)),
    })
    .await;
    bmc.set(&data, &password, &[]);
    refuses(&["on"], "the BMC cannot switch the machine on: it offers GracefulShutdown");
    let bmc = Bmc::start(|_, path, _| match path {
        "/redfish/v1/Systems/1" => ok(system("/redfish/v1/Systems/1/Actions/Reset", r#""hunter2""#)),
        _ => ok(good(path)),
    })
    .await;
    bmc.set(&data, &password, &[]);
    refuses(&["on"], "it offers (secret)");
    let bmc = Bmc::start(|_, path, _| match path {
        "/redfish/v1/Systems/1" => ok(r#"{"PowerState": null}"#),
        _ => ok(good(path)),
    })
    .await;
    bmc.set(&data, &password, &[]);
    refuses(&["off", "--yes"], "the BMC does not say whether the machine is on");
    let bmc = Bmc::start(|_, path, _| match path {
        "/redfish/v1/Systems/1" => ok(r#"{"PowerState": "On", "UUID": "00000000-0000-0000-0000-000000000001"}"#),
        _ => ok(good(path)),
    })
    .await;
    bmc.set(&data, &password, &[]);
    refuses(&["off", "--yes"], "the machine of the BMC has another UUID than the node");
    assert_eq!(bmc.told(), [""; 0], "it is somebody else's");
    let bmc = Bmc::start(|_, path, _| match path {
        "/redfish/v1/Systems/1" => ok(system("https://evil.example/", r#""On""#)),
        _ => ok(good(path)),
    })
    .await;
    bmc.set(&data, &password, &[]);
    refuses(&["on"], "which is not a path on the BMC");
    assert_eq!(bmc.told(), [""; 0]);
    // It accepts what it does not do.
    let bmc = Bmc::start(|_, path, _| ok(good(path))).await;
    bmc.set(&data, &password, &[]);
    refuses(&["boot", "--yes"], "the BMC was told to boot from Pxe once and accepted it, but now says None");
    let boot = r#"{"Boot":{"BootSourceOverrideEnabled":"Once","BootSourceOverrideTarget":"Pxe"}}"#;
    let patch = format!("PATCH /redfish/v1/Systems/1 {boot}");
    assert_eq!(bmc.told(), [patch], "it is not switched on without");
    bmc.set(&data, &password, &["--boot", "media", "--boot-url", "http://192.0.2.1/slipway.iso"]);
    refuses(&["boot", "--yes"], "the BMC has no virtual disc drive");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_machine_is_that_of_the_node_and_a_change_goes_on_from_its_version() {
    let (_server, data, password) = web1().await;
    let is = Arc::new(Mutex::new(("None", false)));
    let known = Arc::clone(&is);
    let bmc = Bmc::start(move |method, path, body| match (method, path) {
        ("GET", "/redfish/v1/Systems") => {
            ok(r#"{"Members": [{"@odata.id": "/redfish/v1/Systems/a"}, {"@odata.id": "/redfish/v1/Systems/b"}]}"#)
        }
        ("GET", "/redfish/v1/Systems/a") => {
            ok(r#"{"UUID": "00000000-0000-0000-0000-000000000001", "PowerState": "On"}"#)
        }
        ("GET", "/redfish/v1/Systems/b") => {
            let (target, is_on) = *known.lock().unwrap();
            let body = format!(
                r##"{{"UUID": "{}", "PowerState": "{}",
                "Boot": {{"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "{target}"}},
                "Actions": {{"#ComputerSystem.Reset": {{"target": "/reset", "@Redfish.ActionInfo": "/info"}}}}}}"##,
                UUID.to_ascii_uppercase(),
                if is_on { "On" } else { "Off" }
            );
            ("200 OK", "etag: W/\"7\"\r\n".to_owned(), body)
        }
        ("GET", "/info") => {
            ok(r#"{"Parameters": [{"Name": "ResetType", "AllowableValues": ["ForceOn", "ForceOff"]}]}"#)
        }
        ("PATCH", _) if !body.contains("Pxe") => ("400 Bad Request", String::new(), String::new()),
        ("PATCH", _) => {
            let mut known = known.lock().unwrap();
            // The first time, the version is missed.
            let is_first = known.0 == "None";
            known.0 = if is_first { "Hdd" } else { "Pxe" };
            if is_first { ("428 Precondition Required", String::new(), String::new()) } else { ok("") }
        }
        ("POST", "/reset") => {
            known.lock().unwrap().1 = true;
            ("204 No Content", String::new(), String::new())
        }
        _ => ok(good(path)),
    })
    .await;
    bmc.set(&data, &password, &[]);
    assert_eq!(succeed(&data, &["node", "power", "boot", "--yes", "web1"]), "web1 is on\n");
    assert_eq!(bmc.told().last().unwrap(), "POST /reset {\"ResetType\":\"ForceOn\"}");
    bmc.set(&data, &password, &["--system", "c"]);
    let unknown = fail(&data, &["node", "power", "status", "web1"]);
    assert!(
        unknown.contains("the BMC has no system \"c\", but /redfish/v1/Systems/a, /redfish/v1/Systems/b"),
        "{unknown}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bmc_is_trusted_by_what_was_given_and_nothing_else() {
    let (server, data, password) = web1().await;
    let bmc = Bmc::start(|_, path, _| ok(good(path))).await;
    let set = ["node", "power", "set", "web1"];
    let password = password.to_str().unwrap();
    succeed(&data, &[&set[..], &["--url", &bmc.url, "--username", "slipway", "--password-file", password]].concat());
    let first = fail(&data, &["node", "power", "status", "web1"]);
    assert!(first.contains("not trusted (none is yet)") && first.contains(&format!("--pin {}", bmc.pin)), "{first}");
    // As the advice says.
    succeed(&data, &[&set[..], &["--pin", &bmc.pin]].concat());
    assert_eq!(succeed(&data, &["node", "power", "status", "web1"]), "web1 is off\n");
    let other = format!("sha256:{}", "0".repeat(64));
    let unconfirmed = fail(&data, &[&set[..], &["--pin", &other]].concat());
    assert!(unconfirmed.contains("give the password again"), "{unconfirmed}");
    succeed(&data, &[&set[..], &["--pin", &other, "--password-file", password]].concat());
    let wrong = fail(&data, &["node", "power", "status", "web1"]);
    assert!(wrong.contains("it is not the one that is trusted"), "{wrong}");
    let key = server.folder.path().join("ca.pem");
    std::fs::write(&key, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n").unwrap();
    let shown = fail(&data, &[&set[..], &["--ca", key.to_str().unwrap()]].concat());
    assert!(shown.contains("has a private key, which would be shown"), "{shown}");
    for (bad, expect) in [
        (["--url", "http://192.0.2.71"], "is not the URL of a BMC"),
        (["--url", "https://me:it@192.0.2.71"], "is not the URL of a BMC"),
        (["--pin", "sha256:12"], "is not the SHA-256 of a certificate"),
        (["--boot", "media"], "give the URL that the machine boots from (--boot-url)"),
        (["--boot-url", "ftp://192.0.2.1/x"], "has no URL to boot from"),
        (["--hook", "ipmi"], "give the password again"),
    ] {
        let refused = fail(&data, &[&set[..], &bad].concat());
        assert!(refused.contains(expect), "{expect}: {refused}");
    }
}
