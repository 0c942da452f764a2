//! Reports of installed systems that have booted, sent by cloud-init's phone_home module.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use slipway_protocol::{ErrorBody, ErrorCode};

use crate::api::App;
use crate::api::answer::{ApiError, UrlPath};
use crate::api::auth::Peer;
use crate::api::body::Unread;
use crate::base::error::Error;
use crate::base::time::now;
use crate::node::reports::phone_home;
use crate::node::reports::phone_home::Caller;
use crate::node::reports::refused::Sender;

/// Maximum number of fields in a form, and size of the form. cloud-init's has seven fields; the longest is an RSA key.
const MAX_FIELDS: usize = 32;
const MAX_FORM_BYTES: usize = 64 << 10;

/// Report that the installed system is up, at the URL that its run put into the user-data.
///
/// The form of the first report is stored. Of later reports, only the time of the latest is stored.
#[utoipa::path(post, path = "/v1/phone-home/{token}", params(("token" = String, Path, description = "From the URL.")),
    request_body(content = BTreeMap<String, String>, content_type = "application/x-www-form-urlencoded"),
    responses((status = 200), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 410, body = ErrorBody, description = "The node is out of service."),
        (status = 413, body = ErrorBody),
        (status = 429, body = ErrorBody, description = "More than 10 reports of one run in a minute.")))]
pub async fn by_token(
    State(app): State<Arc<App>>,
    peer: Peer,
    UrlPath(token): UrlPath<String>,
    unread: Unread,
) -> Result<StatusCode, ApiError> {
    let form = read_form(&app, unread).await?;
    accept(&app, &peer, Caller::Token(&token), form).await
}

/// Report that the installed system is up, at a URL that is the same for every machine, as for metadata services.
///
/// The form's `instance_id` identifies the run. It must be one that slipway generated, because others can be guessed.
/// Also at `/2009-04-04/meta-data/phone_home`.
#[utoipa::path(post, path = "/latest/meta-data/phone_home",
    request_body(content = BTreeMap<String, String>, content_type = "application/x-www-form-urlencoded"),
    responses((status = 200), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 410, body = ErrorBody, description = "The node is out of service."),
        (status = 413, body = ErrorBody),
        (status = 429, body = ErrorBody, description = "More than 10 reports of one run in a minute.")))]
pub async fn by_instance(State(app): State<Arc<App>>, peer: Peer, unread: Unread) -> Result<StatusCode, ApiError> {
    let form = read_form(&app, unread).await?;
    let instance = form.get("instance_id").cloned().unwrap_or_default();
    accept(&app, &peer, Caller::Instance(&instance), form).await
}

async fn accept(
    app: &App,
    peer: &Peer,
    caller: Caller<'_>,
    form: BTreeMap<String, String>,
) -> Result<StatusCode, ApiError> {
    let turn = app.turn().await?;
    let done = phone_home::phone_home(&app.store, &app.reports, caller, form, now()).await;
    drop(turn);
    if let Err(error) = &done {
        app.note_refused(("phone home", Sender::System(caller)), peer, error).await;
    }
    Ok(done.map(|()| StatusCode::OK)?)
}

async fn read_form(app: &App, unread: Unread) -> Result<BTreeMap<String, String>, Error> {
    let body = app.stranger_bodies.read(unread, MAX_FORM_BYTES).await?;
    // The error does not repeat the form's content, because errors are logged.
    let invalid = |message: &str| Error::refused(ErrorCode::InvalidRequest, message);
    let mut form = BTreeMap::new();
    for (key, value) in form_urlencoded::parse(&body) {
        if form.len() == MAX_FIELDS {
            return Err(invalid(&format!("the form has more than {MAX_FIELDS} fields")));
        }
        // The parser replaces invalid UTF-8 by this character.
        if key.contains(char::REPLACEMENT_CHARACTER) || value.contains(char::REPLACEMENT_CHARACTER) {
            return Err(invalid("a field of the form is not UTF-8"));
        }
        if form.insert(key.into_owned(), value.into_owned()).is_some() {
            return Err(invalid("the form has the same field twice"));
        }
    }
    Ok(form)
}
