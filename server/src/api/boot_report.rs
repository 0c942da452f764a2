//! Reports from the boot reporters of installed systems.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::CONTENT_ENCODING;
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use slipway_protocol::shared::given::Rule;
use slipway_protocol::{BootKnown, BootReport, ErrorBody, ErrorCode, MAX_REQUEST_BYTES};

use crate::api::App;
use crate::api::answer::{ApiError, UrlQuery};
use crate::api::auth::{Peer, RunToken};
use crate::api::body::Unread;
use crate::api::known_body::{SMALL, from_json};
use crate::api::node::decode;
use crate::base::error::Error;
use crate::base::time::now;
use crate::node::reports::refused::Sender;
use crate::node::reports::{boot, run_token};
use crate::store::run_tokens::Purpose;
use utoipa::IntoParams;

/// Get the node's state and the newest boot report of the system. 404 and 410 mean that the server wants no more
/// reports.
#[utoipa::path(get, path = "/v1/boot-report", security(("run" = [])), responses(
    (status = 200, body = BootKnown), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 410, body = ErrorBody), (status = 429, body = ErrorBody)))]
pub async fn known(State(app): State<Arc<App>>, RunToken(token): RunToken) -> Result<Json<BootKnown>, ApiError> {
    run_token::admit(&app.store, &app.token_reports, &token, Purpose::Boot).await?;
    let _turn = app.turn().await?;
    Ok(Json(boot::known(&app.store, &token, now()).await?))
}

/// Report how far the system has booted. May be repeated.
#[utoipa::path(post, path = "/v1/boot-report", request_body = BootReport, security(("run" = [])), responses(
    (status = 200, body = BootKnown), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 410, body = ErrorBody), (status = 429, body = ErrorBody)))]
pub async fn report(
    State(app): State<Arc<App>>,
    peer: Peer,
    RunToken(token): RunToken,
    unread: Unread,
) -> Result<Json<BootKnown>, ApiError> {
    let done = accept(&app, &token, unread).await;
    if let Err(error) = &done {
        app.note_refused(("boot report", Sender::Run(&token, Purpose::Boot)), &peer, error).await;
    }
    Ok(Json(done?))
}

async fn accept(app: &App, token: &str, unread: Unread) -> Result<BootKnown, Error> {
    run_token::admit(&app.store, &app.token_reports, token, Purpose::Boot).await?;
    let body = app.stranger_bodies.read(unread, SMALL).await?;
    let report: BootReport = from_json(&body, Rule::Report)?;
    let _turn = app.turn().await?;
    boot::store(&app.store, token, report, now()).await
}

/// The boot that a log is about.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct LogPlace {
    /// Id of the boot, from `/proc/sys/kernel/random/boot_id`.
    #[param(pattern = "^[0-9A-Za-z-]{1,64}$")]
    pub boot_id: String,
}

/// Reads the log of a boot, as it is stored.
pub async fn boot_log(app: &App, headers: &HeaderMap, unread: Unread) -> Result<Bytes, Error> {
    // The memory for known callers is used, because the token was checked.
    let body = app.bodies.read(unread, MAX_REQUEST_BYTES).await?;
    if headers.get(CONTENT_ENCODING).is_none_or(|encoding| encoding != "gzip") {
        return Err(Error::refused(ErrorCode::InvalidRequest, "the log must be compressed with gzip"));
    }
    // Decoded only as a check. The log is stored as it was received.
    decode(headers, body.clone())?;
    Ok(body)
}

/// Upload the whole log of this boot so far. The server keeps the newest logs, up to a limit.
#[utoipa::path(post, path = "/v1/boot-report/logs", params(LogPlace), security(("run" = [])),
    request_body(content = String, content_type = "text/plain", description = "Must have Content-Encoding: gzip."),
    responses((status = 204), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 410, body = ErrorBody), (status = 413, body = ErrorBody),
        (status = 429, body = ErrorBody)))]
pub async fn logs(
    State(app): State<Arc<App>>,
    RunToken(token): RunToken,
    UrlQuery(place): UrlQuery<LogPlace>,
    headers: HeaderMap,
    unread: Unread,
) -> Result<StatusCode, ApiError> {
    run_token::admit(&app.store, &app.token_reports, &token, Purpose::Boot).await?;
    let body = boot_log(&app, &headers, unread).await?;
    let _turn = app.turn().await?;
    boot::store_log(&app.store, &token, &place.boot_id, &body, now()).await?;
    Ok(StatusCode::NO_CONTENT)
}
