//! Bodies of callers that are authenticated: bytes, or JSON.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;
use slipway_protocol::shared::given::{self, Rule};
use slipway_protocol::{ErrorCode, MAX_REQUEST_BYTES};

use crate::api::answer::ApiError;
use crate::api::body::Unread;
use crate::api::{App, fault};
use crate::base::error::Error;

/// The bytes of a request body, at most so many. Handlers authenticate their caller before they take one.
pub struct Raw<const MAX: usize = MAX_REQUEST_BYTES>(pub Bytes);

impl<const MAX: usize> FromRequest<Arc<App>> for Raw<MAX> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let unread = Unread::from_request(request, app).await?;
        Ok(Self(app.bodies.read(unread, MAX).await?))
    }
}

/// Defines a JSON request body that is read by a rule. One that cannot be parsed is refused with line and column.
macro_rules! json_bodies {
    ($($(#[$doc:meta])* $name:ident $rule:ident;)*) => {$(
        $(#[$doc])*
        pub struct $name<T, const MAX: usize = MAX_REQUEST_BYTES>(pub T);

        impl<T: DeserializeOwned, const MAX: usize> FromRequest<Arc<App>> for $name<T, MAX> {
            type Rejection = ApiError;

            async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
                let Raw::<MAX>(bytes) = Raw::from_request(request, app).await?;
                Ok(Self(from_json(&bytes, Rule::$rule)?))
            }
        }
    )*};
}

json_bodies! {
    /// What an operator gives, in JSON.
    JsonBody Settings;
    /// A change that an operator makes, in JSON: an empty mapping or list at its top removes what was set.
    JsonChange Change;
    /// What a machine reports, in JSON.
    JsonReport Report;
}

/// Largest body of a request that holds a few texts.
pub const SMALL: usize = 64 << 10;

/// Parses a JSON body.
pub fn from_json<T: DeserializeOwned>(text: &[u8], rule: Rule) -> Result<T, Error> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    given::read(rule, &mut reader).and_then(|value| reader.end().map(|()| value)).map_err(|error| {
        let message = format!("the body is not valid: {}", fault::of_json(&error));
        Error::refused(ErrorCode::InvalidRequest, message)
    })
}
