//! Boot files for operators.

use axum::Json;
use axum::http::StatusCode;
use slipway_media::Manifest;
use slipway_protocol::{ErrorBody, MOST_CONFIG_BYTES};

use crate::api::answer::ApiError;
use crate::api::auth::Operator;
use crate::api::known_body::JsonBody;
use crate::boot_files::make::NewMedia;

/// Make boot files from the server's prebuilt parts, and put them into its folder of boot files. One build at a time.
#[utoipa::path(post, path = "/v1/operator/media", request_body = NewMedia, security(("operator" = [])), responses(
    (status = 201, body = Manifest), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
    (status = 404, body = ErrorBody, description = "There are no parts for this kernel or architecture."),
    (status = 409, body = ErrorBody, description = "The server has no folder of boot files, another file is in the \
                                                    way, or another build is in progress."),
    (status = 413, body = ErrorBody)))]
pub async fn make(
    Operator(app): Operator,
    JsonBody(new): JsonBody<NewMedia, MOST_CONFIG_BYTES>,
) -> Result<(StatusCode, Json<Manifest>), ApiError> {
    Ok((StatusCode::CREATED, Json(app.boot_files.make(&app.store, &app.data, new).await?)))
}

/// Get the manifest of the newest boot files.
#[utoipa::path(get, path = "/v1/operator/media", security(("operator" = [])), responses(
    (status = 200, body = Manifest), (status = 401, body = ErrorBody),
    (status = 404, body = ErrorBody, description = "No boot files were made yet."),
    (status = 409, body = ErrorBody, description = "The server has no folder of boot files.")))]
pub async fn newest(Operator(app): Operator) -> Result<Json<Manifest>, ApiError> {
    Ok(Json(app.boot_files.newest().await?))
}
