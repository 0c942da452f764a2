//! The SQLite database. Each table has a file of plain functions that take a connection, so that callers decide what
//! belongs to one transaction.
//!
//! SQLite has one writer at a time. Writers in this process queue for a single connection, in order of arrival, so that
//! they never find the database busy. Only operators' commands, which are other processes, compete for the lock.
//!
//! Statements use only what SQLite and PostgreSQL have in common: `$1` parameters, `ON CONFLICT`, and no functions
//! specific to either.

pub mod attestations;
pub mod boot_builds;
pub mod boot_fetches;
pub mod boot_reports;
pub mod claimants;
pub mod events;
pub mod external_steps;
pub mod findings;
pub mod images;
pub mod logs;
pub mod node_changes;
pub mod node_contacts;
pub mod nodes;
pub mod notes;
pub mod operators;
pub mod recovery_keys;
pub mod run_tokens;
pub mod runs;
pub mod settings;
pub mod systems;
pub mod tokens;

use std::collections::HashMap;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use slipway_protocol::Digest;

use crate::base::data::{check_never_served, image_in};
use crate::base::error::Error;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::pool::PoolConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteRow, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection as _, Row, SqlSafeStr, Sqlite, SqlitePool, Transaction};
use tokio::sync::OwnedMutexGuard;

/// A connection, inside or outside of a transaction.
pub type Connection = sqlx::SqliteConnection;

/// How long a statement waits while another process writes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait for readers before emptying the write-ahead log is given up.
const EMPTY_TIMEOUT: Duration = Duration::from_millis(200);
/// How long a writer waits for the writing connection. Longer than a request may take.
const TURN_TIMEOUT: Duration = Duration::from_secs(90);
const READERS: u32 = 8;
/// Size in bytes to which the write-ahead log is truncated after a checkpoint (SQLite, "PRAGMA journal_size_limit").
/// Otherwise one large transaction would occupy its space forever.
const MAX_LOG_BYTES: &str = "16777216";
/// Page cache of a connection in KiB, which SQLite takes as a negative number ("PRAGMA cache_size").
const CACHE_KIB: &str = "-1024";

/// The database and the files that belong to it.
#[derive(Clone, Debug)]
pub struct Store {
    readers: SqlitePool,
    /// A pool of one connection, so that writers queue.
    writer: SqlitePool,
    /// The data folder, which also has the images.
    folder: PathBuf,
    /// A lock for each image that was or is being examined.
    turns: Arc<Mutex<HashMap<Digest, Arc<Turn>>>>,
}

type Turn = tokio::sync::Mutex<()>;

