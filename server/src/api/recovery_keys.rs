//! Recovery keys that nodes store.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use slipway_protocol::{ErrorBody, RecoveryKey};

use crate::api::App;
use crate::api::answer::{ApiError, UrlPath};
use crate::api::auth::NodeCaller;
use crate::api::known_body::{JsonReport, SMALL};
use crate::keys::jwt::Subject;
use crate::node::recovery_keys;

/// Store the recovery key of a disk before an `encrypt-root` step encrypts it. May be repeated.
#[utoipa::path(post, path = "/v1/node/runs/{run}/recovery-keys", security(("node" = [])),
    params(("run" = String, Path)), request_body = RecoveryKey, responses(
    (status = 204, description = "The key is stored, and survives a power cut."), (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 403, body = ErrorBody, description = "No step of the run encrypts anything."),
    (status = 409, body = ErrorBody, description = "The run is over, or another key of this volume is stored."),
    (status = 413, body = ErrorBody)))]
pub async fn store(
    State(app): State<Arc<App>>,
    NodeCaller(Subject { node, .. }): NodeCaller,
    UrlPath(run): UrlPath<String>,
    JsonReport(key): JsonReport<RecoveryKey, SMALL>,
) -> Result<StatusCode, ApiError> {
    recovery_keys::store_key(&app.store, &node, &run, &key).await?;
    Ok(StatusCode::NO_CONTENT)
}
