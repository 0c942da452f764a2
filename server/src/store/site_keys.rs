//! The keys of the site, which all its servers use, and how often they changed.

use crate::base::error::Error;
use crate::store::{Connection, Transaction, database, db, get};

/// The keys as they are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Number of changes so far.
    pub revision: i64,
    /// All files of keys, encrypted to the site key. `None` if each server has them in its data folder.
    pub sealed: Option<Vec<u8>>,
}

/// Reads the keys.
pub async fn read(connection: &mut Connection) -> Result<Stored, Error> {
    let row = db::query("SELECT revision, sealed FROM site_keys").fetch_optional(connection).await;
    let row = row.map_err(database("reading the keys of the site"))?;
    let stored = |row| Ok(Stored { revision: get(&row, "revision")?, sealed: get(&row, "sealed")? });
    row.map(stored).transpose().map(Option::unwrap_or_default)
}

/// Replaces the keys, if nobody else did since the revision `known`. Returns whether they were replaced.
pub async fn replace(transaction: &mut Transaction, known: i64, sealed: Option<&[u8]>) -> Result<bool, Error> {
    if read(transaction).await?.revision != known {
        return Ok(false);
    }
    let sql = "INSERT INTO site_keys (id, revision, sealed) VALUES (1, $1, $2) \
               ON CONFLICT (id) DO UPDATE SET revision = excluded.revision, sealed = excluded.sealed";
    let done = db::query(sql).bind(known + 1).bind(sealed).execute(transaction).await;
    done.map(|_| true).map_err(database("storing the keys of the site"))
}
