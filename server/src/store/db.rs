//! Statements, and the connections and rows that they run on and return. All access to tables goes through here, so
//! that no other module knows which database it is.

use std::fmt::{self, Display, Formatter};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Connection as _, Database, Decode, Encode};
use sqlx::{Postgres, Row as _, SqlSafeStr, SqlStr, Sqlite, Type};

use crate::base::error::OUTDATED_PLAN;
use crate::store::meters::Meters;

/// A connection, inside or outside of a transaction.
#[derive(Debug)]
pub enum Connection {
    /// A connection to an SQLite database, outside of a transaction.
    Sqlite(PoolConnection<Sqlite>),
    /// A transaction of an SQLite database.
    SqliteTransaction(sqlx::Transaction<'static, Sqlite>),
    /// A connection to a PostgreSQL database, outside of a transaction.
    Postgres(PoolConnection<Postgres>),
    /// A transaction of a PostgreSQL database.
    PostgresTransaction {
        /// The transaction.
        transaction: sqlx::Transaction<'static, Postgres>,
        /// Whether a statement failed. PostgreSQL then refuses all others, and answers to `COMMIT` with a rollback that
        /// sqlx takes for success.
        has_failed: bool,
        /// How long to wait for the answer to a statement.
        patience: Duration,
    },
}

/// A transaction. It is rolled back if it is dropped before it is committed.
#[derive(Debug)]
pub struct Transaction {
    pub(super) connection: Connection,
    pub(super) meters: Meters,
    pub(super) operator: Option<Arc<str>>,
}

impl std::ops::Deref for Transaction {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl std::ops::DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

impl Transaction {
    /// Returns the name of the operator on whose behalf it was begun, if it was an operator's.
    pub fn operator(&self) -> Option<&str> {
        self.operator.as_deref()
    }

    /// Makes the changes permanent.
    pub async fn commit(self) -> Result<(), sqlx::Error> {
        let Self { connection, meters, operator: _ } = self;
        let began = Instant::now();
        let done = connection.commit().await;
        meters.committed(began, done.is_ok());
        done
    }
}

impl Connection {
    async fn commit(self) -> Result<(), sqlx::Error> {
        match self {
            Connection::SqliteTransaction(transaction) => Box::pin(transaction.commit()).await,
            Connection::PostgresTransaction { has_failed: true, .. } => Err(sqlx::Error::Protocol(
                "the transaction cannot be committed, because one of its statements failed".into(),
            )),
            Connection::PostgresTransaction { transaction, patience, .. } => {
                Box::pin(in_time(patience, transaction.commit())).await
            }
            Connection::Sqlite(_) | Connection::Postgres(_) => Ok(()),
        }
    }
}

/// A row that a statement returned.
#[derive(Debug)]
pub enum Row {
    /// A row of an SQLite database.
    Sqlite(SqliteRow),
    /// A row of a PostgreSQL database.
    Postgres(PgRow),
}

impl Row {
    /// Returns the value of a column.
    pub fn get<T: Column>(&self, column: &str) -> Result<T, sqlx::Error> {
        match self {
            Row::Sqlite(row) => row.try_get(column),
            Row::Postgres(row) => row.try_get(column),
        }
    }
}

/// A type that columns are read as.
pub trait Column: ColumnOf<Sqlite> + ColumnOf<Postgres> {}

impl<T: ColumnOf<Sqlite> + ColumnOf<Postgres>> Column for T {}

/// A type that columns of one kind of database are read as.
pub trait ColumnOf<D: Database>: for<'r> Decode<'r, D> + Type<D> {}

impl<D: Database, T: for<'r> Decode<'r, D> + Type<D>> ColumnOf<D> for T {}

/// A value for a parameter of a statement. NULL has a type too, because PostgreSQL wants to know it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// A text.
    Text(Option<String>),
    /// A number or a time.
    Integer(Option<i64>),
    /// A truth value.
    Bool(Option<bool>),
    /// Bytes.
    Bytes(Option<Vec<u8>>),
}

impl Value {
    /// Number of bytes that it occupies, about.
    pub fn size(&self) -> usize {
        match self {
            Value::Text(Some(text)) => text.len(),
            Value::Bytes(Some(bytes)) => bytes.len(),
            _ => 8,
        }
    }

