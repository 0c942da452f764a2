//! The tables as the database describes them, for what is done to each table alike.

use std::collections::{BTreeMap, BTreeSet};

use slipway_protocol::ErrorCode;

use crate::base::error::Error;
use crate::store::db::Value;
use crate::store::{Connection, Row, database, db, get, number, postgres, sqlite};

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// Its columns, by name.
    pub columns: Vec<Column>,
    /// Its foreign keys.
    pub references: BTreeSet<Reference>,
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Type of its values.
    pub kind: Kind,
    /// Its place in the primary key, from 1. 0 if it is not a part of it.
    place: u64,
}

/// The type of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A text.
    Text,
    /// A number or a time.
    Integer,
    /// A truth value.
    Bool,
    /// Bytes.
    Bytes,
}

/// A column that has keys of another table, or NULL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    /// Name of the column.
    pub column: String,
    /// Name of the other table.
    pub to: String,
    /// Column of the other table.
    pub key: String,
}

/// Reads the tables of this program, each after those that it refers to. There are none in a new database.
pub async fn tables(connection: &mut Connection) -> Result<Vec<Table>, Error> {
    let failed = || database("reading the schema of the database");
    let (columns, references) = match connection {
        Connection::Sqlite(_) | Connection::SqliteTransaction(_) => (sqlite::COLUMNS, sqlite::REFERENCES),
        Connection::Postgres(_) | Connection::PostgresTransaction { .. } => (postgres::COLUMNS, postgres::REFERENCES),
    };
    let mut tables: BTreeMap<String, Table> = BTreeMap::new();
    for row in db::query(columns).fetch_all(&mut *connection).await.map_err(failed())? {
        let name: String = get(&row, "table_name")?;
        let column: String = get(&row, "column_name")?;
        let kind = match get::<String>(&row, "kind")?.as_str() {
            "TEXT" => Kind::Text,
            "BIGINT" => Kind::Integer,
            "BOOLEAN" => Kind::Bool,
            "BLOB" | "BYTEA" => Kind::Bytes,
            other => {
                let message = format!(
                    "the column {column} of the table {name} has the type {other}, so the table is not one of \
                     slipway-server: move it to another database, or in PostgreSQL to another schema"
                );
                return Err(Error::refused(ErrorCode::Conflict, message));
            }
        };
        let column = Column { name: column, kind, place: number(&row, "place")? };
        let new = || Table { name: name.clone(), columns: Vec::new(), references: BTreeSet::new() };
        tables.entry(name.clone()).or_insert_with(new).columns.push(column);
    }
    for row in db::query(references).fetch_all(connection).await.map_err(failed())? {
        let reference =
            Reference { column: get(&row, "column_name")?, to: get(&row, "target")?, key: get(&row, "key")? };
        if let Some(table) = tables.get_mut(&get::<String>(&row, "table_name")?) {
            table.references.insert(reference);
        }
    }
    tables.values_mut().for_each(|table| table.columns.sort());
    Ok(parents_first(tables.into_values().collect()))
}

/// Sorts tables so that each is after those that it refers to.
fn parents_first(mut tables: Vec<Table>) -> Vec<Table> {
    let mut sorted: Vec<Table> = Vec::new();
    while !tables.is_empty() {
        let waits = |table: &Table, on: &Reference| on.to != table.name && !sorted.iter().any(|one| one.name == on.to);
        let (later, next): (Vec<_>, Vec<_>) =
            tables.into_iter().partition(|table| table.references.iter().any(|reference| waits(table, reference)));
        // Tables that refer to each other in a circle stay as they are.
        let (later, next) = if next.is_empty() { (next, later) } else { (later, next) };
        sorted.extend(next);
        tables = later;
    }
    sorted
}

impl Table {
    /// The names of the columns, separated by commas.
    pub fn list(&self) -> String {
        self.columns.iter().map(|column| quoted(&column.name)).collect::<Vec<_>>().join(", ")
    }

    /// The statement that reads all rows, in the order of their keys. It is the same order in both databases.
    pub fn select(&self) -> String {
        let mut order: Vec<&Column> = self.columns.iter().filter(|column| column.place > 0).collect();
        order.sort_by_key(|column| column.place);
        let order: Vec<String> = match order.as_slice() {
            [] => self.columns.iter().map(|column| format!("{0} IS NULL, {0}", quoted(&column.name))).collect(),
            key => key.iter().map(|column| quoted(&column.name)).collect(),
        };
        format!("SELECT {} FROM {} ORDER BY {}", self.list(), quoted(&self.name), order.join(", "))
    }

    /// Reads the values of a row, in the order of the columns.
    pub fn values(&self, row: &Row) -> Result<Vec<Value>, Error> {
        let value = |column: &Column| {
            let name = column.name.as_str();
            let value = match column.kind {
                Kind::Text => row.get(name).map(Value::Text),
                Kind::Integer => row.get(name).map(Value::Integer),
                // SQLite takes any number for a truth value.
                Kind::Bool if matches!(row, Row::Sqlite(_)) => row.get(name).and_then(truth).map(Value::Bool),
                Kind::Bool => row.get(name).map(Value::Bool),
                Kind::Bytes => row.get(name).map(Value::Bytes),
            };
            value.map_err(|error| {
                let message =
                    format!("the value of {name} in a row of the table {} cannot be read: {error}", self.name);
                Error::refused(ErrorCode::Internal, message)
            })
        };
        self.columns.iter().map(value).collect()
    }

    /// The primary key of a row, as people read it, such as `run = "r1", seq = 7`. Of a table without a primary key,
    /// all values.
    pub fn key(&self, values: &[Value]) -> String {
        let has_key = self.columns.iter().any(|column| column.place > 0);
        let is_shown = |(column, _): &(&Column, &Value)| column.place > 0 || !has_key;
        let shown = self.columns.iter().zip(values).filter(is_shown);
        shown.map(|(column, value)| format!("{} = {}", column.name, value)).collect::<Vec<_>>().join(", ")
    }
}

fn truth(number: Option<i64>) -> Result<Option<bool>, sqlx::Error> {
    match number {
        None => Ok(None),
        Some(number @ (0 | 1)) => Ok(Some(number == 1)),
        Some(number) => Err(sqlx::Error::Decode(format!("{number} is neither true nor false").into())),
    }
}

/// The name of a table or column in a statement.
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
