//! Nodes, the identifiers they are registered by, and the keys of their machines.

use std::collections::BTreeMap;

use slipway_protocol::{
    BootTiming, DiskHints, Identity, Inventory, Network, NodeClass, NodeKey, NodeState, NodeTpm, Proof,
};

use crate::base::error::Error;
use crate::base::random;
use crate::base::time::Millis;
use crate::rules::trouble::GONE;
use crate::store::{
    Connection, Row, database, db, enum_from_text, flags, get, json, node_changes, number, optional_json,
    optional_number, to_json, to_word,
};

/// Makes a statement that reads nodes, each with the time at which it was last heard from.
macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT nodes.*, (SELECT at FROM node_contacts WHERE node_contacts.node = nodes.id) AS last_seen \
             FROM nodes ",
            $rest
        )
    };
}

/// A node as stored.
#[derive(Clone, Debug)]
pub struct Node {
    /// Id of the node, which is also the common name of its certificate.
    pub id: String,
    /// Name given by the operator, if any. Unique.
    pub name: Option<String>,
    /// State, such as enrolled or installing.
    pub state: NodeState,
    /// How long it and its system are meant to live.
    pub class: NodeClass,
    /// Id of the run that is done again when its machine boots slipway. Only an ephemeral node has one, while its
    /// system runs or is expected to report.
    pub anew: Option<String>,
    /// When the system that this run installed reported that it runs. Only a later boot of slipway counts.
    pub anew_since: Option<Millis>,
    /// Whether an operator or a bootstrap token admitted the node.
    pub released: bool,
    /// Whether another key may replace the current key once the machine with the current key is silent.
    pub armed: bool,
    /// The key that is admitted. `None` before a machine was let in.
    pub key: Option<NodeKey>,
    /// Whether the machine with this key reported that it leaves for the installed system.
    pub key_left: bool,
    /// The TPM that the node is known by, if any.
    pub tpm: Option<NodeTpm>,
    /// The minimum that the node's machine must prove.
    pub require: Proof,
    /// Whether an operator accepted MAC addresses as the node's only identifiers.
    pub mac_only: bool,
    /// Identifiers that the node is registered by.
    pub identity: Identity,
    /// Hardware inventory in the machine's last report.
    pub inventory: Option<Inventory>,
    /// How long the machine's last boot took.
    pub timing: Option<BootTiming>,
    /// Version of slipway on the machine.
    pub agent_version: Option<String>,
    /// Id of the boot in which the machine last enrolled.
    pub boot_id: Option<String>,
    /// When the node was registered or first seen, in milliseconds since 1970.
    pub created_at: Millis,
    /// When the node was last heard from, in milliseconds since 1970.
    pub last_seen: Option<Millis>,
    /// When the machine first enrolled in its current boot, in milliseconds since 1970.
    pub enrolled_at: Option<Millis>,
    /// Id of the node's newest run.
    pub run: Option<String>,
    /// Network settings of the installed system. `None` keeps the image's settings.
    pub network: Option<Network>,
    /// Public SSH keys that may log in to the installed system.
    pub ssh_keys: Vec<String>,
    /// Hints for the installation disk, used instead of the operating system's hints.
    pub disk: Option<DiskHints>,
    /// Where the machine is, by the operator's name for the place.
    pub site: Option<String>,
    /// What operators noted about it.
    pub labels: BTreeMap<String, String>,
}

impl Node {
    /// Creates a node in state `Registered` with these identifiers and a new id.
    pub fn new(identity: Identity, now: Millis) -> Self {
        Self {
            id: random::id(),
            name: None,
            state: NodeState::Registered,
            class: NodeClass::default(),
            anew: None,
            anew_since: None,
            released: false,
            armed: false,
            key: None,
            key_left: false,
            tpm: None,
            require: Proof::default(),
            mac_only: false,
            identity,
            inventory: None,
            timing: None,
            agent_version: None,
            boot_id: None,
            created_at: now,
            last_seen: None,
            enrolled_at: None,
            run: None,
            network: None,
            ssh_keys: Vec::new(),
            disk: None,
            site: None,
            labels: BTreeMap::new(),
        }
    }

