//! The style sheet, the script and the icon. Their names change with their content, so that browsers keep them.

use std::sync::LazyLock;

use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG};
use axum::response::{IntoResponse, Response};
use slipway_protocol::ErrorCode;

use crate::api::answer::{ApiError, UrlPath};
use crate::base::error::Error;
use crate::base::random::fingerprint;

/// A file that belongs to the program.
struct Asset {
    path: String,
    kind: &'static str,
    text: &'static str,
}

impl Asset {
    fn new(name: &str, extension: &str, kind: &'static str, text: &'static str) -> Self {
        let digest = fingerprint(text.as_bytes());
        Self { path: format!("/page/{name}-{}.{extension}", &digest[..16]), kind, text }
    }
}

static STYLE: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("style", "css", "text/css; charset=utf-8", include_str!("assets/style.css")));
static SCRIPT: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("page", "js", "text/javascript; charset=utf-8", include_str!("assets/page.js")));
static ICON: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("icon", "svg", "image/svg+xml", include_str!("assets/icon.svg")));

/// Path of the style sheet.
pub fn style() -> &'static str {
    &STYLE.path
}

/// Path of the script.
pub fn script() -> &'static str {
    &SCRIPT.path
}

/// Path of the icon.
pub fn icon() -> &'static str {
    &ICON.path
}

/// Sends a file. Anybody may have it.
pub async fn get(UrlPath(name): UrlPath<String>) -> Result<Response, ApiError> {
    let assets = [&*STYLE, &*SCRIPT, &*ICON];
    let Some(asset) = assets.into_iter().find(|asset| asset.path.strip_prefix("/page/") == Some(&name)) else {
        return Err(Error::refused(ErrorCode::NotFound, "there is nothing at this path").into());
    };
    let headers = [
        (CONTENT_TYPE, asset.kind.to_owned()),
        (CACHE_CONTROL, "public, max-age=31536000, immutable".to_owned()),
        (ETAG, format!("\"{name}\"")),
    ];
    Ok((StatusCode::OK, headers, asset.text).into_response())
}
