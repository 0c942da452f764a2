//! A boot reporter removes itself when the server says that nobody waits for it, and not because of an answer that is
//! an error or comes from another server.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slipway_installer::boot_report::{self, End, Pace, Surroundings};
use slipway_installer::server::tls;
use slipway_protocol::{BootKnown, BootReporterConfig, ErrorBody, ErrorCode, NodeState};
use slipway_server::base::data::DataDir;
use slipway_server::keys::ca::Authority;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Status code and body.
type Answer = (u16, String);

fn refusal(code: ErrorCode) -> Answer {
    let body = ErrorBody { code, message: "no".to_owned(), causes: Vec::new() };
    (code.status(), serde_json::to_string(&body).unwrap())
}

/// Runs a reporter against a server that has the right certificate and gives these answers in order. Returns how the
/// reporter ended, and the methods of its requests.
async fn report(answers: Vec<Answer>) -> (End, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let data = DataDir::make(folder.path()).unwrap();
    let authority = Authority::open_or_make(&data, &BTreeSet::new()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    tokio::spawn(answer(listener, acceptor(&authority, &data), answers, Arc::clone(&asked)));
    let config = BootReporterConfig {
        url,
        token: "T".to_owned().into(),
        ca: authority.pem().to_owned(),
        proxy: None,
        hours: 1,
        every: 600,
    };
    let pace = Pace { look: Duration::from_millis(10), ..Pace::of(&config) };
    let end = boot_report::run(&config, &system(folder.path()), pace).await.unwrap();
    let asked = asked.lock().unwrap().clone();
    (end, asked)
}

fn acceptor(authority: &Authority, data: &DataDir) -> TlsAcceptor {
    let identity = authority.server_identity(data, &BTreeSet::from(["127.0.0.1".to_owned()])).unwrap();
    let config = rustls::ServerConfig::builder().with_no_client_auth();
    TlsAcceptor::from(Arc::new(config.with_single_cert(identity.chain, identity.key).unwrap()))
}

async fn answer(listener: TcpListener, tls: TlsAcceptor, answers: Vec<Answer>, asked: Arc<Mutex<Vec<String>>>) {
    for (status, body) in answers {
        let (connection, _) = listener.accept().await.unwrap();
        let mut connection = tls.accept(connection).await.unwrap();
        let method = method(&mut connection).await;
        asked.lock().unwrap().push(method);
        let head = format!("HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        connection.write_all([head, body].concat().as_bytes()).await.unwrap();
        connection.shutdown().await.unwrap();
    }
}

/// Reads a whole request. Returns its method.
async fn method(connection: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(connection.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
    connection.read_exact(&mut vec![0; length.parse().unwrap()]).await.unwrap();
    head.split(' ').next().unwrap().to_owned()
}

/// Makes a system without programs that could tell its state.
fn system(folder: &Path) -> Surroundings {
    Surroundings { root: folder.to_owned(), programs: Vec::new(), state: folder.to_owned() }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_says_that_nobody_waits() {
    tls::install_provider();
    for code in [ErrorCode::NotFound, ErrorCode::TokenExpired, ErrorCode::Decommissioned] {
        assert_eq!(report(vec![refusal(code)]).await, (End::NotAwaited, vec!["get".to_owned()]), "{code:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_or_an_answer_of_somebody_else_says_nothing() {
    tls::install_provider();
    let known = BootKnown { node: NodeState::Booting, last: None };
    let known = (200, serde_json::to_string(&known).unwrap());
    let mut running = Vec::new();
    for fault in [
        refusal(ErrorCode::Internal),
        refusal(ErrorCode::Unavailable),
        refusal(ErrorCode::TooManyRequests),
        refusal(ErrorCode::Unauthenticated),
        (500, "<h1>Oops</h1>".to_owned()),
        (502, String::new()),
        (404, "<h1>Not Found</h1>".to_owned()),
        (404, String::new()),
        (404, "{\"error\": \"not found\"}".to_owned()),
        (404, "{\"code\": 404, \"message\": \"no route\"}".to_owned()),
        (404, "{\"code\": \"NotFound\", \"message\": \"no route\"}".to_owned()),
        (410, "{\"message\": \"gone\"}".to_owned()),
        (200, "<h1>Log in</h1>".to_owned()),
        (204, String::new()),
    ] {
        let over = refusal(ErrorCode::TokenExpired);
        for (answers, expect) in [
            (vec![fault.clone(), over.clone()], &["get", "get"][..]),
            (vec![known.clone(), fault.clone(), over], &["get", "post", "post"][..]),
        ] {
            let fault = fault.clone();
            running.push(tokio::spawn(async move {
                let (end, asked) = report(answers).await;
                assert_eq!(asked, expect, "{fault:?}");
                assert_eq!(end, End::NotAwaited, "{fault:?}");
            }));
        }
    }
    for running in running {
        running.await.unwrap();
    }
}