    /// Replaces NUL characters, which a text of PostgreSQL cannot have. Text from a machine may have them. Returns
    /// whether there were any.
    pub fn replace_nul(&mut self) -> bool {
        match self {
            Value::Text(Some(text)) if text.contains('\0') => {
                *text = text.replace('\0', "\u{fffd}");
                true
            }
            _ => false,
        }
    }
}

impl Display for Value {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(Some(text)) => write!(out, "{text:?}"),
            Value::Integer(Some(number)) => write!(out, "{number}"),
            Value::Bool(Some(truth)) => write!(out, "{truth}"),
            Value::Bytes(Some(bytes)) => write!(out, "{} bytes", bytes.len()),
            _ => write!(out, "NULL"),
        }
    }
}

macro_rules! from {
    ($($type:ty: $variant:ident, $value:ident => $some:expr;)*) => {
        $(impl From<$type> for Value {
            fn from($value: $type) -> Self {
                Value::$variant($some)
            }
        })*
    };
}

from! {
    &str: Text, value => Some(value.to_owned());
    &String: Text, value => Some(value.clone());
    String: Text, value => Some(value);
    Option<&str>: Text, value => value.map(ToOwned::to_owned);
    &Option<String>: Text, value => value.clone();
    Option<String>: Text, value => value;
    i64: Integer, value => Some(value);
    Option<i64>: Integer, value => value;
    bool: Bool, value => Some(value);
    &[u8]: Bytes, value => Some(value.to_vec());
    Option<&[u8]>: Bytes, value => value.map(ToOwned::to_owned);
}

/// A statement and the values of its parameters.
#[derive(Clone, Debug)]
pub struct Query {
    sql: SqlStr,
    values: Vec<Value>,
}

/// Makes a statement. Its text is fixed when the program is built, so that nobody can put SQL into it.
pub fn query(sql: &'static str) -> Query {
    Query { sql: sql.into_sql_str(), values: Vec::new() }
}

/// Makes a statement from the names of tables and columns in the schema. No value may be in its text.
pub(super) fn composed(sql: String) -> Query {
    Query { sql: AssertSqlSafe(sql).into_sql_str(), values: Vec::new() }
}

/// Number of ids in a statement of [`by_ids`].
const IDS: usize = 100;

/// Makes statements that read the rows of these ids, a hundred at a time. In the text, `{ids}` stands for the ids.
pub(super) fn by_ids(sql: &str, ids: &[String]) -> Vec<Query> {
    let parameters = (1..=IDS).map(|number| format!("${number}")).collect::<Vec<_>>().join(", ");
    let sql = sql.replace("{ids}", &parameters);
    // The last id is repeated, so that all statements have the same text and are prepared once.
    let of_chunk = |chunk: &[String]| {
        let id = |place: usize| chunk.get(place).or(chunk.last()).cloned();
        (0..IDS).fold(composed(sql.clone()), |query, place| query.bind(id(place)))
    };
    ids.chunks(IDS).map(of_chunk).collect()
}

/// How long to wait for the answer of a PostgreSQL server. Longer than a statement may take there. Without this limit,
/// a server that is gone without a word would be waited for until TCP gives up, which can be never.
pub(super) const PATIENCE: Duration = Duration::from_secs(35);

/// Fails with a transient error if there is no answer in time. The connection is then closed when it is given back,
/// because it does not answer to a ping either.
pub(super) async fn in_time<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    let late = |_| {
        let message = format!("the database server did not answer within {} s", patience.as_secs());
        Err(sqlx::Error::Io(std::io::Error::new(ErrorKind::TimedOut, message)))
    };
    tokio::time::timeout(patience, answer).await.unwrap_or_else(late)
}

/// Whether a statement was prepared before a newer version of slipway-server added columns to a table. PostgreSQL then
/// refuses to return rows with other columns than it announced.
fn is_outdated(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| code == OUTDATED_PLAN)
}

