//! A database on a PostgreSQL server.
//!
//! Transactions that write take turns, as with SQLite: each begins with a lock that only one transaction of all
//! processes can hold. So no transaction finds that another changed what it has read, and none can be a victim of a
//! deadlock or of a serialisation failure; there is nothing to repeat. Each statement sees what is committed when it
//! begins (READ COMMITTED), and the first one begins after the lock is granted.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection as _, PgConnection, PgPool, Row as _};

use crate::base::data::{DatabaseUrl, check_tables_never_served};
use crate::base::error::{DatabaseFault, Error};
use crate::store::db::{Connection, PATIENCE, in_time};
use crate::store::{Opening, migration, moved, upgrade};

/// How long a connection may take, and how long a reader waits for one.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a writer waits for a connection.
const TURN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long to wait for the answer to [`LOCK`]. Longer than the database server lets it wait.
const LOCK_PATIENCE: Duration = Duration::from_secs(15);
/// How long a ping may take.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// How long to wait until all connections are closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
const READERS: u32 = 8;
/// Connections that write. More than one, because sqlx pings a connection that is given back without a limit of time:
/// if the database server vanishes in that moment, the connection is lost until TCP gives up.
const WRITERS: u32 = 2;
/// Limits that the database server sets on a connection, with units of PostgreSQL. Keepalives make it notice that this
/// host is gone, and give the lock of its transaction to another process.
const LIMITS: [(&str, &str); 7] = [
    // Of the wait for another writer. Below the limit of the whole statement.
    ("lock_timeout", "10s"),
    ("statement_timeout", "30s"),
    ("idle_in_transaction_session_timeout", "2min"),
    ("default_transaction_isolation", "read committed"),
    ("tcp_keepalives_idle", "30"),
    ("tcp_keepalives_interval", "10"),
    ("tcp_keepalives_count", "3"),
];
/// A change of the schema takes as long as it takes, and waits for one by another process. Notices would only say what
/// is there already.
const FOR_CHANGES: [(&str, &str); 3] =
    [("lock_timeout", "0"), ("statement_timeout", "0"), ("client_min_messages", "warning")];
/// The writers' lock. The number is an arbitrary one that no other user of the database is likely to choose.
const LOCK: &str = "SELECT pg_advisory_xact_lock(8317708060514149633)";

/// A copy of all tables takes as long as it takes.
pub const FOR_COPIES: [&str; 2] =
    ["SET LOCAL statement_timeout = 0", "SET LOCAL idle_in_transaction_session_timeout = 0"];
/// From where other connections of slipway-server come.
pub const OTHERS: &str = "SELECT DISTINCT COALESCE(HOST(client_addr), 'the host of the database server') AS place \
    FROM pg_stat_activity WHERE datname = CURRENT_DATABASE() \
    AND application_name = CURRENT_SETTING('application_name') AND pid <> PG_BACKEND_PID()";
/// Makes [`OTHERS`] look again. Within a transaction, PostgreSQL answers as it did for the first time (PostgreSQL 15,
/// section 28.2.1).
pub const LOOK_AGAIN: &str = "SELECT pg_stat_clear_snapshot()";
/// Size of the database in bytes.
pub const SIZE: &str = "SELECT PG_DATABASE_SIZE(CURRENT_DATABASE()) AS bytes";
/// Indices and constraints that PostgreSQL does not rely on.
pub const INVALID: &str = "SELECT 'index ' || relname AS what FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid \
    WHERE NOT indisvalid AND relnamespace = CURRENT_SCHEMA()::regnamespace UNION ALL \
    SELECT 'constraint ' || conname FROM pg_constraint \
    WHERE NOT convalidated AND connamespace = CURRENT_SCHEMA()::regnamespace";
/// The time of the database server, in milliseconds since 1970, also within a transaction.
pub const NOW: &str = "SELECT (EXTRACT(EPOCH FROM CLOCK_TIMESTAMP()) * 1000)::bigint AS now";
/// The columns of all tables.
pub const COLUMNS: &str = "SELECT relname::text AS table_name, attname::text AS column_name, \
    UPPER(FORMAT_TYPE(atttypid, NULL)) AS kind, \
    COALESCE(ARRAY_POSITION(indkey::int2[], attnum) + 1, 0)::bigint AS place \
    FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped \
    LEFT JOIN pg_index ON indrelid = pg_class.oid AND indisprimary \
    WHERE relkind = 'r' AND relnamespace = CURRENT_SCHEMA()::regnamespace AND relname <> '_sqlx_migrations'";
