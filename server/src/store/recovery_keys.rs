//! Recovery keys, which open nodes' encrypted disks if the TPM does not.

pub mod recipients;

use slipway_protocol::{RecoveryKey, Secret};

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::{Connection, Row, database, db, get, number, optional_number};

/// A recovery key as stored.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Id of the run that encrypted the disk.
    pub run: String,
    /// The volume and its recovery key. The recovery key may be encrypted with age.
    pub key: RecoveryKey,
    /// SHA-256 of the recovery key, if it is stored encrypted.
    pub hash: Option<String>,
    /// When it was stored, in milliseconds since 1970.
    pub stored_at: Millis,
    /// When the key was last shown to an operator, in milliseconds since 1970. `None` if never.
    pub shown_at: Option<Millis>,
}

/// Stores a key; or an encrypted key, with the hash of the key before encryption. Does nothing if the volume has a key.
pub async fn insert(
    connection: &mut Connection,
    node: &str,
    run: &str,
    key: &RecoveryKey,
    hash: Option<&str>,
    now: Millis,
) -> Result<(), Error> {
    let sql = "INSERT INTO recovery_keys (node, run, volume, key, key_hash, stored_at) VALUES ($1, $2, $3, $4, $5, $6) \
               ON CONFLICT (node, volume) DO NOTHING";
    let query = db::query(sql).bind(node).bind(run).bind(&key.volume).bind(key.key.reveal()).bind(hash);
    let query = query.bind(now.cast_signed());
    query.execute(connection).await.map(drop).map_err(database("storing a recovery key"))
}

/// Returns the keys of a node, newest first.
pub async fn of_node(connection: &mut Connection, node: &str) -> Result<Vec<Stored>, Error> {
    let sql = "SELECT * FROM recovery_keys WHERE node = $1 ORDER BY stored_at DESC, volume";
    let rows = db::query(sql).bind(node).fetch_all(connection).await.map_err(database("reading recovery keys"))?;
    rows.iter().map(from_row).collect()
}

/// Returns all keys, each with the id of its node.
pub async fn all(connection: &mut Connection) -> Result<Vec<(String, Stored)>, Error> {
    let rows = db::query("SELECT * FROM recovery_keys").fetch_all(connection).await;
    let rows = rows.map_err(database("reading recovery keys"))?;
    rows.iter().map(|row| Ok((get(row, "node")?, from_row(row)?))).collect()
}

/// Replaces a plain key with its encrypted form.
pub async fn seal(
    connection: &mut Connection,
    node: &str,
    volume: &str,
    sealed: &Secret,
    hash: &str,
) -> Result<(), Error> {
    let sql = "UPDATE recovery_keys SET key = $1, key_hash = $2 WHERE node = $3 AND volume = $4";
    let query = db::query(sql).bind(sealed.reveal()).bind(hash).bind(node).bind(volume);
    query.execute(connection).await.map(drop).map_err(database("encrypting a recovery key"))
}

/// Records that the key of a volume was shown to an operator.
pub async fn note_shown(connection: &mut Connection, node: &str, volume: &str, now: Millis) -> Result<(), Error> {
    let sql = "UPDATE recovery_keys SET shown_at = $1 WHERE node = $2 AND volume = $3";
    let done = db::query(sql).bind(now.cast_signed()).bind(node).bind(volume).execute(connection).await;
    done.map(drop).map_err(database("recording that recovery keys were shown"))
}

/// Removes the key of a volume.
pub async fn remove(connection: &mut Connection, node: &str, volume: &str) -> Result<(), Error> {
    let query = db::query("DELETE FROM recovery_keys WHERE node = $1 AND volume = $2").bind(node).bind(volume);
    query.execute(connection).await.map(drop).map_err(database("removing a recovery key"))
}

fn from_row(row: &Row) -> Result<Stored, Error> {
    Ok(Stored {
        run: get(row, "run")?,
        key: RecoveryKey { volume: get(row, "volume")?, key: Secret::from(get::<String>(row, "key")?) },
        hash: get(row, "key_hash")?,
        stored_at: number(row, "stored_at")?,
        shown_at: optional_number(row, "shown_at")?,
    })
}
