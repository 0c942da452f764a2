//! The SQLite database. Each table has a file of plain functions that take a connection, so that callers decide what
//! belongs to one transaction.
//!
//! Statements use only what SQLite and PostgreSQL have in common: `$1` parameters, `ON CONFLICT`, and no functions
//! specific to either.

pub mod attestations;
pub mod boot_builds;
pub mod boot_fetches;
pub mod boot_reports;
pub mod claimants;
pub mod db;
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
mod sqlite;
pub mod systems;
pub mod tokens;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use slipway_protocol::Digest;
use tokio::sync::OwnedMutexGuard;

use crate::base::data::image_in;
use crate::base::error::Error;

pub use self::db::{Connection, Row, Transaction};

/// The database and the files that belong to it.
#[derive(Clone, Debug)]
pub struct Store {
    pools: sqlite::Pools,
    /// The data folder, which also has the images.
    folder: PathBuf,
    /// A lock for each image that was or is being examined.
    turns: Arc<Mutex<HashMap<Digest, Arc<Turn>>>>,
}

type Turn = tokio::sync::Mutex<()>;

impl Store {
    /// Opens the database and updates its schema. Creates it if it is missing, but not where a server has already run.
    pub async fn open(file: &Path) -> Result<Self, Error> {
        Ok(Self::with(sqlite::Pools::open(file).await?, file))
    }

    /// Opens the database read-only. Leaves the schema as it is; it may be another version's.
    pub fn open_read_only(file: &Path) -> Self {
        Self::with(sqlite::Pools::open_read_only(file), file)
    }

    fn with(pools: sqlite::Pools, file: &Path) -> Self {
        let folder = file.parent().unwrap_or(Path::new("")).to_owned();
        Self { pools, folder, turns: Arc::default() }
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

    /// Returns a connection for reading. It is boxed so that callers borrow it as they borrow a transaction.
    pub async fn read(&self) -> Result<Box<Connection>, Error> {
        self.pools.read().await.map(Box::new).map_err(database("connecting to the database"))
    }

    /// Begins a transaction that holds the write lock from its start, so that what it reads cannot change. Waits for
    /// earlier writers of this process.
    pub async fn write(&self) -> Result<Transaction, Error> {
        self.pools.write().await.map_err(database("beginning a transaction"))
    }

    /// Copies the database into an empty file, while the database stays in use, and checks the copy.
    pub async fn copy_to(&self, file: &Path) -> Result<(), Error> {
        self.pools.copy_to(file).await
    }

    /// Fails if the database is damaged.
    pub async fn check(&self) -> Result<(), Error> {
        self.pools.check().await
    }

    /// Moves the content of the write-ahead log into the database and empties the log, so that the log contains no
    /// deleted data. Does nothing while the database is in use. Returns whether the log is empty.
    pub async fn empty_log(&self) -> Result<bool, Error> {
        self.pools.empty_log().await
    }

    /// Closes all connections, and waits for those in use.
    pub async fn close(&self) {
        self.pools.close().await;
    }
}

/// Makes a transaction's changes permanent.
pub async fn commit(transaction: Transaction) -> Result<(), Error> {
    transaction.commit().await.map_err(database("committing a transaction"))
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
