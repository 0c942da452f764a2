//! The server's errors. They distinguish what the caller can correct.

use std::path::PathBuf;

use slipway_protocol::{ErrorBody, ErrorCode};

pub use self::database::{DatabaseFault, OUTDATED_PLAN, Trouble};
pub use self::objects::ObjectsFault;

mod database;
mod objects;

/// An operation of the server that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Error {
    /// The caller asked for something that does not exist, is not allowed or makes no sense. The message says what
    /// would be right.
    #[error("{message}")]
    Refused { code: ErrorCode, message: String, causes: Vec<String> },
    /// A caller makes more requests of one kind than allowed in a minute.
    #[error("more than {most} {what} within a minute; try again in {retry_after} s")]
    TooOften {
        /// The kind of request and the caller, such as "reports about one run".
        what: &'static str,
        most: usize,
        /// Seconds until the next request is accepted.
        retry_after: u64,
    },
    /// An address makes more requests of one kind than allowed in a second.
    #[error("more than {most} {what} in a second from one address; try again in {retry_after} s")]
    TooFast {
        what: &'static str,
        most: u32,
        /// Seconds until the next request is accepted.
        retry_after: u64,
    },
    /// A database operation failed.
    #[error("{doing}")]
    Database {
        /// The operation, such as "storing a node".
        doing: &'static str,
        source: DatabaseFault,
    },
    /// The database could not be opened, or its schema could not be brought up to date.
    #[error("opening the database {database:?}")]
    OpenDatabase {
        /// Path of the file, or URL without the password.
        database: String,
        source: DatabaseFault,
    },
    /// SQLite finds the database damaged.
    #[error("the database is damaged: {found}; restore a backup with `slipway-server restore`")]
    Damaged { found: String },
    /// A record does not have the format that this version writes.
    #[error("decoding {what} from the database")]
    Record { what: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    /// A stored log cannot be decompressed.
    #[error("unpacking the log of node {node}")]
    Log { node: String, source: std::io::Error },
    /// An operation on a file or folder failed.
    #[error("{doing} {path:?}")]
    File {
        doing: &'static str,
        /// Path of the file or folder.
        path: PathBuf,
        source: std::io::Error,
    },
    /// A request to an object store failed.
    #[error("{doing} {bucket}")]
    Objects {
        doing: &'static str,
        /// Bucket, prefix and server.
        bucket: String,
        source: ObjectsFault,
    },
    /// A certificate could not be made.
    #[error("{doing}")]
    Certificate {
        /// The operation, such as "signing the node's certificate".
        doing: &'static str,
        source: rcgen::Error,
    },
    /// A key or certificate in the data folder cannot be used for TLS.
    #[error("{doing}")]
    Tls {
        /// The operation, such as "reading the server's key".
        doing: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The Secure Boot keys in the data folder cannot be used.
    #[error("{doing}: using the keys for Secure Boot in secure-boot.json of the data folder")]
    SecureBoot {
        /// The operation, such as "making lists".
        doing: &'static str,
        /// Error of the key or signature.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Boot files could not be made.
    #[error("making boot files")]
    Media { source: Box<dyn std::error::Error + Send + Sync> },
    /// Encrypting to the recipients failed.
    #[error("{doing}")]
    Seal { doing: &'static str, source: std::io::Error },
    /// The server could not listen on an address.
    #[error("listening on {address}")]
    Listen { address: std::net::SocketAddr, source: std::io::Error },
    /// Network boot cannot be offered.
    #[error("offering network boot on {interface}")]
    NetworkBoot {
        interface: String,
        /// Error of the PXE proxy or TFTP server.
        source: slipway_pxe::Error,
    },
    /// The operating system does not return the listening address.
    #[error("finding out on which address the server listens")]
    Address { source: std::io::Error },
}

impl Error {
    /// A refusal without causes.
    pub fn refused(code: ErrorCode, message: impl Into<String>) -> Self {
        Error::Refused { code, message: message.into(), causes: Vec::new() }
    }

    /// Returns the error as the HTTP API sends it. A fault of the server is named without its causes, which are only in
    /// the server's log.
    pub fn body(&self) -> ErrorBody {
        match self {
            Error::Refused { code, message, causes } => {
                ErrorBody { code: *code, message: message.clone(), causes: causes.clone() }
            }
            Error::TooOften { .. } | Error::TooFast { .. } => {
                ErrorBody { code: ErrorCode::TooManyRequests, message: self.to_string(), causes: Vec::new() }
            }
            fault => ErrorBody {
                code: fault.code(),
                message: format!("the server failed while {fault}; the server's log has the reason"),
                causes: Vec::new(),
            },
        }
    }

    /// Returns the code of a fault of the server. Machines try again after either, but only one of them is a defect.
    fn code(&self) -> ErrorCode {
        match self {
            Error::Database { source, .. } if source.is_transient() => ErrorCode::Unavailable,
            Error::Objects { source, .. } if source.is_transient() => ErrorCode::Unavailable,
            _ => ErrorCode::Internal,
        }
    }
}

/// Maximum length of a reason or path in a log line, in characters. Reasons may contain text from untrusted callers.
pub const MOST_LOGGED: usize = 300;

/// Formats the error and its causes in one line, outermost first.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    slipway_protocol::Failure::of(error).in_one_line()
}
