//! Copies all tables to another database in one transaction, and compares both row by row before it is committed.

mod mark;

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use slipway_protocol::ErrorCode;

use crate::base::error::{Error, chain};
use crate::store::db::Value;
use crate::store::schema::{self, Table, quoted};
use crate::store::{
    Connection, Row, Store, Transaction, commit, database, db, get, moved, postgres, settings, upgrade,
};

/// Rows and bytes that are inserted with one statement.
const BATCH_ROWS: usize = 200;
const BATCH_BYTES: usize = 4 << 20;
/// How long a connection that was just closed may still be listed by a PostgreSQL server.
const LISTED: Duration = Duration::from_secs(3);

/// A database and its name in messages.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// The database, opened for a copy.
    pub store: &'a Store,
    /// Path of the file, or URL without the password.
    pub name: &'a str,
}

/// What was copied.
#[derive(Clone, Debug, Default)]
pub struct Copied {
    /// Each table and its number of rows.
    pub tables: Vec<(String, u64)>,
    /// Number of rows with NUL characters, which PostgreSQL cannot store. The copies have U+FFFD instead.
    pub replaced: u64,
}

/// A part of the work, for those who wait.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// What is done to the rows: "copied" or "compared".
    pub done: &'static str,
    /// Name of the table.
    pub table: &'a str,
    /// Number of rows so far.
    pub rows: u64,
}

