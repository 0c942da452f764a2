//! `GET /metrics`: what the server measures, as OpenMetrics text (openmetrics.io, version 1.0).
//!
//! What a process counts while it works is of that process alone. What is in the database is counted when somebody
//! asks, at most every few seconds, and is the same whichever server of a site is asked.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::api::App;
use crate::api::answer::ApiError;
use crate::api::auth::Operator;
use crate::api::health::{Health, is_ready};
use crate::api::meters::Meters;
use crate::base::error::chain;
use crate::base::readiness::{Need, Problem};
use crate::node::reports::run_meters::RunMeters;
use crate::node::status::{self, Counts};
use crate::store::{Store, to_word};
use slipway_protocol::ErrorBody;

/// Media type of the text (OpenMetrics 1.0, "Text Format").
const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Age at which what was counted in the database is counted again.
const FRESH: Duration = Duration::from_secs(10);
/// How long counting may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// What the server measures.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Of requests and connections.
    pub http: Meters,
    /// Of runs.
    pub runs: RunMeters,
    /// What was found when somebody last asked.
    found: Arc<Mutex<Found>>,
    /// When the database was last counted, and what was found. Locked while it is.
    counted: tokio::sync::Mutex<Option<(Instant, Counts)>>,
}

/// What is looked up when somebody asks. It is not counted while the server works.
#[derive(Debug, Default)]
struct Found {
    problems: Vec<Problem>,
    /// `None` if the database could not be asked.
    counts: Option<Counts>,
    waiting_writers: i64,
    waiting_strangers: i64,
    waiting_bodies: i64,
    polls: usize,
    /// Name of each certificate, and when it expires, in seconds since 1970.
    certificates: Vec<(&'static str, i64)>,
}

impl Metrics {
    /// Begins to measure.
    pub fn new(store: &Store) -> Self {
        let (http, runs, found) = (Meters::default(), RunMeters::default(), Arc::<Mutex<Found>>::default());
        let mut registry = Registry::with_prefix("slipway");
        let of_store = store.meters();
        registry.register("build", "Version of slipway-server", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        registry.register("database", "Kind of the database", Info::new([("kind", store.kind())]));
        registry.register_with_unit(
            "database_commit",
            "Time until the database has committed a transaction",
            Unit::Seconds,
            of_store.commit_seconds.clone(),
        );
        registry.register(
            "database_failed_commits",
            "Transactions that could not be committed",
            of_store.failed_commits.clone(),
        );
        registry.register_with_unit(
            "step",
            "Time that a step took, by its action and result",
            Unit::Seconds,
            runs.step_seconds.clone(),
        );
        registry.register(
            "runs_ended",
            "Runs that ended by a report, or were refused when they were handed out",
            runs.ended.clone(),
        );
        registry.register("http_requests", "Requests by route and class of status", http.requests.clone());
        registry.register_with_unit(
            "http_request",
            "Time from the headers of a request to those of its response",
            Unit::Seconds,
            http.request_seconds.clone(),
        );
        registry.register_with_unit("served", "Bytes of files that were sent", Unit::Bytes, http.served.clone());
        registry.register("connections", "Open connections", http.connections.clone());
        registry.register_collector(Box::new(Lookup(Arc::clone(&found))));
        Self { registry, http, runs, found, counted: tokio::sync::Mutex::default() }
    }

    /// Counts what is in the database, unless that was done a few seconds ago. However many ask, it is done once.
    async fn count(&self, store: &Store) -> Option<Counts> {
        let mut counted = self.counted.lock().await;
        if let Some((at, counts)) = &*counted
            && at.elapsed() < FRESH
        {
            return Some(counts.clone());
        }
        *counted = None;
        match tokio::time::timeout(PATIENCE, status::count(store)).await {
            Ok(Ok(counts)) => {
                *counted = Some((Instant::now(), counts.clone()));
                Some(counts)
            }
            Ok(Err(error)) => {
                tracing::debug!(error = chain(&error), "could not count nodes and runs");
                None
            }
            Err(_) => {
                tracing::debug!("counting nodes and runs took too long");
                None
            }
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a text does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// Get what the server measures, as OpenMetrics text for Prometheus.
#[utoipa::path(get, path = "/metrics", operation_id = "metrics", security(("operator" = [])), responses(
    (status = 200, body = String, content_type = "application/openmetrics-text"), (status = 401, body = ErrorBody)))]
pub async fn for_operators(Operator(caller): Operator) -> Result<Response, ApiError> {
    Ok(for_anybody(State(caller.app)).await)
}

/// The same on a port of its own, where whoever reaches it may read.
pub async fn for_anybody(State(app): State<Arc<App>>) -> Response {
    let metrics = &app.metrics;
    let (problems, counts) = tokio::join!(Health::problems(&app.health, &app.store), metrics.count(&app.store));
    let found = Found {
        problems,
        counts,
        waiting_writers: app.store.meters().waiting.get(),
        waiting_strangers: metrics.http.strangers_waiting.get(),
        waiting_bodies: metrics.http.bodies_waiting.get(),
        polls: app.contacts.open_polls(),
        certificates: app.keys().expiries(),
    };
    *metrics.found.lock().unwrap_or_else(PoisonError::into_inner) = found;
    ([(CONTENT_TYPE, MEDIA_TYPE), (CACHE_CONTROL, "no-store")], metrics.text()).into_response()
}

/// Writes what was looked up.
#[derive(Debug)]
struct Lookup(Arc<Mutex<Found>>);

impl Collector for Lookup {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let encoder = &mut encoder;
        let is_ready = i64::from(is_ready(&found.problems));
        gauges(encoder, "ready", "Whether the server can do its work", None, [(NONE, is_ready)])?;
        let problems = Need::ALL.map(|need| {
            let is_lacking = found.problems.iter().any(|problem| problem.what == need);
            ([("what", to_word(&need))], i64::from(is_lacking))
        });
        gauges(encoder, "problem", "Whether this is the matter", None, problems)?;
        let queues = [
            ("writers", found.waiting_writers),
            ("strangers", found.waiting_strangers),
            ("bodies", found.waiting_bodies),
        ];
        let queues = queues.map(|(queue, depth)| ([("queue", queue)], depth));
        gauges(encoder, "queue_depth", "Requests that wait for their turn", None, queues)?;
        let polls = i64::try_from(found.polls).unwrap_or(i64::MAX);
        gauges(encoder, "open_polls", "Machines that wait for work", None, [(NONE, polls)])?;
        let certificates = found.certificates.iter().map(|(name, at)| ([("certificate", *name)], *at));
        let help = "When a certificate expires, as Unix time";
        gauges(encoder, "certificate_expiry_timestamp", help, Some(Unit::Seconds), certificates)?;
        let Some(counts) = &found.counts else { return Ok(()) };
        let nodes = counts.nodes.iter().map(|(state, count)| ([("state", to_word(state))], *count));
        gauges(encoder, "nodes", "Nodes by state, and machines that wait, as `status` shows them", None, nodes)?;
        let help = "Nodes that have not been heard from during a step";
        gauges(encoder, "nodes_silent", help, None, [(NONE, counts.silent)])?;
        let runs = counts.runs.iter().map(|(state, count)| ([("state", to_word(state))], *count));
        gauges(encoder, "runs", "Runs in the database by state", None, runs)?;
        let sizes = &counts.sizes;
        for (name, help, value) in [
            ("database", "Size of the database", sizes.database),
            ("database_wal", "Size of SQLite's write-ahead log", sizes.log),
            ("data_folder_size", "Size of the file system of the data folder", sizes.total),
            ("data_folder_available", "Room that is left on it for the server", sizes.available),
        ] {
            if let Some(value) = value {
                gauges(encoder, name, help, Some(Unit::Bytes), [(NONE, value)])?;
            }
        }
        Ok(())
    }
}

const NONE: [(&str, &str); 0] = [];

fn gauges<L: EncodeLabelSet, V: EncodeGaugeValue>(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    values: impl IntoIterator<Item = (L, V)>,
) -> Result<(), fmt::Error> {
    let mut metric = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
    for (labels, value) in values {
        metric.encode_family(&labels)?.encode_gauge(&value)?;
    }
    Ok(())
}
