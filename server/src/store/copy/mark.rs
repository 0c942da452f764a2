//! Marks a database whose tables were copied, and has triggers refuse each change. So nobody goes on with the old
//! tables, not even a command that opened them before the copy.

use crate::base::error::Error;
use crate::store::schema::{Table, quoted};
use crate::store::{Connection, database, db, moved};

/// Prefix of the names of SQLite's triggers, and the name of PostgreSQL's function and triggers.
const TRIGGER: &str = "slipway_moved";

/// Marks the tables as copied to the database `to`.
pub async fn mark(connection: &mut Connection, tables: &[Table], to: &str) -> Result<(), Error> {
    moved::record(connection, to).await?;
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
    moved::forget(connection).await
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