impl Store {
    /// Opens the database and updates its schema. Creates it if it is missing, but not where a server has already run.
    pub async fn open(file: &Path) -> Result<Self, Error> {
        // Full synchronisation, because a write that a node was told about must survive a power cut.
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .pragma("journal_size_limit", MAX_LOG_BYTES)
            .pragma("cache_size", CACHE_KIB)
            // Deleted data must not remain in free pages of the file.
            .pragma("secure_delete", "ON")
            .busy_timeout(BUSY_TIMEOUT);
        // If several processes find no database, one of them creates it. SQLite does not make the others wait while
        // that process changes the journal mode, so this lock does.
        let lock = lock(file.with_extension("lock")).await?;
        // SQLite would remove the write-ahead log next to an empty file, but the log may contain the missing data.
        match std::fs::metadata(file) {
            Err(error) if error.kind() == ErrorKind::NotFound => check_never_served(file, "missing")?,
            Ok(found) if found.len() == 0 => check_never_served(file, "empty")?,
            _ => {}
        }
        // SQLite creates its other files with the mode of the database.
        let made = File::options().write(true).create(true).truncate(false).mode(0o600).open(file);
        made.map_err(|source| Error::File { doing: "opening", path: file.to_owned(), source })?;
        let one = SqlitePoolOptions::new().max_connections(1).acquire_timeout(TURN_TIMEOUT);
        let one = one.idle_timeout(None).max_lifetime(None);
        // SQLite ends a transaction by itself if the disk is full ("Response To Errors Within A Transaction"). sqlx
        // then believes that the connection still has one, and can neither end it nor begin another, so the connection
        // is replaced.
        let one = one.before_acquire(|connection, _| Box::pin(async move { Ok(!connection.is_in_transaction()) }));
        let failed = |source| Error::OpenDatabase { file: file.to_owned(), source };
        let writer = one.connect_with(options.clone()).await.map_err(|error| failed(error.into()))?;
        let tables = sqlx::query("SELECT name FROM sqlite_schema").fetch_optional(&writer).await;
        // A copy of only this file from a running server has no tables yet, because they are still in the write-ahead
        // log.
        if tables.map_err(|error| failed(error.into()))?.is_none() {
            check_never_served(file, "without content")?;
        }
        migrations().run(&writer).await.map_err(|error| failed(error.into()))?;
        drop(lock);
        // A connection to a file cannot be lost, so it is not tested before each use.
        let readers = SqlitePoolOptions::new().max_connections(READERS).test_before_acquire(false);
        let readers = readers.connect_lazy_with(options);
        let folder = file.parent().unwrap_or(Path::new("")).to_owned();
        Ok(Self { readers, writer, folder, turns: Arc::default() })
    }

    /// Opens the database read-only. Leaves the schema as it is; it may be another version's.
    pub fn open_read_only(file: &Path) -> Self {
        let options = SqliteConnectOptions::new().filename(file).read_only(true).busy_timeout(BUSY_TIMEOUT);
        let pool = |most| SqlitePoolOptions::new().max_connections(most).connect_lazy_with(options.clone());
        let folder = file.parent().unwrap_or(Path::new("")).to_owned();
        Self { readers: pool(1), writer: pool(1), folder, turns: Arc::default() }
    }

    /// Returns the path of the image with this digest. The file need not exist.
    pub fn image(&self, digest: &Digest) -> PathBuf {
        image_in(&self.folder, digest)
    }

    /// Waits until nobody in this process examines the image with this digest, and locks the examination until the
    /// guard is dropped.
    pub async fn turn_to_examine(&self, digest: &Digest) -> OwnedMutexGuard<()> {
        let turns = || self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = Arc::clone(turns().entry(digest.clone()).or_default());
        turn.lock_owned().await
    }

    /// Returns a connection for reading.
    pub async fn read(&self) -> Result<PoolConnection<Sqlite>, Error> {
        self.readers.acquire().await.map_err(database("connecting to the database"))
    }

    /// Begins a transaction that holds the write lock from its start, so that what it reads cannot change. Waits for
    /// earlier writers of this process.
    pub async fn write(&self) -> Result<Transaction<'static, Sqlite>, Error> {
        self.writer.begin_with("BEGIN IMMEDIATE").await.map_err(database("beginning a transaction"))
    }

    /// Copies the database into an empty file, while the database stays in use, and checks the copy.
    pub async fn copy_to(&self, file: &Path) -> Result<(), Error> {
        let mut connection = self.read().await?;
        let query = sqlx::query("VACUUM INTO $1").bind(file.to_string_lossy().into_owned());
        query.execute(&mut *connection).await.map_err(database("copying the database"))?;
        let options = SqliteConnectOptions::new().filename(file).read_only(true);
        let mut copy = options.connect().await.map_err(database("opening the copy of the database"))?;
        check(&mut copy).await
    }

    /// Fails if the database is damaged.
    pub async fn check(&self) -> Result<(), Error> {
        check(&mut *self.read().await?).await
    }

    /// Moves the content of the write-ahead log into the database and empties the log, so that the log contains no
    /// deleted data. Does nothing while the database is in use. Returns whether the log is empty.
    pub async fn empty_log(&self) -> Result<bool, Error> {
        let failed = || database("emptying the log of the database");
        let mut connection = self.read().await?;
        // With a short timeout, because the checkpoint blocks all writers while it waits for readers, such as a backup.
        set_busy_timeout(&mut connection, EMPTY_TIMEOUT).await?;
        let row = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").fetch_one(&mut *connection).await;
        set_busy_timeout(&mut connection, BUSY_TIMEOUT).await?;
        Ok(row.and_then(|row| row.try_get::<i64, _>(0)).map_err(failed())? == 0)
    }

    /// Closes all connections, and waits for those in use.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

