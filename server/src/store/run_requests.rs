//! What runs were asked for, encrypted, so that they can be done again.

use slipway_protocol::{NodeState, RunState};

use crate::base::error::Error;
use crate::store::nodes::Node;
use crate::store::{Connection, database, db, get, to_word};

/// Stores what a new run was asked for, and removes it for the older runs of its node, except the one that is done
/// again until the machine has the new one.
pub async fn insert(connection: &mut Connection, node: &Node, run: &str, sealed: &[u8]) -> Result<(), Error> {
    let sql = "DELETE FROM run_requests WHERE run IN (SELECT id FROM runs WHERE node = $1 AND id <> $2)";
    let query = db::query(sql).bind(&node.id).bind(node.anew.as_deref().unwrap_or_default());
    query.execute(&mut *connection).await.map_err(database("removing what a run was asked for"))?;
    let query = db::query("INSERT INTO run_requests (run, sealed) VALUES ($1, $2)").bind(run).bind(sealed);
    query.execute(connection).await.map(drop).map_err(database("storing what a run was asked for"))
}

/// Returns what a run was asked for, if it is kept.
pub async fn get_by_run(connection: &mut Connection, run: &str) -> Result<Option<Vec<u8>>, Error> {
    let query = db::query("SELECT sealed FROM run_requests WHERE run = $1").bind(run);
    let row = query.fetch_optional(connection).await.map_err(database("reading what a run was asked for"))?;
    row.map(|row| get(&row, "sealed")).transpose()
}

/// Removes what a run was asked for.
pub async fn remove(connection: &mut Connection, run: &str) -> Result<(), Error> {
    let query = db::query("DELETE FROM run_requests WHERE run = $1").bind(run);
    query.execute(connection).await.map(drop).map_err(database("removing what a run was asked for"))
}

/// Removes what cannot be done again: a version that knows no requests may have ended runs, or started others.
pub async fn remove_stale(connection: &mut Connection) -> Result<(), Error> {
    let sql = "DELETE FROM run_requests WHERE run NOT IN (SELECT runs.id FROM runs JOIN nodes ON nodes.run = runs.id \
               WHERE nodes.state <> $1 AND runs.state <> $2) \
               AND run NOT IN (SELECT anew FROM nodes WHERE anew IS NOT NULL AND nodes.state <> $1)";
    let query = db::query(sql).bind(to_word(&NodeState::Decommissioned)).bind(to_word(&RunState::Succeeded));
    query.execute(connection).await.map(drop).map_err(database("removing what a run was asked for"))
}

/// Removes what the runs of a node were asked for.
pub async fn remove_of_node(connection: &mut Connection, node: &str) -> Result<(), Error> {
    let query = db::query("DELETE FROM run_requests WHERE run IN (SELECT id FROM runs WHERE node = $1)").bind(node);
    query.execute(connection).await.map(drop).map_err(database("removing what a run was asked for"))
}