    /// Admits the first machine that has the node's identifiers. Until the node's next run ends, another machine is
    /// admitted when the current one is silent.
    pub fn release(&mut self) {
        self.released = true;
        self.armed = true;
    }

    /// Whether a run is to be done again on a machine that first asked to enrol at this time, in its current boot.
    pub fn is_due_anew(&self, asked: Millis) -> bool {
        self.released && self.anew_since.is_some_and(|since| asked >= since)
    }

    /// Returns the label for people: the node's name, or its id if it has none.
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.id)
    }

    /// Returns whether the node's machine probably runs slipway now: it was heard from recently, and has not left for
    /// its installed system.
    pub fn is_in_slipway(&self, now: Millis) -> bool {
        self.last_seen.is_some_and(|seen| now.saturating_sub(seen) <= GONE) && !self.key_left
    }
}

/// Returns the nodes registered with any of these identifiers, in order from the strongest identifier.
pub async fn matching(connection: &mut Connection, identity: &Identity) -> Result<Vec<Node>, Error> {
    let mut found: Vec<Node> = Vec::new();
    for (kind, value) in identity.values() {
        let sql = select!("JOIN node_keys ON node_keys.node = nodes.id WHERE kind = $1 AND value = $2");
        let row = db::query(sql).bind(kind).bind(value).fetch_optional(&mut *connection).await;
        let node = row.map_err(database("looking up an identifier"))?.as_ref().map(from_row).transpose()?;
        found.extend(node.filter(|node| found.iter().all(|known| known.id != node.id)));
    }
    Ok(found)
}

/// Returns the node with this id.
pub async fn get_by_id(connection: &mut Connection, id: &str) -> Result<Option<Node>, Error> {
    let row = db::query(select!("WHERE id = $1")).bind(id).fetch_optional(connection).await;
    row.map_err(database("reading a node"))?.as_ref().map(from_row).transpose()
}

/// What each request of a node depends on.
#[derive(Debug)]
pub struct Access {
    /// State of the node.
    pub state: NodeState,
    /// Whether an operator or a bootstrap token admitted it.
    pub released: bool,
    /// The key that is admitted.
    pub key: Option<NodeKey>,
    /// Whether its newest run is not finished.
    pub has_open_run: bool,
    /// The run that is to be done again: the system that it installed has reported that it runs, and the machine is in
    /// a later boot of slipway.
    pub anew: Option<String>,
}

/// Returns what a request of the node with this id depends on. Reads little, because each request needs it.
pub async fn access(connection: &mut Connection, id: &str) -> Result<Option<Access>, Error> {
    let sql = "SELECT state, released, key_json, EXISTS (SELECT 1 FROM runs WHERE runs.id = nodes.run AND \
               runs.state IN ('pending', 'running')) AS has_open_run, \
               (SELECT runs.id FROM runs WHERE runs.id = nodes.anew AND nodes.enrolled_at >= nodes.anew_since \
               AND runs.boot_id <> nodes.boot_id) AS anew \
               FROM nodes WHERE id = $1";
    let row = db::query(sql).bind(id).fetch_optional(connection).await.map_err(database("reading a node"))?;
    let access = |row| {
        Ok(Access {
            state: enum_from_text(row, "state")?,
            released: get(row, "released")?,
            key: optional_json(row, "key_json")?,
            has_open_run: get(row, "has_open_run")?,
            anew: get(row, "anew")?,
        })
    };
    row.as_ref().map(access).transpose()
}

