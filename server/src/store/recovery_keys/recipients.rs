//! Operators' public keys, to which recovery keys are encrypted.

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::{Connection, database, db, get};

/// Adds a public key. Returns false if it was already there.
pub async fn insert(connection: &mut Connection, recipient: &str, now: Millis) -> Result<bool, Error> {
    let sql = "INSERT INTO recipients (recipient, added_at) VALUES ($1, $2) ON CONFLICT (recipient) DO NOTHING";
    let done = db::query(sql).bind(recipient).bind(now.cast_signed()).execute(connection).await;
    Ok(done.map_err(database("storing a recipient"))? > 0)
}

/// Returns all public keys, oldest first.
pub async fn all(connection: &mut Connection) -> Result<Vec<String>, Error> {
    let query = db::query("SELECT recipient FROM recipients ORDER BY added_at, recipient");
    let rows = query.fetch_all(connection).await.map_err(database("reading the recipients"))?;
    rows.iter().map(|row| get(row, "recipient")).collect()
}

/// Removes a public key. Returns whether it existed.
pub async fn remove(connection: &mut Connection, recipient: &str) -> Result<bool, Error> {
    let query = db::query("DELETE FROM recipients WHERE recipient = $1").bind(recipient);
    Ok(query.execute(connection).await.map_err(database("removing a recipient"))? > 0)
}
