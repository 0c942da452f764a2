//! Changes of nodes, in order, so that each server process notices those that another process made.

use crate::base::error::Error;
use crate::store::{Connection, database, db, get, number};

/// Number of changes that are kept. A process that is further behind must look at all nodes.
const KEPT: i64 = 10_000;

/// The changes after one that a process knows.
#[derive(Debug, PartialEq, Eq)]
pub struct Changes {
    /// Number of the newest change; 0 if there is none.
    pub newest: i64,
    /// Revision of the site's keys, read together with the changes to save a query.
    pub keys: i64,
    /// Number of the newest event, read together with the changes too.
    pub event: u64,
    /// Ids of the changed nodes. `None` if some changes are not kept any more, so that any node may have changed.
    pub nodes: Option<Vec<String>>,
}

/// Records that a node changed. The write lock keeps the numbers in the order of the commits.
pub async fn record(connection: &mut Connection, node: &str) -> Result<(), Error> {
    let sql = "INSERT INTO node_changes (id, node) SELECT COALESCE(MAX(id), 0) + 1, $1 FROM node_changes";
    let done = db::query(sql).bind(node).execute(&mut *connection).await;
    done.map_err(database("recording that a node changed"))?;
    let sql = "DELETE FROM node_changes WHERE id <= (SELECT MAX(id) FROM node_changes) - $1";
    let done = db::query(sql).bind(KEPT).execute(connection).await;
    done.map(drop).map_err(database("removing old changes of nodes"))
}

/// Returns the changes after the one with the number `known`.
pub async fn since(connection: &mut Connection, known: i64) -> Result<Changes, Error> {
    let failed = || database("reading the changes of nodes");
    let sql = "SELECT COALESCE(MAX(id), 0) AS newest, COALESCE((SELECT revision FROM site_keys), 0) AS keys, \
               COALESCE((SELECT MAX(number) FROM history), 0) AS event FROM node_changes";
    let row = db::query(sql).fetch_one(&mut *connection).await.map_err(failed())?;
    let (newest, keys, event) = (get(&row, "newest")?, get(&row, "keys")?, number(&row, "event")?);
    if newest == known {
        return Ok(Changes { newest, keys, event, nodes: Some(Vec::new()) });
    }
    let sql = "SELECT node FROM node_changes WHERE id > $1 AND id <= $2";
    let rows = db::query(sql).bind(known).bind(newest).fetch_all(connection).await.map_err(failed())?;
    let nodes = rows.iter().map(|row| get(row, "node")).collect::<Result<Vec<String>, _>>()?;
    // Changes that are not kept, or numbers that started again in a restored store.
    let is_complete = i64::try_from(nodes.len()) == Ok(newest - known);
    Ok(Changes { newest, keys, event, nodes: is_complete.then_some(nodes) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Store, commit};

    #[tokio::test]
    async fn a_process_gets_the_changes_that_it_does_not_know() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let store = Store::open(&folder.path().join("slipway.db")).await?;
        let mut transaction = store.write().await?;
        assert_eq!(
            since(&mut transaction, 0).await?,
            Changes { newest: 0, keys: 0, event: 0, nodes: Some(Vec::new()) }
        );
        for node in ["a", "b", "a"] {
            record(&mut transaction, node).await?;
        }
        let nodes = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        for (known, expected) in [(0, nodes(&["a", "b", "a"])), (2, nodes(&["a"])), (3, nodes(&[])), (9, None)] {
            assert_eq!(
                since(&mut transaction, known).await?,
                Changes { newest: 3, keys: 0, event: 0, nodes: expected },
                "{known}"
            );
        }
        for _ in 0..KEPT {
            record(&mut transaction, "c").await?;
        }
        assert_eq!(
            since(&mut transaction, 1).await?,
            Changes { newest: KEPT + 3, keys: 0, event: 0, nodes: None },
            "some are removed"
        );
        assert!(since(&mut transaction, 3).await?.nodes.is_some());
        Ok(commit(transaction).await?)
    }
}
