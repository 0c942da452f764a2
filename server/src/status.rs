//! Where nodes and runs stand, as operators see it.

use std::collections::HashMap;

use slipway_protocol::{LooseStep, NodeStatus, RunStatus};

use crate::Error;
use crate::store::nodes::{self, Node};
use crate::store::runs::{self, Run};
use crate::store::{Connection, Store, boot_reports, loose};

/// A node and its newest run.
fn of_node(node: Node, run: Option<RunStatus>) -> NodeStatus {
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
        disk: node.disk,
        run,
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
        loose_steps: Vec::new(),
        boot: None,
    }
}

/// A run, with what was reported beside its workflow.
pub async fn with_reports(connection: &mut Connection, run: Run) -> Result<RunStatus, Error> {
    let loose_steps = loose::of_run(connection, &run.id).await?;
    let boot = boot_reports::of_run(connection, &run.id).await?;
    Ok(RunStatus { loose_steps, boot, ..of_run(run) })
}

/// Every node. What was reported beside the workflows comes without its logs.
pub async fn all(store: &Store) -> Result<Vec<NodeStatus>, Error> {
    let mut connection = store.read().await?;
    let nodes = nodes::all(&mut connection).await?;
    let runs = runs::newest(&mut connection).await?;
    let mut loose_steps: HashMap<String, Vec<LooseStep>> = HashMap::new();
    for (run, step) in loose::newest(&mut connection).await? {
        loose_steps.entry(run).or_default().push(step);
    }
    let mut boots: HashMap<_, _> = boot_reports::newest(&mut connection).await?.into_iter().collect();
    let with_reports = |run: Run| {
        let (loose_steps, boot) = (loose_steps.remove(&run.id).unwrap_or_default(), boots.remove(&run.id));
        (run.node.clone(), RunStatus { loose_steps, boot, ..of_run(run) })
    };
    let mut runs: HashMap<_, _> = runs.into_iter().map(with_reports).collect();
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
    let run = match runs::newest_of(connection, &node.id).await? {
        Some(run) => Some(with_reports(connection, run).await?),
        None => None,
    };
    Ok(of_node(node, run))
}
