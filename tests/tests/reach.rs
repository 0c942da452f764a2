//! Which host counts as the server when an interface is chosen, and whose time sets the clock.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::time::Duration;

use slipway_installer::config::Config;
use slipway_installer::server::clock::{self, Verdict};
use slipway_installer::server::reach::{Server, Stranger};
use slipway_protocol::{Failure, MachineSettings};
use slipway_tests::Lab;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A time limit longer than any test takes. Only a test with a silent host reaches it, on a paused clock.
const PATIENCE: Duration = Duration::from_secs(600);

/// Makes the beginning of an endless handshake message: a TLS record with as many zeros as fit.
fn record() -> Vec<u8> {
    let length = 16_384u16.to_be_bytes();
    let mut record = vec![22, 3, 3, length[0], length[1]];
    record.resize(5 + 16_384, 0);
    record
}

async fn connect(lab: &Lab) -> TcpStream {
    TcpStream::connect(lab.url().strip_prefix("https://").unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_is_whom_the_ca_and_the_name_vouch_for() {
    let (lab, other) = (Lab::start().await, Lab::start().await);
    let verify = async |host: &str, ca: &str| server(host, ca).verify(connect(&lab).await, PATIENCE).await;
    verify("127.0.0.1", &lab.ca()).await.unwrap();
    let verdict = |refused: Result<(), Stranger>| match refused.unwrap_err() {
        Stranger::Untrusted { verdict } => verdict,
        other => panic!("{other}"),
    };
    assert!(verdict(verify("127.0.0.1", &other.ca()).await).contains("not signed by the CA"));
    assert!(verdict(verify("192.0.2.1", &lab.ca()).await).contains("another name"));
    assert!(verdict(verify("server.test", &lab.ca()).await).contains("another name"));
    assert_eq!(server("[::1]", &lab.ca()).first_hop(), ("[::1]", 443));
}

/// Starts a proxy that answers one CONNECT request with `answer`. If that is a success, it then forwards everything to
/// the lab.
async fn proxy(answer: Vec<u8>, lab: &Lab) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut there = connect(lab).await;
    let answering = tokio::spawn(async move {
        let (mut machine, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(machine.read_u8().await.unwrap());
        }
        // Fails if the machine closes the connection before the end of the answer.
        let _ = machine.write_all(&answer).await;
        if answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(b"\r\n\r\n") {
            let _ = copy_bidirectional(&mut machine, &mut there).await;
        }
        String::from_utf8(request).unwrap()
    });
    (url, answering)
}

/// Configures the machine to reach the server through this proxy, except what `no_proxy` names.
fn through(proxy: String, no_proxy: &str, config: Config) -> Config {
    let machine = MachineSettings { proxy: Some(proxy), no_proxy: Some(no_proxy.to_owned()), ..config.machine };
    Config { machine, ..config }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_behind_a_proxy_is_verified_through_it() {
    let lab = Lab::start().await;
    let port = lab.url().rsplit_once(':').unwrap().1.to_owned();
    let verify = async |answer: &[u8]| {
        let (url, answering) = proxy(answer.to_vec(), &lab).await;
        let config = through(url.clone(), "", lab.config());
        let server = Server::new(&config).unwrap();
        assert_eq!(format!("http://{}:{}", server.first_hop().0, server.first_hop().1), url);
        let stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).await.unwrap();
        let verdict = server.verify(stream, PATIENCE).await;
        assert_eq!(
            answering.await.unwrap(),
            format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n")
        );
        verdict.map_err(|stranger| Failure::of(&stranger).in_one_line())
    };
    verify(b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n").await.unwrap();
    let endless = [b"HTTP/1.1 200 OK\r\n".to_vec(), vec![b'a'; 100_000]].concat();
    let answers: [(&[u8], &str); 7] = [
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", r#"it says "HTTP/1.1 403 Forbidden"; allow this connection in the proxy"#),
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "without a login"),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", r#"it says "HTTP/1.1 503 Service Unavailable""#),
        (b"HTTP/1.1 204 No Content\r\n\r\n", r#"it says "HTTP/1.1 204 No Content""#),
        (b"SSH-2.0-OpenSSH\r\n\r\n", r#"it says "SSH-2.0-OpenSSH""#),
        (b"HTTP/1.1 200", "asking the proxy to connect to 127.0.0.1"),
        (&endless, "its answer has more than 8192 bytes"),
    ];
    for (answer, expect) in answers {
        let said = verify(answer).await.unwrap_err();
        assert!(said.contains(expect), "{said}");
    }
    // HTTP requests go through the proxy too.
    let (url, answering) = proxy(b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), &lab).await;
    let behind = through(url, "", lab.config());
    let seen = lab.folder.path().join("run/clock");
    assert_eq!(clock::set_from_server(&behind, &seen).await.unwrap(), Verdict::Right);
    drop(behind);
    assert!(answering.await.unwrap().starts_with("CONNECT 127.0.0.1"));
    // A host in `no_proxy` is reached without the proxy.
    let without = through("http://192.0.2.1:3128".to_owned(), "127.0.0.0/8", lab.config());
    let direct = Server::new(&without).unwrap();
    assert_eq!(direct.first_hop().0, "127.0.0.1");
    direct.verify(connect(&lab).await, PATIENCE).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_host_that_only_accepts_connections_is_not_the_server() {
    slipway_installer::server::tls::install_provider();
    let server = server("127.0.0.1", &some_ca());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (_silent, _) = listener.accept().await.unwrap();
    assert!(matches!(server.verify(ours, PATIENCE).await, Err(Stranger::Slow { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_says_nothing_is_not_waited_for() {
    slipway_installer::server::tls::install_provider();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let ours = TcpStream::connect(address).await.unwrap();
    let (_silent, _) = listener.accept().await.unwrap();
    let config = Config::new("https://server.test".parse().unwrap(), some_ca());
    let behind = through(format!("http://{address}"), "", config);
    let verdict = Server::new(&behind).unwrap().verify(ours, PATIENCE).await;
    let said = Failure::of(&verdict.unwrap_err()).in_one_line();
    assert_eq!(said, "asking the proxy to connect to server.test:443: no answer in 10 s");
}

#[tokio::test]
async fn a_host_that_speaks_without_end_is_not_listened_to() {
    slipway_installer::server::tls::install_provider();
    let server = server("127.0.0.1", &some_ca());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (mut talker, _) = listener.accept().await.unwrap();
    let talking = tokio::spawn(async move { while talker.write_all(&record()).await.is_ok() {} });
    assert!(matches!(server.verify(ours, PATIENCE).await, Err(Stranger::Handshake { .. })));
    talking.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clock_does_not_go_back_behind_what_this_boot_has_seen() {
    let lab = Lab::start().await;
    let seen = lab.folder.path().join("run/clock");
    let ask = async || clock::set_from_server(&lab.config(), &seen).await.unwrap();
    let kept = || std::fs::read_to_string(&seen).unwrap().parse::<u64>().unwrap();
    let before = clock::now_ms() / 1000;
    assert_eq!(ask().await, Verdict::Right);
    assert!(kept() >= before - 1 && kept() <= clock::now_ms() / 1000);
    // In this boot the server has already given a time later than today: its clock was set back, or the answer comes
    // from somebody with an older certificate.
    std::fs::write(&seen, "4102444800").unwrap();
    assert_eq!(ask().await, Verdict::Refused);
    assert_eq!(kept(), 4_102_444_800);
    // A file that was truncated holds nothing up.
    std::fs::write(&seen, "").unwrap();
    assert_eq!(ask().await, Verdict::Right);
}

/// Makes a server with this host in its URL and this CA.
fn server(host: &str, ca: &str) -> Server {
    Server::new(&Config::new(format!("https://{host}").parse().unwrap(), ca.to_owned())).unwrap()
}

/// Makes a new CA, which the lab's server does not use.
fn some_ca() -> String {
    let folder = tempfile::tempdir().unwrap();
    let data = slipway_server::base::data::DataDir::make(folder.path()).unwrap();
    let names = ["localhost".to_owned()].into();
    slipway_server::keys::ca::Authority::open_or_make(&data, &names).unwrap().pem().to_owned()
}
