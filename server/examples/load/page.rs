//! An operator's browser, as far as the network is concerned: it opens the page of the fleet, and follows its stream.

use std::time::{Duration, Instant};

use reqwest::header::{COOKIE, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Response, StatusCode};
use slipway_server::operate::{self, NodeChange};
use slipway_server::store::Store;
use tokio::time::{sleep, timeout};

use crate::target::Target;

/// Pause between two changes of a node.
const PAUSE: Duration = Duration::from_secs(1);
/// Changes after which the page is opened again.
const CHANGES: usize = 5;
/// How long a change is waited for. One that takes longer counts with this time.
const PATIENCE: Duration = Duration::from_secs(10);
/// What is before the first row of the table.
const ROW: &[u8] = b"<tbody class=\"row\"";

/// A browser in which an operator is signed in.
pub struct Screen {
    client: Client,
    url: String,
    cookie: String,
}

/// What the operator waited for, in milliseconds.
#[derive(Default)]
pub struct Waited {
    /// From the request for the page to its first row.
    pub first_rows: Vec<f64>,
    /// From the end of the command that changed a node to the message with its changed row.
    pub changes: Vec<f64>,
}

impl Screen {
    /// Signs in.
    pub async fn open(target: &Target) -> Self {
        let ca = Certificate::from_pem(target.ca().as_bytes()).unwrap();
        let client = Client::builder().tls_certs_only([ca]).redirect(Policy::none()).build().unwrap();
        let body = format!("token={}", target.operator().await);
        let request = client.post(target.url("/login")).body(body);
        let answer = request.header("content-type", "application/x-www-form-urlencoded").send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::SEE_OTHER, "an operator signs in");
        let cookie = answer.headers()[SET_COOKIE].to_str().unwrap();
        let cookie = cookie.split(';').next().unwrap().to_owned();
        Self { client, url: target.url(""), cookie }
    }

    /// Changes a node again and again for this time, and waits for each change to arrive.
    pub async fn watch(self, store: Store, node: String, time: Duration) -> Waited {
        let (began, mut waited, mut stream) = (Instant::now(), Waited::default(), None);
        for number in 0.. {
            if began.elapsed() >= time {
                break;
            }
            if number % CHANGES == 0
                && let Some(millis) = self.first_row().await
            {
                waited.first_rows.push(millis);
            }
            if stream.is_none() {
                stream = self.get("/page/stream").await;
                // The first message says how things are. A change after it is in one of its own.
                if let Some(open) = &mut stream {
                    arrives(open, b"\n\n").await;
                }
            }
            if let Some(open) = &mut stream {
                let site = format!("bench-{number}");
                let change = NodeChange { site: Some(site.clone()), ..NodeChange::default() };
                operate::change_node(&store, &node, change).await.unwrap();
                let changed = Instant::now();
                let expected = format!("\"site\":\"{site}\"");
                match timeout(PATIENCE, arrives(open, expected.as_bytes())).await {
                    Ok(true) => waited.changes.push(millis_since(changed)),
                    // A server that was killed. The next one says how things are, and not what changed.
                    Ok(false) => stream = None,
                    Err(_) => waited.changes.push(millis_since(changed)),
                }
            }
            sleep(PAUSE).await;
        }
        waited
    }

    async fn first_row(&self) -> Option<f64> {
        let began = Instant::now();
        let mut page = self.get("/fleet").await?;
        arrives(&mut page, ROW).await.then(|| millis_since(began))
    }

    async fn get(&self, path: &str) -> Option<Response> {
        let answer = self.client.get(format!("{}{path}", self.url)).header(COOKIE, &self.cookie).send().await.ok()?;
        (answer.status() == StatusCode::OK).then_some(answer)
    }
}

fn millis_since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1000.0
}

/// Reads until a text has arrived. False if the answer ends before.
async fn arrives(answer: &mut Response, text: &[u8]) -> bool {
    let mut end = Vec::new();
    while let Ok(Some(piece)) = answer.chunk().await {
        end.extend_from_slice(&piece);
        if end.windows(text.len()).any(|part| part == text) {
            return true;
        }
        end.drain(..end.len().saturating_sub(text.len()));
    }
    false
}