/// Returns a node other than this one whose TPM has this endorsement key.
pub async fn other_with_ek(connection: &mut Connection, node: &str, ek: &str) -> Result<Option<Node>, Error> {
    let sql = select!("JOIN node_eks ON node_eks.node = nodes.id WHERE ek = $1 AND node_eks.node <> $2");
    let row = db::query(sql).bind(ek).bind(node).fetch_optional(connection).await;
    row.map_err(database("looking up an endorsement key"))?.as_ref().map(from_row).transpose()
}

/// Returns the node with this id, or else with this name.
pub async fn find(connection: &mut Connection, reference: &str) -> Result<Option<Node>, Error> {
    for sql in [select!("WHERE id = $1"), select!("WHERE name = $1")] {
        let row = db::query(sql).bind(reference).fetch_optional(&mut *connection).await;
        if let Some(row) = row.map_err(database("reading a node"))? {
            return from_row(&row).map(Some);
        }
    }
    Ok(None)
}

/// Returns all nodes, oldest first.
pub async fn all(connection: &mut Connection) -> Result<Vec<Node>, Error> {
    let rows = db::query(select!("ORDER BY created_at, id")).fetch_all(connection).await;
    rows.map_err(database("reading the nodes"))?.iter().map(from_row).collect()
}

/// Returns the nodes with these ids.
pub async fn by_ids(connection: &mut Connection, ids: &[String]) -> Result<Vec<Node>, Error> {
    let mut nodes = Vec::new();
    for query in db::by_ids(select!("WHERE id IN ({ids})"), ids) {
        let rows = query.fetch_all(&mut *connection).await.map_err(database("reading the nodes"))?;
        nodes.extend(rows.iter().map(from_row).collect::<Result<Vec<_>, _>>()?);
    }
    Ok(nodes)
}

/// Returns the ids of the nodes with which something may be wrong, by little that is read of each: those that have
/// work, are expected to report, wait to be let in, or were not heard from since `idle_before` or were since
/// `here_after` although they should not; and those with failed units, external steps that go on or are repeated, boot
/// files fetched after `fetched_after`, power that could not be switched, or trouble that was noticed before.
pub async fn suspects(
    connection: &mut Connection,
    idle_before: Millis,
    here_after: Millis,
    fetched_after: Millis,
) -> Result<Vec<String>, Error> {
    let sql = "SELECT nodes.id AS id FROM nodes LEFT JOIN runs ON runs.id = nodes.run \
               LEFT JOIN node_contacts ON node_contacts.node = nodes.id \
               WHERE EXISTS (SELECT 1 FROM flags WHERE flags.node = nodes.id) \
               OR nodes.id IN (SELECT power.node FROM power WHERE power.act_state IS NOT NULL \
               AND power.failed_json IS NOT NULL) \
               OR (nodes.state <> 'decommissioned' AND (nodes.state IN ('booting', 'held') \
               OR runs.state IN ('pending', 'running') \
               OR (nodes.state IN ('enrolled', 'failed', 'installed', 'terminating') AND node_contacts.at < $1 \
               AND NOT key_left) \
               OR (nodes.state IN ('installed', 'running', 'draining') AND node_contacts.at > $2 AND NOT key_left) \
               OR nodes.state = 'draining' \
               OR EXISTS (SELECT 1 FROM agents WHERE agents.node = nodes.id AND NOT agents.removed \
               AND (node_contacts.at < $1 OR agents.status_json LIKE '%failed_units%' \
               OR agents.status_json LIKE '%maintenance%')) \
               OR EXISTS (SELECT 1 FROM tasks WHERE tasks.node = nodes.id AND tasks.state = 'failed') \
               OR nodes.id IN (SELECT claimants.node FROM claimants WHERE claimants.node IS NOT NULL) \
               OR EXISTS (SELECT 1 FROM boot_fetches WHERE boot_fetches.node = nodes.id AND boot_fetches.at > $3 \
               AND boot_fetches.at > COALESCE(node_contacts.at, 0)) \
               OR EXISTS (SELECT 1 FROM loose_steps WHERE loose_steps.run = nodes.run \
               AND (step_json LIKE '%status_:_init_%' \
               OR (step_json NOT LIKE '%begins_:1,%' AND step_json NOT LIKE '%begins_:0,%'))) \
               OR EXISTS (SELECT 1 FROM boot_reports WHERE boot_reports.run = nodes.run \
               AND (status_json LIKE '%failed_units%' OR status_json LIKE '%maintenance%'))))";
    let query = db::query(sql).bind(idle_before.cast_signed()).bind(here_after.cast_signed());
    let rows = query.bind(fetched_after.cast_signed()).fetch_all(connection).await;
    rows.map_err(database("looking for nodes with trouble"))?.iter().map(|row| get(row, "id")).collect()
}

