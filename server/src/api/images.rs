//! Images by digest. An image that an operator added can be fetched by anyone who knows its digest, so that caches can
//! be put in front of the server. Images captured from disks are only for nodes and operators.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::{CACHE_CONTROL, LOCATION};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use slipway_protocol::{Digest, ErrorBody, ErrorCode, NodeState};

use crate::api::App;
use crate::api::answer::{ApiError, UrlPath, UrlQuery};
use crate::api::auth::{NodeCaller, Operator};
use crate::api::files::{self, Content, Served};
use crate::base::error::Error;
use crate::base::objects::{Objects, image_in};
use crate::base::random::image_token_hash;
use crate::rules::state;
use crate::store::run_tokens::{self, Purpose};
use crate::store::{Connection, images, nodes, runs};
use utoipa::IntoParams;

/// How a machine proves that it may have an image, and where it can get it.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Access {
    /// Token of a run for an image that was captured. It is in the URL that the run gives the machine.
    token: Option<String>,
    /// `yes` if the answer may be a redirect to the object store. It is in the URL that the run gives the machine.
    redirect: Option<String>,
}

/// Get an image, or a range of it. An image never changes, because its name is its digest.
///
/// An image captured from a disk is only for nodes, for operators, and for a machine that got the
/// image's URL from its run.
#[utoipa::path(get, path = "/images/{digest}", params(("digest" = Digest, Path), Access), responses(
    (status = 200, content_type = "application/octet-stream"),
    (status = 206, content_type = "application/octet-stream"),
    (status = 307, description = "`Location` has the image for an hour. Only for requests with `redirect=yes`."),
    (status = 400, body = ErrorBody), (status = 401, body = ErrorBody, description = "The image was captured."),
    (status = 404, body = ErrorBody), (status = 416, body = ErrorBody)))]
pub async fn get(
    State(app): State<Arc<App>>,
    UrlPath(digest): UrlPath<String>,
    UrlQuery(access): UrlQuery<Access>,
    request: Request,
) -> Result<Response, ApiError> {
    let invalid = "the digest in the path is not valid: write sha256:, sha384: or sha512: and all digits of it";
    let digest: Digest = digest.parse().map_err(|_| Error::refused(ErrorCode::InvalidRequest, invalid))?;
    let (mut parts, _) = request.into_parts();
    let image = images::get_by_digest(&mut *app.store.read().await?, &digest).await?;
    // An image that is still being captured or added has no record yet, and is treated as captured.
    let captured = image.as_ref().is_none_or(|image| image.captured);
    let may_redirect = app.redirects && access.redirect.as_deref() == Some("yes") && parts.method == Method::GET;
    if may_redirect
        && image.is_some()
        && let Objects::Bucket(bucket, _) = app.data.objects()
    {
        if captured {
            check_admitted(&app, &digest, &access, &mut parts).await?;
        }
        let url = bucket.signed_url(&digest, app.limits.redirect_lifetime).await?;
        let headers = [(LOCATION, url), (CACHE_CONTROL, "no-store".to_owned())];
        return Ok((StatusCode::TEMPORARY_REDIRECT, headers).into_response());
    }
    let opened = match app.data.objects() {
        Objects::Folder(root) => {
            files::open(&image_in(root, &digest)).await?.map(|(file, found)| (Content::File(file), found.len()))
        }
        Objects::Bucket(bucket, _) => {
            bucket.stamp(&digest).await?.map(|found| (Content::Object(bucket.clone(), digest.clone()), found.size))
        }
    };
    let Some((content, size)) = opened else {
        return Err(Error::refused(ErrorCode::NotFound, "there is no image with this digest").into());
    };
    if captured {
        check_admitted(&app, &digest, &access, &mut parts).await?;
    }
    let cache = if captured { "private, max-age=31536000, immutable" } else { "public, max-age=31536000, immutable" };
    let served =
        Served { content, size, etag: format!("\"{digest}\""), cache, content_type: "application/octet-stream" };
    files::respond(served, &parts.headers).await
}

/// Refuses a captured image to all but nodes and operators.
async fn check_admitted(app: &Arc<App>, digest: &Digest, access: &Access, parts: &mut Parts) -> Result<(), Error> {
    if is_admitted(app, digest, access, parts).await? {
        return Ok(());
    }
    let message = "this image was captured from a disk, and is for nodes and operators: it needs a node's \
                   certificate or JWT, an operator's token, or the URL that a run gives its machine";
    Err(Error::refused(ErrorCode::Unauthenticated, message))
}

async fn is_admitted(app: &Arc<App>, digest: &Digest, access: &Access, parts: &mut Parts) -> Result<bool, Error> {
    if let Some(token) = &access.token {
        return is_of_open_run(&mut *app.store.read().await?, digest, token).await;
    }
    // Checked before operators, because a token that is not an operator's counts as a guess.
    Ok(NodeCaller::from_request_parts(parts, app).await.is_ok()
        || Operator::from_request_parts(parts, app).await.is_ok())
}

/// Whether a run that has not ended gave this token to its machine, for this image.
async fn is_of_open_run(connection: &mut Connection, digest: &Digest, token: &str) -> Result<bool, Error> {
    let run = run_tokens::run_of(connection, &image_token_hash(token, digest), Purpose::Image).await?;
    let Some(run) = run else { return Ok(false) };
    let Some(run) = runs::get_by_id(connection, &run).await? else { return Ok(false) };
    let node = nodes::get_by_id(connection, &run.node).await?;
    Ok(state::is_open(run.progress.state) && node.is_some_and(|node| node.state != NodeState::Decommissioned))
}