/// The foreign keys of all tables.
pub const REFERENCES: &str = "SELECT tables.relname::text AS table_name, sources.attname::text AS column_name, \
    others.relname::text AS target, targets.attname::text AS key FROM pg_constraint \
    JOIN pg_class AS tables ON tables.oid = conrelid JOIN pg_class AS others ON others.oid = confrelid \
    JOIN pg_attribute AS sources ON sources.attrelid = conrelid AND sources.attnum = ANY (conkey) \
    JOIN pg_attribute AS targets ON targets.attrelid = confrelid AND targets.attnum = ANY (confkey) \
    WHERE contype = 'f' AND tables.relnamespace = CURRENT_SCHEMA()::regnamespace";

/// The connections to the database.
#[derive(Clone, Debug)]
pub struct Pools {
    readers: PgPool,
    writers: PgPool,
}

impl Pools {
    /// Opens the database and updates its schema. Creates the tables if there are none, unless a server has already run
    /// on the data folder.
    pub async fn open(url: &DatabaseUrl, folder: &Path, opening: Opening) -> Result<Self, Error> {
        let failed = |source: DatabaseFault| Error::OpenDatabase { database: url.name().to_owned(), source };
        let options = url.options().clone().options(FOR_CHANGES);
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, options.connect()).await;
        let silent = || failed(DatabaseFault::transient("the database server does not answer; check its address"));
        let mut connection = connected.map_err(|_| silent())?.map_err(|error| failed(unconnected(error)))?;
        let sql = "SELECT current_setting('server_encoding') AS encoding, to_regclass('settings') IS NULL AS is_empty";
        let found = sqlx::query(sql).fetch_one(&mut connection).await.map_err(|error| failed(error.into()))?;
        let encoding: String = found.try_get("encoding").map_err(|error| failed(error.into()))?;
        if encoding != "UTF8" {
            return Err(failed(DatabaseFault::new(format!(
                "its encoding is {encoding}: create it again with `createdb --encoding UTF8 --template template0`"
            ))));
        }
        let is_empty: bool = found.try_get("is_empty").map_err(|error| failed(error.into()))?;
        let pools = Self::with(url.options().clone());
        if opening != Opening::CopyTo {
            // A copy finds no other connections than its own.
            let asking = if opening == Opening::Use { pools.clone() } else { Self::with(url.options().clone()) };
            let mut other = asking.read().await.map_err(|error| failed(error.into()))?;
            let mut migrations = migrations();
            if is_empty {
                check_tables_never_served(folder, url.name())?;
            } else {
                if opening == Opening::Use {
                    moved::check(&mut other, url.name()).await?;
                }
                let now: i64 =
                    sqlx::query_scalar(NOW).fetch_one(&mut connection).await.map_err(|error| failed(error.into()))?;
                migrations = upgrade::prepare(&mut other, url.name(), migrations, now.cast_unsigned()).await?;
                if opening == Opening::Use {
                    upgrade::record(&mut other, &migrations).await?;
                }
            }
            migrations.run(&mut connection).await.map_err(|error| failed(error.into()))?;
            match opening {
                Opening::Use => upgrade::record(&mut other, &migrations).await?,
                Opening::CopyFrom | Opening::CopyTo => {
                    drop(other);
                    asking.close().await;
                }
            }
        }
        connection.close().await.map_err(|error| failed(error.into()))?;
        Ok(pools)
    }

    /// Connects when there is something to read. Leaves the schema as it is; it may be another version's.
    pub fn open_read_only(url: &DatabaseUrl) -> Self {
        Self::with(url.options().clone().options([("default_transaction_read_only", "on")]))
    }

    fn with(options: PgConnectOptions) -> Self {
        // Otherwise a long wait for another writer would be logged as a slow statement.
        let options = options.options(LIMITS).disable_statement_logging();
        // A server that is gone without a word does not even refuse. Its connections are found by a ping: before they
        // are used, and when they are given back after a statement was not answered in time.
        let pool = |most, patience| {
            let pool = PgPoolOptions::new().max_connections(most).acquire_timeout(patience).test_before_acquire(false);
            let pool = pool.before_acquire(|connection, _| Box::pin(async move { ping(connection).await }));
            pool.after_release(|connection, _| Box::pin(async move { ping(connection).await }))
        };
        Self {
            readers: pool(READERS, CONNECT_TIMEOUT).connect_lazy_with(options.clone()),
            writers: pool(WRITERS, TURN_TIMEOUT).connect_lazy_with(options),
        }
    }

    pub async fn read(&self) -> Result<Connection, sqlx::Error> {
        self.readers.acquire().await.map(Connection::Postgres)
    }

    pub async fn write(&self) -> Result<Connection, sqlx::Error> {
        let mut transaction = in_time(PATIENCE, self.writers.begin()).await?;
        in_time(LOCK_PATIENCE, sqlx::query(LOCK).execute(&mut *transaction)).await?;
        Ok(Connection::PostgresTransaction { transaction, has_failed: false, patience: PATIENCE })
    }

    pub async fn snapshot(&self) -> Result<Connection, sqlx::Error> {
        let mut transaction = self.readers.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        for sql in FOR_COPIES {
            sqlx::query(sql).execute(&mut *transaction).await?;
        }
        Ok(Connection::PostgresTransaction { transaction, has_failed: false, patience: Duration::MAX })
    }

    pub async fn close(&self) {
        // A connection to a server that is gone is waited for until TCP gives up.
        let closed = async { tokio::join!(self.readers.close(), self.writers.close()) };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, closed).await;
    }
}