/// Stores a node, its identifiers and its TPM's endorsement keys, but not when it was last heard from. For a
/// decommissioned node, identifiers and endorsement keys are removed, so that no machine is recognised as that node. In
/// the same transaction, the caller has checked that no other node has them.
pub async fn save(connection: &mut Connection, node: &Node) -> Result<(), Error> {
    let sql = "INSERT INTO nodes (id, name, state, released, identity_json, inventory_json, timing_json, \
               agent_version, boot_id, created_at, enrolled_at, run, network_json, ssh_keys_json, disk_json, \
               key_json, armed, key_left, mac_only, required, tpm_json, site, labels_json, class, \
               anew, anew_since) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, \
               $22, $23, $24, $25, $26) \
               ON CONFLICT (id) DO UPDATE SET name = excluded.name, state = excluded.state, \
               released = excluded.released, identity_json = excluded.identity_json, \
               inventory_json = excluded.inventory_json, timing_json = excluded.timing_json, \
               agent_version = excluded.agent_version, boot_id = excluded.boot_id, \
               enrolled_at = excluded.enrolled_at, run = excluded.run, \
               network_json = excluded.network_json, ssh_keys_json = excluded.ssh_keys_json, \
               disk_json = excluded.disk_json, key_json = excluded.key_json, armed = excluded.armed, \
               key_left = excluded.key_left, mac_only = excluded.mac_only, required = excluded.required, \
               tpm_json = excluded.tpm_json, site = excluded.site, labels_json = excluded.labels_json, \
               class = excluded.class, anew = excluded.anew, \
               anew_since = excluded.anew_since";
    let done = db::query(sql)
        .bind(&node.id)
        .bind(&node.name)
        .bind(to_word(&node.state))
        .bind(node.released)
        .bind(to_json(&node.identity))
        .bind(node.inventory.as_ref().map(to_json))
        .bind(node.timing.as_ref().map(to_json))
        .bind(&node.agent_version)
        .bind(&node.boot_id)
        .bind(node.created_at.cast_signed())
        .bind(node.enrolled_at.map(u64::cast_signed))
        .bind(&node.run)
        .bind(node.network.as_ref().map(to_json))
        .bind(to_json(&node.ssh_keys))
        .bind(node.disk.as_ref().map(to_json))
        .bind(node.key.as_ref().map(to_json))
        .bind(node.armed)
        .bind(node.key_left)
        .bind(node.mac_only)
        .bind(to_word(&node.require))
        .bind(node.tpm.as_ref().map(to_json))
        .bind(&node.site)
        .bind(to_json(&node.labels))
        .bind(to_word(&node.class))
        .bind(&node.anew)
        .bind(node.anew_since.map(u64::cast_signed))
        .execute(&mut *connection)
        .await;
    done.map_err(database("storing a node"))?;
    node_changes::record(connection, &node.id).await?;
    let done = db::query("DELETE FROM node_keys WHERE node = $1").bind(&node.id).execute(&mut *connection).await;
    done.map_err(database("removing a node's identifiers"))?;
    let done = db::query("DELETE FROM node_eks WHERE node = $1").bind(&node.id).execute(&mut *connection).await;
    done.map_err(database("removing a node's endorsement keys"))?;
    if node.state == NodeState::Decommissioned {
        return Ok(());
    }
    for ek in node.tpm.iter().flat_map(|tpm| &tpm.ek) {
        let query = db::query("INSERT INTO node_eks (ek, node) VALUES ($1, $2)").bind(ek).bind(&node.id);
        query.execute(&mut *connection).await.map_err(database("storing a node's endorsement keys"))?;
    }
    for (kind, value) in node.identity.values() {
        let sql = "INSERT INTO node_keys (kind, value, node) VALUES ($1, $2, $3)";
        let done = db::query(sql).bind(kind).bind(value).bind(&node.id).execute(&mut *connection).await;
        done.map_err(database("storing a node's identifiers"))?;
    }
    Ok(())
}

