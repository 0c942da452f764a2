//! PINs that a PKCS #11 token refused. They are known to all servers of a site, so that these do not use up the tries
//! that the token allows.

use std::collections::BTreeMap;

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::{Connection, Row, Transaction, database, db, get, number};

/// Returns the digests of all PINs that were refused, and when, in milliseconds since 1970.
pub async fn all(connection: &mut Connection) -> Result<BTreeMap<String, Millis>, Error> {
    let rows = db::query("SELECT digest, at FROM refused_pins").fetch_all(connection).await;
    let pin = |row: &Row| Ok((get(row, "digest")?, number(row, "at")?));
    rows.map_err(database("reading which PINs were refused"))?.iter().map(pin).collect()
}

/// Stores that PINs were refused.
pub async fn add(transaction: &mut Transaction, pins: &BTreeMap<String, Millis>) -> Result<(), Error> {
    for (digest, at) in pins {
        let sql = "INSERT INTO refused_pins (digest, at) VALUES ($1, $2) \
                   ON CONFLICT (digest) DO UPDATE SET at = excluded.at";
        let done = db::query(sql).bind(digest).bind(at.cast_signed()).execute(transaction).await;
        done.map_err(database("storing that a PIN was refused"))?;
    }
    Ok(())
}
