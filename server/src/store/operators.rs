//! Operators of the HTTPS API. Each has a name, a token and, for a while after a change, the previous token.

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::{Connection, Row, database, db, get, number, optional_number};

/// An operator as stored.
#[derive(Clone, Debug)]
pub struct Operator {
    /// Name of the operator. Unique.
    pub name: String,
    /// SHA-256 of the token, in hexadecimal.
    pub hash: String,
    /// When the token was made, in milliseconds since 1970.
    pub created_at: Millis,
    /// When the token expires, in milliseconds since 1970. `None` if never.
    pub expires_at: Option<Millis>,
    /// The day on which the token was last used, as its first millisecond in UTC since 1970. `None` if never used.
    pub used_at: Option<Millis>,
    /// The previous token, if it was replaced.
    pub old: Option<Old>,
}

/// A token that was replaced.
#[derive(Clone, Debug)]
pub struct Old {
    /// SHA-256 of the token, in hexadecimal.
    pub hash: String,
    /// When the token stops working, in milliseconds since 1970.
    pub until: Millis,
}

/// Returns the operator with this name.
pub async fn get_by_name(connection: &mut Connection, name: &str) -> Result<Option<Operator>, Error> {
    let row = db::query("SELECT * FROM operators WHERE name = $1").bind(name).fetch_optional(connection).await;
    row.map_err(database("reading an operator"))?.as_ref().map(from_row).transpose()
}

/// Returns the operator whose current or previous token has this hash. A comparison in constant time is not needed:
/// timing reveals only hashes, and nobody can choose a token with a given hash.
pub async fn get_by_hash(connection: &mut Connection, hash: &str) -> Result<Option<Operator>, Error> {
    let sql = "SELECT * FROM operators WHERE hash = $1 OR old_hash = $1";
    let row = db::query(sql).bind(hash).fetch_optional(connection).await;
    row.map_err(database("reading an operator"))?.as_ref().map(from_row).transpose()
}

/// Returns all operators, by name.
pub async fn all(connection: &mut Connection) -> Result<Vec<Operator>, Error> {
    let rows = db::query("SELECT * FROM operators ORDER BY name").fetch_all(connection).await;
    rows.map_err(database("reading the operators"))?.iter().map(from_row).collect()
}

/// Stores an operator, replacing one with the same name.
pub async fn save(connection: &mut Connection, operator: &Operator) -> Result<(), Error> {
    let sql = "INSERT INTO operators (name, hash, created_at, expires_at, used_at, old_hash, old_until) \
               VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (name) DO UPDATE SET hash = excluded.hash, \
               created_at = excluded.created_at, expires_at = excluded.expires_at, used_at = excluded.used_at, \
               old_hash = excluded.old_hash, old_until = excluded.old_until";
    let query = db::query(sql)
        .bind(&operator.name)
        .bind(&operator.hash)
        .bind(operator.created_at.cast_signed())
        .bind(operator.expires_at.map(u64::cast_signed))
        .bind(operator.used_at.map(u64::cast_signed))
        .bind(operator.old.as_ref().map(|old| old.hash.as_str()))
        .bind(operator.old.as_ref().map(|old| old.until.cast_signed()));
    query.execute(connection).await.map(drop).map_err(database("storing an operator"))
}

/// Records the day on which the token with this hash was used, unless the token was replaced meanwhile.
pub async fn used(connection: &mut Connection, hash: &str, day: Millis) -> Result<(), Error> {
    let query = db::query("UPDATE operators SET used_at = $1 WHERE hash = $2").bind(day.cast_signed()).bind(hash);
    query.execute(connection).await.map(drop).map_err(database("recording the use of an operator's token"))
}

/// Removes an operator.
pub async fn remove(connection: &mut Connection, name: &str) -> Result<(), Error> {
    let done = db::query("DELETE FROM operators WHERE name = $1").bind(name).execute(connection).await;
    done.map(drop).map_err(database("removing an operator"))
}

/// Records that the token with this hash never works again.
pub async fn end_token(connection: &mut Connection, hash: &str) -> Result<(), Error> {
    let query = db::query("INSERT INTO ended_operator_tokens (hash) VALUES ($1) ON CONFLICT DO NOTHING").bind(hash);
    query.execute(connection).await.map(drop).map_err(database("recording that an operator's token ended"))
}

/// Returns whether the token with this hash was ended.
pub async fn has_ended(connection: &mut Connection, hash: &str) -> Result<bool, Error> {
    let query = db::query("SELECT 1 FROM ended_operator_tokens WHERE hash = $1").bind(hash);
    Ok(query.fetch_optional(connection).await.map_err(database("looking up an operator's token"))?.is_some())
}

fn from_row(row: &Row) -> Result<Operator, Error> {
    let old = get::<Option<String>>(row, "old_hash")?.zip(optional_number(row, "old_until")?);
    Ok(Operator {
        name: get(row, "name")?,
        hash: get(row, "hash")?,
        created_at: number(row, "created_at")?,
        expires_at: optional_number(row, "expires_at")?,
        used_at: optional_number(row, "used_at")?,
        old: old.map(|(hash, until)| Old { hash, until }),
    })
}
