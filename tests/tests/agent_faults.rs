//! A day of heartbeats against a server that fails in all ways: the agent goes on, and asks neither too often nor too
//! seldom.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slipway_installer::agent::{self, Pace};
use slipway_installer::boot_report::Surroundings;
use slipway_installer::server::tls;
use slipway_protocol::node::boot_report::places;
use slipway_protocol::{Agent, AgentCredentials, BootReporterConfig, ErrorCode, HeartbeatAnswer};
use slipway_server::base::data::DataDir;
use slipway_server::keys::ca::Authority;
use slipway_tests::answers::{self, Answer, refusal};
use tokio::net::TcpListener;
use tokio::time::timeout;

/// A second of the simulated day: 30 of them are 3 ms.
const PACE: Pace = Pace { second: Duration::from_micros(100) };
/// Heartbeats of a day, 30 s apart.
const BEATS: usize = 2880;

fn answered(answer: &impl serde::Serialize) -> Answer {
    (200, serde_json::to_string(answer).unwrap())
}

/// An agent against a server that has the right certificate and gives these answers in order. Returns the number of
/// requests, and the agent's token at the end.
async fn day(answers: Vec<Answer>) -> (usize, String) {
    tls::install_provider();
    let folder = tempfile::tempdir().unwrap();
    let data = DataDir::make(folder.path()).unwrap();
    let authority = Authority::open_or_make(&data, &BTreeSet::new()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = Agent::default();
    let config = BootReporterConfig {
        url: format!("https://{}", listener.local_addr().unwrap()),
        token: "T".to_owned().into(),
        ca: authority.pem().to_owned(),
        machine: Default::default(),
        hours: 1,
        every: 600,
        agent: Some(settings.clone()),
    };
    let root = folder.path().join("root");
    let place = root.join(places::USR_LOCAL);
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join(places::CONFIG), serde_json::to_vec(&config).unwrap()).unwrap();
    // Without programs, nothing is known of the units.
    let surroundings = Surroundings { state: root.clone(), root, programs: Vec::new() };
    let asked = Arc::new(Mutex::new(Vec::new()));
    let given =
        tokio::spawn(answers::give(listener, answers::acceptor(&authority, &data), answers, Arc::clone(&asked)));
    let ended = agent::run(config, &settings, &surroundings, PACE);
    timeout(Duration::from_secs(300), ended).await.expect("the day ends").unwrap();
    given.await.unwrap();
    let token = fs::read_to_string(place.join(places::AGENT)).unwrap();
    let asked = asked.lock().unwrap().len();
    (asked, token)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_day_of_faults_ends_only_with_the_servers_own_word() {
    let answer = HeartbeatAnswer { every_seconds: 30, task: None, token: None, ca: None };
    let renewed = |token: &str| HeartbeatAnswer { token: Some(token.to_owned().into()), ..answer.clone() };
    let faults = [
        refusal(ErrorCode::Internal),
        refusal(ErrorCode::Unavailable),
        refusal(ErrorCode::TooManyRequests),
        refusal(ErrorCode::Unauthenticated),
        (500, "<h1>Oops</h1>".to_owned()),
        (502, String::new()),
        (404, "<h1>Not Found</h1>".to_owned()),
        // A server of an older version, and one that was restored from a backup.
        refusal(ErrorCode::NotFound),
        (410, "{\"message\": \"gone\"}".to_owned()),
        (200, "<h1>Log in</h1>".to_owned()),
        (200, "{}".to_owned()),
        (200, "{\"every_seconds\": 99999999999}".to_owned()),
        (204, String::new()),
        (302, String::new()),
        // Certificates that are none, and a token that no header can have, change nothing.
        answered(&HeartbeatAnswer { ca: Some("no certificate".to_owned()), ..answer.clone() }),
        answered(&renewed("a\nb")),
        // As often as it is asked to come back.
        answered(&HeartbeatAnswer { every_seconds: 0, ..answer.clone() }),
    ];
    let mut answers =
        vec![refusal(ErrorCode::Unavailable), answered(&AgentCredentials { token: "1".to_owned().into() })];
    for beat in 0..BEATS {
        answers.push(match beat {
            1000 => answered(&renewed("2")),
            _ if beat % 9 == 0 => faults[beat / 9 % faults.len()].clone(),
            _ => answered(&answer),
        });
    }
    answers.push(refusal(ErrorCode::TokenExpired));
    let expected = answers.len();
    let (asked, token) = day(answers).await;
    assert_eq!(asked, expected);
    assert!(token.starts_with(r#"{"token":"2","of":"sha256:"#), "{token}");
}
