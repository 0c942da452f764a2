//! What only one process does at a time. A lease ends by the clock of the database unless its holder renews it, so a
//! process that is killed keeps others waiting for a short time only.

use std::time::Duration;

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::{Connection, Row, Transaction, clock, database, db, get, number};

/// How long a lease lasts unless it is renewed.
pub const LENGTH: Duration = Duration::from_secs(15);
const MILLIS: Millis = 15_000;

/// Takes or renews a lease. Returns whether this holder has it now.
pub async fn take(transaction: &mut Transaction, name: &str, holder: &str) -> Result<bool, Error> {
    let now = clock::now(transaction).await?;
    let Some(held) = read(transaction, name).await? else {
        save(transaction, name, holder, now + MILLIS).await?;
        return Ok(true);
    };
    if held.holder == holder || held.until <= now {
        save(transaction, name, holder, now + MILLIS).await?;
        return Ok(true);
    }
    if held.until > now + MILLIS {
        // The clock was set back. Its holder has the usual time to renew it.
        save(transaction, name, &held.holder, now + MILLIS).await?;
    }
    Ok(false)
}

/// Returns who holds a lease. `None` if nobody does.
pub async fn holder(connection: &mut Connection, name: &str) -> Result<Option<String>, Error> {
    let now = clock::now(connection).await?;
    Ok(read(connection, name).await?.filter(|held| held.is_held(now)).map(|held| held.holder))
}

/// Returns the names of the leases that somebody has and that begin with this prefix.
pub async fn held(connection: &mut Connection, prefix: &str) -> Result<Vec<String>, Error> {
    let now = clock::now(connection).await?;
    let rows = db::query("SELECT name, holder, until FROM leases").fetch_all(connection).await;
    let mut names = Vec::new();
    for row in rows.map_err(database("reading who holds leases"))? {
        let name: String = get(&row, "name")?;
        if name.starts_with(prefix) && from_row(&row)?.is_held(now) {
            names.push(name);
        }
    }
    Ok(names)
}

/// Gives a lease back, if this holder has it.
pub async fn release(transaction: &mut Transaction, name: &str, holder: &str) -> Result<(), Error> {
    let sql = "DELETE FROM leases WHERE name = $1 AND holder = $2";
    let done = db::query(sql).bind(name).bind(holder).execute(transaction).await;
    done.map(drop).map_err(database("giving back a lease"))
}

/// Gives all leases of a holder back.
pub async fn release_all(transaction: &mut Transaction, holder: &str) -> Result<(), Error> {
    let done = db::query("DELETE FROM leases WHERE holder = $1").bind(holder).execute(transaction).await;
    done.map(drop).map_err(database("giving back leases"))
}

struct Held {
    holder: String,
    until: Millis,
}

impl Held {
    /// Whether it lasts. One that lasts too long was made before the clock was set back.
    fn is_held(&self, now: Millis) -> bool {
        self.until > now && self.until <= now + MILLIS
    }
}

fn from_row(row: &Row) -> Result<Held, Error> {
    Ok(Held { holder: get(row, "holder")?, until: number(row, "until")? })
}

async fn read(connection: &mut Connection, name: &str) -> Result<Option<Held>, Error> {
    let row = db::query("SELECT holder, until FROM leases WHERE name = $1").bind(name).fetch_optional(connection).await;
    row.map_err(database("reading who holds a lease"))?.as_ref().map(from_row).transpose()
}

async fn save(transaction: &mut Transaction, name: &str, holder: &str, until: Millis) -> Result<(), Error> {
    let sql = "INSERT INTO leases (name, holder, until) VALUES ($1, $2, $3) \
               ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until";
    let query = db::query(sql).bind(name).bind(holder).bind(until.cast_signed());
    query.execute(transaction).await.map(drop).map_err(database("storing who holds a lease"))
}
