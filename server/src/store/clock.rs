//! The clock of the database, by which all servers of a site go when they have to agree on a time: the clocks of their
//! hosts may differ.

use crate::base::error::Error;
use crate::base::time::{self, Millis};
use crate::store::{Connection, database, db, number, postgres};

/// Returns the time, in milliseconds since 1970. SQLite has the clock of this host.
pub async fn now(connection: &mut Connection) -> Result<Millis, Error> {
    match connection {
        Connection::Sqlite(_) | Connection::SqliteTransaction(_) => Ok(time::now()),
        Connection::Postgres(_) | Connection::PostgresTransaction { .. } => {
            let row = db::query(postgres::NOW).fetch_one(connection).await;
            number(&row.map_err(database("reading the clock of the database"))?, "now")
        }
    }
}