/// Removes a node with its keys, runs and logs.
pub async fn remove(connection: &mut Connection, id: &str) -> Result<(), Error> {
    let done = db::query("DELETE FROM nodes WHERE id = $1").bind(id).execute(&mut *connection).await;
    done.map_err(database("removing a node"))?;
    flags::remove_all(connection, id).await?;
    node_changes::record(connection, id).await
}

/// Maximum number of keys remembered for a node.
const MAX_KEYS: i64 = 100;

/// Records a node's new key. It is later than those before, also if the clock was set back.
pub async fn remember_key(connection: &mut Connection, node: &str, key: &NodeKey) -> Result<(), Error> {
    let sql = "INSERT INTO node_key_changes (node, at, key_json) VALUES ($1, (SELECT CASE WHEN MAX(at) >= $2 \
               THEN MAX(at) + 1 ELSE $2 END FROM node_key_changes WHERE node = $1), $3)";
    let query = db::query(sql).bind(node).bind(key.since.cast_signed()).bind(to_json(key));
    query.execute(&mut *connection).await.map_err(database("recording the key of a node"))?;
    let sql = "DELETE FROM node_key_changes WHERE node = $1 AND at < (SELECT at FROM node_key_changes \
               WHERE node = $1 ORDER BY at DESC LIMIT 1 OFFSET $2)";
    let done = db::query(sql).bind(node).bind(MAX_KEYS - 1).execute(connection).await;
    done.map(drop).map_err(database("removing old keys of a node"))
}

/// Returns the keys of a node, newest first.
pub async fn keys(connection: &mut Connection, node: &str) -> Result<Vec<NodeKey>, Error> {
    let query = db::query("SELECT key_json FROM node_key_changes WHERE node = $1 ORDER BY at DESC").bind(node);
    let rows = query.fetch_all(connection).await.map_err(database("reading the keys of a node"))?;
    rows.iter().map(|row| json(row, "key_json")).collect()
}

fn from_row(row: &Row) -> Result<Node, Error> {
    Ok(Node {
        id: get(row, "id")?,
        name: get(row, "name")?,
        state: enum_from_text(row, "state")?,
        class: enum_from_text(row, "class")?,
        anew: get(row, "anew")?,
        anew_since: optional_number(row, "anew_since")?,
        released: get(row, "released")?,
        armed: get(row, "armed")?,
        key: optional_json(row, "key_json")?,
        key_left: get(row, "key_left")?,
        tpm: optional_json(row, "tpm_json")?,
        require: enum_from_text(row, "required")?,
        mac_only: get(row, "mac_only")?,
        identity: json(row, "identity_json")?,
        inventory: optional_json(row, "inventory_json")?,
        timing: optional_json(row, "timing_json")?,
        agent_version: get(row, "agent_version")?,
        boot_id: get(row, "boot_id")?,
        created_at: number(row, "created_at")?,
        last_seen: optional_number(row, "last_seen")?,
        enrolled_at: optional_number(row, "enrolled_at")?,
        run: get(row, "run")?,
        network: optional_json(row, "network_json")?,
        disk: optional_json(row, "disk_json")?,
        ssh_keys: json(row, "ssh_keys_json")?,
        site: get(row, "site")?,
        labels: json(row, "labels_json")?,
    })
}
