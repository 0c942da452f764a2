//! A boot reporter removes itself when the server says that nobody waits for it, and not because of an answer that is
//! an error or comes from another server.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slipway_installer::boot_report::{self, End, Pace, Surroundings};
use slipway_installer::server::tls;
use slipway_protocol::{BootKnown, BootReporterConfig, ErrorCode, NodeState};
use slipway_server::base::data::DataDir;
use slipway_server::keys::ca::Authority;
use slipway_tests::answers::{self, Answer, refusal};
use tokio::net::TcpListener;

/// Runs a reporter against a server that has the right certificate and gives these answers in order. Returns how the
/// reporter ended, and the methods of its requests.
async fn report(answers: Vec<Answer>) -> (End, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let data = DataDir::make(folder.path()).unwrap();
    let authority = Authority::open_or_make(&data, &BTreeSet::new()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    tokio::spawn(answers::give(listener, answers::acceptor(&authority, &data), answers, Arc::clone(&asked)));
    let config = BootReporterConfig {
        url,
        token: "T".to_owned().into(),
        ca: authority.pem().to_owned(),
        machine: Default::default(),
        hours: 1,
        every: 600,
        agent: None,
    };
    let pace = Pace { look: Duration::from_millis(10), ..Pace::of(&config) };
    let end = boot_report::run(&config, &system(folder.path()), pace).await.unwrap();
    let asked = asked.lock().unwrap().clone();
    (end, asked)
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
