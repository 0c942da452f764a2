//! Why a source could not be opened or read, and whether that may pass.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use reqwest::StatusCode;
use rustls::CertificateError;

/// Why a source could not be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Not a URL slipway fetches.
    #[error("a URL starts with https://, http:// or file://, or is an absolute path")]
    Scheme,
    /// The CA certificates given cannot be used.
    #[error("reading the CA certificates to trust: {reason}")]
    Trust {
        /// What is wrong with them.
        reason: String,
    },
    /// The server's certificate comes from an authority nobody told this machine to trust.
    #[error(
        "verifying the server's certificate: its CA is not trusted, only {trusted}; if the server is the right one, give its \
         CA as `ca` of the step, or by hand with --ca FILE"
    )]
    UntrustedCa {
        /// The CA certificates it was verified with, in words.
        trusted: String,
        /// The cause.
        #[source]
        source: reqwest::Error,
    },
    /// A local file could not be read to its end.
    #[error("reading the file")]
    ReadFile {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A local file could not be opened.
    #[error("opening the file")]
    OpenFile {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// No client could be made, or no answer came.
    #[error("sending the request")]
    Send {
        /// The cause.
        #[source]
        source: reqwest::Error,
    },
    /// The server answered with something other than the content.
    #[error("the server answered {status}{}", .refusal.message.as_ref().map(|text| format!(": {text}")).unwrap_or_default())]
    Status {
        /// The status line's code and phrase.
        status: StatusCode,
        /// What the server says beside it.
        refusal: Refusal,
    },
    /// A dropped connection could not be told from the end of the source, and nothing else would show what is missing.
    #[error(
        "the server says neither how long the source is nor where it ends; give its digest, or take it from elsewhere"
    )]
    Endless,
    /// The source is not what it was when the first bytes came, or cannot be resumed.
    #[error("resuming at byte {offset}: {reason}")]
    NotResumable {
        /// First byte wanted.
        offset: u64,
        /// What the server said instead.
        reason: String,
    },
    /// The connection was dropped or stalled before the end.
    #[error("reading the body")]
    Body {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The body ended before its announced size.
    #[error("the source ended at byte {offset} of {total}")]
    Short {
        /// Bytes received.
        offset: u64,
        /// Size announced.
        total: u64,
    },
    /// What should be small is not.
    #[error("it has more than the {limit} bytes that are read; check its address")]
    TooLarge {
        /// Most bytes read.
        limit: usize,
    },
    /// Something asked to stop.
    #[error("stopping on request")]
    Stopped,
}

/// What a server says beside the status of its refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// The reason, if the body gives one in JSON.
    pub message: Option<String>,
    /// After which time it wants to be asked again.
    pub retry_after: Option<Duration>,
    /// The `WWW-Authenticate` header: how to log in.
    pub challenge: Option<String>,
}

impl FetchError {
    /// Whether it was silence that ended the connection.
    pub(crate) fn is_stall(&self) -> bool {
        match self {
            FetchError::Send { source } => source.is_timeout() && !source.is_connect(),
            FetchError::Body { source } => source.kind() == io::ErrorKind::TimedOut,
            _ => false,
        }
    }

    /// After which time the server wants to be asked again.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            FetchError::Status { refusal, .. } if self.is_transient() => refusal.retry_after,
            _ => None,
        }
    }

    /// Whether the same request may succeed later: true for dropped, refused and stalled connections and for 408, 429 and
    /// 5xx; false for other statuses, for certificates that do not verify, and for local files.
    pub fn is_transient(&self) -> bool {
        match self {
            FetchError::Send { source } => !source.is_builder() && !source.is_redirect() && !is_untrusted(source),
            FetchError::Status { status, .. } => {
                status.is_server_error()
                    || matches!(*status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
            }
            FetchError::NotResumable { .. } | FetchError::Body { .. } | FetchError::Short { .. } => true,
            _ => false,
        }
    }
}

/// Whether a certificate that does not verify is at the bottom of an error.
fn is_untrusted(error: &reqwest::Error) -> bool {
    refused_certificate(error).is_some()
}

/// What is wrong with the certificate that is at the bottom of an error.
pub(crate) fn refused_certificate(error: &reqwest::Error) -> Option<&CertificateError> {
    let first: &(dyn StdError + 'static) = error;
    std::iter::successors(Some(first), |error| cause(*error)).find_map(|error| match error.downcast_ref() {
        Some(rustls::Error::InvalidCertificate(refused)) => Some(refused),
        _ => None,
    })
}

/// The cause of an error. The source of an [`io::Error`] is that of the error it wraps, which would pass that one by.
fn cause<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a (dyn StdError + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(|error| error.get_ref()) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}
