//! Explains database errors to the operator.

use sqlx::migrate::MigrateError;
use sqlx::postgres::PgDatabaseError;

/// Primary result codes of SQLite (sqlite.org/rescode.html), which are the low byte of extended result codes.
const BUSY: i32 = 5;
const READ_ONLY: i32 = 8;
const IO_ERROR: i32 = 10;
const CORRUPT: i32 = 11;
const FULL: i32 = 13;
const NOT_A_DATABASE: i32 = 26;

/// SQLSTATE of a prepared statement whose rows would have other columns than when it was prepared ("feature not
/// supported": cached plan must not change result type). No statement of slipway-server causes it otherwise.
pub const OUTDATED_PLAN: &str = "0A000";

/// What is the matter with a database, as far as that can be said without its own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It does not answer.
    Silent,
    /// It accepts no changes.
    ReadOnly,
    /// There is no room for changes.
    Full,
    /// Another program has locked it.
    Locked,
    /// It is damaged.
    Damaged,
    /// Its schema is another version's.
    OtherSchema,
    /// Anything else.
    Other,
}

/// Why a database operation failed, and what to do about it if known.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct DatabaseFault {
    message: String,
    trouble: Trouble,
    is_transient: bool,
}

impl DatabaseFault {
    /// A fault that somebody must correct.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), trouble: Trouble::Other, is_transient: false }
    }

    /// A database that does not answer, but may at the next attempt.
    pub fn transient(message: impl Into<String>) -> Self {
        Self { message: message.into(), trouble: Trouble::Silent, is_transient: true }
    }

    /// Says what is the matter.
    #[must_use]
    pub fn of(self, trouble: Trouble) -> Self {
        Self { trouble, ..self }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn advise(self, advice: &str) -> Self {
        Self { message: self.message + advice, ..self }
    }

    /// What is the matter.
    pub fn trouble(&self) -> Trouble {
        self.trouble
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
            let trouble = if is_transient { Trouble::Silent } else { Trouble::Other };
            return Self { message: error.to_string(), trouble, is_transient };
        };
        if let Some(said) = said.try_downcast_ref::<PgDatabaseError>() {
            return of_postgres(said);
        }
        let code = said.code().and_then(|code| code.parse::<i32>().ok()).unwrap_or_default();
        let why = said.message();
        let (trouble, message) = match code & 0xff {
            CORRUPT | NOT_A_DATABASE => {
                let advice = "stop the server, move the data folder away and restore a backup with `slipway-server \
                              restore`";
                (Trouble::Damaged, format!("it is damaged (SQLite: {why}); {advice}"))
            }
            FULL => (Trouble::Full, format!("the file system is full (SQLite: {why}); make room on it")),
            READ_ONLY => {
                let advice = "make the file, its folder and their file system writable for the user of the server";
                (Trouble::ReadOnly, format!("it is read-only (SQLite: {why}); {advice}"))
            }
            IO_ERROR => {
                let advice = "look for errors of the disk in the kernel's log";
                (Trouble::Other, format!("its file cannot be read or written (SQLite: {why}, code {code}); {advice}"))
            }
            BUSY => (Trouble::Locked, format!("SQLite: {why} (code {code})")),
            _ => (Trouble::Other, format!("SQLite: {why} (code {code})")),
        };
        // Whoever makes room or mounts the file system again need not repeat what machines report meanwhile.
        let is_transient = matches!(trouble, Trouble::Full | Trouble::ReadOnly | Trouble::Locked);
        Self { message, trouble, is_transient }
    }
}

/// Explains an error of PostgreSQL by its SQLSTATE (its manual, "PostgreSQL Error Codes").
fn of_postgres(said: &PgDatabaseError) -> DatabaseFault {
    let (code, why) = (said.code(), said.message());
    let advice = match code {
        "25006" => {
            "; the database server is a standby, or has default_transaction_read_only set: name the one that accepts \
             changes"
        }
        "28000" | "28P01" => "; check the user and the password, and pg_hba.conf of the database server",
        "3D000" => "; make it with `createdb --encoding UTF8 --template template0`",
        "42501" => "; make the user the owner of the database",
        "53100" => "; make room on the database server",
        OUTDATED_PLAN => "; another version of slipway-server changed the tables at this moment, try again",
        "55P03" => "; another program holds the lock of the database, try again",
        _ => "",
    };
    let message = format!("PostgreSQL: {why} (SQLSTATE {code}){advice}");
    // A lost connection, a server that is a standby for now, a rollback, too few resources, a lock, or an operator who
    // stops the database server.
    let is_transient =
        ["08", OUTDATED_PLAN, "25006", "40", "53", "55P03", "57"].iter().any(|class| code.starts_with(class));
    let trouble = match code {
        "25006" => Trouble::ReadOnly,
        "53100" => Trouble::Full,
        "55P03" => Trouble::Locked,
        "XX001" | "XX002" => Trouble::Damaged,
        _ if ["08", "57P"].iter().any(|class| code.starts_with(class)) => Trouble::Silent,
        _ => Trouble::Other,
    };
    DatabaseFault { message, trouble, is_transient }
}

impl From<MigrateError> for DatabaseFault {
    fn from(error: MigrateError) -> Self {
        match error {
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => error.into(),
            MigrateError::VersionMissing(version) | MigrateError::VersionMismatch(version) => Self::new(format!(
                "it was used with another version of slipway-server, which changed its schema (change {version}): \
                 install that version or a newer one, or restore a backup that this version made"
            ))
            .of(Trouble::OtherSchema),
            MigrateError::Dirty(version) => Self::new(format!(
                "an update of its schema was interrupted (change {version}): move the data folder away and restore a \
                 backup from before the update with `slipway-server restore`"
            )),
            other => Self::new(other.to_string()),
        }
    }
}
