//! The database, which is SQLite or PostgreSQL. Each table has a file of plain functions that take a connection, so
//! that callers decide what belongs to one transaction.
//!
//! Statements use only what SQLite and PostgreSQL have in common: `$1` parameters, `ON CONFLICT`, and no functions
//! specific to either.

pub mod agents;
pub mod attestations;
pub mod boot_builds;
pub mod boot_fetches;
pub mod boot_reports;
pub mod capture_parts;
pub mod check;
pub mod claimants;
pub mod clock;
pub mod copy;
pub mod counts;
pub mod db;
pub mod events;
pub mod external_steps;
pub mod findings;
pub mod flags;
pub mod history;
pub mod images;
pub mod leases;
pub mod limits;
pub mod logs;
pub mod meters;
mod moved;
pub mod node_changes;
pub mod node_contacts;
pub mod nodes;
pub mod notes;
pub mod operators;
mod postgres;
pub mod power;
pub mod probe;
pub mod published;
mod records;
pub mod recovery_keys;
pub mod refused_pins;
pub mod run_facts;
pub mod run_requests;
pub mod run_tokens;
pub mod runs;
pub mod schema;
pub mod servers;
pub mod sessions;
pub mod settings;
pub mod site_keys;
mod sqlite;
pub mod step_times;
pub mod systems;
pub mod tasks;
pub mod tokens;
mod upgrade;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use slipway_protocol::{Digest, ErrorCode};
use sqlx::SqlSafeStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use tokio::sync::OwnedMutexGuard;

use crate::base::data::DataDir;
use crate::base::error::Error;
use crate::base::meters::Counted;
use crate::base::objects::Objects;
use crate::keys::jwt::Signer;
use crate::keys::vault::Vault;

pub use self::db::{Connection, Row, Transaction};
use self::meters::Meters;

/// The database and the files that belong to it.
#[derive(Clone, Debug)]
pub struct Store {
    pools: Pools,
    /// The data folder. `None` for a database without the site's secret.
    data: Option<DataDir>,
    /// Where the images are.
    objects: Objects,
    /// A lock for each image that was or is being examined.
    turns: Arc<Mutex<HashMap<Digest, Arc<Turn>>>>,
    meters: Meters,
    /// The operator on whose behalf this is used, if it is an operator's.
    operator: Option<Arc<str>>,
}

/// The connections to either database.
#[derive(Clone, Debug)]
enum Pools {
    Sqlite(sqlite::Pools),
    Postgres(postgres::Pools),
}

type Turn = tokio::sync::Mutex<()>;

/// What a database is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    /// By a server or a command, for anything.
    Use,
    /// For a copy of its tables.
    CopyFrom,
    /// For a copy to it, which makes the tables in its own transaction.
    CopyTo,
}

impl Store {
    /// Opens the database of a data folder and updates its schema. Creates it if it is missing, but not where a server
    /// has already run.
    pub async fn of(data: &DataDir) -> Result<Self, Error> {
        Self::open_for(data, Opening::Use).await
    }

    /// Opens the database of a data folder for a copy of its tables. An earlier copy does not matter.
    pub async fn to_copy_from(data: &DataDir) -> Result<Self, Error> {
        Self::open_for(data, Opening::CopyFrom).await
    }

    /// Opens the database of a data folder to copy tables into it. Creates an SQLite file if it is missing, and leaves
    /// what is there as it is.
    pub async fn to_copy_to(data: &DataDir) -> Result<Self, Error> {
        Self::open_for(data, Opening::CopyTo).await
    }

    async fn open_for(data: &DataDir, opening: Opening) -> Result<Self, Error> {
        let pools = match data.postgres() {
            Some(url) => Pools::Postgres(postgres::Pools::open(url, data.root(), opening).await?),
            None => Pools::Sqlite(sqlite::Pools::open(&data.database(), opening).await?),
        };
        Ok(Self { data: Some(data.clone()), ..Self::with(pools, data.objects().clone()) })
    }

    /// Opens an SQLite database, like [`Self::of`].
    pub async fn open(file: &Path) -> Result<Self, Error> {
        let folder = file.parent().unwrap_or(Path::new(""));
        let objects = Objects::Folder(folder.to_owned());
        Ok(Self::with(Pools::Sqlite(sqlite::Pools::open(file, Opening::Use).await?), objects))
    }

    /// Opens the database of a data folder read-only. Leaves the schema as it is; it may be another version's.
    pub fn read_only_of(data: &DataDir) -> Self {
        let pools = match data.postgres() {
            Some(url) => Pools::Postgres(postgres::Pools::open_read_only(url)),
            None => Pools::Sqlite(sqlite::Pools::open_read_only(&data.database())),
        };
        Self { data: Some(data.clone()), ..Self::with(pools, data.objects().clone()) }
    }

