//! Trouble that was noticed and is not over, of nodes and of the site.

use slipway_protocol::Flag;

use crate::base::error::Error;
use crate::store::{Connection, Row, database, db, get, json, to_json, to_word};

/// In place of a node's id for the flags of the site.
pub const SITE: &str = "";

/// Returns the flags of one node, or of all and of the site if `node` is `None`, each with the id of its node.
pub async fn all(connection: &mut Connection, node: Option<&str>) -> Result<Vec<(String, Flag)>, Error> {
    let sql = "SELECT node, flag_json FROM flags WHERE CAST($1 AS TEXT) IS NULL OR node = $1 ORDER BY node, kind, step";
    let rows = db::query(sql).bind(node).fetch_all(connection).await;
    let flag = |row: &Row| Ok((get(row, "node")?, json(row, "flag_json")?));
    rows.map_err(database("reading noticed trouble"))?.iter().map(flag).collect()
}

/// Returns what tells apart the flags of a node of one kind: the limit and the step. A version that knows no limits
/// leaves such a row behind when the trouble ends while it looks; the next one removes it.
fn key(flag: &Flag) -> String {
    let parts = [&flag.limit, &flag.step];
    parts.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join(" ")
}

/// Stores a flag of a node, unless the node has one about the same or was removed. Returns whether it is stored.
pub async fn insert(connection: &mut Connection, node: &str, flag: &Flag) -> Result<bool, Error> {
    let sql = "INSERT INTO flags (node, kind, step, since, flag_json) SELECT $1, $2, $3, $4, $5 \
               WHERE $1 = '' OR EXISTS (SELECT 1 FROM nodes WHERE id = $1) ON CONFLICT (node, kind, step) DO NOTHING";
    let query = db::query(sql).bind(node).bind(to_word(&flag.kind)).bind(key(flag));
    let done = query.bind(flag.since.cast_signed()).bind(to_json(flag)).execute(connection).await;
    Ok(done.map_err(database("storing noticed trouble"))? > 0)
}

/// Removes a flag of a node. Returns whether it had it.
pub async fn remove(connection: &mut Connection, node: &str, flag: &Flag) -> Result<bool, Error> {
    let sql = "DELETE FROM flags WHERE node = $1 AND kind = $2 AND step = $3";
    let query = db::query(sql).bind(node).bind(to_word(&flag.kind)).bind(key(flag));
    Ok(query.execute(connection).await.map_err(database("removing noticed trouble"))? > 0)
}

/// Removes all flags of a node.
pub async fn remove_all(connection: &mut Connection, node: &str) -> Result<(), Error> {
    let done = db::query("DELETE FROM flags WHERE node = $1").bind(node).execute(connection).await;
    done.map(drop).map_err(database("removing noticed trouble"))
}
