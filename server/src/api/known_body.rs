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

/// The bytes of a request body, at most `MAX`. Handlers authenticate the caller before they read the body.
pub struct Raw<const MAX: usize = MAX_REQUEST_BYTES>(pub Bytes);

impl<const MAX: usize> FromRequest<Arc<App>> for Raw<MAX> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let unread = Unread::from_request(request, app).await?;
        Ok(Self(app.bodies.read(unread, MAX).await?))
    }
}

/// Defines types of JSON request bodies, each read by a [`Rule`]. A body that cannot be parsed is refused with line and
/// column.
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
    /// Settings from an operator, in JSON.
    JsonBody Settings;
    /// A change of settings by an operator, in JSON. An empty mapping or list at the top level removes what was set.
    JsonChange Change;
    /// A report from a machine, in JSON.
    JsonReport Report;
}

/// Maximum size in bytes of a body that holds only a few texts.
pub const SMALL: usize = 64 << 10;

/// Parses a JSON body.
pub fn from_json<T: DeserializeOwned>(text: &[u8], rule: Rule) -> Result<T, Error> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    given::read(rule, &mut reader).and_then(|value| reader.end().map(|()| value)).map_err(|error| {
        let message = format!("the body is not valid: {}", fault::of_json(&error));
        Error::refused(ErrorCode::InvalidRequest, message)
    })
}