/// Copies all rows. During the copy, nobody can change the source. Afterwards it is marked as copied, and nobody can
/// use it. If anything fails before that, neither has changed.
pub async fn copy(from: Side<'_>, to: Side<'_>, told: &mut dyn FnMut(Progress<'_>)) -> Result<Copied, Error> {
    if from.name == to.name {
        return Err(Error::refused(ErrorCode::InvalidRequest, format!("the tables are already in {}", to.name)));
    }
    from.store.check().await?;
    let mut source = from.store.write_long().await?;
    check_unserved(&mut source, from.name).await?;
    let tables = schema::tables(&mut source).await?;
    let earlier = moved::read(&mut source).await?;
    if let Some(moved) = &earlier {
        if moved.to != to.name {
            return Err(moved.refusal(from.name));
        }
        mark::lift(&mut source, &tables).await?;
    }
    lock(&mut source, &tables).await?;
    let mut target = to.store.write_long().await?;
    match (make_empty(&mut target, &tables).await?, earlier) {
        (None, _) => {}
        (Some(_), Some(moved)) => return Err(moved.refusal(from.name)),
        (Some(table), None) => {
            let message = format!(
                "the table {table} of {} has rows, and a copy needs an empty database: give another one, or remove \
                 what it has",
                to.name
            );
            return Err(Error::refused(ErrorCode::Conflict, message));
        }
    }
    to.store.migrate(&mut target).await?;
    check_same(&tables, &schema::tables(&mut target).await?, from.name)?;
    let mut copied = Copied::default();
    for table in &tables {
        let mut replaced = BTreeSet::new();
        fill(&mut source, &mut target, table, &mut replaced, told).await?;
        copied.replaced += replaced.len() as u64;
        let rows = compare(&mut source, &mut target, table, replaced, told).await?;
        copied.tables.push((table.name.clone(), rows));
    }
    mark::mark(&mut source, &tables, to.name).await?;
    // In this order, so that an interruption in between leaves no database in use rather than two.
    commit(source).await?;
    commit(target).await.map_err(|error| {
        let message = format!(
            "{} is marked as copied to {}, but it is not known whether the copy is complete ({}): run the same \
             command again",
            from.name,
            to.name,
            chain(&error)
        );
        Error::refused(ErrorCode::Internal, message)
    })?;
    Ok(copied)
}

/// Refuses a database of PostgreSQL that others are connected to. The lock of the data folder keeps other users from
/// one of SQLite.
async fn check_unserved(source: &mut Transaction, name: &str) -> Result<(), Error> {
    if !matches!(**source, Connection::PostgresTransaction { .. }) {
        return Ok(());
    }
    let mut waited = Duration::ZERO;
    loop {
        let again = db::query(postgres::LOOK_AGAIN).execute(source).await;
        again.map_err(database("looking for other connections to the database"))?;
        let rows = db::query(postgres::OTHERS).fetch_all(source).await;
        let rows = rows.map_err(database("looking for other connections to the database"))?;
        let places = rows.iter().map(|row| get(row, "place")).collect::<Result<Vec<String>, _>>()?;
        if places.is_empty() {
            return Ok(());
        }
        if waited >= LISTED {
            let message = format!(
                "a server or command of slipway-server uses {name}, from {}: stop it first",
                places.join(" and from ")
            );
            return Err(Error::refused(ErrorCode::Conflict, message));
        }
        tokio::time::sleep(LISTED / 20).await;
        waited += LISTED / 20;
    }
}

/// Keeps all others from changing the tables of PostgreSQL, also programs that know no lock of slipway-server.
async fn lock(source: &mut Transaction, tables: &[Table]) -> Result<(), Error> {
    if !matches!(**source, Connection::PostgresTransaction { .. }) {
        return Ok(());
    }
    let names: Vec<String> = tables.iter().map(|table| quoted(&table.name)).collect();
    let sql = format!("LOCK TABLE {} IN EXCLUSIVE MODE", names.join(", "));
    db::composed(sql).execute(source).await.map(drop).map_err(database("locking the tables"))
}

/// Removes all rows of a database that was itself copied elsewhere. Of any other database, returns a table with rows,
/// if there is one.
async fn make_empty(target: &mut Transaction, of_source: &[Table]) -> Result<Option<String>, Error> {
    let tables = schema::tables(target).await?;
    let is_ours = |table: &Table| of_source.iter().any(|other| other.name == table.name);
    let has_settings = tables.iter().any(|table| table.name == "settings");
    let is_moved = has_settings && moved::read(target).await?.is_some();
    if is_moved {
        mark::lift(target, &tables).await?;
    }
    if has_settings {
        // A database that was only opened has these rows. The copy brings its own.
        settings::remove(target, upgrade::USABLE_FROM).await?;
        settings::remove(target, upgrade::MADE_BY).await?;
    }
    for table in tables.iter().rev() {
        let name = quoted(&table.name);
        if is_moved && is_ours(table) {
            let removed = db::composed(format!("DELETE FROM {name}")).execute(target).await;
            removed.map_err(database("removing old rows"))?;
            continue;
        }
        let row = db::composed(format!("SELECT 1 FROM {name} LIMIT 1")).fetch_optional(target).await;
        if row.map_err(database("looking for rows"))?.is_some() {
            return Ok(Some(table.name.clone()));
        }
    }
    Ok(None)
}

fn check_same(tables: &[Table], of_target: &[Table], source: &str) -> Result<(), Error> {
    match tables.iter().find(|table| !of_target.contains(table)) {
        None => Ok(()),
        Some(Table { name, .. }) => {
            let message = format!(
                "the table {name} of {source} is not as this version of slipway-server makes it: if it belongs to \
                 another program, move it to another database or schema"
            );
            Err(Error::refused(ErrorCode::Conflict, message))
        }
    }
}

/// Copies the rows of a table. Adds those in which NUL characters were replaced to `replaced`.
async fn fill(
    source: &mut Transaction,
    target: &mut Transaction,
    table: &Table,
    replaced: &mut BTreeSet<Vec<Value>>,
    told: &mut dyn FnMut(Progress<'_>),
) -> Result<(), Error> {
    let replaces = matches!(**target, Connection::PostgresTransaction { .. });
    let mut rows = db::composed(table.select()).fetch(source);
    let (mut batch, mut bytes, mut count) = (Vec::new(), 0, 0);
    while let Some(mut values) = next(&mut rows, table).await? {
        if replaces && replace_nul(&mut values) {
            replaced.insert(values.clone());
        }
        bytes += values.iter().map(Value::size).sum::<usize>();
        batch.push(values);
        count += 1;
        if batch.len() == BATCH_ROWS || bytes >= BATCH_BYTES {
            insert(target, table, std::mem::take(&mut batch)).await?;
            bytes = 0;
            told(Progress { done: "copied", table: &table.name, rows: count });
        }
    }
    insert(target, table, batch).await
}

async fn insert(target: &mut Transaction, table: &Table, batch: Vec<Vec<Value>>) -> Result<(), Error> {
    if batch.is_empty() {
        return Ok(());
    }
    let columns = table.columns.len();
    let row = |number: usize| {
        let parameters: Vec<String> = (1..=columns).map(|column| format!("${}", number * columns + column)).collect();
        format!("({})", parameters.join(", "))
    };
    let rows: Vec<String> = (0..batch.len()).map(row).collect();
    let sql = format!("INSERT INTO {} ({}) VALUES {}", quoted(&table.name), table.list(), rows.join(", "));
    let query = batch.into_iter().flatten().fold(db::composed(sql), db::Query::bind);
    query.execute(target).await.map(drop).map_err(|error| {
        let message = format!("the rows of the table {} cannot be copied: {}", table.name, chain(&error));
        Error::refused(ErrorCode::Internal, message)
    })
}

/// Compares the rows of a table. `replaced` are the rows of the target in which NUL characters were replaced: they may
/// be in another order. Returns the number of rows.
async fn compare(
    source: &mut Transaction,
    target: &mut Transaction,
    table: &Table,
    mut replaced: BTreeSet<Vec<Value>>,
    told: &mut dyn FnMut(Progress<'_>),
) -> Result<u64, Error> {
    let mut count = replaced.len() as u64;
    let replaces = !replaced.is_empty();
    let (mut ours, mut theirs) =
        (db::composed(table.select()).fetch(source), db::composed(table.select()).fetch(target));
    loop {
        let mut one = next(&mut ours, table).await?;
        while replaces && one.as_mut().is_some_and(|values| replace_nul(values)) {
            one = next(&mut ours, table).await?;
        }
        let mut other = next(&mut theirs, table).await?;
        while other.as_ref().is_some_and(|values| replaced.remove(values)) {
            other = next(&mut theirs, table).await?;
        }
        match (one, other) {
            (None, None) => break,
            (one, other) if one != other => return Err(difference(table, one, other)),
            _ => count += 1,
        }
        if count.is_multiple_of(BATCH_ROWS as u64) {
            told(Progress { done: "compared", table: &table.name, rows: count });
        }
    }
    match replaced.pop_first() {
        None => Ok(count),
        lost => Err(difference(table, lost, None)),
    }
}

/// Says which row differs, without its values.
fn difference(table: &Table, one: Option<Vec<Value>>, other: Option<Vec<Value>>) -> Error {
    let key = |row: &Option<Vec<Value>>| row.as_ref().map_or_else(|| "no more row".to_owned(), |row| table.key(row));
    let (ours, theirs) = (key(&one), key(&other));
    let what = if ours == theirs {
        let values = one.iter().flatten().zip(other.iter().flatten());
        let changed = table.columns.iter().zip(values).filter(|(_, (one, other))| one != other);
        let changed: Vec<&str> = changed.map(|(column, _)| column.name.as_str()).collect();
        format!("of the row with {ours}, it has another {}", changed.join(" and "))
    } else {
        format!("where the table has {ours}, it has {theirs}")
    };
    let message = format!("the copy of the table {} differs from it: {what}; nothing was changed", table.name);
    Error::refused(ErrorCode::Internal, message)
}

/// The values of the next row.
async fn next(rows: &mut BoxStream<'_, Result<Row, sqlx::Error>>, table: &Table) -> Result<Option<Vec<Value>>, Error> {
    let row = rows.next().await.transpose().map_err(|error| {
        let message = format!("the table {} cannot be read: {}", table.name, chain(&error));
        Error::refused(ErrorCode::Internal, message)
    });
    row?.map(|row| table.values(&row)).transpose()
}

fn replace_nul(values: &mut [Value]) -> bool {
    values.iter_mut().fold(false, |any, value| value.replace_nul() | any)
}
