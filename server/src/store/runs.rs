//! Runs: workflows given to nodes. A run is kept as long as its node.

use std::collections::BTreeMap;

use slipway_protocol::{Afterwards, Digest, Proof, Step};

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::rules::state::{self, RunProgress};
use crate::store::nodes::Node;
use crate::store::{
    Connection, Row, database, db, enum_from_text, get, json, node_changes, number, optional_number, optional_word,
    to_json, to_word,
};

/// A run as stored.
#[derive(Clone, Debug)]
pub struct Run {
    /// Id of the run.
    pub id: String,
    /// Id of the node.
    pub node: String,
    /// The steps that the node executes.
    pub workflow: Vec<Step>,
    /// State of the run and its steps.
    pub progress: RunProgress,
    /// Size in bytes of the run's stored events.
    pub event_bytes: u64,
    /// Highest sequence number of a stored event; 0 before the first.
    pub last_seq: u64,
    /// The minimum that the machine must prove to get the run.
    pub require: Proof,
    /// SHA-256 of the token in its phone-home URL. `None` if the installed system does not report.
    pub phone_home_hash: Option<String>,
    /// Keys that the installed system posted in its first report.
    pub phone_home: BTreeMap<String, String>,
    /// When the operator started it, in milliseconds since 1970.
    pub created_at: Millis,
    /// When the node first fetched the run, in milliseconds since 1970.
    pub started_at: Option<Millis>,
    /// When the installed system first reported, in milliseconds since 1970.
    pub phoned_home_at: Option<Millis>,
    /// When the installed system last reported, in milliseconds since 1970.
    pub last_contact_at: Option<Millis>,
    /// Whether the run's metadata can still be read after the installed system has reported.
    pub keep_metadata: bool,
    /// Whether the URL of the run's metadata was handed out.
    pub has_metadata_url: bool,
    /// Whether the secrets in the workflow were removed.
    pub forgotten: bool,
    /// Whether the run was restored unfinished from a backup and not confirmed by an operator since.
    pub restored: bool,
    /// Name of the operating system that it installs, if it was started with one.
    pub os: Option<String>,
    /// Digest of the image that it installs.
    pub image: Option<Digest>,
    /// What becomes of the node once it succeeded, if the node does not stay in service.
    pub afterwards: Option<Afterwards>,
    /// How many of its steps an earlier run has done.
    pub done: u32,
    /// Boot of the machine in which its first step began. `None` before that.
    pub boot_id: Option<String>,
    /// How often a machine began it from its first step.
    pub begins: u32,
    /// Whether a step began that destroys what was on a disk.
    pub destroyed: bool,
}

impl Run {
    /// Returns whether the run is held until an operator confirms it. A finished run is never held.
    pub fn is_held(&self) -> bool {
        self.restored && state::is_open(self.progress.state)
    }
}

/// Stores a new run, and the cloud-init instance ids that its workflow gives out.
pub async fn insert(connection: &mut Connection, run: &Run, instances: &[String]) -> Result<(), Error> {
    let sql = "INSERT INTO runs (id, node, state, workflow_json, steps_json, last_seq, phone_home_hash, \
               phone_home_json, created_at, required, keep_metadata, os, image, afterwards, done, destroyed, \
               boot_id) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)";
    let done = db::query(sql)
        .bind(&run.id)
        .bind(&run.node)
        .bind(to_word(&run.progress.state))
        .bind(to_json(&run.workflow))
        .bind(to_json(&run.progress.steps))
        .bind(run.last_seq.cast_signed())
        .bind(&run.phone_home_hash)
        .bind(to_json(&run.phone_home))
        .bind(run.created_at.cast_signed())
        .bind(to_word(&run.require))
        .bind(run.keep_metadata)
        .bind(&run.os)
        .bind(run.image.as_ref().map(ToString::to_string))
        .bind(run.afterwards.as_ref().map(to_word))
        .bind(i64::from(run.done))
        .bind(run.destroyed)
        .bind(&run.boot_id)
        .execute(&mut *connection)
        .await;
    done.map_err(database("storing a run"))?;
    for instance in instances {
        // Fails if an older run has the instance id, because that run keeps it.
        let sql = "INSERT INTO run_instances (instance_id, run) VALUES ($1, $2)";
        let done = db::query(sql).bind(instance).bind(&run.id).execute(&mut *connection).await;
        done.map_err(database("storing a run's instance id"))?;
    }
    Ok(())
}

