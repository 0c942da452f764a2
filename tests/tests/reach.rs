//! Which host counts as the server when an interface is chosen, and whose time sets the clock.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::time::Duration;

use slipway_installer::clock::{self, Verdict};
use slipway_installer::reach::{Server, Stranger};
use slipway_tests::Lab;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

/// Longer than any test takes. Only a host that says nothing waits for it, in time that does not pass.
const PATIENCE: Duration = Duration::from_secs(600);

/// The beginning of an endless handshake message: a record of TLS with as many zeros as fit.
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
    let verify =
        async |host: &str, ca: &str| Server::new(host, ca).unwrap().verify(connect(&lab).await, PATIENCE).await;
    verify("127.0.0.1", &lab.ca()).await.unwrap();
    let verdict = |refused: Result<(), Stranger>| match refused.unwrap_err() {
        Stranger::Untrusted { verdict } => verdict,
        other => panic!("{other}"),
    };
    assert!(verdict(verify("127.0.0.1", &other.ca()).await).contains("not signed by the CA"));
    assert!(verdict(verify("192.0.2.1", &lab.ca()).await).contains("another name"));
    assert!(verdict(verify("server.test", &lab.ca()).await).contains("another name"));
    assert!(Server::new("", &lab.ca()).is_err() && Server::new("[::1]", &lab.ca()).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_host_that_only_accepts_connections_is_not_the_server() {
    slipway_installer::tls::install_provider();
    let ca = some_ca();
    let server = Server::new("127.0.0.1", &ca).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (_silent, _) = listener.accept().await.unwrap();
    assert!(matches!(server.verify(ours, PATIENCE).await, Err(Stranger::Slow { .. })));
}

#[tokio::test]
async fn a_host_that_speaks_without_end_is_not_listened_to() {
    slipway_installer::tls::install_provider();
    let server = Server::new("127.0.0.1", &some_ca()).unwrap();
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
    let ask = async || clock::set_from_server(&lab.url().parse().unwrap(), &lab.ca(), &seen).await.unwrap();
    let kept = || std::fs::read_to_string(&seen).unwrap().parse::<u64>().unwrap();
    let before = clock::now_ms() / 1000;
    assert_eq!(ask().await, Verdict::Right);
    assert!(kept() >= before - 1 && kept() <= clock::now_ms() / 1000);
    // In this boot the server has already given a time that is later than today: its clock was set back, or it is an
    // older certificate's.
    std::fs::write(&seen, "4102444800").unwrap();
    assert_eq!(ask().await, Verdict::Refused);
    assert_eq!(kept(), 4_102_444_800);
    // A file that was cut off holds nothing up.
    std::fs::write(&seen, "").unwrap();
    assert_eq!(ask().await, Verdict::Right);
}

/// Some CA.
fn some_ca() -> String {
    let folder = tempfile::tempdir().unwrap();
    let data = slipway_server::data::DataDir::make(folder.path()).unwrap();
    let names = ["localhost".to_owned()].into();
    slipway_server::ca::Authority::open_or_make(&data, &names).unwrap().pem().to_owned()
}
