//! Counts of nodes, waiting machines and runs, and the room that the store takes. They look at few rows, because
//! monitoring asks for them again and again.

use slipway_protocol::{ClaimReason, NodeState, RunState, StepState, StepStatus};

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::{Connection, Pools, Store, database, db, enum_from_text, get, json, number};

/// Returns the number of nodes in each state that some are in.
pub async fn nodes(connection: &mut Connection) -> Result<Vec<(NodeState, u64)>, Error> {
    let sql = "SELECT state, COUNT(*) AS count FROM nodes GROUP BY state";
    let rows = db::query(sql).fetch_all(connection).await.map_err(database("counting the nodes"))?;
    rows.iter().map(|row| Ok((enum_from_text(row, "state")?, number(row, "count")?))).collect()
}

/// Returns the number of runs in each state that some are in.
pub async fn runs(connection: &mut Connection) -> Result<Vec<(RunState, u64)>, Error> {
    let sql = "SELECT state, COUNT(*) AS count FROM runs GROUP BY state";
    let rows = db::query(sql).fetch_all(connection).await.map_err(database("counting the runs"))?;
    rows.iter().map(|row| Ok((enum_from_text(row, "state")?, number(row, "count")?))).collect()
}

/// Returns the number of waiting machines by why they wait, and whether they have identifiers of a node.
pub async fn claimants(connection: &mut Connection) -> Result<Vec<(ClaimReason, bool, u64)>, Error> {
    let sql = "SELECT reason, node IS NOT NULL AS has_node, COUNT(*) AS count FROM claimants \
               GROUP BY reason, node IS NOT NULL";
    let rows = db::query(sql).fetch_all(connection).await.map_err(database("counting the waiting machines"))?;
    rows.iter().map(|row| Ok((enum_from_text(row, "reason")?, get(row, "has_node")?, number(row, "count")?))).collect()
}

/// Returns the number of nodes that execute a step and were last heard from before this time.
pub async fn silent(connection: &mut Connection, before: Millis) -> Result<u64, Error> {
    let sql = "SELECT steps_json FROM runs JOIN nodes ON nodes.id = runs.node AND nodes.run = runs.id \
               JOIN node_contacts ON node_contacts.node = runs.node WHERE runs.state = 'running' AND at < $1";
    let rows = db::query(sql).bind(before.cast_signed()).fetch_all(connection).await;
    let mut silent = 0;
    for row in rows.map_err(database("counting the silent nodes"))? {
        let steps: Vec<StepStatus> = json(&row, "steps_json")?;
        silent += u64::from(steps.iter().any(|step| step.state == StepState::Running));
    }
    Ok(silent)
}

/// The room that the store takes, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Size of the database.
    pub database: Option<u64>,
    /// Size of SQLite's write-ahead log.
    pub log: Option<u64>,
    /// Size of the file system of the data folder.
    pub total: Option<u64>,
    /// What the server may still take of it.
    pub available: Option<u64>,
}

/// Returns the room that the store takes. What cannot be found out is left out.
pub async fn sizes(store: &Store) -> Result<Sizes, Error> {
    let folder = store.objects().folder().to_owned();
    let is_sqlite = matches!(store.pools, Pools::Sqlite(_));
    // In a thread of its own, because a file system on a network may not answer.
    let looking = tokio::task::spawn_blocking(move || {
        let size = |name: &str| std::fs::metadata(folder.join(name)).ok().map(|file| file.len()).filter(|_| is_sqlite);
        let system = rustix::fs::statvfs(&folder).ok();
        Sizes {
            database: size("slipway.db"),
            log: is_sqlite.then(|| size("slipway.db-wal").unwrap_or_default()),
            total: system.as_ref().map(|system| system.f_blocks.saturating_mul(system.f_frsize)),
            available: system.as_ref().map(|system| system.f_bavail.saturating_mul(system.f_frsize)),
        }
    });
    let mut sizes = looking.await.unwrap_or_default();
    if !is_sqlite {
        let sql = crate::store::postgres::SIZE;
        let row = db::query(sql).fetch_one(&mut *store.read().await?).await;
        sizes.database = Some(number(&row.map_err(database("reading the size of the database"))?, "bytes")?);
    }
    Ok(sizes)
}