/// Returns true if a connection answers, and fails otherwise.
async fn ping(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    in_time(PING_TIMEOUT, connection.ping()).await.map(|()| true)
}

/// Says what to do about a connection that could not be made.
fn unconnected(error: sqlx::Error) -> DatabaseFault {
    let advice = match &error {
        sqlx::Error::Io(error) if error.kind() == ErrorKind::InvalidData => {
            "; if the certificate of the database server is from your own authority, add sslrootcert=FILE to the URL"
        }
        sqlx::Error::Tls(_) => "; the database server must offer TLS",
        sqlx::Error::Io(_) => "; check the address, and that the database server runs",
        _ => "",
    };
    DatabaseFault::from(error).advise(advice)
}

/// Updates the schema within a transaction.
pub async fn migrate(connection: &mut PgConnection) -> Result<(), MigrateError> {
    migrations().run_direct(None, connection, false).await
}

/// Returns all migrations, in order. The first makes the schema that SQLite's migrations up to the same number make.
pub fn migrations() -> Migrator {
    Migrator::with_migrations(vec![
        migration(19, "schema", include_str!("../../migrations/postgres/0019_schema.sql")),
        migration(20, "keys of the site", include_str!("../../migrations/postgres/0020_site_keys.sql")),
        migration(21, "servers", include_str!("../../migrations/postgres/0021_servers.sql")),
        migration(22, "counts by state", include_str!("../../migrations/postgres/0022_states.sql")),
        migration(23, "parts of captures", include_str!("../../migrations/postgres/0023_capture_parts.sql")),
        migration(24, "clocks of servers", include_str!("../../migrations/postgres/0024_clocks.sql")),
        migration(25, "history", include_str!("../../migrations/postgres/0025_history.sql")),
        migration(26, "trouble", include_str!("../../migrations/postgres/0026_trouble.sql")),
        migration(27, "labels", include_str!("../../migrations/postgres/0027_labels.sql")),
        migration(28, "sessions", include_str!("../../migrations/postgres/0028_sessions.sql")),
        migration(29, "indexes of the history", include_str!("../../migrations/postgres/0029_history_indexes.sql")),
        migration(30, "facts of runs", include_str!("../../migrations/postgres/0030_run_facts.sql")),
        migration(31, "names of steps", include_str!("../../migrations/postgres/0031_step_names.sql")),
        migration(32, "requests of runs", include_str!("../../migrations/postgres/0032_run_requests.sql")),
        migration(33, "power", include_str!("../../migrations/postgres/0033_power.sql")),
        migration(34, "afterwards", include_str!("../../migrations/postgres/0034_afterwards.sql")),
        migration(35, "done", include_str!("../../migrations/postgres/0035_done.sql")),
        migration(36, "class", include_str!("../../migrations/postgres/0036_class.sql")),
        migration(37, "agents", include_str!("../../migrations/postgres/0037_agents.sql")),
    ])
}
