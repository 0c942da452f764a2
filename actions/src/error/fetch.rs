//! Why a source could not be opened or read, and whether the failure is transient.

use std::io;
use std::time::Duration;

use reqwest::StatusCode;
use slipway_formats::http::challenge::Challenge;

use super::certificate::causes;

/// Why a source could not be opened or read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum FetchError {
    /// Not a URL that slipway can fetch.
    #[error("a URL starts with https://, http:// or file://, or is an absolute path")]
    Scheme,
    /// The CA certificates given cannot be used.
    #[error("reading the CA certificates to trust: {reason}")]
    Trust { reason: String },
    /// The server's certificate was refused.
    #[error("the server is not trusted, so nothing was sent: {verdict}")]
    Untrusted {
        /// What is wrong with the certificate, and what to do.
        verdict: String,
    },
    /// A local file could not be read completely.
    #[error("reading the file")]
    ReadFile { source: io::Error },
    /// A local file could not be opened.
    #[error("opening the file")]
    OpenFile { source: io::Error },
    /// A pipe, such as standard input, was needed again or from another place than its start.
    #[error(
        "a pipe can only be read once and from its start, but this kind of image or step needs other reads too: save \
         the data to a file, and give the file"
    )]
    ReadOnce,
    /// The client could not be created, or no response arrived.
    #[error("sending the request")]
    Send { source: reqwest::Error },
    /// The server ended the connection before it responded.
    #[error("sending the request: the server ended the connection without an answer")]
    HungUp,
    /// The server compressed the source on the way, though that was declined.
    #[error(
        "the server sent the file with Content-Encoding: {coding}, although slipway asks for unencoded files; turn \
         compression off for this file at the server, or at the proxy in front of the server"
    )]
    Coded {
        /// The codings as the server names them.
        coding: String,
    },
    /// The server responded with something other than the content.
    #[error("the server answered \
             {status}{}", .refusal.message.as_ref().map(|text| format!(": {text}")).unwrap_or_default())]
    Status {
        /// The status line's code and phrase.
        status: StatusCode,
        refusal: Refusal,
    },
    /// The server that a redirect led to refused the request.
    #[error("the server that was redirected to answered 403 Forbidden; the URL that it was asked for may have expired")]
    RedirectRefused,
    /// A dropped connection could not be told apart from the end of the source, and no other check would notice missing
    /// data.
    #[error(
        "the server does not say how long the source is or where it ends; give its digest, or fetch it from another \
         server"
    )]
    Endless,
    /// The source has changed since the first bytes arrived, or cannot be resumed.
    #[error("resuming at byte {offset}: {reason}")]
    NotResumable { offset: u64, reason: String },
    /// The connection was dropped or stalled before the end.
    #[error("reading the body")]
    Body { source: io::Error },
    /// The body ended before its announced size.
    #[error("the source ended at byte {offset} of {total}")]
    Short { offset: u64, total: u64 },
    /// A file that should be small is too large.
    #[error("the file has more than the allowed {limit} bytes; check its URL")]
    TooLarge {
        /// Maximum number of bytes to read.
        limit: usize,
    },
    /// The action was asked to stop.
    #[error("stopping on request")]
    Stopped,
}

/// What a server sends with an error status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// The reason, if the body gives one in JSON.
    pub message: Option<String>,
    /// How long the server wants the client to wait before the next request.
    pub retry_after: Option<Duration>,
    /// Every way to log in that the `WWW-Authenticate` headers offer.
    pub challenges: Vec<Challenge>,
}

impl FetchError {
    /// Whether the connection ended because it stalled.
    pub(crate) fn is_stall(&self) -> bool {
        match self {
            FetchError::Send { source } => source.is_timeout() && !source.is_connect(),
            FetchError::Body { source } => source.kind() == io::ErrorKind::TimedOut,
            _ => false,
        }
    }

    /// How long the server wants the client to wait before the next request.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            FetchError::Status { refusal, .. } if self.is_transient() => refusal.retry_after,
            _ => None,
        }
    }

    /// Whether the same request may succeed later. True for dropped, refused and stalled connections and for the
    /// statuses 408, 429 and 5xx, and 403 after a redirect. False for other statuses, for certificates that do not
    /// verify, and for local files.
    pub fn is_transient(&self) -> bool {
        match self {
            FetchError::Send { source } => !source.is_builder() && !source.is_redirect(),
            FetchError::Status { status, .. } => {
                status.is_server_error()
                    || matches!(*status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
            }
            FetchError::NotResumable { .. }
            | FetchError::Body { .. }
            | FetchError::Short { .. }
            | FetchError::RedirectRefused
            | FetchError::HungUp => true,
            _ => false,
        }
    }
}

/// Whether the other side ended the connection too early, which is the root cause of an error: amid TLS, the head of an
/// answer or a body.
pub(crate) fn is_cut_off(error: &reqwest::Error) -> bool {
    causes(error)
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::UnexpectedEof)
}
