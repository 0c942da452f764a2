//! Disks that nodes store as images.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use slipway_protocol::capture::UPLOAD_OFFSET;
use slipway_protocol::{CapturedImage, ErrorBody, ErrorCode};

use crate::api::App;
use crate::api::answer::{ApiError, JsonBody, Raw, UrlPath, UrlQuery};
use crate::api::auth::NodeCaller;
use crate::capture::{Appended, Capture};
use crate::error::Error;
use crate::store::images::Image;
use utoipa::IntoParams;

/// Begin the image of a `capture-disk` step, anew if it was begun before. There must be no image of that name.
#[utoipa::path(post, path = "/v1/node/runs/{run}/captures/{name}", security(("node" = [])),
    params(("run" = String, Path), ("name" = String, Path)), responses(
    (status = 204), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 403, body = ErrorBody, description = "No step of the run captures a disk under this name."),
    (status = 409, body = ErrorBody, description = "The run is over, or there is an image of this name.")))]
pub async fn begin(
    State(app): State<Arc<App>>,
    NodeCaller(node): NodeCaller,
    UrlPath((run, name)): UrlPath<(String, String)>,
) -> Result<StatusCode, ApiError> {
    app.captures.begin(&Capture { node, run, name }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Where a piece of an image belongs.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct PiecePlace {
    /// Bytes of the image before this piece: as many as are stored.
    offset: u64,
}

/// Store a piece of an image. The header `Upload-Offset` says how many bytes of the image are stored now; a piece whose
/// offset was another is refused with it.
#[utoipa::path(put, path = "/v1/node/runs/{run}/captures/{name}", security(("node" = [])),
    params(("run" = String, Path), ("name" = String, Path), PiecePlace),
    request_body(content = String, content_type = "application/octet-stream"), responses(
    (status = 204, headers(("Upload-Offset" = u64))), (status = 401, body = ErrorBody),
    (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody, description = "The run is over, nothing was begun, or the piece belongs elsewhere."),
    (status = 413, body = ErrorBody, description = "The image is larger than the server takes or has room for."),
    (status = 503, body = ErrorBody)))]
pub async fn put(
    State(app): State<Arc<App>>,
    NodeCaller(node): NodeCaller,
    UrlPath((run, name)): UrlPath<(String, String)>,
    UrlQuery(place): UrlQuery<PiecePlace>,
    Raw(piece): Raw,
) -> Result<Response, ApiError> {
    let header = |stored: u64| [(HeaderName::from_static(UPLOAD_OFFSET), stored.to_string())];
    Ok(match app.captures.append(&Capture { node, run, name }, place.offset, piece).await? {
        Appended::Stored(stored) => (StatusCode::NO_CONTENT, header(stored)).into_response(),
        Appended::Misplaced(stored) => {
            let message = format!("{stored} bytes are stored, and the piece belongs behind {}", place.offset);
            (header(stored), ApiError::from(Error::refused(ErrorCode::Conflict, message))).into_response()
        }
    })
}

/// Make an image of what is stored, once its size and its digest are found to be right. May be repeated.
#[utoipa::path(post, path = "/v1/node/runs/{run}/captures", security(("node" = [])), params(("run" = String, Path)),
    request_body = CapturedImage, responses(
    (status = 200, body = Image), (status = 202, description = "It is being verified; ask again."),
    (status = 400, body = ErrorBody, description = "What is stored has another size or digest."),
    (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn commit(
    State(app): State<Arc<App>>,
    NodeCaller(node): NodeCaller,
    UrlPath(run): UrlPath<String>,
    JsonBody(image): JsonBody<CapturedImage>,
) -> Result<Response, ApiError> {
    let capture = Capture { node, run, name: image.name.clone() };
    Ok(match app.captures.commit(capture, image).await? {
        Some(image) => Json(image).into_response(),
        None => StatusCode::ACCEPTED.into_response(),
    })
}
