//! The answer to a refused request.

use serde::{Deserialize, Serialize};

/// The body of every response that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[error("{message}")]
pub struct ErrorBody {
    /// The reason, for programs.
    pub code: ErrorCode,
    /// The reason, for people: one sentence that says what was refused and what would be right.
    pub message: String,
    /// The causes, outermost first.
    #[serde(default)]
    pub causes: Vec<String>,
}

/// The reasons for refusing a request. This set is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ErrorCode {
    /// 401: the bootstrap token was never issued, was revoked, or was used before.
    TokenUnknown,
    /// 410: the bootstrap token has expired; or the token belongs to a run that another run has replaced.
    TokenExpired,
    /// 422: the machine has no UUID, no serial number and no MAC address.
    IdentityMissing,
    /// 410: the operator took the node out of service.
    Decommissioned,
    /// 401: the request has no node certificate, no valid JWT and no operators' token.
    Unauthenticated,
    /// 403: the sender is known, but may not do this.
    Forbidden,
    /// 404: the object does not exist.
    NotFound,
    /// 409: the current state of the object does not allow this.
    Conflict,
    /// 400: the request cannot be read, or makes no sense.
    InvalidRequest,
    /// 413: the request is larger than the server reads. Or the object that it is part of is larger than the server
    /// accepts or has room for.
    TooLarge,
    /// 416: the range lies outside the object.
    RangeNotSatisfiable,
    /// 429: a node makes more requests of this kind than it may. Try again when `Retry-After` says.
    TooManyRequests,
    /// 500: the server has a fault.
    Internal,
    /// 503: the server is stopping or overloaded. Try again.
    Unavailable,
}

impl ErrorCode {
    /// Returns the HTTP status of the code.
    pub fn status(self) -> u16 {
        match self {
            ErrorCode::InvalidRequest => 400,
            ErrorCode::TokenUnknown | ErrorCode::Unauthenticated => 401,
            ErrorCode::Forbidden => 403,
            ErrorCode::NotFound => 404,
            ErrorCode::Conflict => 409,
            ErrorCode::TokenExpired | ErrorCode::Decommissioned => 410,
            ErrorCode::TooLarge => 413,
            ErrorCode::RangeNotSatisfiable => 416,
            ErrorCode::IdentityMissing => 422,
            ErrorCode::TooManyRequests => 429,
            ErrorCode::Internal => 500,
            ErrorCode::Unavailable => 503,
        }
    }
}