async fn set_busy_timeout(connection: &mut Connection, timeout: Duration) -> Result<(), Error> {
    let sql = format!("PRAGMA busy_timeout = {}", timeout.as_millis());
    let done = sqlx::query(sqlx::AssertSqlSafe(sql)).execute(connection).await;
    done.map(drop).map_err(database("setting how long a statement waits"))
}

async fn check(connection: &mut Connection) -> Result<(), Error> {
    let rows = sqlx::query("PRAGMA integrity_check").fetch_all(connection).await;
    let rows = rows.map_err(database("checking the database"))?;
    let found = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<String>, _>>();
    let found = found.map_err(database("checking the database"))?;
    match found.as_slice() {
        [one] if one == "ok" => Ok(()),
        found => Err(Error::Damaged { found: found.join("; ") }),
    }
}

/// Waits for an exclusive lock, and returns the locked file. The lock is held until the file is closed.
async fn lock(path: PathBuf) -> Result<File, Error> {
    let locking = tokio::task::spawn_blocking(move || {
        let locked = File::create(&path).and_then(|file| file.lock().map(|()| file));
        locked.map_err(|source| Error::File { doing: "locking", path, source })
    });
    locking.await.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))
}

/// Makes a transaction's changes permanent.
pub async fn commit(transaction: Transaction<'static, Sqlite>) -> Result<(), Error> {
    transaction.commit().await.map_err(database("committing a transaction"))
}

/// Returns all migrations, in order. A released migration is never changed.
fn migrations() -> Migrator {
    let migration = |version, name: &'static str, sql: &'static str| {
        Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
    };
    Migrator::with_migrations(vec![
        migration(1, "first", include_str!("../migrations/sqlite/0001_first.sql")),
        migration(2, "ended and forgotten", include_str!("../migrations/sqlite/0002_ended_and_forgotten.sql")),
        migration(3, "contacts", include_str!("../migrations/sqlite/0003_contacts.sql")),
        migration(4, "recovery keys", include_str!("../migrations/sqlite/0004_recovery_keys.sql")),
        migration(5, "network and keys", include_str!("../migrations/sqlite/0005_network_and_keys.sql")),
        migration(6, "reports", include_str!("../migrations/sqlite/0006_reports.sql")),
        migration(7, "uses of run tokens", include_str!("../migrations/sqlite/0007_run_token_uses.sql")),
        migration(8, "disk hints", include_str!("../migrations/sqlite/0008_disk_hints.sql")),
        migration(9, "keys of nodes", include_str!("../migrations/sqlite/0009_keys_of_nodes.sql")),
        migration(10, "notes", include_str!("../migrations/sqlite/0010_notes.sql")),
        migration(11, "secrets", include_str!("../migrations/sqlite/0011_secrets.sql")),
        migration(12, "tpm", include_str!("../migrations/sqlite/0012_tpm.sql")),
        migration(13, "operators", include_str!("../migrations/sqlite/0013_operators.sql")),
        migration(14, "boot fetches", include_str!("../migrations/sqlite/0014_boot_fetches.sql")),
        migration(15, "boot builds", include_str!("../migrations/sqlite/0015_boot_builds.sql")),
        migration(16, "restored runs", include_str!("../migrations/sqlite/0016_restored_runs.sql")),
        migration(17, "findings", include_str!("../migrations/sqlite/0017_findings.sql")),
        migration(18, "contacts of nodes", include_str!("../migrations/sqlite/0018_node_contacts.sql")),
        migration(19, "changes of nodes", include_str!("../migrations/sqlite/0019_node_changes.sql")),
    ])
}

