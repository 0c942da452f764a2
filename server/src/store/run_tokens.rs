//! Tokens of runs, for reports from outside of their workflows and for captured images.

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::{Connection, database, db, get, number};

/// What a token gives access to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Reports of external steps.
    Steps,
    /// Reports of the installed system's boot reporter.
    Boot,
    /// Fetching a captured image. The token is hashed together with the image's digest.
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

/// Stores the hash of a new token.
pub async fn insert(
    connection: &mut Connection,
    hash: &str,
    run: &str,
    purpose: Purpose,
    now: Millis,
) -> Result<(), Error> {
    let sql = "INSERT INTO run_tokens (hash, run, purpose, created_at) VALUES ($1, $2, $3, $4)";
    let query = db::query(sql).bind(hash).bind(run).bind(purpose.word()).bind(now.cast_signed());
    query.execute(connection).await.map(drop).map_err(database("storing a run's token"))
}

/// Returns the id of the run that this token belongs to, if the token is for this purpose.
pub async fn run_of(connection: &mut Connection, hash: &str, purpose: Purpose) -> Result<Option<String>, Error> {
    let sql = "SELECT run FROM run_tokens WHERE hash = $1 AND purpose = $2";
    let row = db::query(sql).bind(hash).bind(purpose.word()).fetch_optional(connection).await;
    row.map_err(database("reading a run's token"))?.map(|row| get(&row, "run")).transpose()
}

/// Returns the number of a run's tokens for a purpose.
pub async fn count(connection: &mut Connection, run: &str, purpose: Purpose) -> Result<u64, Error> {
    let sql = "SELECT COUNT(*) AS tokens FROM run_tokens WHERE run = $1 AND purpose = $2";
    let row = db::query(sql).bind(run).bind(purpose.word()).fetch_one(connection).await;
    number(&row.map_err(database("counting a run's tokens"))?, "tokens")
}
