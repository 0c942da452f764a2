//! Reports and logs of the boot reporters of installed systems.

use slipway_protocol::BootStatus;

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::logs::{LoggedBoot, logged_boot};
use crate::store::{Connection, database, db, get, json, to_json};

/// Maximum number of logs of one kind kept for a node, and their maximum total size in bytes, compressed.
const MAX_LOGS: i64 = 16;
const MAX_LOG_BYTES: i64 = 16 << 20;

/// Stores the latest report of a run's system.
pub async fn save(connection: &mut Connection, run: &str, status: &BootStatus) -> Result<(), Error> {
    let sql = "INSERT INTO boot_reports (run, status_json) VALUES ($1, $2) \
               ON CONFLICT (run) DO UPDATE SET status_json = excluded.status_json";
    let done = db::query(sql).bind(run).bind(to_json(status)).execute(connection).await;
    done.map(drop).map_err(database("storing a boot report"))
}

/// Returns the latest report of a run's system.
pub async fn of_run(connection: &mut Connection, run: &str) -> Result<Option<BootStatus>, Error> {
    let query = db::query("SELECT status_json FROM boot_reports WHERE run = $1").bind(run);
    let row = query.fetch_optional(connection).await.map_err(database("reading a boot report"))?;
    row.map(|row| json(&row, "status_json")).transpose()
}

/// Returns the latest report of each node's newest run, with the id of the run.
pub async fn newest(connection: &mut Connection) -> Result<Vec<(String, BootStatus)>, Error> {
    let sql =
        "SELECT boot_reports.run AS run, status_json FROM boot_reports JOIN nodes ON nodes.run = boot_reports.run";
    let rows = db::query(sql).fetch_all(connection).await.map_err(database("reading the boot reports"))?;
    rows.iter().map(|row| Ok((get(row, "run")?, json(row, "status_json")?))).collect()
}

/// Like [`newest`], for these nodes.
pub async fn newest_of_nodes(
    connection: &mut Connection,
    nodes: &[String],
) -> Result<Vec<(String, BootStatus)>, Error> {
    let sql = "SELECT boot_reports.run AS run, status_json FROM boot_reports \
               JOIN nodes ON nodes.run = boot_reports.run WHERE nodes.id IN ({ids})";
    let mut reports = Vec::new();
    for query in db::by_ids(sql, nodes) {
        let rows = query.fetch_all(&mut *connection).await.map_err(database("reading the boot reports"))?;
        for row in &rows {
            reports.push((get(row, "run")?, json(row, "status_json")?));
        }
    }
    Ok(reports)
}

/// A log from an installed system.
#[derive(Clone, Debug)]
pub struct HostLog<'a> {
    /// Id of the node.
    pub node: &'a str,
    /// Kind of log.
    pub kind: &'a str,
    /// Id of the boot whose log this is.
    pub boot_id: &'a str,
    /// Id of the run that installed the system.
    pub run: &'a str,
    /// The log, compressed with gzip.
    pub data: &'a [u8],
}

/// Stores a log, and removes the oldest logs of the same kind beyond the limits. The newest log always stays. It is
/// later than those before, also if the clock was set back.
pub async fn insert_log(connection: &mut Connection, log: &HostLog<'_>, now: Millis) -> Result<(), Error> {
    let sql = "INSERT INTO host_logs (node, kind, at, boot_id, run, data) VALUES ($1, $2, \
               (SELECT CASE WHEN MAX(at) >= $3 THEN MAX(at) + 1 ELSE $3 END FROM host_logs \
               WHERE node = $1 AND kind = $2), $4, $5, $6)";
    let query = db::query(sql).bind(log.node).bind(log.kind).bind(now.cast_signed());
    let query = query.bind(log.boot_id).bind(log.run).bind(log.data);
    query.execute(&mut *connection).await.map_err(database("storing a log"))?;
    let sql = "DELETE FROM host_logs WHERE node = $1 AND kind = $2 AND at IN (SELECT at FROM \
               (SELECT at, ROW_NUMBER() OVER (ORDER BY at DESC) AS place, SUM(LENGTH(data)) OVER (ORDER BY at DESC) AS \
               bytes FROM host_logs WHERE node = $1 AND kind = $2) AS kept WHERE place > $3 OR (place > 1 AND bytes > \
               $4))";
    let query = db::query(sql).bind(log.node).bind(log.kind).bind(MAX_LOGS).bind(MAX_LOG_BYTES);
    query.execute(connection).await.map(drop).map_err(database("removing old logs"))
}

/// Returns the boots of a node whose logs of a kind are kept, newest first. The sizes are of compressed logs.
pub async fn boots(connection: &mut Connection, node: &str, kind: &str) -> Result<Vec<LoggedBoot>, Error> {
    let sql = "SELECT boot_id, MIN(at) AS first_at, MAX(at) AS last_at, \
               CAST(SUM(LENGTH(data)) AS BIGINT) AS bytes FROM host_logs WHERE node = $1 AND kind = $2 \
               GROUP BY boot_id ORDER BY MAX(at) DESC";
    let rows = db::query(sql).bind(node).bind(kind).fetch_all(connection).await;
    rows.map_err(database("reading the boots of a node"))?.iter().map(logged_boot).collect()
}

/// Returns the newest log of a kind of a boot, compressed with gzip.
pub async fn log_of_boot(
    connection: &mut Connection,
    node: &str,
    kind: &str,
    boot_id: &str,
) -> Result<Option<Vec<u8>>, Error> {
    let sql = "SELECT data FROM host_logs WHERE node = $1 AND kind = $2 AND boot_id = $3 ORDER BY at DESC LIMIT 1";
    let row = db::query(sql).bind(node).bind(kind).bind(boot_id).fetch_optional(connection).await;
    row.map_err(database("reading a log"))?.map(|row| get(&row, "data")).transpose()
}

#[cfg(test)]
mod tests {
    use slipway_protocol::Identity;

    use super::*;
    use crate::base::data::DataDir;
    use crate::store::nodes::{self, Node};
    use crate::store::{Store, commit};

    #[tokio::test]
    async fn the_newest_log_is_the_last_one_also_when_the_clock_was_set_back() -> Result<(), Box<dyn std::error::Error>>
    {
        let folder = tempfile::tempdir()?;
        let store = Store::of(&DataDir::make(folder.path())?).await?;
        let node = Node::new(Identity::default(), 1);
        let mut transaction = store.write().await?;
        nodes::save(&mut transaction, &node).await?;
        let before = (0..MAX_LOGS as usize + 1).map(|_| (b"before".as_slice(), 5000));
        for (data, at) in before.chain([(b"after".as_slice(), 1000), (b"last".as_slice(), 1001)]) {
            let log = HostLog { node: &node.id, kind: "journal", boot_id: "b", run: "r", data };
            insert_log(&mut transaction, &log, at).await?;
        }
        assert_eq!(log_of_boot(&mut transaction, &node.id, "journal", "b").await?.as_deref(), Some(b"last".as_slice()));
        let row = db::query("SELECT COUNT(*) AS logs FROM host_logs").fetch_one(&mut transaction).await?;
        assert_eq!(crate::store::number(&row, "logs")?, MAX_LOGS.cast_unsigned());
        commit(transaction).await?;
        Ok(())
    }
}