/// Runs a statement by a method of sqlx, and wraps what it returns. Boxed, because sqlx keeps kilobytes of state while
/// a statement runs. Every future that runs one would otherwise be that large for as long as it exists, and that of a
/// poll exists as long as the poll waits.
macro_rules! run {
    ($query:ident.$method:ident($connection:ident), $sqlite:expr, $postgres:expr) => {
        Box::pin(async move {
            match $connection {
                Connection::Sqlite(connection) => $query.bound().$method(&mut **connection).await.map($sqlite),
                Connection::SqliteTransaction(connection) => {
                    $query.bound().$method(&mut **connection).await.map($sqlite)
                }
                Connection::Postgres(connection) => {
                    let query = $query.without_nul();
                    let mut done = in_time(PATIENCE, query.clone().bound().$method(&mut **connection)).await;
                    if done.as_ref().is_err_and(is_outdated) {
                        connection.clear_cached_statements().await?;
                        done = in_time(PATIENCE, query.bound().$method(&mut **connection)).await;
                    }
                    done.map($postgres)
                }
                Connection::PostgresTransaction { transaction, has_failed, patience } => {
                    let done = in_time(*patience, $query.without_nul().bound().$method(&mut **transaction)).await;
                    *has_failed |= matches!(done, Err(sqlx::Error::Database(_) | sqlx::Error::Io(_)));
                    if done.as_ref().is_err_and(is_outdated) {
                        // The transaction has to begin again. The next one prepares its statements again.
                        transaction.clear_cached_statements().await?;
                    }
                    done.map($postgres)
                }
            }
        })
        .await
    };
}

impl Query {
    /// Sets the value of the next parameter.
    #[must_use]
    pub fn bind(mut self, value: impl Into<Value>) -> Self {
        self.values.push(value.into());
        self
    }

    /// Runs the statement. Returns the number of affected rows.
    pub async fn execute(self, connection: &mut Connection) -> Result<u64, sqlx::Error> {
        run!(self.execute(connection), |done| done.rows_affected(), |done| done.rows_affected())
    }

    /// Runs the statement and returns its first row. Fails if there is none.
    pub async fn fetch_one(self, connection: &mut Connection) -> Result<Row, sqlx::Error> {
        run!(self.fetch_one(connection), Row::Sqlite, Row::Postgres)
    }

    /// Runs the statement and returns its first row, if any.
    pub async fn fetch_optional(self, connection: &mut Connection) -> Result<Option<Row>, sqlx::Error> {
        run!(self.fetch_optional(connection), |row| row.map(Row::Sqlite), |row| row.map(Row::Postgres))
    }

    /// Runs the statement and returns its rows.
    pub async fn fetch_all(self, connection: &mut Connection) -> Result<Vec<Row>, sqlx::Error> {
        run!(self.fetch_all(connection), |rows| rows.into_iter().map(Row::Sqlite).collect(), |rows| rows
            .into_iter()
            .map(Row::Postgres)
            .collect())
    }

    /// Runs the statement and returns its rows as they come, for more rows than fit into memory.
    pub fn fetch(self, connection: &mut Connection) -> BoxStream<'_, Result<Row, sqlx::Error>> {
        match connection {
            Connection::Sqlite(one) => self.bound().fetch(&mut **one).map(|row| row.map(Row::Sqlite)).boxed(),
            Connection::SqliteTransaction(one) => {
                self.bound().fetch(&mut **one).map(|row| row.map(Row::Sqlite)).boxed()
            }
            Connection::Postgres(one) => {
                self.without_nul().bound().fetch(&mut **one).map(|row| row.map(Row::Postgres)).boxed()
            }
            Connection::PostgresTransaction { transaction, .. } => {
                self.without_nul().bound().fetch(&mut **transaction).map(|row| row.map(Row::Postgres)).boxed()
            }
        }
    }

    fn without_nul(mut self) -> Self {
        for value in &mut self.values {
            value.replace_nul();
        }
        self
    }

    fn bound<'q, DB: Database>(self) -> sqlx::query::Query<'q, DB, DB::Arguments>
    where
        Option<String>: Encode<'q, DB> + Type<DB>,
        Option<i64>: Encode<'q, DB> + Type<DB>,
        Option<bool>: Encode<'q, DB> + Type<DB>,
        Option<Vec<u8>>: Encode<'q, DB> + Type<DB>,
    {
        self.values.into_iter().fold(sqlx::query(self.sql), |query, value| match value {
            Value::Text(value) => query.bind(value),
            Value::Integer(value) => query.bind(value),
            Value::Bool(value) => query.bind(value),
            Value::Bytes(value) => query.bind(value),
        })
    }
}
