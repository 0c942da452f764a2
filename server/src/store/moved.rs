//! The mark on a database whose tables were copied to another one: a setting that says where to, and triggers that
//! refuse each change. So nobody goes on with the old tables, not even a command that opened them before the copy.

use slipway_protocol::ErrorCode;

use crate::base::error::Error;
use crate::base::time::{Millis, now, utc};
use crate::store::schema::{Table, quoted};
use crate::store::{Connection, database, db, settings};

/// Name of the setting: the time in milliseconds since 1970, and the name of the other database.
const NAME: &str = "moved-to";
/// Prefix of the names of SQLite's triggers, and the name of PostgreSQL's function and triggers.
const TRIGGER: &str = "slipway_moved";

/// Where tables were copied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// When, in milliseconds since 1970.
    pub at: Millis,
    /// Name of the other database.
    pub to: String,
}

/// Reads the mark, if there is one.
pub async fn read(connection: &mut Connection) -> Result<Option<Moved>, Error> {
    let value = settings::read(connection, NAME).await?;
    Ok(value.map(|value| {
        let (at, to) = value.split_once(' ').unwrap_or(("", &value));
        Moved { at: at.parse().unwrap_or_default(), to: to.to_owned() }
    }))
}

/// Refuses to use a database with the mark.
pub async fn check(connection: &mut Connection, name: &str) -> Result<(), Error> {
    read(connection).await?.map_or(Ok(()), |moved| Err(moved.refusal(name)))
}

impl Moved {
    /// Says where the tables of the database `name` are now.
    pub fn refusal(&self, name: &str) -> Error {
        let Moved { at, to } = self;
        let way = match to.starts_with("postgres://") {
            true => "give --database with the URL of that database, or set SLIPWAY_DATABASE",
            false => "leave out --database and unset SLIPWAY_DATABASE, on the host that has this file",
        };
        let message = format!(
            "the tables of {name} were copied to {to} at {}: {way}; if that has no tables because the copy was \
             interrupted, run `slipway-server database copy` again",
            utc(*at)
        );
        Error::refused(ErrorCode::Conflict, message)
    }
}

/// Marks the tables as copied to the database `to`.
pub async fn mark(connection: &mut Connection, tables: &[Table], to: &str) -> Result<(), Error> {
    settings::write(connection, NAME, &format!("{} {to}", now())).await?;
    let said = literal(&format!("the tables were copied to {to}; nothing is stored here any more"));
    let mut statements = Vec::new();
    match connection {
        Connection::Sqlite(_) | Connection::SqliteTransaction(_) => {
            for (trigger, change, table) in sqlite_triggers(tables) {
                statements.push(format!(
                    "CREATE TRIGGER {trigger} BEFORE {change} ON {table} BEGIN SELECT RAISE(ABORT, {said}); END"
                ));
            }
        }
        Connection::Postgres(_) | Connection::PostgresTransaction { .. } => {
            let body = literal(&format!("BEGIN RAISE EXCEPTION USING MESSAGE = {said}; END"));
            statements.push(format!("CREATE FUNCTION {TRIGGER}() RETURNS trigger LANGUAGE plpgsql AS {body}"));
            for table in tables {
                statements.push(format!(
                    "CREATE TRIGGER {TRIGGER} BEFORE INSERT OR UPDATE OR DELETE ON {} FOR EACH STATEMENT EXECUTE \
                     FUNCTION {TRIGGER}()",
                    quoted(&table.name)
                ));
            }
        }
    }
    execute(connection, statements).await
}

/// Removes the mark.
pub async fn lift(connection: &mut Connection, tables: &[Table]) -> Result<(), Error> {
    let statements = match connection {
        Connection::Sqlite(_) | Connection::SqliteTransaction(_) => {
            let triggers = sqlite_triggers(tables).into_iter();
            triggers.map(|(trigger, ..)| format!("DROP TRIGGER IF EXISTS {trigger}")).collect()
        }
        // With its triggers.
        Connection::Postgres(_) | Connection::PostgresTransaction { .. } => {
            vec![format!("DROP FUNCTION IF EXISTS {TRIGGER}() CASCADE")]
        }
    };
    execute(connection, statements).await?;
    settings::remove(connection, NAME).await
}

/// The name, the change and the table of each trigger of SQLite.
fn sqlite_triggers(tables: &[Table]) -> Vec<(String, &'static str, String)> {
    let of_table = |table: &Table| {
        let name = table.name.clone();
        let trigger = move |change| (quoted(&format!("{TRIGGER}_{name}_{change}")), change, quoted(&name));
        ["INSERT", "UPDATE", "DELETE"].map(trigger)
    };
    tables.iter().flat_map(of_table).collect()
}

async fn execute(connection: &mut Connection, statements: Vec<String>) -> Result<(), Error> {
    for sql in statements {
        let done = db::composed(sql).execute(&mut *connection).await;
        done.map_err(database("marking which database has the tables"))?;
    }
    Ok(())
}

/// A text in a statement that takes no parameters.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
