//! Nodes and the keys they are recognised by.

use slipway_protocol::{BootTiming, DiskHints, Identity, Inventory, Network, NodeState};

use super::{
    Connection, database, enum_from_text, get, json, number, optional_json, optional_number, to_json, to_word,
};
use crate::error::Error;
use crate::random;
use crate::time::Millis;
use sqlx::sqlite::SqliteRow;

/// A node as stored.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its id, also the common name of its certificate.
    pub id: String,
    /// Name the operator gave it; unique.
    pub name: Option<String>,
    /// Its state.
    pub state: NodeState,
    /// An operator knows it. False for a machine that only asked to enrol.
    pub registered: bool,
    /// The operator let it in.
    pub released: bool,
    /// Code on its console while it waits; unique.
    pub claim_code: Option<String>,
    /// The keys it is recognised by.
    pub identity: Identity,
    /// What discovery found last.
    pub inventory: Option<Inventory>,
    /// How long its last boot took.
    pub timing: Option<BootTiming>,
    /// Version of its agent.
    pub agent_version: Option<String>,
    /// The boot it was last seen in.
    pub boot_id: Option<String>,
    /// When it became known.
    pub created_at: Millis,
    /// When it was last heard from.
    pub last_seen: Option<Millis>,
    /// When it first enrolled in the boot it is in.
    pub enrolled_at: Option<Millis>,
    /// Its newest run.
    pub run: Option<String>,
    /// Network of its installed system. Without it, that of the image.
    pub network: Option<Network>,
    /// Public SSH keys that may log in to its installed system.
    pub ssh_keys: Vec<String>,
    /// The disk for its operating systems, in place of their own hints.
    pub disk: Option<DiskHints>,
}

impl Node {
    /// A node of which nothing is known yet, with a fresh id and claim code. It is registered only if its state is.
    pub fn new(state: NodeState, now: Millis) -> Self {
        Self {
            id: random::id(),
            name: None,
            state,
            registered: state == NodeState::Registered,
            released: false,
            claim_code: Some(random::claim_code()),
            identity: Identity::default(),
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
        }
    }

    /// Its label for people: its name, else its id.
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.id)
    }
}

/// A key that is known, and the node it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyMatch {
    /// `uuid`, `serial` or `mac`.
    pub kind: &'static str,
    /// The value.
    pub value: String,
    /// Id of the node.
    pub node: String,
}

/// The keys of an identity, strongest first.
pub fn keys(identity: &Identity) -> impl Iterator<Item = (&'static str, &str)> {
    let uuid = identity.uuid.iter().map(|value| ("uuid", value.as_str()));
    let serial = identity.serial.iter().map(|value| ("serial", value.as_str()));
    let macs = identity.macs.iter().map(|value| ("mac", value.as_str()));
    uuid.chain(serial).chain(macs)
}

/// Which nodes the keys of an identity belong to, strongest key first.
pub async fn matching(connection: &mut Connection, identity: &Identity) -> Result<Vec<KeyMatch>, Error> {
    let mut matches = Vec::new();
    for (kind, value) in keys(identity) {
        let row = sqlx::query("SELECT node FROM node_keys WHERE kind = $1 AND value = $2").bind(kind).bind(value);
        let row = row.fetch_optional(&mut *connection).await.map_err(database("looking up a key"))?;
        if let Some(row) = row {
            matches.push(KeyMatch { kind, value: value.to_owned(), node: get(&row, "node")? });
        }
    }
    Ok(matches)
}

/// The node with this id.
pub async fn get_by_id(connection: &mut Connection, id: &str) -> Result<Option<Node>, Error> {
    let row = sqlx::query("SELECT * FROM nodes WHERE id = $1").bind(id).fetch_optional(connection).await;
    row.map_err(database("reading a node"))?.as_ref().map(from_row).transpose()
}

/// The node with this id, name or claim code. If a text is more than one of these, the first in this order counts.
pub async fn find(connection: &mut Connection, reference: &str) -> Result<Option<Node>, Error> {
    for sql in ["SELECT * FROM nodes WHERE id = $1", "SELECT * FROM nodes WHERE name = $1"] {
        let row = sqlx::query(sql).bind(reference).fetch_optional(&mut *connection).await;
        if let Some(row) = row.map_err(database("reading a node"))? {
            return from_row(&row).map(Some);
        }
    }
    let code = reference.trim().to_ascii_uppercase();
    let row = sqlx::query("SELECT * FROM nodes WHERE claim_code = $1").bind(code).fetch_optional(connection).await;
    row.map_err(database("reading a node"))?.as_ref().map(from_row).transpose()
}

