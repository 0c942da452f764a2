//! Errors of the server, and which of them the caller can correct.

use std::path::PathBuf;

use slipway_protocol::{ErrorBody, ErrorCode};

pub use self::database::DatabaseFault;

mod database;

/// An operation of the server that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller asked for something that does not exist, is not allowed or makes no sense. The message says what
    /// would be right.
    #[error("{message}")]
    Refused {
        /// For programs.
        code: ErrorCode,
        /// For people, one sentence.
        message: String,
        /// Causes, outermost first.
        causes: Vec<String>,
    },
    /// A caller makes more requests of a kind than it may.
    #[error("more than {most} {what} within a minute; try again in {retry_after} s")]
    TooOften {
        /// What there are too many of, and from whom.
        what: &'static str,
        /// How many a minute there may be.
        most: usize,
        /// Seconds until the next may come.
        retry_after: u64,
    },
    /// An address makes more requests of a kind than it may.
    #[error("more than {most} {what} in a second from one address; try again in {retry_after} s")]
    TooFast {
        /// What there are too many of.
        what: &'static str,
        /// How many a second there may be.
        most: u32,
        /// Seconds until the next may come.
        retry_after: u64,
    },
    /// A database operation failed.
    #[error("{doing}")]
    Database {
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        source: DatabaseFault,
    },
    /// The database could not be opened, or its schema could not be brought up to date.
    #[error("opening the database {file:?}")]
    OpenDatabase {
        /// Which one.
        file: PathBuf,
        /// Why it failed.
        source: DatabaseFault,
    },
    /// SQLite finds the database damaged.
    #[error("the database is damaged: {found}; restore a backup with `slipway-server restore`")]
    Damaged {
        /// What SQLite found.
        found: String,
    },
    /// A record does not have the shape this version writes.
    #[error("decoding {what} from the database")]
    Record {
        /// The column.
        what: &'static str,
        /// Why it failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A log that was stored cannot be read again.
    #[error("unpacking the log of node {node}")]
    Log {
        /// Whose log.
        node: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// An operation on a file or folder failed.
    #[error("{doing} {path:?}")]
    File {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A certificate could not be made.
    #[error("{doing}")]
    Certificate {
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        source: rcgen::Error,
    },
    /// The keys and certificates of the data folder cannot be used for TLS.
    #[error("{doing}")]
    Tls {
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The keys for Secure Boot in the data folder cannot be used.
    #[error("{doing}: using the keys for Secure Boot in secure-boot.json of the data folder")]
    SecureBoot {
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Boot files could not be made.
    #[error("making boot files")]
    Media {
        /// Why it failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No challenge could be made for a TPM.
    #[error("making a challenge for the TPM of a machine")]
    Challenge {
        /// Why it failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Something could not be encrypted.
    #[error("{doing}")]
    Seal {
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// An address could not be listened on.
    #[error("listening on {address}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Network boot cannot be offered.
    #[error("offering network boot on {interface}")]
    NetworkBoot {
        /// The interface.
        interface: String,
        /// Why not.
        source: slipway_pxe::Error,
    },
    /// The system does not say on which address the server listens.
    #[error("finding out on which address the server listens")]
    Address {
        /// Why it failed.
        source: std::io::Error,
    },
}

impl Error {
    /// A refusal without causes.
    pub fn refused(code: ErrorCode, message: impl Into<String>) -> Self {
        Error::Refused { code, message: message.into(), causes: Vec::new() }
    }

    /// The body for the caller of the HTTP API. It names faults of the server; their causes stay in the server's log.
    pub fn body(&self) -> ErrorBody {
        match self {
            Error::Refused { code, message, causes } => {
                ErrorBody { code: *code, message: message.clone(), causes: causes.clone() }
            }
            Error::TooOften { .. } | Error::TooFast { .. } => {
                ErrorBody { code: ErrorCode::TooManyRequests, message: self.to_string(), causes: Vec::new() }
            }
            fault => ErrorBody {
                code: ErrorCode::Internal,
                message: format!("the server failed while {fault}; see the log of the server for the reason"),
                causes: Vec::new(),
            },
        }
    }
}

/// Longest reason or path in a log line, in characters. What somebody submits may be repeated in it.
pub const MOST_LOGGED: usize = 300;

/// The error with its causes in one line, outermost first.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    slipway_protocol::Failure::of(error).in_one_line()
}