/// Stores the parts of a run that change while it is in progress.
pub async fn update(connection: &mut Connection, run: &Run) -> Result<(), Error> {
    let sql = "UPDATE runs SET state = $1, steps_json = $2, last_seq = $3, phone_home_json = $4, started_at = $5, \
               finished_at = $6, phoned_home_at = $7, last_contact_at = $8, ended = $9, event_bytes = $10, \
               destroyed = $11, begins = $12, done = $13, boot_id = $14 WHERE id = $15";
    let done = db::query(sql)
        .bind(to_word(&run.progress.state))
        .bind(to_json(&run.progress.steps))
        .bind(run.last_seq.cast_signed())
        .bind(to_json(&run.phone_home))
        .bind(run.started_at.map(u64::cast_signed))
        .bind(run.progress.finished_at.map(u64::cast_signed))
        .bind(run.phoned_home_at.map(u64::cast_signed))
        .bind(run.last_contact_at.map(u64::cast_signed))
        .bind(run.progress.ended)
        .bind(run.event_bytes.cast_signed())
        .bind(run.destroyed)
        .bind(i64::from(run.begins))
        .bind(i64::from(run.done))
        .bind(&run.boot_id)
        .bind(&run.id)
        .execute(connection)
        .await;
    done.map(drop).map_err(database("storing a run"))
}

/// Returns the run with this id.
pub async fn get_by_id(connection: &mut Connection, id: &str) -> Result<Option<Run>, Error> {
    one(connection, "SELECT * FROM runs WHERE id = $1", id).await
}

/// Returns the newest run of a node.
pub async fn newest_of(connection: &mut Connection, node: &str) -> Result<Option<Run>, Error> {
    one(connection, "SELECT runs.* FROM runs JOIN nodes ON nodes.run = runs.id WHERE nodes.id = $1", node).await
}

/// Whether a run is the newest of its node; or the last one that the machine fetched, and the newest was not fetched.
/// The system of that one goes on while the newest waits, and after that was withdrawn.
pub async fn is_current(connection: &mut Connection, node: &Node, run: &str) -> Result<bool, Error> {
    if node.run.as_deref() == Some(run) {
        return Ok(true);
    }
    if newest_of(connection, &node.id).await?.is_some_and(|newest| newest.started_at.is_some()) {
        return Ok(false);
    }
    let sql = "SELECT id FROM runs WHERE node = $1 AND started_at IS NOT NULL \
               ORDER BY started_at DESC, created_at DESC, id DESC LIMIT 1";
    let row = db::query(sql).bind(&node.id).fetch_optional(connection).await.map_err(database("reading a run"))?;
    let last: Option<String> = row.map(|row| get(&row, "id")).transpose()?;
    Ok(last.as_deref() == Some(run))
}

/// Returns the unfinished runs.
pub async fn open(connection: &mut Connection) -> Result<Vec<Run>, Error> {
    let sql = "SELECT runs.* FROM runs JOIN nodes ON nodes.run = runs.id WHERE runs.state IN ('pending', 'running')";
    let rows = db::query(sql).fetch_all(connection).await;
    rows.map_err(database("reading the runs"))?.iter().map(from_row).collect()
}

