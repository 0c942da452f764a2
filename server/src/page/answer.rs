//! Answers of the page: HTML, and errors as HTML.

use std::sync::Arc;

use axum::http::header::{CONTENT_TYPE, LOCATION, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};
use slipway_protocol::ErrorCode;

use crate::base::error::Error;
use crate::page::{assets, words};

/// A document in HTML.
pub struct Html(pub Markup);

impl IntoResponse for Html {
    fn into_response(self) -> Response {
        let kind: [(HeaderName, &str); 1] = [(CONTENT_TYPE, "text/html; charset=utf-8")];
        (kind, self.0.into_string()).into_response()
    }
}

/// Why there is no page.
pub enum Failed {
    /// Nobody is signed in. Has the path and query to go on with afterwards.
    SignIn(String),
    /// A link on another site led here, so that the browser kept the cookie back. It sends it if the page asks again.
    AskAgain,
    /// The work failed.
    Error(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        match self {
            Self::SignIn(next) => {
                let next: String = form_urlencoded::byte_serialize(next.as_bytes()).collect();
                see_other(&format!("/login?next={next}"), None)
            }
            Self::AskAgain => Html(bare("One moment", html! { p { a href="" { "Go on" } } }, true)).into_response(),
            Self::Error(error) => failed(error),
        }
    }
}

fn failed(error: Error) -> Response {
    let body = error.body();
    let status = StatusCode::from_u16(body.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let title = match body.code {
        ErrorCode::NotFound => "Not found",
        ErrorCode::Internal | ErrorCode::Unavailable => "The server could not do this",
        _ => "Not done",
    };
    let content = html! {
        h1 { (title) }
        p.error role="alert" { (words::prose(&body.message)) }
        @if !body.causes.is_empty() {
            ul { @for cause in &body.causes { li { (words::prose(cause)) } } }
        }
        p { a href="/fleet" { "Back to the fleet" } }
    };
    let mut response = (status, Html(bare(title, content, false))).into_response();
    if let Error::TooOften { retry_after, .. } | Error::TooFast { retry_after, .. } = error {
        response.headers_mut().insert(RETRY_AFTER, retry_after.into());
    }
    response.extensions_mut().insert(Arc::new(error));
    response
}

/// Returns what each document has in its head.
pub fn head(title: &str) -> Markup {
    html! {
        meta charset="utf-8";
        meta name="viewport" content="width=device-width, initial-scale=1";
        meta name="color-scheme" content="light dark";
        title { (title) " · slipway" }
        link rel="stylesheet" href=(assets::style());
        link rel="icon" href=(assets::icon());
    }
}

/// Returns a document without navigation. With `again`, the browser asks for it again at once.
pub fn bare(title: &str, content: Markup, again: bool) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                (head(title))
                @if again { meta http-equiv="refresh" content="0"; }
            }
            body.bare { main #main tabindex="-1" { (content) } }
        }
    }
}

/// Sends the browser to another page with GET, and sets or removes a cookie.
pub fn see_other(to: &str, cookie: Option<&str>) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    let headers = response.headers_mut();
    // Control characters are not in a path; a name that has others is escaped before.
    headers.insert(LOCATION, HeaderValue::from_str(to).unwrap_or(HeaderValue::from_static("/fleet")));
    if let Some(cookie) = cookie.and_then(|cookie| HeaderValue::from_str(cookie).ok()) {
        headers.insert(axum::http::header::SET_COOKIE, cookie);
    }
    response
}
