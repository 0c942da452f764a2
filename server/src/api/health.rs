//! Whether the server runs, and whether it can do its work, for balancers and for who watches it. Anybody may ask.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CACHE_CONTROL;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::Mutex;
use utoipa::ToSchema;

use crate::api::App;
use crate::api::answer::Dated;
use crate::base::error::{Error, Trouble, chain};
use crate::base::objects::Objects;
use crate::base::readiness::{Need, Problem, Readiness};
use crate::store::{Store, probe};

/// Age at which what was found out about the database is out of date.
const FRESH: Duration = Duration::from_secs(1);
/// Interval at which the server looks by itself, so that its log tells of a problem though nobody asks.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The same while there is a problem.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Whether the server can do its work.
#[derive(Debug, Default)]
pub struct Health {
    /// What is missing.
    pub readiness: Readiness,
    /// When the database was last probed. Locked while it is.
    probed: Arc<Mutex<Option<Instant>>>,
    probes: AtomicU64,
}

/// Whether a server is ready.
#[derive(Serialize, ToSchema)]
pub struct Ready {
    /// Whether it can do its work. A balancer should send it no requests otherwise.
    ready: bool,
    /// Why it is not ready, and what else is the matter.
    problems: Vec<Problem>,
}

/// Find out whether the server runs. It asks nothing else for the answer.
#[utoipa::path(get, path = "/healthz", responses((status = 200, body = String, content_type = "text/plain")))]
pub async fn alive() -> Response {
    ([(CACHE_CONTROL, "no-store")], "ok\n").into_response()
}

/// Find out whether the server can do its work: its database can be read and changed and has the schema of this
/// version, it has the keys of the site, and it does not stop. A bucket that does not answer is named too, but the
/// server does its other work.
#[utoipa::path(get, path = "/readyz", responses(
    (status = 200, body = Ready), (status = 503, body = Ready, description = "The server is not ready.")))]
pub async fn ready(State(app): State<Arc<App>>) -> Response {
    let problems = app.health.problems(&app.store).await;
    let ready = is_ready(&problems);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = Dated(Ready { ready, problems });
    (status, [(CACHE_CONTROL, "no-store")], body).into_response()
}

impl Health {
    /// Returns the problems that there are now. However many ask at once, the database is asked once.
    pub async fn problems(self: &Arc<Self>, store: &Store) -> Vec<Problem> {
        let mut probed = Arc::clone(&self.probed).lock_owned().await;
        if probed.is_none_or(|at| at.elapsed() >= FRESH) {
            let (health, store) = (Arc::clone(self), store.clone());
            // A task of its own, so that it ends although the client may be gone before.
            let done = tokio::spawn(async move {
                health.probes.fetch_add(1, Ordering::Relaxed);
                health.note(probe::probe(&store).await);
                *probed = Some(Instant::now());
            });
            let _ = done.await;
        }
        self.readiness.get()
    }

    /// Returns how often the database was probed.
    pub fn probes(&self) -> u64 {
        self.probes.load(Ordering::Relaxed)
    }

    /// Notes that the server is about to stop.
    pub fn drain(&self) {
        self.readiness.lack(Need::Running, "the server stops", "");
    }

    fn note(&self, probed: Result<(), Error>) {
        match probed {
            Ok(()) => self.readiness.have(Need::Database),
            Err(error) => self.readiness.lack(Need::Database, in_words(&error), &chain(&error)),
        }
    }

    /// Looks at the database regularly, as long as the server runs.
    pub async fn keep_known(self: &Arc<Self>, store: &Store) {
        loop {
            let is_ready = is_ready(&self.readiness.get());
            tokio::time::sleep(if is_ready { LOOK_EVERY } else { LOOK_AGAIN }).await;
            self.problems(store).await;
        }
    }

    /// Looks at the bucket regularly, as long as the server runs. Never returns.
    pub async fn keep_objects_known(&self, objects: &Objects) {
        let Objects::Bucket(bucket, _) = objects else { return std::future::pending().await };
        loop {
            let is_there = match bucket.probe().await {
                Ok(()) => {
                    self.readiness.have(Need::Objects);
                    true
                }
                Err(error) => {
                    self.readiness.lack(Need::Objects, of_bucket(&error), &chain(&error));
                    false
                }
            };
            tokio::time::sleep(if is_there { LOOK_EVERY } else { LOOK_AGAIN }).await;
        }
    }
}

/// Says what is the matter with the bucket, without names of hosts and keys.
fn of_bucket(error: &Error) -> &'static str {
    match error {
        Error::Objects { source, .. } if !source.is_transient() => "the bucket with the images refuses requests",
        _ => "the bucket with the images does not answer",
    }
}

/// Whether the server can do its work with these problems.
pub fn is_ready(problems: &[Problem]) -> bool {
    !problems.iter().any(|problem| problem.what.is_vital())
}

/// Says what is the matter with the database without its own words, which may name hosts, users and paths.
fn in_words(error: &Error) -> &'static str {
    let (Error::Database { source, .. } | Error::OpenDatabase { source, .. }) = error else {
        return "the database cannot be used";
    };
    match source.trouble() {
        Trouble::Silent => "the database does not answer",
        Trouble::ReadOnly => "the database is read-only",
        Trouble::Full => "the database has no room: its disk is full",
        Trouble::Locked => "the database is locked by another program",
        Trouble::Damaged => "the database is damaged",
        Trouble::OtherSchema => "the schema of the database is not that of this version of slipway-server",
        Trouble::Other => "the database cannot be used",
    }
}