/// A statement that reads newest runs, but not their workflows, which are large and which their status does not need.
macro_rules! newest {
    ($end:literal) => {
        concat!(
            "SELECT runs.id, runs.node, runs.state, steps_json, finished_at, ended, event_bytes, last_seq, \
             runs.required, phone_home_hash, phone_home_json, runs.created_at, started_at, phoned_home_at, \
             last_contact_at, keep_metadata, has_metadata_url, forgotten, restored, os, image, afterwards, done, \
             runs.boot_id, begins, destroyed \
             FROM runs JOIN nodes ON nodes.run = runs.id",
            $end
        )
    };
}

/// Returns the newest run of each node that has one, without its workflow.
pub async fn newest(connection: &mut Connection) -> Result<Vec<Run>, Error> {
    let rows = db::query(newest!("")).fetch_all(connection).await;
    rows.map_err(database("reading the runs"))?.iter().map(without_workflow).collect()
}

/// Returns the newest run of each of these nodes that has one, without its workflow.
pub async fn newest_of_nodes(connection: &mut Connection, nodes: &[String]) -> Result<Vec<Run>, Error> {
    let mut runs = Vec::new();
    for query in db::by_ids(newest!(" WHERE nodes.id IN ({ids})"), nodes) {
        let rows = query.fetch_all(&mut *connection).await.map_err(database("reading the runs"))?;
        runs.extend(rows.iter().map(without_workflow).collect::<Result<Vec<_>, _>>()?);
    }
    Ok(runs)
}

/// The system that a node's disk has, as far as runs tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// Id of the node.
    pub node: String,
    /// Id of the run that installed it.
    pub run: String,
    /// Name of the operating system that the run was started with.
    pub os: Option<String>,
    /// Digest of the image.
    pub image: Digest,
    /// When the run was done, in milliseconds since 1970.
    pub since: Millis,
}

/// Returns what is installed on one node, or on all if `node` is `None`: by the last run that destroyed what was on a
/// disk, if it succeeded.
pub async fn installed(connection: &mut Connection, node: Option<&str>) -> Result<Vec<Installed>, Error> {
    let sql = "SELECT node, id, os, image, finished_at FROM (SELECT node, id, os, image, finished_at, state, \
               ROW_NUMBER() OVER (PARTITION BY node ORDER BY created_at DESC, id DESC) AS place FROM runs \
               WHERE destroyed AND (CAST($1 AS TEXT) IS NULL OR node = $1)) AS newest \
               WHERE place = 1 AND state = 'succeeded' AND image IS NOT NULL AND finished_at IS NOT NULL";
    let rows = db::query(sql).bind(node).fetch_all(connection).await;
    rows.map_err(database("reading what is installed"))?.iter().map(installed_from_row).collect()
}

/// Returns what is installed on each of these nodes that has something.
pub async fn installed_of_nodes(connection: &mut Connection, nodes: &[String]) -> Result<Vec<Installed>, Error> {
    let sql = "SELECT node, id, os, image, finished_at FROM (SELECT node, id, os, image, finished_at, state, \
               ROW_NUMBER() OVER (PARTITION BY node ORDER BY created_at DESC, id DESC) AS place FROM runs \
               WHERE destroyed AND node IN ({ids})) AS newest \
               WHERE place = 1 AND state = 'succeeded' AND image IS NOT NULL AND finished_at IS NOT NULL";
    let mut found = Vec::new();
    for query in db::by_ids(sql, nodes) {
        let rows = query.fetch_all(&mut *connection).await.map_err(database("reading what is installed"))?;
        found.extend(rows.iter().map(installed_from_row).collect::<Result<Vec<_>, _>>()?);
    }
    Ok(found)
}

fn installed_from_row(row: &Row) -> Result<Installed, Error> {
    Ok(Installed {
        node: get(row, "node")?,
        run: get(row, "id")?,
        os: get(row, "os")?,
        image: enum_from_text(row, "image")?,
        since: number(row, "finished_at")?,
    })
}

/// Returns all runs, oldest first.
pub async fn all(connection: &mut Connection) -> Result<Vec<Run>, Error> {
    let rows = db::query("SELECT * FROM runs ORDER BY created_at, id").fetch_all(connection).await;
    rows.map_err(database("reading the runs"))?.iter().map(from_row).collect()
}

