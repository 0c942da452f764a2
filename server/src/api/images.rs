//! Images by digest. Knowing the digest is enough to get the image, so that any cache can be put in front.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use slipway_protocol::{Digest, ErrorBody, ErrorCode};

use crate::api::App;
use crate::api::answer::{ApiError, UrlPath};
use crate::api::files::{self, Served};
use crate::error::Error;

/// Get an image, or a range of it. An image never changes, because its name is its digest.
#[utoipa::path(get, path = "/images/{digest}", params(("digest" = Digest, Path)), responses(
    (status = 200, content_type = "application/octet-stream"),
    (status = 206, content_type = "application/octet-stream"),
    (status = 400, body = ErrorBody), (status = 404, body = ErrorBody), (status = 416, body = ErrorBody)))]
pub async fn get(
    State(app): State<Arc<App>>,
    UrlPath(digest): UrlPath<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let invalid = "the digest in the path is not valid: write sha256:, sha384: or sha512: and all digits of it";
    let digest: Digest = digest.parse().map_err(|_| Error::refused(ErrorCode::InvalidRequest, invalid))?;
    let path = app.data.image(&digest);
    let Some((file, metadata)) = files::open(&path).await? else {
        return Err(Error::refused(ErrorCode::NotFound, "there is no image with this digest").into());
    };
    let served = Served {
        file,
        size: metadata.len(),
        etag: format!("\"{digest}\""),
        cache: "public, max-age=31536000, immutable",
        content_type: "application/octet-stream",
    };
    files::respond(served, &headers).await
}
