//! Operators who are signed in to the page.

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::{Connection, database, db, get};

/// Stores a session. `hash` is of its cookie, `token_hash` of the operator's token that it was made with.
pub async fn insert(connection: &mut Connection, hash: &str, token_hash: &str, now: Millis) -> Result<(), Error> {
    let sql = "INSERT INTO sessions (hash, token_hash, created_at) VALUES ($1, $2, $3)";
    let query = db::query(sql).bind(hash).bind(token_hash).bind(now.cast_signed());
    query.execute(connection).await.map(drop).map_err(database("storing a session"))
}

/// Returns the hash of the token that a session was made with, unless the session began before `since`.
pub async fn token_of(connection: &mut Connection, hash: &str, since: Millis) -> Result<Option<String>, Error> {
    let query = db::query("SELECT token_hash FROM sessions WHERE hash = $1 AND created_at >= $2");
    let row = query.bind(hash).bind(since.cast_signed()).fetch_optional(connection).await;
    row.map_err(database("looking up a session"))?.map(|row| get(&row, "token_hash")).transpose()
}

/// Removes a session.
pub async fn remove(connection: &mut Connection, hash: &str) -> Result<(), Error> {
    let done = db::query("DELETE FROM sessions WHERE hash = $1").bind(hash).execute(connection).await;
    done.map(drop).map_err(database("removing a session"))
}

/// Removes the sessions that began before `since`.
pub async fn remove_old(connection: &mut Connection, since: Millis) -> Result<(), Error> {
    let query = db::query("DELETE FROM sessions WHERE created_at < $1").bind(since.cast_signed());
    query.execute(connection).await.map(drop).map_err(database("removing old sessions"))
}
