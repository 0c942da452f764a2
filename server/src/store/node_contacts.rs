//! When nodes were last heard from.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::LazyLock;

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::{Connection, database, db, get, number};

/// Number of nodes that one statement stores.
const AT_ONCE: usize = 100;
static STORE_MANY: LazyLock<String> = LazyLock::new(|| statement(AT_ONCE));
static STORE_ONE: LazyLock<String> = LazyLock::new(|| statement(1));

/// Records when nodes were heard from. Nodes that do not exist any more are skipped.
pub async fn save(connection: &mut Connection, heard: &HashMap<String, Millis>) -> Result<(), Error> {
    let heard: Vec<_> = heard.iter().collect();
    let chunks = heard.chunks_exact(AT_ONCE);
    let rest = chunks.remainder().chunks(1);
    for chunk in chunks.chain(rest) {
        let sql: &'static str = if chunk.len() == 1 { &STORE_ONE } else { &STORE_MANY };
        let mut query = db::query(sql);
        for (node, at) in chunk {
            query = query.bind(*node).bind(at.cast_signed());
        }
        let done = query.execute(&mut *connection).await;
        done.map_err(database("recording when nodes were heard from"))?;
    }
    Ok(())
}

/// Records that a node was heard from.
pub async fn seen(connection: &mut Connection, node: &str, at: Millis) -> Result<(), Error> {
    save(connection, &HashMap::from([(node.to_owned(), at)])).await
}

/// Returns when each node was heard from, by its id.
pub async fn all(connection: &mut Connection) -> Result<HashMap<String, Millis>, Error> {
    let rows = db::query("SELECT node, at FROM node_contacts").fetch_all(connection).await;
    let rows = rows.map_err(database("reading when nodes were heard from"))?;
    rows.iter().map(|row| Ok((get(row, "node")?, number(row, "at")?))).collect()
}

/// Moves contacts that are after this time to it, because the clock was set back. Otherwise nodes that nobody heard
/// from since would not be silent before the clock shows that time again.
pub async fn not_after(connection: &mut Connection, now: Millis) -> Result<(), Error> {
    let query = db::query("UPDATE node_contacts SET at = $1 WHERE at > $1").bind(now.cast_signed());
    let done = query.execute(connection).await;
    done.map(drop).map_err(database("correcting when nodes were heard from"))
}

/// Returns the statement that stores this many nodes. Its text depends on nothing else.
fn statement(nodes: usize) -> String {
    let mut values = String::new();
    for number in 0..nodes {
        let comma = if number == 0 { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = write!(values, "{comma}(${}, CAST(${} AS BIGINT))", 2 * number + 1, 2 * number + 2);
    }
    // `WHERE TRUE` tells SQLite that `ON` does not belong to the join ("Parsing Ambiguity" in "UPSERT").
    format!(
        "INSERT INTO node_contacts (node, at) SELECT column1, column2 FROM (VALUES {values}) AS heard \
         JOIN nodes ON nodes.id = column1 WHERE TRUE ON CONFLICT (node) DO UPDATE SET at = excluded.at"
    )
}
