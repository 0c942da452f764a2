//! Images that nodes capture from their disks.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use slipway_protocol::workflow::capture::UPLOAD_OFFSET;
use slipway_protocol::{CapturedImage, ErrorBody, ErrorCode};

use crate::api::App;
use crate::api::answer::{ApiError, UrlPath, UrlQuery, number};
use crate::api::auth::NodeCaller;
use crate::api::known_body::{JsonReport, Raw, SMALL};
use crate::base::error::Error;
use crate::keys::jwt::Subject;
use crate::node::capture::{Appended, Capture};
use crate::store::images::Image;
use utoipa::IntoParams;

/// Begin the upload of an image by a `capture-disk` step. An upload that was begun before starts again from empty. No
/// image may have the name already.
#[utoipa::path(post, path = "/v1/node/runs/{run}/captures/{name}", security(("node" = [])),
    params(("run" = String, Path), ("name" = String, Path)), responses(
    (status = 204), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 403, body = ErrorBody, description = "No step of the run captures a disk under this name."),
    (status = 409, body = ErrorBody, description = "The run is over, or an image has this name.")))]
pub async fn begin(
    State(app): State<Arc<App>>,
    NodeCaller(Subject { node, .. }): NodeCaller,
    UrlPath((run, name)): UrlPath<(String, String)>,
) -> Result<StatusCode, ApiError> {
    app.captures.begin(&Capture { node, run, name }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Where a piece belongs in an image.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct PiecePlace {
    /// Offset of the piece in the image, in bytes. It must equal the number of bytes stored.
    #[serde(deserialize_with = "number")]
    offset: u64,
}

/// Upload a piece of an image. The header `Upload-Offset` of the answer has the number of bytes stored now. A piece
/// with a wrong offset is refused with 409 and the same header.
#[utoipa::path(put, path = "/v1/node/runs/{run}/captures/{name}", security(("node" = [])),
    params(("run" = String, Path), ("name" = String, Path), PiecePlace),
    request_body(content = String, content_type = "application/octet-stream"), responses(
    (status = 204, headers(("Upload-Offset" = u64))), (status = 401, body = ErrorBody),
    (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody, description = "The run is over, nothing was begun, or the offset is wrong."),
    (status = 413, body = ErrorBody, description = "The image is larger than the server accepts or has room for."),
    (status = 503, body = ErrorBody)))]
pub async fn put(
    State(app): State<Arc<App>>,
    NodeCaller(Subject { node, .. }): NodeCaller,
    UrlPath((run, name)): UrlPath<(String, String)>,
    UrlQuery(place): UrlQuery<PiecePlace>,
    Raw(piece): Raw,
) -> Result<Response, ApiError> {
    let header = |stored: u64| [(HeaderName::from_static(UPLOAD_OFFSET), stored.to_string())];
    Ok(match app.captures.append(&Capture { node, run, name }, place.offset, piece).await? {
        Appended::Stored(stored) => (StatusCode::NO_CONTENT, header(stored)).into_response(),
        Appended::Misplaced(stored) => {
            let message = format!("{stored} bytes are stored, but the piece starts at byte {}", place.offset);
            (header(stored), ApiError::from(Error::refused(ErrorCode::Conflict, message))).into_response()
        }
    })
}

/// Complete an upload: the server verifies size and digest, and adds the image. May be repeated.
#[utoipa::path(post, path = "/v1/node/runs/{run}/captures", security(("node" = [])), params(("run" = String, Path)),
    request_body = CapturedImage, responses(
    (status = 200, body = Image), (status = 202, description = "The image is being verified. Repeat the request."),
    (status = 400, body = ErrorBody, description = "The uploaded data has another size or digest."),
    (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn commit(
    State(app): State<Arc<App>>,
    NodeCaller(Subject { node, .. }): NodeCaller,
    UrlPath(run): UrlPath<String>,
    JsonReport(image): JsonReport<CapturedImage, SMALL>,
) -> Result<Response, ApiError> {
    let capture = Capture { node, run, name: image.name.clone() };
    Ok(match app.captures.commit(capture, image).await? {
        Some(image) => Json(image).into_response(),
        None => StatusCode::ACCEPTED.into_response(),
    })
}