    fn with(pools: Pools, objects: Objects) -> Self {
        Self { pools, data: None, objects, turns: Arc::default(), meters: Meters::default(), operator: None }
    }

    /// Returns this database, used on behalf of an operator of this name.
    pub fn on_behalf_of(&self, operator: &str) -> Self {
        Self { operator: Some(operator.into()), ..self.clone() }
    }

    /// Where the images are.
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Opens what encrypts texts in this database.
    pub fn vault(&self) -> Result<Vault, Error> {
        let data = self.data.as_ref().ok_or_else(|| {
            Error::refused(ErrorCode::Internal, "this database was opened without its data folder, which has the key")
        })?;
        match data.read("jwt.key")? {
            Some(secret) => Ok(Vault::of(&Signer::new(&secret))),
            None => {
                let message = format!("{:?} is missing: restore it from a backup", data.path("jwt.key"));
                Err(Error::refused(ErrorCode::Conflict, message))
            }
        }
    }

    /// Waits until nobody in this process examines the image with this digest, and locks the examination until the
    /// guard is dropped.
    pub async fn turn_to_examine(&self, digest: &Digest) -> OwnedMutexGuard<()> {
        let turns = || self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = Arc::clone(turns().entry(digest.clone()).or_default());
        turn.lock_owned().await
    }

    /// Returns a connection for reading. It is boxed so that callers borrow it as they borrow a transaction.
    pub async fn read(&self) -> Result<Box<Connection>, Error> {
        let connection = match &self.pools {
            Pools::Sqlite(pools) => Box::pin(pools.read()).await,
            Pools::Postgres(pools) => Box::pin(pools.read()).await,
        };
        connection.map(Box::new).map_err(database("connecting to the database"))
    }

    /// Begins a transaction that holds the write lock from its start, so that what it reads cannot change. Waits for
    /// earlier writers of this process.
    pub async fn write(&self) -> Result<Transaction, Error> {
        let _waiting = Counted::new(&self.meters.waiting);
        let connection = match &self.pools {
            Pools::Sqlite(pools) => Box::pin(pools.write()).await,
            Pools::Postgres(pools) => Box::pin(pools.write()).await,
        };
        self.transaction(connection)
    }

    fn transaction(&self, connection: Result<Connection, sqlx::Error>) -> Result<Transaction, Error> {
        let connection = connection.map_err(database("beginning a transaction"))?;
        Ok(Transaction { connection, meters: self.meters.clone(), operator: self.operator.clone() })
    }

    /// Begins a transaction like [`Self::write`] that may last.
    pub async fn write_long(&self) -> Result<Transaction, Error> {
        let mut transaction = self.write().await?;
        if let Connection::PostgresTransaction { patience, .. } = &mut *transaction {
            *patience = Duration::MAX;
            for sql in postgres::FOR_COPIES {
                let done = db::query(sql).execute(&mut transaction).await;
                done.map_err(database("beginning a transaction"))?;
            }
        }
        Ok(transaction)
    }

    /// Begins a transaction that reads what is stored now, whatever is stored meanwhile. It may last.
    pub async fn snapshot(&self) -> Result<Transaction, Error> {
        let connection = match &self.pools {
            Pools::Sqlite(pools) => Box::pin(pools.snapshot()).await,
            Pools::Postgres(pools) => Box::pin(pools.snapshot()).await,
        };
        self.transaction(connection)
    }

