//! Where nodes and runs stand, as operators see it.

use std::collections::HashMap;

use slipway_protocol::{NodeStatus, RunStatus};

use crate::Error;
use crate::store::nodes::{self, Node};
use crate::store::runs::{self, Run};
use crate::store::{Connection, Store};

/// A node and its newest run.
pub fn of_node(node: Node, run: Option<Run>) -> NodeStatus {
    NodeStatus {
        id: node.id,
        name: node.name,
        state: node.state,
        released: node.released,
        claim_code: node.claim_code,
        identity: node.identity,
        inventory: node.inventory,
        timing: node.timing,
        last_seen: node.last_seen,
        enrolled_at: node.enrolled_at,
        network: node.network,
        ssh_keys: node.ssh_keys,
        run: run.map(of_run),
    }
}

/// A run.
pub fn of_run(run: Run) -> RunStatus {
    RunStatus {
        id: run.id,
        node: run.node,
        state: run.progress.state,
        created_at: run.created_at,
        started_at: run.started_at,
        finished_at: run.progress.finished_at,
        phoned_home_at: run.phoned_home_at,
        last_contact_at: run.last_contact_at,
        phone_home: run.phone_home,
        steps: run.progress.steps,
    }
}

/// Every node.
pub async fn all(store: &Store) -> Result<Vec<NodeStatus>, Error> {
    let mut connection = store.read().await?;
    let nodes = nodes::all(&mut connection).await?;
    let runs = runs::newest(&mut connection).await?;
    let mut runs: HashMap<String, Run> = runs.into_iter().map(|run| (run.node.clone(), run)).collect();
    Ok(nodes
        .into_iter()
        .map(|node| {
            let run = runs.remove(&node.id);
            of_node(node, run)
        })
        .collect())
}

/// One node.
pub async fn one(connection: &mut Connection, node: Node) -> Result<NodeStatus, Error> {
    let run = runs::newest_of(connection, &node.id).await?;
    Ok(of_node(node, run))
}