/// Returns the runs that were created since a time, oldest first.
pub async fn since(connection: &mut Connection, since: Millis) -> Result<Vec<Run>, Error> {
    let query = db::query("SELECT * FROM runs WHERE created_at >= $1 ORDER BY created_at, id");
    let rows = query.bind(since.cast_signed()).fetch_all(connection).await;
    rows.map_err(database("reading the runs"))?.iter().map(from_row).collect()
}

/// Returns at most `most` runs, newest first, after leaving out the newest `skipped`.
pub async fn latest(connection: &mut Connection, most: usize, skipped: usize) -> Result<Vec<Run>, Error> {
    let bound = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let sql = "SELECT * FROM runs ORDER BY created_at DESC, id DESC LIMIT $1 OFFSET $2";
    let rows = db::query(sql).bind(bound(most)).bind(bound(skipped)).fetch_all(connection).await;
    rows.map_err(database("reading the runs"))?.iter().map(from_row).collect()
}

/// Returns all runs of a node, oldest first.
pub async fn of_node(connection: &mut Connection, node: &str) -> Result<Vec<Run>, Error> {
    let query = db::query("SELECT * FROM runs WHERE node = $1 ORDER BY created_at, id").bind(node);
    let rows = query.fetch_all(connection).await.map_err(database("reading the runs"))?;
    rows.iter().map(from_row).collect()
}

/// Returns the run whose phone-home token has this hash.
pub async fn by_phone_home_hash(connection: &mut Connection, hash: &str) -> Result<Option<Run>, Error> {
    one(connection, "SELECT * FROM runs WHERE phone_home_hash = $1", hash).await
}

/// Returns the run whose workflow has this cloud-init instance id.
pub async fn by_instance(connection: &mut Connection, instance: &str) -> Result<Option<Run>, Error> {
    let sql = "SELECT runs.* FROM runs JOIN run_instances ON run_instances.run = runs.id WHERE instance_id = $1";
    one(connection, sql, instance).await
}

/// Returns a node's runs whose workflows still contain their secrets.
pub async fn unforgotten_of(connection: &mut Connection, node: &str) -> Result<Vec<Run>, Error> {
    let query = db::query("SELECT * FROM runs WHERE node = $1 AND NOT forgotten").bind(node);
    let rows = query.fetch_all(connection).await.map_err(database("reading the runs"))?;
    rows.iter().map(from_row).collect()
}

/// Returns the ids of the nodes with runs whose workflows still contain their secrets.
pub async fn nodes_with_unforgotten(connection: &mut Connection) -> Result<Vec<String>, Error> {
    let query = db::query("SELECT DISTINCT node FROM runs WHERE NOT forgotten");
    let rows = query.fetch_all(connection).await.map_err(database("reading the runs"))?;
    rows.iter().map(|row| get(row, "node")).collect()
}

/// Replaces a run's workflow with one without secrets.
pub async fn forget(connection: &mut Connection, run: &str, workflow: &[Step]) -> Result<(), Error> {
    let query = db::query("UPDATE runs SET workflow_json = $1, forgotten = TRUE WHERE id = $2");
    let done = query.bind(to_json(&workflow)).bind(run).execute(connection).await;
    done.map(drop).map_err(database("removing the secrets of a run"))
}

/// Revokes all that systems of a node's runs, and scripts, report with.
pub async fn revoke_tokens_of_node(connection: &mut Connection, node: &str) -> Result<(), Error> {
    for sql in [
        "UPDATE runs SET phone_home_hash = NULL WHERE node = $1",
        "DELETE FROM run_tokens WHERE run IN (SELECT id FROM runs WHERE node = $1)",
        "DELETE FROM run_instances WHERE run IN (SELECT id FROM runs WHERE node = $1)",
    ] {
        let done = db::query(sql).bind(node).execute(&mut *connection).await;
        done.map_err(database("revoking the tokens of a node's runs"))?;
    }
    Ok(())
}

