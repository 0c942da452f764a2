//! Requests and reports of enrolled nodes.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::CONTENT_ENCODING;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use slipway_protocol::{
    ErrorBody, ErrorCode, EventAck, EventBatch, Inventory, MAX_REQUEST_BYTES, POLL_SECONDS, Workflow,
};
use tokio::time::Instant;

use crate::api::App;
use crate::api::answer::{ApiError, UrlQuery, number};
use crate::api::auth::{Credentials, NodeCaller};
use crate::api::body::too_large;
use crate::api::known_body::{JsonReport, Raw};
use crate::api::operator::runs::signed;
use crate::base::error::Error;
use crate::base::random;
use crate::base::time::now;
use crate::keys::jwt::Subject;
use crate::node::reports::run_events::{self, Work};
use crate::operate;
use crate::store;
use crate::store::logs::Chunk;
use crate::store::{logs, nodes};
use utoipa::IntoParams;

/// Maximum length of a boot id or run id. The kernel's boot ids have 36 characters, and our run ids have fewer.
const MAX_ID_BYTES: usize = 64;

/// Maximum size of an inventory in bytes, as in a request to enrol.
const MAX_INVENTORY_BYTES: usize = 256 << 10;

/// How long a poll may be held.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Poll {
    /// Seconds to wait for a workflow. Default and maximum: 30.
    #[serde(default = "poll_seconds", deserialize_with = "number")]
    wait: u64,
}

fn poll_seconds() -> u64 {
    POLL_SECONDS
}

/// Get the workflow of the node's run. The server holds the request until there is one or most of `wait` has passed.
#[utoipa::path(get, path = "/v1/node/workflow", params(Poll), security(("node" = [])), responses(
    (status = 200, body = Workflow), (status = 204, description = "There is no workflow. Ask again."),
    (status = 401, body = ErrorBody), (status = 410, body = ErrorBody)))]
pub async fn workflow(
    State(app): State<Arc<App>>,
    Credentials { subject, from }: Credentials,
    UrlQuery(poll): UrlQuery<Poll>,
) -> Result<Response, ApiError> {
    let wait = Duration::from_secs(poll.wait.min(POLL_SECONDS));
    // Up to a tenth is left out at random. Otherwise, machines that were started together would always ask together.
    let [random] = random::bytes();
    let deadline = Instant::now() + wait - wait / 10 * u32::from(random) / u32::from(u8::MAX);
    let mut stopping = app.stopping.clone();
    // Before the first look, so that no change is missed.
    let mut watched = app.watcher.watch(&subject.node);
    let mut presence = None;
    loop {
        // It checks the credentials too, because a query of their own would double the cost of a poll. Boxed, so that a
        // poll has no memory for this while it waits.
        let work = run_events::hand_out_workflow(&app.store, &app.metrics.runs, &subject, now());
        let work = Box::pin(work).await;
        if let Err(error @ Error::Refused { .. }) = &work {
            app.note_refused_credentials(&subject.node, from, error).await;
        }
        let work = work?;
        presence.get_or_insert_with(|| {
            app.contacts.heard(&subject.node, from, now());
            app.contacts.polls(&subject.node)
        });
        match work {
            Work::None => {}
            Work::Workflow(workflow) => return Ok(Json(workflow).into_response()),
            Work::Anew(run) => {
                if Box::pin(install_anew(&app, &subject.node, &run)).await? {
                    continue;
                }
            }
        }
        tokio::select! {
            () = watched.changed() => {}
            () = tokio::time::sleep_until(deadline) => return Ok(StatusCode::NO_CONTENT.into_response()),
            _ = stopping.wait_for(|stopping| *stopping) => return Ok(StatusCode::NO_CONTENT.into_response()),
        }
    }
}

/// Starts a run that installs an ephemeral node anew. Returns false if that is refused, which is recorded.
async fn install_anew(app: &App, node: &str, run: &str) -> Result<bool, Error> {
    let start = async || {
        let new = signed(app, operate::request_of(&app.store, run).await?).await?;
        operate::install_anew(&app.store, app.keys().authority.pem(), node, run, new).await
    };
    match start().await {
        Ok(_) => Ok(true),
        Err(error @ Error::Refused { .. }) => Ok(!operate::refuse_anew(&app.store, node, run, &error).await?),
        Err(fault) => Err(fault),
    }
}

/// Report events of the steps of a run. May be repeated: events already stored are skipped.
#[utoipa::path(post, path = "/v1/node/events", request_body = EventBatch, security(("node" = [])), responses(
    (status = 200, body = EventAck), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
    (status = 404, body = ErrorBody, description = "The node has no such run.")))]
