//! Machines that asked to enrol and were not admitted. Each is stored by its key alone, so it cannot interfere with a
//! node or another machine.

use slipway_protocol::{BootTiming, ClaimReason, ClaimedTpm, Identity, Inventory};

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::{Connection, Row, database, db, enum_from_text, get, json, number, to_json, to_word};
use serde::{Deserialize, Serialize};

/// A machine that waits to be admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// Fingerprint of the machine's key.
    pub key: String,
    /// Id that the machine gets as a node if it is admitted as a new one.
    pub id: String,
    /// Claim code of this key. Unique.
    pub code: String,
    /// Why it has to wait.
    pub reason: ClaimReason,
    /// Id of the node with all or some of the machine's identifiers, if any.
    pub node: Option<String>,
    /// IP address of the machine's last request.
    pub address: String,
    /// Network of that address: an IPv4 address alone, or an IPv6 /64.
    pub network: String,
    /// Identifiers in its last request.
    pub identity: Identity,
    /// Other facts in its last request.
    pub report: Report,
    /// Time of its first request, in milliseconds since 1970.
    pub first_asked: Millis,
    /// Time of its last request, in milliseconds since 1970.
    pub last_asked: Millis,
}

/// What a machine reports about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Hardware inventory.
    pub inventory: Inventory,
    /// How long the machine's boot took. `None` if it does not say.
    pub timing: Option<BootTiming>,
    /// Version of slipway on the machine.
    pub agent_version: String,
    /// Id of the machine's current boot.
    pub boot_id: String,
    /// What the machine claims about its TPM. `None` if it has none.
    #[serde(default)]
    pub tpm: Option<ClaimedTpm>,
}

/// Returns the waiting machine with this key.
pub async fn get_by_key(connection: &mut Connection, key: &str) -> Result<Option<Claimant>, Error> {
    one(connection, "SELECT * FROM claimants WHERE key = $1", key).await
}

/// Returns the waiting machine with this id, or with this claim code in upper or lower case.
pub async fn find(connection: &mut Connection, reference: &str) -> Result<Option<Claimant>, Error> {
    if let Some(found) = one(connection, "SELECT * FROM claimants WHERE id = $1", reference).await? {
        return Ok(Some(found));
    }
    one(connection, "SELECT * FROM claimants WHERE code = $1", &reference.trim().to_ascii_uppercase()).await
}

async fn one(connection: &mut Connection, sql: &'static str, key: &str) -> Result<Option<Claimant>, Error> {
    let row = db::query(sql).bind(key).fetch_optional(connection).await;
    row.map_err(database("reading a waiting machine"))?.as_ref().map(from_row).transpose()
}

/// Returns all waiting machines, in the order in which they first asked.
pub async fn all(connection: &mut Connection) -> Result<Vec<Claimant>, Error> {
    let rows = db::query("SELECT * FROM claimants ORDER BY first_asked, key").fetch_all(connection).await;
    rows.map_err(database("reading the waiting machines"))?.iter().map(from_row).collect()
}

/// Returns the waiting machines with identifiers of this node, in the order in which they first asked.
pub async fn of_node(connection: &mut Connection, node: &str) -> Result<Vec<Claimant>, Error> {
    let query = db::query("SELECT * FROM claimants WHERE node = $1 ORDER BY first_asked, key").bind(node);
    let rows = query.fetch_all(connection).await.map_err(database("reading the waiting machines"))?;
    rows.iter().map(from_row).collect()
}

/// Stores a waiting machine. Its claim code and the time of its first request do not change.
pub async fn save(connection: &mut Connection, claimant: &Claimant) -> Result<(), Error> {
    let sql = "INSERT INTO claimants (key, id, code, reason, node, address, network, identity_json, report_json, \
               first_asked, last_asked) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) \
               ON CONFLICT (key) DO UPDATE SET reason = excluded.reason, node = excluded.node, \
               address = excluded.address, network = excluded.network, identity_json = excluded.identity_json, \
               report_json = excluded.report_json, last_asked = excluded.last_asked";
    let done = db::query(sql)
        .bind(&claimant.key)
        .bind(&claimant.id)
        .bind(&claimant.code)
        .bind(to_word(&claimant.reason))
        .bind(&claimant.node)
        .bind(&claimant.address)
        .bind(&claimant.network)
        .bind(to_json(&claimant.identity))
        .bind(to_json(&claimant.report))
        .bind(claimant.first_asked.cast_signed())
        .bind(claimant.last_asked.cast_signed())
        .execute(connection)
        .await;
    done.map(drop).map_err(database("storing a waiting machine"))
}

/// Returns the number of waiting machines, and of those from one network.
pub async fn count(connection: &mut Connection, network: &str) -> Result<(u64, u64), Error> {
    let sql = "SELECT COUNT(*) AS every, COUNT(CASE WHEN network = $1 THEN 1 END) AS here FROM claimants";
    let row = db::query(sql).bind(network).fetch_one(connection).await;
    let row = row.map_err(database("counting the waiting machines"))?;
    Ok((number(&row, "every")?, number(&row, "here")?))
}

/// Removes the waiting machine with this key.
pub async fn remove(connection: &mut Connection, key: &str) -> Result<(), Error> {
    let done = db::query("DELETE FROM claimants WHERE key = $1").bind(key).execute(connection).await;
    done.map(drop).map_err(database("removing a waiting machine"))
}

/// Removes the machines whose last request was before this time.
pub async fn forget_silent(connection: &mut Connection, before: Millis) -> Result<(), Error> {
    let query = db::query("DELETE FROM claimants WHERE last_asked < $1").bind(before.cast_signed());
    query.execute(connection).await.map(drop).map_err(database("removing machines that no longer wait"))
}

fn from_row(row: &Row) -> Result<Claimant, Error> {
    Ok(Claimant {
        key: get(row, "key")?,
        id: get(row, "id")?,
        code: get(row, "code")?,
        reason: enum_from_text(row, "reason")?,
        node: get(row, "node")?,
        address: get(row, "address")?,
        network: get(row, "network")?,
        identity: json(row, "identity_json")?,
        report: json(row, "report_json")?,
        first_asked: number(row, "first_asked")?,
        last_asked: number(row, "last_asked")?,
    })
}