/// Records that the URL of a run's metadata was handed out.
pub async fn note_metadata_url(connection: &mut Connection, run: &str) -> Result<(), Error> {
    let query = db::query("UPDATE runs SET has_metadata_url = TRUE WHERE id = $1").bind(run);
    query.execute(connection).await.map(drop).map_err(database("storing a run"))
}

/// Suspends everything that a restored server would do: unfinished runs are held, no new key can replace a node's key,
/// waiting machines are removed, and no machine is switched on or off. Returns the number of held runs.
pub async fn hold_restored(connection: &mut Connection) -> Result<u64, Error> {
    let failed = || database("holding the runs of a restored store");
    let sql = "UPDATE runs SET restored = TRUE WHERE state IN ('pending', 'running')";
    let held = db::query(sql).execute(&mut *connection).await.map_err(failed())?;
    for sql in [
        "UPDATE nodes SET armed = FALSE, anew = NULL, anew_since = NULL",
        // Nobody knows what machines did to their disks since the backup.
        "UPDATE runs SET boot_id = NULL",
        "DELETE FROM claimants",
        "DELETE FROM tasks WHERE state IN ('asked', 'running')",
        "UPDATE power SET act_json = NULL, act_state = NULL, busy_for = NULL",
    ] {
        db::query(sql).execute(&mut *connection).await.map_err(failed())?;
    }
    Ok(held)
}

/// Confirms a run that came from a backup, so that its machine gets it, also after a power cycle.
pub async fn confirm(connection: &mut Connection, run: &str) -> Result<(), Error> {
    let failed = || database("confirming a run");
    for sql in ["UPDATE runs SET restored = FALSE WHERE id = $1", "UPDATE nodes SET armed = released WHERE run = $1"] {
        db::query(sql).bind(run).execute(&mut *connection).await.map_err(failed())?;
    }
    match get_by_id(connection, run).await? {
        Some(run) => node_changes::record(connection, &run.node).await,
        None => Ok(()),
    }
}

async fn one(connection: &mut Connection, sql: &'static str, key: &str) -> Result<Option<Run>, Error> {
    let row = db::query(sql).bind(key).fetch_optional(connection).await;
    row.map_err(database("reading a run"))?.as_ref().map(from_row).transpose()
}

fn from_row(row: &Row) -> Result<Run, Error> {
    Ok(Run { workflow: json(row, "workflow_json")?, ..without_workflow(row)? })
}

fn without_workflow(row: &Row) -> Result<Run, Error> {
    Ok(Run {
        id: get(row, "id")?,
        node: get(row, "node")?,
        workflow: Vec::new(),
        progress: RunProgress {
            state: enum_from_text(row, "state")?,
            steps: json(row, "steps_json")?,
            finished_at: optional_number(row, "finished_at")?,
            ended: get(row, "ended")?,
        },
        event_bytes: number(row, "event_bytes")?,
        last_seq: number(row, "last_seq")?,
        require: enum_from_text(row, "required")?,
        phone_home_hash: get(row, "phone_home_hash")?,
        phone_home: json(row, "phone_home_json")?,
        created_at: number(row, "created_at")?,
        started_at: optional_number(row, "started_at")?,
        phoned_home_at: optional_number(row, "phoned_home_at")?,
        last_contact_at: optional_number(row, "last_contact_at")?,
        keep_metadata: get(row, "keep_metadata")?,
        has_metadata_url: get(row, "has_metadata_url")?,
        forgotten: get(row, "forgotten")?,
        restored: get(row, "restored")?,
        os: get(row, "os")?,
        image: optional_word(row, "image")?,
        afterwards: optional_word(row, "afterwards")?,
        done: u32::try_from(number(row, "done")?).unwrap_or_default(),
        boot_id: get(row, "boot_id")?,
        begins: u32::try_from(number(row, "begins")?).unwrap_or(u32::MAX),
        destroyed: get(row, "destroyed")?,
    })
}
