//! The metadata service of installed systems. User-data holds secrets, so a system is known by its run's token and by nothing
//! else: addresses are shared, handed on and forged.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use slipway_protocol::{ErrorBody, ErrorCode};

use crate::api::App;
use crate::api::answer::{ApiError, UrlPath};
use crate::error::Error;
use crate::metadata::{self, VERSIONS};

/// The header in which EC2's clients show their token (Amazon EC2 User Guide, "IMDSv2").
const TOKEN_HEADER: &str = "x-aws-ec2-metadata-token";

/// Get metadata by a URL that has the token in it: one for cloud-init's data sources NoCloud (`seedfrom`, with the version
/// and a slash) and Ec2 (`metadata_urls`, without). `meta-data/` lists the keys, `meta-data` has them all in YAML.
#[utoipa::path(get, path = "/v1/metadata/{token}/{version}/{path}", params(
    ("token" = String, Path, description = "As `node metadata-url` prints it."),
    ("version" = String, Path, description = "`latest` or `2009-04-04`."),
    ("path" = String, Path, description = "`user-data`, `vendor-data`, `network-config`, `meta-data/` or `meta-data/KEY`.")),
    responses((status = 200, body = String, content_type = "text/plain"),
        (status = 404, body = ErrorBody, description = "There is nothing, or the token is not of a node's newest run."),
        (status = 429, body = ErrorBody)))]
pub async fn by_token(
    State(app): State<Arc<App>>,
    UrlPath((token, version, path)): UrlPath<(String, String, String)>,
) -> Result<Response, ApiError> {
    if !VERSIONS.contains(&version.as_str()) {
        return Err(nothing().into());
    }
    Ok(get(&app, &token, &path).await?)
}

/// Get metadata where EC2's clients look for it, also below `/2009-04-04`. There is no `PUT /latest/api/token`: the token is
/// given to those who are to have it, not to those who ask.
#[utoipa::path(get, path = "/latest/{path}", params(
    ("path" = String, Path, description = "`user-data`, `vendor-data`, `network-config`, `meta-data/` or `meta-data/KEY`."),
    ("x-aws-ec2-metadata-token" = String, Header, description = "The token in the URL that `node metadata-url` prints.")),
    responses((status = 200, body = String, content_type = "text/plain"), (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody, description = "There is nothing, or the token is not of a node's newest run."),
        (status = 429, body = ErrorBody)))]
pub async fn by_header(
    State(app): State<Arc<App>>,
    UrlPath(path): UrlPath<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Some(token) = headers.get(TOKEN_HEADER).and_then(|value| value.to_str().ok()) else {
        let message =
            "this needs the token of the URL that `node metadata-url` prints, in the header X-aws-ec2-metadata-token";
        return Err(Error::refused(ErrorCode::Unauthenticated, message).into());
    };
    Ok(get(&app, token, &path).await?)
}

async fn get(app: &App, token: &str, path: &str) -> Result<Response, Error> {
    let run = app.signer.metadata_run(token).ok_or_else(nothing)?;
    let metadata = metadata::of_run(&mut *app.store.read().await?, run, &app.site).await?.ok_or_else(nothing)?;
    app.metadata.take(&metadata.node)?;
    let content = metadata.get(path).ok_or_else(nothing)?;
    Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8"), (CACHE_CONTROL, "no-store")], content).into_response())
}

fn nothing() -> Error {
    Error::refused(ErrorCode::NotFound, "there is no such metadata, or none for this token any more")
}
