//! Fetching, and what is said of the source.

use slipway_formats::{bmap, signature, sums};

use super::FetchError;

/// Why what is to be installed was not fetched, or is not trusted.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The image would be written over itself while it is read.
    #[error(
        "writing {url} to {disk}: it is this disk or lies on it; take the image from elsewhere, or choose another disk"
    )]
    OnTarget {
        /// The local source.
        url: String,
        /// Path of the disk.
        disk: String,
    },
    /// The source could not be fetched.
    #[error("fetching {url}")]
    Fetch {
        /// The URL without user, password and query, which may be secrets.
        url: String,
        /// The cause.
        #[source]
        source: FetchError,
    },
    /// Failures in a row with no more than a few bytes received between them, for too long.
    #[error("fetching {url}: stopped at byte {offset} after {failures} failures in a row in {seconds} s")]
    FetchGaveUp {
        /// The URL without user, password and query, which may be secrets.
        url: String,
        /// Bytes received until then.
        offset: u64,
        /// How many failures.
        failures: u32,
        /// Seconds since the first of them.
        seconds: u64,
        /// The last of them.
        #[source]
        source: FetchError,
    },
    /// None of several places has the source.
    #[error("fetching: all of {} places failed: {}", failed.len(), failed.join("; "))]
    NoMirror {
        /// Each, without user, password and query, which may be secrets, and why it failed last.
        failed: Vec<String>,
        /// One of them may yet answer.
        is_transient: bool,
    },
    /// What is said of the source does not go together.
    #[error("checking where the {what} comes from: the step {problem}")]
    Contradiction {
        /// What is fetched, in a word.
        what: &'static str,
        /// What does not, and what would.
        problem: String,
    },
    /// The list of sums gives no digest for what is fetched.
    #[error("looking up the digest of the {what} in {url}")]
    Sums {
        /// What is fetched, in a word.
        what: &'static str,
        /// The URL of the list without user, password and query, which may be secrets.
        url: String,
        /// The cause.
        #[source]
        source: sums::Error,
    },
    /// The block map of the image cannot be used.
    #[error("looking up in {url} what of the image holds data")]
    Bmap {
        /// The URL of the map without user, password and query, which may be secrets.
        url: String,
        /// The cause.
        #[source]
        source: bmap::Error,
    },
    /// An artifact has nothing for this machine, or its registry cannot be logged in at.
    #[error("looking for the {what} in {url}: {reason}")]
    Artifact {
        /// What is fetched, in a word.
        what: &'static str,
        /// The artifact.
        url: String,
        /// What is there, or what is missing.
        reason: String,
    },
    /// A signature does not hold, or cannot be checked.
    #[error("verifying {what} by its signature {url}")]
    Signature {
        /// The list of sums, or the stream as delivered.
        what: &'static str,
        /// The URL of the signature without user, password and query, which may be secrets.
        url: String,
        /// The cause.
        #[source]
        source: signature::Error,
    },
}

impl SourceError {
    /// Whether the same may succeed if it is tried again.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Fetch { source, .. } | Self::FetchGaveUp { source, .. } => source.is_transient(),
            Self::NoMirror { is_transient, .. } => *is_transient,
            _ => false,
        }
    }
}
