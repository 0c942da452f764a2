//! Requests of the agents of installed systems.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use slipway_protocol::shared::given::Rule;
use slipway_protocol::{AgentBoot, AgentCredentials, ErrorBody, ErrorCode, Heartbeat, HeartbeatAnswer};
use tokio::time::Instant;
use utoipa::IntoParams;

use crate::api::App;
use crate::api::answer::{ApiError, UrlQuery, number};
use crate::api::auth::{AgentCaller, Peer, RunToken};
use crate::api::body::Unread;
use crate::api::boot_report::{LogPlace, boot_log};
use crate::api::known_body::{SMALL, from_json};
use crate::base::error::Error;
use crate::base::random;
use crate::base::time::now;
use crate::boot_files::follow;
use crate::node::reports::agent::{self, Telling};
use crate::node::reports::run_token;
use crate::rules::ipxe;
use crate::store::run_tokens::Purpose;

/// Heartbeats per second that a server is to get at most, and the least and greatest seconds between two heartbeats of
/// an agent. Fewer than half of the greatest fit into the time after which an agent counts as gone.
const BEATS_PER_SECOND: usize = 100;
const LEAST_SECONDS: usize = 30;
const MOST_SECONDS: usize = 60;

/// Exchange the token of a run for credentials of the agent that the run installed. May be repeated until the agent has
/// used its own.
#[utoipa::path(post, path = "/v1/agent", security(("run" = [])), responses(
    (status = 200, body = AgentCredentials), (status = 401, body = ErrorBody),
    (status = 404, body = ErrorBody, description = "The run installed no agent."),
    (status = 409, body = ErrorBody, description = "The agent has used its own credentials."),
    (status = 410, body = ErrorBody), (status = 429, body = ErrorBody)))]
pub async fn register(
    State(app): State<Arc<App>>,
    RunToken(token): RunToken,
) -> Result<Json<AgentCredentials>, ApiError> {
    run_token::admit(&app.store, &app.token_reports, &token, Purpose::Boot).await?;
    let _turn = app.turn().await?;
    Ok(Json(agent::register(&app.store, &token, now()).await?))
}

/// How long a heartbeat may be held.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Hold {
    /// Seconds to wait for a task. Default: 0. At most 60.
    #[serde(default, deserialize_with = "number")]
    wait: u64,
}

/// Report that the system runs, and how far the agent's task is. The server holds the request until there is a task or
/// most of `wait` has passed. 404 and 410 mean that the agent is to remove itself.
#[utoipa::path(post, path = "/v1/agent/heartbeat", params(Hold), request_body = Heartbeat,
    security(("agent" = [])), responses(
    (status = 200, body = HeartbeatAnswer), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 410, body = ErrorBody), (status = 429, body = ErrorBody)))]
pub async fn heartbeat(
    State(app): State<Arc<App>>,
    peer: Peer,
    AgentCaller { token, node }: AgentCaller,
    UrlQuery(hold): UrlQuery<Hold>,
    unread: Unread,
) -> Result<Json<HeartbeatAnswer>, ApiError> {
    let body = app.stranger_bodies.read(unread, SMALL).await?;
    let beat: Heartbeat = from_json(&body, Rule::Report)?;
    let wait = Duration::from_secs(hold.wait.min(MOST_SECONDS as u64));
    // Up to a tenth is left out at random, so that machines that were started together do not ask together for ever.
    let [random] = random::bytes();
    let deadline = Instant::now() + wait - wait / 10 * u32::from(random) / u32::from(u8::MAX);
    let mut stopping = app.stopping.clone();
    // Before the first look, so that no change is missed.
    let mut watched = app.watcher.watch(&node);
    let every = (app.contacts.open_polls() / BEATS_PER_SECOND).clamp(LEAST_SECONDS, MOST_SECONDS);
    let keys = app.keys();
    let telling = Telling { every_seconds: every as u32, ca: keys.authority.pem() };
    let answer = Box::pin(agent::heartbeat(&app.store, &token, &beat, telling, now())).await?;
    app.contacts.heard(&node, Some(peer.address.ip()), now());
    if answer.task.is_some() || answer.token.is_some() || answer.ca.is_some() || beat.task.is_some() {
        return Ok(Json(answer));
    }
    let _presence = app.contacts.polls(&node);
    // What the agent said counts for the moment in which it did. From now on, only what it is to do is looked at.
    loop {
        tokio::select! {
            () = watched.changed() => {}
            () = tokio::time::sleep_until(deadline) => return Ok(Json(answer)),
            _ = stopping.wait_for(|stopping| *stopping) => return Ok(Json(answer)),
        }
        // Boxed, so that a heartbeat has no memory for this while it waits.
        if let Some(task) = Box::pin(agent::task(&app.store, &token)).await? {
            return Ok(Json(HeartbeatAnswer { task: Some(task), ..answer }));
        }
    }
}

/// Tell the server that the agent was removed on the machine.
#[utoipa::path(delete, path = "/v1/agent", security(("agent" = [])), responses((status = 204),
    (status = 401, body = ErrorBody), (status = 404, body = ErrorBody), (status = 410, body = ErrorBody),
    (status = 429, body = ErrorBody)))]
pub async fn leave(
    State(app): State<Arc<App>>,
    AgentCaller { token, .. }: AgentCaller,
) -> Result<StatusCode, ApiError> {
    agent::leave(&app.store, &token, now()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Upload the whole log of this boot so far, as the task `logs` does.
#[utoipa::path(post, path = "/v1/agent/logs", params(LogPlace), security(("agent" = [])),
    request_body(content = String, content_type = "text/plain", description = "Must have Content-Encoding: gzip."),
    responses((status = 204), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 410, body = ErrorBody), (status = 413, body = ErrorBody),
        (status = 429, body = ErrorBody)))]
pub async fn logs(
    State(app): State<Arc<App>>,
    AgentCaller { token, .. }: AgentCaller,
    UrlQuery(place): UrlQuery<LogPlace>,
    headers: HeaderMap,
    unread: Unread,
) -> Result<StatusCode, ApiError> {
    let body = boot_log(&app, &headers, unread).await?;
    agent::store_log(&app.store, &token, &place.boot_id, &body, now()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The machine that is to start slipway.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Machine {
    /// Name of the architecture in uname(2).
    #[param(pattern = "^(x86_64|aarch64)$")]
    arch: String,
}

/// Get what a machine starts to be in slipway: kernel, initramfs and command line.
#[utoipa::path(get, path = "/v1/agent/boot", params(Machine), security(("agent" = [])), responses(
    (status = 200, body = AgentBoot), (status = 401, body = ErrorBody),
    (status = 404, body = ErrorBody, description = "The server has no boot files for this architecture."),
    (status = 410, body = ErrorBody), (status = 429, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn boot(
    State(app): State<Arc<App>>,
    _: AgentCaller,
    UrlQuery(machine): UrlQuery<Machine>,
) -> Result<Json<AgentBoot>, ApiError> {
    let none = || Error::refused(ErrorCode::NotFound, "the server has no boot files for this architecture");
    let arch = ipxe::arch(&machine.arch).filter(|arch| *arch == machine.arch).ok_or_else(none)?;
    let folder = app.boot.as_deref().ok_or_else(none)?;
    let place = follow::place_for(&app.store, folder, arch).await?;
    Ok(Json(ipxe::by_kexec(&place, &machine.arch).ok_or_else(none)?))
}
