//! What a refused request gets.

use serde::{Deserialize, Serialize};

/// The body of every response that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[error("{message}")]
pub struct ErrorBody {
    /// For programs.
    pub code: ErrorCode,
    /// For people: one sentence, what was refused and what would be right.
    pub message: String,
    /// Causes, outermost first.
    #[serde(default)]
    pub causes: Vec<String>,
}

/// The closed set of reasons a request is refused for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ErrorCode {
    /// 401: the bootstrap token was never issued, was revoked, or was used before.
    TokenUnknown,
    /// 410: the bootstrap token has expired, or the token of a run that another has taken the place of.
    TokenExpired,
    /// 409: the identity belongs to more than one node, or contradicts the node it matches.
    IdentityConflict,
    /// 422: the machine has neither UUID nor serial nor MAC.
    IdentityMissing,
    /// 410: the operator took the node out of service.
    Decommissioned,
    /// 401: neither a node certificate nor a valid JWT nor the operator's token.
    Unauthenticated,
    /// 403: known, but not allowed to do this.
    Forbidden,
    /// 404: no such thing.
    NotFound,
    /// 409: the state of the object does not allow this now.
    Conflict,
    /// 400: the request cannot be read or means nothing.
    InvalidRequest,
    /// 413: the request is larger than the server reads, or what it is part of than the server takes or has room for.
    TooLarge,
    /// 416: the range lies outside the object.
    RangeNotSatisfiable,
    /// 429: a node makes more requests of this kind than it may; try again when `Retry-After` says.
    TooManyRequests,
    /// 500: a fault of the server.
    Internal,
    /// 503: the server is stopping or overloaded; try again.
    Unavailable,
}

impl ErrorCode {
    /// The HTTP status that goes with the code.
    pub fn status(self) -> u16 {
        match self {
            ErrorCode::InvalidRequest => 400,
            ErrorCode::TokenUnknown | ErrorCode::Unauthenticated => 401,
            ErrorCode::Forbidden => 403,
            ErrorCode::NotFound => 404,
            ErrorCode::IdentityConflict | ErrorCode::Conflict => 409,
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