pub async fn events(
    State(app): State<Arc<App>>,
    NodeCaller(Subject { node, .. }): NodeCaller,
    JsonReport(batch): JsonReport<EventBatch>,
) -> Result<Json<EventAck>, ApiError> {
    let (meters, budget) = (&app.metrics.runs, app.limits.run_bytes);
    Ok(Json(run_events::store_events(&app.store, meters, &node, &batch, budget, now()).await?))
}

/// Where a chunk belongs in a log.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct LogPlace {
    /// Id of the boot, from `/proc/sys/kernel/random/boot_id`.
    #[param(max_length = 64)]
    boot_id: String,
    /// Offset of the chunk in the log of this boot, in bytes.
    #[serde(deserialize_with = "number")]
    offset: u64,
    /// Id of the run the node was working on.
    #[param(max_length = 64)]
    run: Option<String>,
}

/// Upload a chunk of the log. May be repeated: a chunk already stored is skipped.
#[utoipa::path(post, path = "/v1/node/logs", params(LogPlace), security(("node" = [])),
    request_body(content = Option<String>, content_type = "text/plain", description = "Plain, or with \
                                                                                       Content-Encoding: gzip."),
    responses((status = 204), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 413, body = ErrorBody)))]
pub async fn logs(
    State(app): State<Arc<App>>,
    NodeCaller(Subject { node, .. }): NodeCaller,
    UrlQuery(place): UrlQuery<LogPlace>,
    headers: HeaderMap,
    Raw(body): Raw,
) -> Result<StatusCode, ApiError> {
    if place.boot_id.len() > MAX_ID_BYTES || place.run.as_ref().is_some_and(|run| run.len() > MAX_ID_BYTES) {
        let message = format!("boot_id and run may have at most {MAX_ID_BYTES} bytes each");
        return Err(Error::refused(ErrorCode::InvalidRequest, message).into());
    }
    let data = decode(&headers, body)?;
    if data.is_empty() {
        return Ok(StatusCode::NO_CONTENT);
    }
    let chunk = Chunk { first_byte: place.offset, data };
    let mut transaction = app.store.write().await?;
    logs::insert(&mut transaction, &node, &place.boot_id, place.run.as_deref(), &chunk, now()).await?;
    store::commit(transaction).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the body, decompressed if it was compressed.
pub fn decode(headers: &HeaderMap, body: Bytes) -> Result<Vec<u8>, Error> {
    let invalid = |message: String| Error::refused(ErrorCode::InvalidRequest, message);
    match headers.get(CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?")) {
        None | Some("identity") => Ok(body.into()),
        Some("gzip") => {
            let bad = |error: std::io::Error| invalid(format!("the body is not valid gzip: {error}"));
            let mut data = Vec::new();
            let decoder = flate2::read::GzDecoder::new(body.as_ref());
            decoder.take(MAX_REQUEST_BYTES as u64 + 1).read_to_end(&mut data).map_err(bad)?;
            if data.len() > MAX_REQUEST_BYTES { Err(too_large(MAX_REQUEST_BYTES)) } else { Ok(data) }
        }
        Some(_) => Err(invalid("the content encoding is not supported; use gzip or none".to_owned())),
    }
}

/// Report the hardware of the machine. A machine does so when it enrolled before all its disks were there.
#[utoipa::path(put, path = "/v1/node/inventory", request_body = Inventory, security(("node" = [])), responses(
    (status = 204), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
    (status = 410, body = ErrorBody), (status = 413, body = ErrorBody)))]
pub async fn inventory(
    State(app): State<Arc<App>>,
    NodeCaller(subject): NodeCaller,
    JsonReport(inventory): JsonReport<Inventory, MAX_INVENTORY_BYTES>,
) -> Result<StatusCode, ApiError> {
    let mut transaction = app.store.write().await?;
    // Another machine may be the node's by now.
    run_events::admit(&mut transaction, &subject).await?;
    if let Some(mut node) = nodes::get_by_id(&mut transaction, &subject.node).await? {
        node.inventory = Some(inventory);
        nodes::save(&mut transaction, &node).await?;
        store::commit(transaction).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Report that the node is alive. Every other request of a node does so too, and a poll as long as it is open.
#[utoipa::path(post, path = "/v1/node/heartbeat", security(("node" = [])), responses(
    (status = 204), (status = 401, body = ErrorBody), (status = 410, body = ErrorBody)))]
pub async fn heartbeat(_: NodeCaller) -> StatusCode {
    StatusCode::NO_CONTENT
}

/// Get the server's time in the `Date` header. For machines whose clock is wrong.
#[utoipa::path(get, path = "/v1/time", responses((status = 204)))]
pub async fn time() -> StatusCode {
    StatusCode::NO_CONTENT
}