fn database(doing: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |source| Error::Database { doing, source: source.into() }
}

fn get<'r, T: sqlx::Decode<'r, Sqlite> + sqlx::Type<Sqlite>>(
    row: &'r SqliteRow,
    column: &'static str,
) -> Result<T, Error> {
    row.try_get(column).map_err(undecodable(column))
}

fn undecodable<E: std::error::Error + Send + Sync + 'static>(column: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::Record { what: column, source: Box::new(source) }
}

/// Reads a count or a time, which is never negative.
fn number(row: &SqliteRow, column: &'static str) -> Result<u64, Error> {
    get::<i64>(row, column).map(i64::cast_unsigned)
}

fn optional_number(row: &SqliteRow, column: &'static str) -> Result<Option<u64>, Error> {
    get::<Option<i64>>(row, column).map(|value| value.map(i64::cast_unsigned))
}

fn json<T: DeserializeOwned>(row: &SqliteRow, column: &'static str) -> Result<T, Error> {
    let text: String = get(row, column)?;
    serde_json::from_str(&text).map_err(undecodable(column))
}

fn optional_json<T: DeserializeOwned>(row: &SqliteRow, column: &'static str) -> Result<Option<T>, Error> {
    let text: Option<String> = get(row, column)?;
    text.map(|text| serde_json::from_str(&text)).transpose().map_err(undecodable(column))
}

/// Reads an enum without data, or another value that is a text in the protocol. It is stored as plain text.
fn enum_from_text<T: DeserializeOwned>(row: &SqliteRow, column: &'static str) -> Result<T, Error> {
    let text: String = get(row, column)?;
    serde_json::from_value(serde_json::Value::String(text)).map_err(undecodable(column))
}

fn optional_word<T: DeserializeOwned>(row: &SqliteRow, column: &'static str) -> Result<Option<T>, Error> {
    let text: Option<String> = get(row, column)?;
    text.map(|text| serde_json::from_value(serde_json::Value::String(text))).transpose().map_err(undecodable(column))
}

pub(crate) fn to_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("protocol values have text keys and so are always JSON")
}

/// Returns the word for a value, as in JSON but without quotes.
pub(crate) fn to_word<T: Serialize>(value: &T) -> String {
    to_json(value).trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_transaction_that_sqlite_ended_is_not_the_last() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let store = Store::open(&folder.path().join("slipway.db")).await?;
        let mut transaction = store.write().await?;
        // SQLite does this when the disk is full.
        sqlx::query("ROLLBACK").execute(&mut *transaction).await?;
        assert!(commit(transaction).await.is_err());
        commit(store.write().await?).await?;
        Ok(())
    }

    /// Connections that compete for SQLite's lock poll for it, so some of them may wait for seconds.
    #[tokio::test]
    async fn writers_have_their_turn_in_the_order_in_which_they_asked() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let store = Store::open(&folder.path().join("slipway.db")).await?;
        let first = store.write().await?;
        let (said, mut order) = tokio::sync::mpsc::unbounded_channel();
        for number in 0..20 {
            let (store, said) = (store.clone(), said.clone());
            tokio::spawn(async move {
                let turn = store.write().await;
                said.send(number).expect("the test listens");
                drop(turn);
            });
            // Lets the task queue before the next task does.
            tokio::task::yield_now().await;
        }
        drop((first, said));
        let mut turns = Vec::new();
        while let Some(number) = order.recv().await {
            turns.push(number);
        }
        assert_eq!(turns, (0..20).collect::<Vec<_>>());
        Ok(())
    }
}
