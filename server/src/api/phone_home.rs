//! Installed systems report that they are up, with cloud-init's phone_home module.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use slipway_protocol::{ErrorBody, ErrorCode};

use crate::api::App;
use crate::api::answer::{ApiError, Raw, UrlPath};
use crate::error::Error;
use crate::reports::phone_home;
use crate::reports::phone_home::Caller;
use crate::time::now;

/// Bounds of a form; cloud-init's has seven fields, the longest an RSA host key.
const MAX_FIELDS: usize = 32;
const MAX_FORM_BYTES: usize = 64 << 10;

/// The installed system reports, at the URL its run put into the user-data. What it posts the first time is kept; of later
/// times only when they were.
#[utoipa::path(post, path = "/v1/phone-home/{token}", params(("token" = String, Path, description = "From the URL.")),
    request_body(content = BTreeMap<String, String>, content_type = "application/x-www-form-urlencoded"),
    responses((status = 200), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 410, body = ErrorBody, description = "The node is out of service."),
        (status = 413, body = ErrorBody),
        (status = 429, body = ErrorBody, description = "More than 10 reports of one node in a minute.")))]
pub async fn by_token(
    State(app): State<Arc<App>>,
    UrlPath(token): UrlPath<String>,
    Raw(body): Raw,
) -> Result<StatusCode, ApiError> {
    let form = read_form(&body)?;
    phone_home::phone_home(&app.store, &app.reports, Caller::Token(&token), form, now()).await?;
    Ok(StatusCode::OK)
}

/// The same in the spelling of metadata services, whose URL is the same for every machine. Here the run is told by the
/// form's `instance_id`, which slipway makes unguessable; anything without one of ours is refused. Also at
/// `/2009-04-04/meta-data/phone_home`.
#[utoipa::path(post, path = "/latest/meta-data/phone_home",
    request_body(content = BTreeMap<String, String>, content_type = "application/x-www-form-urlencoded"),
    responses((status = 200), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 410, body = ErrorBody, description = "The node is out of service."),
        (status = 413, body = ErrorBody),
        (status = 429, body = ErrorBody, description = "More than 10 reports of one node in a minute.")))]
pub async fn by_instance(State(app): State<Arc<App>>, Raw(body): Raw) -> Result<StatusCode, ApiError> {
    let form = read_form(&body)?;
    let instance = form.get("instance_id").cloned().unwrap_or_default();
    phone_home::phone_home(&app.store, &app.reports, Caller::Instance(&instance), form, now()).await?;
    Ok(StatusCode::OK)
}

fn read_form(body: &[u8]) -> Result<BTreeMap<String, String>, Error> {
    if body.len() > MAX_FORM_BYTES {
        return Err(Error::refused(ErrorCode::TooLarge, format!("the form has more than {MAX_FORM_BYTES} bytes")));
    }
    // Without what is in the form, which would go to the log.
    let invalid = |message: &str| Error::refused(ErrorCode::InvalidRequest, message);
    let mut form = BTreeMap::new();
    for (key, value) in form_urlencoded::parse(body) {
        if form.len() == MAX_FIELDS {
            return Err(invalid(&format!("the form has more than {MAX_FIELDS} fields")));
        }
        // Which is what the parser puts in place of bytes that are no text.
        if key.contains(char::REPLACEMENT_CHARACTER) || value.contains(char::REPLACEMENT_CHARACTER) {
            return Err(invalid("a field of the form is not UTF-8"));
        }
        if form.insert(key.into_owned(), value.into_owned()).is_some() {
            return Err(invalid("the form has a field twice"));
        }
    }
    Ok(form)
}
