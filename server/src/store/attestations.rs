//! What the nodes' machines last proved with their TPMs.

use slipway_protocol::{TpmKeys, TpmProof};

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::{Connection, database, db, json, number, to_json};

/// The latest proof of a machine by its TPM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attestation {
    /// When the server accepted the proof, in milliseconds since 1970.
    pub at: Millis,
    /// Public keys of the machine's TPM.
    pub keys: TpmKeys,
    /// The quote of the TPM's registers, and the event log that explains their values.
    pub proof: TpmProof,
}

/// Stores the proof of a node's machine, replacing the previous one.
pub async fn save(connection: &mut Connection, node: &str, attestation: &Attestation) -> Result<(), Error> {
    let sql = "INSERT INTO attestations (node, at, keys_json, proof_json) VALUES ($1, $2, $3, $4) \
               ON CONFLICT (node) DO UPDATE SET at = excluded.at, keys_json = excluded.keys_json, \
               proof_json = excluded.proof_json";
    let done = db::query(sql)
        .bind(node)
        .bind(attestation.at.cast_signed())
        .bind(to_json(&attestation.keys))
        .bind(to_json(&attestation.proof))
        .execute(connection)
        .await;
    done.map(drop).map_err(database("storing what a TPM proved"))
}

/// Removes the proof of a node's machine.
pub async fn remove(connection: &mut Connection, node: &str) -> Result<(), Error> {
    let done = db::query("DELETE FROM attestations WHERE node = $1").bind(node).execute(connection).await;
    done.map(drop).map_err(database("removing what a TPM proved"))
}

/// Returns the latest proof of a node's machine.
pub async fn of_node(connection: &mut Connection, node: &str) -> Result<Option<Attestation>, Error> {
    let query = db::query("SELECT * FROM attestations WHERE node = $1").bind(node);
    let row = query.fetch_optional(connection).await.map_err(database("reading what a TPM proved"))?;
    let read = |row| {
        Ok(Attestation { at: number(row, "at")?, keys: json(row, "keys_json")?, proof: json(row, "proof_json")? })
    };
    row.as_ref().map(read).transpose()
}
