//! Answers in JSON, with [`ErrorBody`] for everything that is not a success, and the parameters of URLs.

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::de::{DeserializeOwned, Error as _, Unexpected};
use serde::{Deserialize as _, Deserializer, Serialize};
use slipway_protocol::shared::given;
use slipway_protocol::shared::printable;
use slipway_protocol::{ErrorBody, ErrorCode};

use crate::api::fault;
use crate::base::error::{Error, MOST_LOGGED, chain};
use crate::base::time::dated;
use crate::store::to_word;

/// An answer to an operator, in JSON. Each time appears twice: in milliseconds since 1970 and in RFC 3339.
pub struct Dated<T>(pub T);

impl<T: Serialize> IntoResponse for Dated<T> {
    fn into_response(self) -> Response {
        match dated(&self.0) {
            Ok(value) => Json(value).into_response(),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}

/// An error as an HTTP response.
pub struct ApiError(Error);

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body: ErrorBody = self.0.body();
        let status = StatusCode::from_u16(body.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(body)).into_response();
        if let Error::TooOften { retry_after, .. } | Error::TooFast { retry_after, .. } = self.0 {
            response.headers_mut().insert(RETRY_AFTER, retry_after.into());
        }
        response.extensions_mut().insert(Arc::new(self.0));
        response
    }
}

/// Logs why a request was refused, with the operator, node or address that sent it.
pub fn log_refusal(response: &Response, operator: Option<&str>, node: Option<&str>, peer: &str) {
    let Some(error) = response.extensions().get::<Arc<Error>>() else { return };
    let body = error.body();
    match body.code {
        ErrorCode::Internal => tracing::error!(operator, node, error = chain(&**error), "request failed"),
        // Requests beyond a limit must not fill the log either.
        ErrorCode::TooManyRequests => tracing::debug!(operator, reason = body.message, "request refused"),
        ErrorCode::Unauthenticated if operator.is_none() => tracing::debug!(reason = body.message, "request refused"),
        code => {
            let reason = printable::short_line(&body.message, MOST_LOGGED);
            tracing::info!(operator, node, peer, code = to_word(&code), reason, "request refused");
        }
    }
}

/// The parameters in the path of a URL.
pub struct UrlPath<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for UrlPath<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(value)) => Ok(Self(value)),
            Err(_) => Err(Error::refused(ErrorCode::InvalidRequest, "a part of the URL's path is not valid").into()),
        }
    }
}

/// The query of an operator's URL. Parameters without a value are refused.
pub struct OperatorQuery<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for OperatorQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let mut all = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
        if let Some((name, _)) = all.find(|(_, value)| given::is_blank(value)) {
            let message = format!("the query of the URL is not valid: {}", fault::of_blank(&name));
            return Err(Error::refused(ErrorCode::InvalidRequest, message).into());
        }
        UrlQuery::from_request_parts(parts, state).await.map(|UrlQuery(value)| Self(value))
    }
}

/// Reads a number in a query, with the same upper bound as in a body.
pub fn number<'de, D: Deserializer<'de>>(reader: D) -> Result<u64, D::Error> {
    let number = u64::deserialize(reader)?;
    if number <= given::LARGEST {
        return Ok(number);
    }
    Err(D::Error::invalid_value(Unexpected::Unsigned(number), &"a number below 2^63"))
}

/// The query of a URL. Parameters may lack a value: boot loaders send them so for what a machine does not have.
pub struct UrlQuery<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for UrlQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(value)) => Ok(Self(value)),
            Err(rejection) => {
                let message = format!("the query of the URL is not valid: {}", fault::of_query(&rejection.body_text()));
                Err(Error::refused(ErrorCode::InvalidRequest, message).into())
            }
        }
    }
}
