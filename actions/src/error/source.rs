//! Errors of fetching, or of the properties that the step gives for the source.

use slipway_formats::{bmap, signature, sums};

use super::{Error, FetchError};

/// Why the source was not fetched or is not trusted.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum SourceError {
    /// The image is the disk it would be written to, or is stored on it.
    #[error(
        "writing {url} to {disk}: the image is this disk or is stored on it; use an image that is stored elsewhere, or \
         choose another disk"
    )]
    OnTarget { url: String, disk: String },
    /// The source could not be fetched.
    #[error("fetching {url}")]
    Fetch {
        /// The URL without user, password and query, which may be secrets.
        url: String,
        source: FetchError,
    },
    /// The fetched data is not what was wanted, perhaps because the server compressed it on the way.
    #[error("fetching {url}: {coded}")]
    Coded {
        /// The URL without user, password and query, which may be secrets.
        url: String,
        coded: FetchError,
        /// Why the data is not what was wanted.
        source: Box<Error>,
    },
    /// The server failed for too long, with no more than a few bytes received between two failures.
    #[error("fetching {url}: stopped at byte {offset} after {failures} failures in a row in {seconds} s")]
    FetchGaveUp {
        /// The URL without user, password and query, which may be secrets.
        url: String,
        offset: u64,
        failures: u32,
        seconds: u64,
        source: FetchError,
    },
    /// All mirrors of the source failed.
    #[error("fetching: all {} URLs failed: {}", failed.len(), failed.join("; "))]
    NoMirror {
        /// Each mirror with its last failure. The URLs are without user, password and query, which may be secrets.
        failed: Vec<String>,
        /// Whether any mirror may succeed later.
        is_transient: bool,
    },
    /// The properties given for the source contradict each other.
    #[error("checking the source of the {what}: the step {problem}")]
    Contradiction {
        /// What is fetched, in one word.
        what: &'static str,
        /// What the contradiction is, and what would be right.
        problem: String,
    },
    /// The list of checksums has no digest for the file.
    #[error("looking up the digest of the {what} in {url}")]
    Sums {
        /// What is fetched, in one word.
        what: &'static str,
        /// The URL of the list without user, password and query, which may be secrets.
        url: String,
        source: sums::Error,
    },
    /// The block map of the image cannot be used.
    #[error("reading the block map {url}")]
    Bmap {
        /// The URL of the map without user, password and query, which may be secrets.
        url: String,
        source: bmap::Error,
    },
    /// An artifact has nothing for this machine, or logging in to its registry failed.
    #[error("looking for the {what} in {url}: {reason}")]
    Artifact {
        /// What is fetched, in one word.
        what: &'static str,
        url: String,
        /// What was found, or what is missing.
        reason: String,
    },
    /// A signature is invalid or cannot be checked.
    #[error("verifying {what} with its signature {url}")]
    Signature {
        /// What is signed: the list of checksums, or the stream as delivered.
        what: &'static str,
        /// The URL of the signature without user, password and query, which may be secrets.
        url: String,
        source: signature::Error,
    },
}

impl SourceError {
    /// Whether another try may succeed.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Fetch { source, .. } | Self::FetchGaveUp { source, .. } => source.is_transient(),
            Self::NoMirror { is_transient, .. } => *is_transient,
            _ => false,
        }
    }
}
