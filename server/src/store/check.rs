//! Checks what the database has, at one moment, without changing it.

use futures_util::StreamExt;
use slipway_protocol::ErrorCode;

use crate::base::error::{Error, chain};
use crate::store::copy::Progress;
use crate::store::schema::{self, Reference, Table, quoted};
use crate::store::upgrade::{self, Newer};
use crate::store::{Connection, Store, Transaction, database, db, get, moved, number, postgres, records};

/// Columns with keys of another table that are no foreign keys: table, column, other table.
const REFERENCES: [(&str, &str, &str); 3] =
    [("nodes", "run", "runs"), ("logs", "run", "runs"), ("host_logs", "run", "runs")];
/// What to do about rows that are not as this program stores them.
const REPAIR: &str = "restore a backup that has it right, or correct the row with a program of the database while the \
                      server is stopped";

/// Number of problems of one kind and table that are listed.
const LISTED: usize = 10;

/// What was checked, and what is wrong.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Each check: what would be true of a good database.
    pub checked: Vec<String>,
    /// Each problem, with what to do about it.
    pub problems: Vec<String>,
    /// What this program cannot judge because a newer version made it, and what to do.
    pub unjudged: Option<String>,
}

/// What the schema is to this program.
enum Version {
    /// It is the one of this program, with the number of its last change.
    Same(i64),
    /// It is of a newer program.
    Newer(Newer),
    /// Why it cannot be used, and what to do.
    Bad(String),
}

/// Checks the files or settings of the database, its schema, all rows and all references. Of a schema of a newer
/// version it checks the tables that this program knows, if that version lets it use them.
pub async fn check(store: &Store, name: &str, told: &mut dyn FnMut(Progress<'_>)) -> Result<Report, Error> {
    let mut report = Report::default();
    match store.check().await {
        Err(damaged @ Error::Damaged { .. }) => {
            report.problems.push(damaged.to_string());
            return Ok(report);
        }
        other => other?,
    }
    let mut connection = store.snapshot().await?;
    match *connection {
        Connection::PostgresTransaction { .. } => {
            let rows = db::query(postgres::INVALID).fetch_all(&mut connection).await;
            for row in rows.map_err(database("looking for indices and constraints that do not hold"))? {
                let what: String = get(&row, "what")?;
                report.problems.push(format!("PostgreSQL does not use the {what}: create it again"));
            }
            report.checked.push("indices and constraints of PostgreSQL are in force".to_owned());
        }
        _ => report.checked.push("SQLite finds its file intact (integrity_check)".to_owned()),
    }
    match check_version(store, &mut connection).await? {
        Version::Same(version) => {
            report.checked.push(format!("the schema has version {version}, which this program knows"));
        }
        Version::Newer(Newer { description, is_usable }) => {
            let how = format!("{description}; run `slipway-server database check` of that version or a newer one");
            if !is_usable {
                let message = format!("{name} cannot be checked by this program, because its schema is newer: {how}");
                return Err(Error::refused(ErrorCode::Conflict, message));
            }
            report.unjudged =
                Some(format!("tables and columns that this program does not know, because the schema is newer: {how}"));
        }
        Version::Bad(problem) => {
            report.problems.push(problem);
            return Ok(report);
        }
    }
    moved::check(&mut connection, name).await?;
    let mut tables = schema::tables(&mut connection).await?;
    if report.unjudged.is_some() {
        tables.retain(|table| store.makes_table(&table.name));
    }
    let mut rows = 0;
    for table in &tables {
        rows += check_rows(&mut connection, table, &mut report, told).await?;
    }
    report.checked.push(format!("{rows} rows of {} tables can be read", tables.len()));
    let mut references = 0;
    for table in &tables {
        let other = |column: &str, to: &str| Reference { column: column.into(), to: to.into(), key: "id".into() };
        let soft = REFERENCES.iter().filter(|(of, ..)| *of == table.name).map(|(_, column, to)| other(column, to));
        for reference in table.references.iter().cloned().chain(soft) {
            references += 1;
            check_reference(&mut connection, table, &reference, &mut report).await?;
        }
    }
    report.checked.push(format!("{references} columns refer to rows that exist"));
    Ok(report)
}

/// Compares the schema with the one of this program.
async fn check_version(store: &Store, connection: &mut Transaction) -> Result<Version, Error> {
    let sql = "SELECT version, success FROM _sqlx_migrations ORDER BY version";
    let rows = db::query(sql).fetch_all(connection).await.map_err(database("reading the version of the schema"))?;
    let (known, newest) = (store.versions(), store.newest_version());
    let mut applied = Vec::new();
    for row in &rows {
        let version: i64 = get(row, "version")?;
        if !get::<bool>(row, "success")? {
            let problem = format!("an update of the schema to version {version} was interrupted: restore a backup");
            return Ok(Version::Bad(problem));
        }
        applied.push(version);
    }
    if known.iter().any(|version| !applied.contains(version)) {
        return Ok(Version::Bad(format!(
            "the schema has version {}, and this program's has {newest}: make a backup; the next start of the server \
             updates the schema",
            applied.last().copied().unwrap_or_default()
        )));
    }
    Ok(upgrade::newer(connection, newest).await?.map_or(Version::Same(newest), Version::Newer))
}

/// Reads each row, and each value that has a type of the protocol or the server. Returns the number of rows.
async fn check_rows(
    connection: &mut Transaction,
    table: &Table,
    report: &mut Report,
    told: &mut dyn FnMut(Progress<'_>),
) -> Result<u64, Error> {
    let (mut count, mut wrong) = (0, 0);
    let mut rows = db::composed(table.select()).fetch(connection);
    while let Some(row) = rows.next().await {
        let row = row.map_err(database("reading all rows"))?;
        count += 1;
        if count % 1000 == 0 {
            told(Progress { done: "read", table: &table.name, rows: count });
        }
        let (key, errors) = match table.values(&row) {
            Ok(values) => (table.key(&values), records::errors(&table.name, &row)),
            Err(error) => (format!("number {count}"), vec![error]),
        };
        for error in errors {
            wrong += 1;
            if wrong <= LISTED {
                let why = chain(&error);
                report.problems.push(format!("the row of {} with {key}: {why}: {REPAIR}", table.name));
            }
        }
    }
    if wrong > LISTED {
        report.problems.push(format!("{} more values of {} cannot be read", wrong - LISTED, table.name));
    }
    Ok(count)
}

async fn check_reference(
    connection: &mut Transaction,
    table: &Table,
    Reference { column, to, key }: &Reference,
    report: &mut Report,
) -> Result<(), Error> {
    let (from, other, name, key) = (quoted(&table.name), quoted(to), quoted(column), quoted(key));
    let sql = format!(
        "SELECT COUNT(*) AS lost, MIN({name}) AS first FROM {from} AS this WHERE {name} IS NOT NULL \
         AND NOT EXISTS (SELECT 1 FROM {other} AS other WHERE other.{key} = this.{name})"
    );
    let row = db::composed(sql).fetch_one(connection).await.map_err(database("checking references"))?;
    match number(&row, "lost")? {
        0 => {}
        lost => {
            let first: String = get(&row, "first")?;
            report.problems.push(format!(
                "{lost} rows of {} name in {column} what {to} does not have, such as {first:?}: {REPAIR}",
                table.name
            ));
        }
    }
    Ok(())
}
