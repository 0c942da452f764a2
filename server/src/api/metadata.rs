//! The metadata service for installed systems. User-data contains secrets, so a system is identified only by its run's
//! token: addresses are shared, reassigned and forged.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use slipway_protocol::{ErrorBody, ErrorCode};

use crate::api::App;
use crate::api::answer::{ApiError, UrlPath};
use crate::base::error::Error;
use crate::run::metadata::{self, VERSIONS};

/// Header with the token of EC2 clients (Amazon EC2 User Guide, "IMDSv2").
const TOKEN_HEADER: &str = "x-aws-ec2-metadata-token";

/// Get metadata by a URL that contains the token.
///
/// The URL is for cloud-init's data sources NoCloud (`seedfrom`: append the version and a slash) and Ec2
/// (`metadata_urls`: append nothing). `meta-data/` lists the keys. `meta-data` has all keys and values in YAML.
#[utoipa::path(get, path = "/v1/metadata/{token}/{version}/{path}", params(
    ("token" = String, Path, description = "From the URL that `node metadata-url` prints."),
    ("version" = String, Path, description = "`latest` or `2009-04-04`."),
    ("path" = String, Path, description = "`user-data`, `vendor-data`, `network-config`, `meta-data/` or \
                                           `meta-data/KEY`.")),
    responses((status = 200, body = String, content_type = "text/plain"),
        (status = 404, body = ErrorBody, description = "No such metadata, or the token is not of a node's newest run."),
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

/// Get metadata at the paths that EC2's clients use, also below `/2009-04-04`.
///
/// There is no `PUT /latest/api/token`, because it would give the token to anyone who asks.
#[utoipa::path(get, path = "/latest/{path}", params(
    ("path" = String, Path, description = "`user-data`, `vendor-data`, `network-config`, `meta-data/` or \
                                           `meta-data/KEY`."),
    ("x-aws-ec2-metadata-token" = String, Header, description = "The token in the URL that `node metadata-url` \
                                                                 prints.")),
    responses((status = 200, body = String, content_type = "text/plain"), (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody, description = "No such metadata, or the token is not of a node's newest run."),
        (status = 429, body = ErrorBody)))]
pub async fn by_header(
    State(app): State<Arc<App>>,
    UrlPath(path): UrlPath<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Some(token) = headers.get(TOKEN_HEADER).and_then(|value| value.to_str().ok()) else {
        let message =
            "this request needs the token in the URL of `node metadata-url`, in the header X-aws-ec2-metadata-token";
        return Err(Error::refused(ErrorCode::Unauthenticated, message).into());
    };
    Ok(get(&app, token, &path).await?)
}

async fn get(app: &App, token: &str, path: &str) -> Result<Response, Error> {
    let keys = app.keys();
    let run = keys.signer.metadata_run(token).ok_or_else(nothing)?;
    let metadata = metadata::of_run(&mut *app.store.read().await?, run, &app.site).await?.ok_or_else(nothing)?;
    app.metadata.take(&metadata.node)?;
    let content = metadata.get(path).ok_or_else(nothing)?;
    Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8"), (CACHE_CONTROL, "no-store")], content).into_response())
}

fn nothing() -> Error {
    Error::refused(ErrorCode::NotFound, "there is no such metadata, or the token is no longer valid")
}
