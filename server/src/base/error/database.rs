//! Explains database errors to the operator.

use sqlx::migrate::MigrateError;
use sqlx::postgres::PgDatabaseError;

/// Primary result codes of SQLite (sqlite.org/rescode.html), which are the low byte of extended result codes.
const CORRUPT: i32 = 11;
const FULL: i32 = 13;
const NOT_A_DATABASE: i32 = 26;

/// SQLSTATE of a prepared statement whose rows would have other columns than when it was prepared ("feature not
/// supported": cached plan must not change result type). No statement of slipway-server causes it otherwise.
pub const OUTDATED_PLAN: &str = "0A000";

/// Why a database operation failed, and what to do about it if known.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct DatabaseFault {
    message: String,
    is_transient: bool,
}

impl DatabaseFault {
    /// A fault that somebody must correct.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_transient: false }
    }

    /// A fault that may be gone at the next attempt.
    pub fn transient(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_transient: true }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn advise(self, advice: &str) -> Self {
        Self { message: self.message + advice, ..self }
    }

    /// Whether the same operation may succeed a little later.
    pub fn is_transient(&self) -> bool {
        self.is_transient
    }
}

impl From<sqlx::Error> for DatabaseFault {
    fn from(error: sqlx::Error) -> Self {
        // The library's message contains SQLite's message, which would then appear twice.
        let Some(said) = error.as_database_error() else {
            let is_transient = matches!(error, sqlx::Error::PoolTimedOut | sqlx::Error::Io(_));
            return Self { message: error.to_string(), is_transient };
        };
        if let Some(said) = said.try_downcast_ref::<PgDatabaseError>() {
            return of_postgres(said);
        }
        let code = said.code().and_then(|code| code.parse::<i32>().ok()).unwrap_or_default();
        Self::new(match code & 0xff {
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

/// Explains an error of PostgreSQL by its SQLSTATE (its manual, "PostgreSQL Error Codes").
fn of_postgres(said: &PgDatabaseError) -> DatabaseFault {
    let (code, why) = (said.code(), said.message());
    let advice = match code {
        "28000" | "28P01" => "; check the user and the password, and pg_hba.conf of the database server",
        "3D000" => "; make it with `createdb --encoding UTF8 --template template0`",
        "42501" => "; make the user the owner of the database",
        "53100" => "; make room on the database server",
        OUTDATED_PLAN => "; another version of slipway-server changed the tables at this moment, try again",
        "55P03" => "; another program holds the lock of the database, try again",
        _ => "",
    };
    let message = format!("PostgreSQL: {why} (SQLSTATE {code}){advice}");
    // A lost connection, a rollback, too few resources, a lock, or an operator who stops the database server.
    let is_transient = ["08", OUTDATED_PLAN, "40", "53", "55P03", "57"].iter().any(|class| code.starts_with(class));
    DatabaseFault { message, is_transient }
}

impl From<MigrateError> for DatabaseFault {
    fn from(error: MigrateError) -> Self {
        match error {
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => error.into(),
            MigrateError::VersionMissing(version) | MigrateError::VersionMismatch(version) => Self::new(format!(
                "it was used with another version of slipway-server, which changed its schema (change {version}): \
                 install that version or a newer one, or restore a backup that this version made"
            )),
            MigrateError::Dirty(version) => Self::new(format!(
                "an update of its schema was interrupted (change {version}): move the data folder away and restore a \
                 backup from before the update with `slipway-server restore`"
            )),
            other => Self::new(other.to_string()),
        }
    }
}
