//! The SQLite database: one file in the data folder.
//!
//! SQLite has one writer at a time. Writers in this process queue for a single connection, in order of arrival, so that
//! they never find the database busy. Only operators' commands, which are other processes, compete for the lock.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection as _, Row as _, SqliteConnection, SqlitePool};

use crate::base::data::check_never_served;
use crate::base::error::Error;
use crate::base::time::now;
use crate::store::db::Connection;
use crate::store::{Opening, database, migration, moved, upgrade};

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

/// The columns of all tables.
pub const COLUMNS: &str = "SELECT tables.name AS table_name, columns.name AS column_name, columns.type AS kind, \
    columns.pk AS place FROM sqlite_schema AS tables, pragma_table_info(tables.name) AS columns \
    WHERE tables.type = 'table' AND tables.name <> '_sqlx_migrations' \
    AND tables.name NOT LIKE 'sqlite\\_%' ESCAPE '\\'";
/// The foreign keys of all tables.
pub const REFERENCES: &str = "SELECT tables.name AS table_name, \"from\" AS column_name, \"table\" AS target, \
    \"to\" AS key FROM sqlite_schema AS tables, pragma_foreign_key_list(tables.name)";

/// The connections to the database.
#[derive(Clone, Debug)]
pub struct Pools {
    readers: SqlitePool,
    /// A pool of one connection, so that writers queue.
    writer: SqlitePool,
}

impl Pools {
    /// Opens the database and updates its schema. Creates it if it is missing, but not where a server has already run.
    pub async fn open(file: &Path, opening: Opening) -> Result<Self, Error> {
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
            _ if opening == Opening::CopyTo => {}
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
        let failed = |source| Error::OpenDatabase { database: file.display().to_string(), source };
        let writer = one.connect_with(options.clone()).await.map_err(|error| failed(error.into()))?;
        if opening != Opening::CopyTo {
            let tables = sqlx::query_scalar("SELECT name FROM sqlite_schema").fetch_all(&writer).await;
            let tables: Vec<String> = tables.map_err(|error| failed(error.into()))?;
            // A copy of only this file from a running server has no tables yet, because they are still in the
            // write-ahead log.
            if tables.is_empty() {
                check_never_served(file, "without content")?;
            }
            let connect = async || writer.acquire().await.map(Connection::Sqlite).map_err(|error| failed(error.into()));
            let (name, mut migrations) = (file.display().to_string(), migrations());
            if tables.iter().any(|table| table == "settings") {
                let mut connection = connect().await?;
                if opening == Opening::Use {
                    moved::check(&mut connection, &name).await?;
                }
                migrations = upgrade::prepare(&mut connection, &name, migrations, now()).await?;
                if opening == Opening::Use {
                    upgrade::record(&mut connection, &migrations).await?;
                }
            }
            migrations.run(&writer).await.map_err(|error| failed(error.into()))?;
            if opening == Opening::Use {
                upgrade::record(&mut connect().await?, &migrations).await?;
            }
        }
        drop(lock);
        // A connection to a file cannot be lost, so it is not tested before each use.
        let readers = SqlitePoolOptions::new().max_connections(READERS).test_before_acquire(false);
        Ok(Self { readers: readers.connect_lazy_with(options), writer })
    }

    /// Opens the database read-only. Leaves the schema as it is; it may be another version's.
    pub fn open_read_only(file: &Path) -> Self {
        let options = SqliteConnectOptions::new().filename(file).read_only(true).busy_timeout(BUSY_TIMEOUT);
        let pool = |most| SqlitePoolOptions::new().max_connections(most).connect_lazy_with(options.clone());
        Self { readers: pool(1), writer: pool(1) }
    }

    pub async fn read(&self) -> Result<Connection, sqlx::Error> {
        self.readers.acquire().await.map(Connection::Sqlite)
    }

    pub async fn write(&self) -> Result<Connection, sqlx::Error> {
        let begun = self.writer.begin_with("BEGIN IMMEDIATE").await;
        begun.map(Connection::SqliteTransaction)
    }

    pub async fn snapshot(&self) -> Result<Connection, sqlx::Error> {
        let begun = self.readers.begin_with("BEGIN").await;
        begun.map(Connection::SqliteTransaction)
    }

    pub async fn copy_to(&self, file: &Path) -> Result<(), Error> {
        let query = sqlx::query("VACUUM INTO $1").bind(file.to_string_lossy().into_owned());
        query.execute(&self.readers).await.map_err(database("copying the database"))?;
        let options = SqliteConnectOptions::new().filename(file).read_only(true);
        let mut copy = options.connect().await.map_err(database("opening the copy of the database"))?;
        check(&mut copy).await
    }

    pub async fn check(&self) -> Result<(), Error> {
        check(&mut *self.readers.acquire().await.map_err(database("connecting to the database"))?).await
    }

