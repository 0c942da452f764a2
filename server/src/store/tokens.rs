//! Bootstrap tokens. A token either admits one machine, as an operator's consent in advance, or proves at each boot
//! that a machine is a certain node.

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::{Connection, Row, database, db, get, number, optional_number};

/// A bootstrap token as stored.
#[derive(Clone, Debug)]
pub struct Token {
    /// SHA-256 of the token, in hexadecimal.
    pub hash: String,
    /// When it was issued, in milliseconds since 1970.
    pub created_at: Millis,
    /// When it expires, in milliseconds since 1970. `None` if never.
    pub expires_at: Option<Millis>,
    /// When a machine last used the token, in milliseconds since 1970. `None` if never.
    pub used_at: Option<Millis>,
    /// IP address of the machine that last used the token.
    pub used_by_address: Option<String>,
    /// Id of the node whose machine used the token.
    pub node: Option<String>,
    /// Id of the node that the token proves. `None` if it admits any one machine.
    pub made_for: Option<String>,
}

/// Length of a token's id, the first hexadecimal digits of its hash.
const ID: usize = 12;

/// Returns the id of the token with this hash.
pub fn id(hash: &str) -> &str {
    hash.get(..ID).unwrap_or(hash)
}

/// Stores the hash of a new token.
pub async fn insert(
    connection: &mut Connection,
    hash: &str,
    now: Millis,
    expires_at: Option<Millis>,
    made_for: Option<&str>,
) -> Result<(), Error> {
    let sql = "INSERT INTO tokens (hash, created_at, expires_at, made_for) VALUES ($1, $2, $3, $4)";
    let expires_at = expires_at.map(u64::cast_signed);
    let query = db::query(sql).bind(hash).bind(now.cast_signed()).bind(expires_at).bind(made_for);
    let done = query.execute(connection).await;
    done.map(drop).map_err(database("storing a token"))
}

/// Returns the token with this hash.
pub async fn get_by_hash(connection: &mut Connection, hash: &str) -> Result<Option<Token>, Error> {
    let row = db::query("SELECT * FROM tokens WHERE hash = $1").bind(hash).fetch_optional(connection).await;
    row.map_err(database("reading a token"))?.as_ref().map(from_row).transpose()
}

/// Returns all tokens, oldest first.
pub async fn all(connection: &mut Connection) -> Result<Vec<Token>, Error> {
    let rows = db::query("SELECT * FROM tokens ORDER BY created_at, hash").fetch_all(connection).await;
    rows.map_err(database("reading the tokens"))?.iter().map(from_row).collect()
}

/// Removes the token with this hash.
pub async fn remove(connection: &mut Connection, hash: &str) -> Result<(), Error> {
    let done = db::query("DELETE FROM tokens WHERE hash = $1").bind(hash).execute(connection).await;
    done.map(drop).map_err(database("removing a token"))
}

fn from_row(row: &Row) -> Result<Token, Error> {
    Ok(Token {
        hash: get(row, "hash")?,
        created_at: number(row, "created_at")?,
        expires_at: optional_number(row, "expires_at")?,
        used_at: optional_number(row, "used_at")?,
        used_by_address: get(row, "used_by_address")?,
        node: get(row, "node")?,
        made_for: get(row, "made_for")?,
    })
}

/// Records which node used a token, and from which address.
pub async fn consume(
    connection: &mut Connection,
    hash: &str,
    node: &str,
    address: &str,
    now: Millis,
) -> Result<(), Error> {
    let sql = "UPDATE tokens SET used_at = $1, used_by_address = $2, node = $3 WHERE hash = $4";
    let done = db::query(sql).bind(now.cast_signed()).bind(address).bind(node).bind(hash).execute(connection).await;
    done.map(drop).map_err(database("marking a token as used"))
}