/// Every node, oldest first.
pub async fn all(connection: &mut Connection) -> Result<Vec<Node>, Error> {
    let rows = sqlx::query("SELECT * FROM nodes ORDER BY created_at, id").fetch_all(connection).await;
    rows.map_err(database("reading the nodes"))?.iter().map(from_row).collect()
}

/// Stores the node and all its keys. A decommissioned node keeps no keys, so that no machine is recognised as it. A key
/// of another node stays there: the caller has checked that in the same transaction.
pub async fn save(connection: &mut Connection, node: &Node) -> Result<(), Error> {
    let sql = "INSERT INTO nodes (id, name, state, registered, released, claim_code, identity_json, inventory_json, \
               timing_json, agent_version, boot_id, created_at, last_seen, enrolled_at, run, network_json, \
               ssh_keys_json, disk_json) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18) \
               ON CONFLICT (id) DO UPDATE SET name = excluded.name, state = excluded.state, \
               registered = excluded.registered, released = excluded.released, claim_code = excluded.claim_code, \
               identity_json = excluded.identity_json, inventory_json = excluded.inventory_json, \
               timing_json = excluded.timing_json, agent_version = excluded.agent_version, boot_id = excluded.boot_id, \
               last_seen = excluded.last_seen, enrolled_at = excluded.enrolled_at, run = excluded.run, \
               network_json = excluded.network_json, ssh_keys_json = excluded.ssh_keys_json, \
               disk_json = excluded.disk_json";
    let done = sqlx::query(sql)
        .bind(&node.id)
        .bind(&node.name)
        .bind(to_word(&node.state))
        .bind(node.registered)
        .bind(node.released)
        .bind(&node.claim_code)
        .bind(to_json(&node.identity))
        .bind(node.inventory.as_ref().map(to_json))
        .bind(node.timing.as_ref().map(to_json))
        .bind(&node.agent_version)
        .bind(&node.boot_id)
        .bind(node.created_at.cast_signed())
        .bind(node.last_seen.map(u64::cast_signed))
        .bind(node.enrolled_at.map(u64::cast_signed))
        .bind(&node.run)
        .bind(node.network.as_ref().map(to_json))
        .bind(to_json(&node.ssh_keys))
        .bind(node.disk.as_ref().map(to_json))
        .execute(&mut *connection)
        .await;
    done.map_err(database("storing a node"))?;
    if node.state == NodeState::Decommissioned {
        return forget_keys(connection, &node.id).await;
    }
    for (kind, value) in keys(&node.identity) {
        let sql = "INSERT INTO node_keys (kind, value, node) VALUES ($1, $2, $3) ON CONFLICT (kind, value) DO NOTHING";
        let done = sqlx::query(sql).bind(kind).bind(value).bind(&node.id).execute(&mut *connection).await;
        done.map_err(database("storing a node's keys"))?;
    }
    Ok(())
}

async fn forget_keys(connection: &mut Connection, id: &str) -> Result<(), Error> {
    let done = sqlx::query("DELETE FROM node_keys WHERE node = $1").bind(id).execute(connection).await;
    done.map(drop).map_err(database("removing a node's keys"))
}

/// Removes a node with its keys, runs and logs.
pub async fn remove(connection: &mut Connection, id: &str) -> Result<(), Error> {
    let done = sqlx::query("DELETE FROM nodes WHERE id = $1").bind(id).execute(connection).await;
    done.map(drop).map_err(database("removing a node"))
}

/// Records that the node was heard from.
pub async fn seen(connection: &mut Connection, id: &str, now: Millis) -> Result<(), Error> {
    let sql = "UPDATE nodes SET last_seen = $1 WHERE id = $2";
    let done = sqlx::query(sql).bind(now.cast_signed()).bind(id).execute(connection).await;
    done.map(drop).map_err(database("recording that a node was heard from"))
}

/// Forgets the machines that only asked to enrol, except the `keep` seen last.
pub async fn forget_unregistered(connection: &mut Connection, keep: u32) -> Result<(), Error> {
    let sql = "DELETE FROM nodes WHERE NOT registered AND id NOT IN \
               (SELECT id FROM nodes WHERE NOT registered ORDER BY last_seen DESC, id LIMIT $1)";
    let done = sqlx::query(sql).bind(i64::from(keep)).execute(connection).await;
    done.map(drop).map_err(database("removing unknown machines"))
}

fn from_row(row: &SqliteRow) -> Result<Node, Error> {
    Ok(Node {
        id: get(row, "id")?,
        name: get(row, "name")?,
        state: enum_from_text(row, "state")?,
        registered: get(row, "registered")?,
        released: get(row, "released")?,
        claim_code: get(row, "claim_code")?,
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
    })
}