    pub async fn empty_log(&self) -> Result<bool, Error> {
        let failed = || database("emptying the log of the database");
        let mut connection = self.readers.acquire().await.map_err(database("connecting to the database"))?;
        // With a short timeout, because the checkpoint blocks all writers while it waits for readers, such as a backup.
        set_busy_timeout(&mut connection, EMPTY_TIMEOUT).await?;
        let row = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").fetch_one(&mut *connection).await;
        set_busy_timeout(&mut connection, BUSY_TIMEOUT).await?;
        Ok(row.and_then(|row| row.try_get::<i64, _>(0)).map_err(failed())? == 0)
    }

    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

async fn set_busy_timeout(connection: &mut SqliteConnection, timeout: Duration) -> Result<(), Error> {
    let sql = format!("PRAGMA busy_timeout = {}", timeout.as_millis());
    let done = sqlx::query(sqlx::AssertSqlSafe(sql)).execute(connection).await;
    done.map(drop).map_err(database("setting how long a statement waits"))
}

async fn check(connection: &mut SqliteConnection) -> Result<(), Error> {
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

/// Updates the schema within a transaction.
pub async fn migrate(connection: &mut SqliteConnection) -> Result<(), MigrateError> {
    migrations().run_direct(None, connection, false).await
}

/// Returns all migrations, in order. A released migration is never changed.
pub fn migrations() -> Migrator {
    Migrator::with_migrations(vec![
        migration(1, "first", include_str!("../../migrations/sqlite/0001_first.sql")),
        migration(2, "ended and forgotten", include_str!("../../migrations/sqlite/0002_ended_and_forgotten.sql")),
        migration(3, "contacts", include_str!("../../migrations/sqlite/0003_contacts.sql")),
        migration(4, "recovery keys", include_str!("../../migrations/sqlite/0004_recovery_keys.sql")),
        migration(5, "network and keys", include_str!("../../migrations/sqlite/0005_network_and_keys.sql")),
        migration(6, "reports", include_str!("../../migrations/sqlite/0006_reports.sql")),
        migration(7, "uses of run tokens", include_str!("../../migrations/sqlite/0007_run_token_uses.sql")),
        migration(8, "disk hints", include_str!("../../migrations/sqlite/0008_disk_hints.sql")),
        migration(9, "keys of nodes", include_str!("../../migrations/sqlite/0009_keys_of_nodes.sql")),
        migration(10, "notes", include_str!("../../migrations/sqlite/0010_notes.sql")),
        migration(11, "secrets", include_str!("../../migrations/sqlite/0011_secrets.sql")),
        migration(12, "tpm", include_str!("../../migrations/sqlite/0012_tpm.sql")),
        migration(13, "operators", include_str!("../../migrations/sqlite/0013_operators.sql")),
        migration(14, "boot fetches", include_str!("../../migrations/sqlite/0014_boot_fetches.sql")),
        migration(15, "boot builds", include_str!("../../migrations/sqlite/0015_boot_builds.sql")),
        migration(16, "restored runs", include_str!("../../migrations/sqlite/0016_restored_runs.sql")),
        migration(17, "findings", include_str!("../../migrations/sqlite/0017_findings.sql")),
        migration(18, "contacts of nodes", include_str!("../../migrations/sqlite/0018_node_contacts.sql")),
        migration(19, "changes of nodes", include_str!("../../migrations/sqlite/0019_node_changes.sql")),
        migration(20, "keys of the site", include_str!("../../migrations/sqlite/0020_site_keys.sql")),
        migration(21, "servers", include_str!("../../migrations/sqlite/0021_servers.sql")),
        migration(22, "counts by state", include_str!("../../migrations/sqlite/0022_states.sql")),
        migration(23, "parts of captures", include_str!("../../migrations/sqlite/0023_capture_parts.sql")),
        migration(24, "clocks of servers", include_str!("../../migrations/sqlite/0024_clocks.sql")),
        migration(25, "history", include_str!("../../migrations/sqlite/0025_history.sql")),
        migration(26, "trouble", include_str!("../../migrations/sqlite/0026_trouble.sql")),
        migration(27, "labels", include_str!("../../migrations/sqlite/0027_labels.sql")),
        migration(28, "sessions", include_str!("../../migrations/sqlite/0028_sessions.sql")),
        migration(29, "indexes of the history", include_str!("../../migrations/sqlite/0029_history_indexes.sql")),
        migration(30, "facts of runs", include_str!("../../migrations/sqlite/0030_run_facts.sql")),
        migration(31, "names of steps", include_str!("../../migrations/sqlite/0031_step_names.sql")),
        migration(32, "requests of runs", include_str!("../../migrations/sqlite/0032_run_requests.sql")),
        migration(33, "power", include_str!("../../migrations/sqlite/0033_power.sql")),
        migration(34, "afterwards", include_str!("../../migrations/sqlite/0034_afterwards.sql")),
        migration(35, "done", include_str!("../../migrations/sqlite/0035_done.sql")),
        migration(36, "class", include_str!("../../migrations/sqlite/0036_class.sql")),
        migration(37, "agents", include_str!("../../migrations/sqlite/0037_agents.sql")),
    ])
}

#[cfg(test)]
mod tests {
    use crate::store::{Store, commit, db};

    #[tokio::test]
    async fn a_transaction_that_sqlite_ended_is_not_the_last() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let store = Store::open(&folder.path().join("slipway.db")).await?;
        let mut transaction = store.write().await?;
        // SQLite does this when the disk is full.
        db::query("ROLLBACK").execute(&mut transaction).await?;
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
