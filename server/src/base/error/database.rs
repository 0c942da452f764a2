//! Explains database errors to the operator.

use sqlx::migrate::MigrateError;

/// Primary result codes of SQLite (sqlite.org/rescode.html), which are the low byte of extended result codes.
const CORRUPT: i32 = 11;
const FULL: i32 = 13;
const NOT_A_DATABASE: i32 = 26;

/// Why a database operation failed, and what to do about it if known.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DatabaseFault(String);

impl From<sqlx::Error> for DatabaseFault {
    fn from(error: sqlx::Error) -> Self {
        // The library's message contains SQLite's message, which would then appear twice.
        let Some(said) = error.as_database_error() else { return Self(error.to_string()) };
        let code = said.code().and_then(|code| code.parse::<i32>().ok()).unwrap_or_default();
        Self(match code & 0xff {
            CORRUPT | NOT_A_DATABASE => format!(
                "it is damaged (SQLite: {}); stop the server, move the data folder away and restore a backup with \
                 `slipway-server restore`",
                said.message()
            ),
            FULL => format!("the file system is full (SQLite: {}); make room on it", said.message()),
            _ => format!("SQLite: {} (code {code})", said.message()),
        })
    }
}

impl From<MigrateError> for DatabaseFault {
    fn from(error: MigrateError) -> Self {
        match error {
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => error.into(),
            MigrateError::VersionMissing(version) | MigrateError::VersionMismatch(version) => Self(format!(
                "it was used with another version of slipway-server, which changed its schema (change {version}): \
                 install that version or a newer one, or restore a backup that this version made"
            )),
            MigrateError::Dirty(version) => Self(format!(
                "an update of its schema was interrupted (change {version}): move the data folder away and restore a \
                 backup from before the update with `slipway-server restore`"
            )),
            other => Self(other.to_string()),
        }
    }
}
