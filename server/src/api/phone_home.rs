//! Installed systems report that they are up, with cloud-init's phone_home module.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use slipway_protocol::{ErrorBody, ErrorCode};

use crate::Error;
use crate::api::App;
use crate::api::answer::{ApiError, Raw, UrlPath};
use crate::report::{self, Caller};
use crate::time::now;

/// Bounds of what is kept of a form; cloud-init's has seven fields, the longest an RSA host key.
const MAX_FIELDS: usize = 32;
const MAX_FORM_BYTES: usize = 64 << 10;

/// The installed system reports, at the URL its run put into the user-data. Repeating it changes nothing.
#[utoipa::path(post, path = "/v1/phone-home/{token}", params(("token" = String, Path, description = "From the URL.")),
    request_body(content = BTreeMap<String, String>, content_type = "application/x-www-form-urlencoded"),
    responses((status = 200), (status = 404, body = ErrorBody), (status = 413, body = ErrorBody)))]
pub async fn by_token(
    State(app): State<Arc<App>>,
    UrlPath(token): UrlPath<String>,
    Raw(body): Raw,
) -> Result<StatusCode, ApiError> {
    let form = read_form(&body)?;
    report::phone_home(&app.store, Caller::Token(&token), form, now()).await?;
    Ok(StatusCode::OK)
}

/// The same in the spelling of metadata services, whose URL is the same for every machine. Here the run is told by the
/// form's `instance_id`, which slipway makes unguessable; anything without one of ours is refused.
#[utoipa::path(post, path = "/latest/meta-data/phone_home",
    request_body(content = BTreeMap<String, String>, content_type = "application/x-www-form-urlencoded"),
    responses((status = 200), (status = 404, body = ErrorBody), (status = 413, body = ErrorBody)))]
pub async fn by_instance(State(app): State<Arc<App>>, Raw(body): Raw) -> Result<StatusCode, ApiError> {
    let form = read_form(&body)?;
    let instance = form.get("instance_id").cloned().unwrap_or_default();
    report::phone_home(&app.store, Caller::Instance(&instance), form, now()).await?;
    Ok(StatusCode::OK)
}

fn read_form(body: &[u8]) -> Result<BTreeMap<String, String>, Error> {
    if body.len() > MAX_FORM_BYTES {
        return Err(Error::refused(ErrorCode::TooLarge, format!("the form has more than {MAX_FORM_BYTES} bytes")));
    }
    Ok(form_urlencoded::parse(body).take(MAX_FIELDS).map(|(key, value)| (key.into(), value.into())).collect())
}