    /// Returns the name of the kind of database.
    pub fn kind(&self) -> &'static str {
        match &self.pools {
            Pools::Sqlite(_) => "sqlite",
            Pools::Postgres(_) => "postgresql",
        }
    }

    /// Returns what this process measures of its use of the database.
    pub fn meters(&self) -> &Meters {
        &self.meters
    }

    fn migrations(&self) -> Migrator {
        match &self.pools {
            Pools::Sqlite(_) => sqlite::migrations(),
            Pools::Postgres(_) => postgres::migrations(),
        }
    }

    /// The numbers of all migrations, in order.
    fn versions(&self) -> Vec<i64> {
        self.migrations().iter().map(|migration| migration.version).collect()
    }

    /// Whether a migration of this program makes a table of this name.
    fn makes_table(&self, name: &str) -> bool {
        let statement = format!("CREATE TABLE {name} (");
        self.migrations().iter().any(|migration| migration.sql.as_str().contains(&statement))
    }

    /// The number of the last migration.
    pub fn newest_version(&self) -> i64 {
        self.versions().last().copied().unwrap_or_default()
    }

    /// Makes the tables, or updates their schema, within a transaction.
    pub async fn migrate(&self, transaction: &mut Transaction) -> Result<(), Error> {
        let done = match &mut **transaction {
            Connection::SqliteTransaction(transaction) => sqlite::migrate(transaction).await,
            Connection::PostgresTransaction { transaction, .. } => postgres::migrate(transaction).await,
            Connection::Sqlite(_) | Connection::Postgres(_) => Ok(()),
        };
        done.map_err(|source| Error::Database { doing: "making the tables", source: source.into() })
    }

    /// Copies an SQLite database into an empty file, while the database stays in use, and checks the copy. Refuses to
    /// copy a database of PostgreSQL.
    pub async fn copy_to(&self, file: &Path) -> Result<(), Error> {
        match &self.pools {
            Pools::Sqlite(pools) => pools.copy_to(file).await,
            Pools::Postgres(_) => {
                let message = "the database is on a PostgreSQL server, which has its own way of back-up: use \
                               `pg_dump --format=custom`, and copy the data folder, which has the keys and the images";
                Err(Error::refused(ErrorCode::Conflict, message))
            }
        }
    }

    /// Fails if an SQLite database is damaged. A PostgreSQL server looks after its own files.
    pub async fn check(&self) -> Result<(), Error> {
        match &self.pools {
            Pools::Sqlite(pools) => pools.check().await,
            Pools::Postgres(_) => Ok(()),
        }
    }

    /// Moves the content of the write-ahead log into the database and empties the log, so that the log contains no
    /// deleted data. Does nothing while the database is in use.
    pub async fn empty_log(&self) -> Result<Erased, Error> {
        match &self.pools {
            Pools::Sqlite(pools) if pools.empty_log().await? => Ok(Erased::Now),
            Pools::Sqlite(_) => Ok(Erased::Soon),
            Pools::Postgres(_) => Ok(Erased::ByOthers),
        }
    }

    /// Closes all connections, and waits for those in use.
    pub async fn close(&self) {
        match &self.pools {
            Pools::Sqlite(pools) => pools.close().await,
            Pools::Postgres(pools) => pools.close().await,
        }
    }
}

/// When what was deleted from the database is in none of its files any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Erased {
    /// It is in none of them.
    Now,
    /// When a running server empties the write-ahead log.
    Soon,
    /// When the PostgreSQL server has cleaned its tables up and has removed old write-ahead logs.
    ByOthers,
}

/// Makes a transaction's changes permanent.
pub async fn commit(transaction: Transaction) -> Result<(), Error> {
    transaction.commit().await.map_err(database("committing a transaction"))
}

/// A migration. A released one is never changed, because databases know its digest.
fn migration(version: i64, name: &'static str, sql: &'static str) -> Migration {
    Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
}

fn database(doing: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |source| Error::Database { doing, source: source.into() }
}

fn get<T: db::Column>(row: &Row, column: &'static str) -> Result<T, Error> {
    row.get(column).map_err(undecodable(column))
}

fn undecodable<E: std::error::Error + Send + Sync + 'static>(column: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::Record { what: column, source: Box::new(source) }
}

/// Reads a count or a time, which is never negative.
fn number(row: &Row, column: &'static str) -> Result<u64, Error> {
    get::<i64>(row, column).map(i64::cast_unsigned)
}

fn optional_number(row: &Row, column: &'static str) -> Result<Option<u64>, Error> {
    get::<Option<i64>>(row, column).map(|value| value.map(i64::cast_unsigned))
}

fn json<T: DeserializeOwned>(row: &Row, column: &'static str) -> Result<T, Error> {
    let text: String = get(row, column)?;
    serde_json::from_str(&text).map_err(undecodable(column))
}

fn optional_json<T: DeserializeOwned>(row: &Row, column: &'static str) -> Result<Option<T>, Error> {
    let text: Option<String> = get(row, column)?;
    text.map(|text| serde_json::from_str(&text)).transpose().map_err(undecodable(column))
}

/// Reads an enum without data, or another value that is a text in the protocol. It is stored as plain text.
fn enum_from_text<T: DeserializeOwned>(row: &Row, column: &'static str) -> Result<T, Error> {
    let text: String = get(row, column)?;
    serde_json::from_value(serde_json::Value::String(text)).map_err(undecodable(column))
}

fn optional_word<T: DeserializeOwned>(row: &Row, column: &'static str) -> Result<Option<T>, Error> {
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
