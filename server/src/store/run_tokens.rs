//! Tokens that runs gave out for reports outside of their workflows.

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::{Connection, database, get, number};

/// What a token may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Reports of external steps.
    Steps,
    /// The boot reporter of the installed system.
    Boot,
    /// The machine that fetches an image that was captured. The token is hashed together with the image's digest.
    Image,
}

impl Purpose {
    fn word(self) -> &'static str {
        match self {
            Purpose::Steps => "steps",
            Purpose::Boot => "boot",
            Purpose::Image => "image",
        }
    }
}

/// Stores a new token by its hash.
pub async fn insert(
    connection: &mut Connection,
    hash: &str,
    run: &str,
    purpose: Purpose,
    now: Millis,
) -> Result<(), Error> {
    let sql = "INSERT INTO run_tokens (hash, run, purpose, created_at) VALUES ($1, $2, $3, $4)";
    let query = sqlx::query(sql).bind(hash).bind(run).bind(purpose.word()).bind(now.cast_signed());
    query.execute(connection).await.map(drop).map_err(database("storing a run's token"))
}

/// The run that gave out a token for this purpose.
pub async fn run_of(connection: &mut Connection, hash: &str, purpose: Purpose) -> Result<Option<String>, Error> {
    let sql = "SELECT run FROM run_tokens WHERE hash = $1 AND purpose = $2";
    let row = sqlx::query(sql).bind(hash).bind(purpose.word()).fetch_optional(connection).await;
    row.map_err(database("reading a run's token"))?.map(|row| get(&row, "run")).transpose()
}

/// How many tokens a run gave out for a purpose.
pub async fn count(connection: &mut Connection, run: &str, purpose: Purpose) -> Result<u64, Error> {
    let sql = "SELECT COUNT(*) AS tokens FROM run_tokens WHERE run = $1 AND purpose = $2";
    let row = sqlx::query(sql).bind(run).bind(purpose.word()).fetch_one(connection).await;
    number(&row.map_err(database("counting a run's tokens"))?, "tokens")
}
