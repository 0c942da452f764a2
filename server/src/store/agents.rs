//! The agents of installed systems, by the hashes of their tokens.

use std::collections::HashMap;

use slipway_protocol::AgentStatus;

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::{Connection, Row, database, db, get, node_changes, number, optional_json, to_json};

/// The agent of a node's installed system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// Id of the node.
    pub node: String,
    /// Id of the run that installed it.
    pub run: String,
    /// Hash of its token.
    pub token_hash: String,
    /// Hash of a token that it was given and has not used yet.
    pub next_hash: Option<String>,
    /// When it was last given a token.
    pub issued_at: Millis,
    /// Whether it has used a token of its own.
    pub is_used: bool,
    /// Whether it was removed, and is not to come back before the node's next run.
    pub removed: bool,
    /// What it said of the system. `None` before its first heartbeat.
    pub status: Option<AgentStatus>,
}

impl Agent {
    /// Returns what it said of the system, unless it was removed.
    pub fn shown(self) -> Option<AgentStatus> {
        self.status.filter(|_| !self.removed)
    }

    /// Whether it may do this task.
    pub fn may(&self, task: &str) -> bool {
        !self.removed && self.status.as_ref().is_some_and(|status| status.tasks.iter().any(|name| name == task))
    }
}

macro_rules! select {
    ($rest:literal) => {
        concat!("SELECT node, run, token_hash, next_hash, issued_at, is_used, removed, status_json FROM agents ", $rest)
    };
}

/// Returns the agent that has a token with this hash.
pub async fn get_by_hash(connection: &mut Connection, hash: &str) -> Result<Option<Agent>, Error> {
    let row = db::query(select!("WHERE token_hash = $1 OR next_hash = $1")).bind(hash).fetch_optional(connection).await;
    row.map_err(database("reading an agent"))?.as_ref().map(from_row).transpose()
}

/// Returns the agent of a node.
pub async fn get_by_node(connection: &mut Connection, node: &str) -> Result<Option<Agent>, Error> {
    let row = db::query(select!("WHERE node = $1")).bind(node).fetch_optional(connection).await;
    row.map_err(database("reading an agent"))?.as_ref().map(from_row).transpose()
}

/// Returns the agents of these nodes, or all, by the ids of the nodes.
pub async fn of_nodes(connection: &mut Connection, ids: Option<&[String]>) -> Result<HashMap<String, Agent>, Error> {
    let queries = match ids {
        Some(ids) => db::by_ids(select!("WHERE node IN ({ids})"), ids),
        None => vec![db::query(select!(""))],
    };
    let mut found = HashMap::new();
    for query in queries {
        let rows = query.fetch_all(&mut *connection).await.map_err(database("reading the agents"))?;
        for row in &rows {
            let agent = from_row(row)?;
            found.insert(agent.node.clone(), agent);
        }
    }
    Ok(found)
}

/// Stores an agent in place of the one that its node has.
pub async fn save(connection: &mut Connection, agent: &Agent) -> Result<(), Error> {
    let sql = "INSERT INTO agents (node, run, token_hash, next_hash, issued_at, is_used, removed, status_json) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (node) DO UPDATE SET run = excluded.run, \
               token_hash = excluded.token_hash, next_hash = excluded.next_hash, issued_at = excluded.issued_at, \
               is_used = excluded.is_used, removed = excluded.removed, status_json = excluded.status_json";
    let done = db::query(sql)
        .bind(&agent.node)
        .bind(&agent.run)
        .bind(&agent.token_hash)
        .bind(&agent.next_hash)
        .bind(agent.issued_at.cast_signed())
        .bind(agent.is_used)
        .bind(agent.removed)
        .bind(agent.status.as_ref().map(to_json))
        .execute(&mut *connection)
        .await;
    done.map_err(database("storing an agent"))?;
    node_changes::record(connection, &agent.node).await
}

fn from_row(row: &Row) -> Result<Agent, Error> {
    Ok(Agent {
        node: get(row, "node")?,
        run: get(row, "run")?,
        token_hash: get(row, "token_hash")?,
        next_hash: get(row, "next_hash")?,
        issued_at: number(row, "issued_at")?,
        is_used: get(row, "is_used")?,
        removed: get(row, "removed")?,
        status: optional_json(row, "status_json")?,
    })
}
