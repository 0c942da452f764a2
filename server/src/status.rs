//! The state of nodes and runs, as operators see it.

use std::collections::HashMap;

use slipway_protocol::{
    ExternalStep, HEARTBEAT_SECONDS, NodeState, NodeStatus, POLL_SECONDS, RunState, RunStatus, StepState,
};

use crate::error::Error;
use crate::store::nodes::{self, Node};
use crate::store::runs::{self, Run};
use crate::store::{Connection, Store, boot_reports, external_steps};
use crate::time::{Millis, now};

/// Milliseconds after which a machine with a run counts as silent. It reports at least every `HEARTBEAT_SECONDS`; two
/// reports may be lost.
const SILENT: Millis = 3 * HEARTBEAT_SECONDS * 1000;
/// Milliseconds after which a machine without work counts as gone. It polls every `POLL_SECONDS`; one poll may be lost.
const GONE: Millis = (2 * POLL_SECONDS + 5) * 1000;
/// Actions that put a system on a disk, and actions that leave slipway for it.
const INSTALLS: [&str; 2] = ["stream-image", "unpack-archive"];
const LEAVES: [&str; 2] = ["reboot", "kexec"];

/// A node and its newest run.
fn of_node(node: Node, mut run: Option<RunStatus>, now: Millis) -> NodeStatus {
    let silent_since = run.as_mut().and_then(|run| silent_since(node.last_seen, run, now));
    NodeStatus {
        silent_since,
        came_back_at: run.as_ref().and_then(|run| came_back_at(&node, run, now)),
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

/// When the machine was last heard from, if that is too long ago for a machine that works on this run. Clears its rate
/// and its time left, which are out of date.
fn silent_since(last_seen: Option<Millis>, run: &mut RunStatus, now: Millis) -> Option<Millis> {
    if run.state != RunState::Running {
        return None;
    }
    let step = run.steps.iter_mut().find(|step| step.state == StepState::Running)?;
    let silent_since = last_seen.filter(|seen| now.saturating_sub(*seen) > SILENT)?;
    if let Some(progress) = &mut step.progress {
        (progress.rate, progress.seconds_left) = (0, None);
    }
    Some(silent_since)
}

/// When a machine that had left for the system it installed enrolled again, at once or long after, if nothing was heard
/// from that system since. The machine was seen recently, so it is still in slipway.
fn came_back_at(node: &Node, run: &RunStatus, now: Millis) -> Option<Millis> {
    node.last_seen.filter(|seen| now.saturating_sub(*seen) <= GONE)?;
    let has_left = matches!(node.state, NodeState::Booting | NodeState::Installed | NodeState::Running)
        && run.state == RunState::Succeeded
        && run.steps.iter().any(|step| INSTALLS.contains(&&*step.action))
        && run.steps.last().is_some_and(|step| LEAVES.contains(&&*step.action));
    let booted = run.boot.as_ref().map(|boot| boot.at);
    let stepped = run.external_steps.iter().map(|step| step.updated_at).max();
    let since = run.finished_at.max(run.last_contact_at).max(booted).max(stepped)?;
    node.enrolled_at.filter(|enrolled| has_left && *enrolled >= since)
}

/// The status of a run.
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
        external_steps: Vec::new(),
        boot: None,
    }
}

/// The status of a run, with what was reported outside of its workflow.
pub async fn with_reports(connection: &mut Connection, run: Run) -> Result<RunStatus, Error> {
    let external_steps = external_steps::of_run(connection, &run.id).await?;
    let boot = boot_reports::of_run(connection, &run.id).await?;
    Ok(RunStatus { external_steps, boot, ..of_run(run) })
}

/// Every node. Reports outside of the workflows come without their logs.
pub async fn all(store: &Store) -> Result<Vec<NodeStatus>, Error> {
    let mut connection = store.read().await?;
    let nodes = nodes::all(&mut connection).await?;
    let runs = runs::newest(&mut connection).await?;
    let mut external_steps: HashMap<String, Vec<ExternalStep>> = HashMap::new();
    for (run, step) in external_steps::newest(&mut connection).await? {
        external_steps.entry(run).or_default().push(step);
    }
    let mut boots: HashMap<_, _> = boot_reports::newest(&mut connection).await?.into_iter().collect();
    let with_reports = |run: Run| {
        let (external_steps, boot) = (external_steps.remove(&run.id).unwrap_or_default(), boots.remove(&run.id));
        (run.node.clone(), RunStatus { external_steps, boot, ..of_run(run) })
    };
    let mut runs: HashMap<_, _> = runs.into_iter().map(with_reports).collect();
    let now = now();
    Ok(nodes
        .into_iter()
        .map(|node| {
            let run = runs.remove(&node.id);
            of_node(node, run, now)
        })
        .collect())
}

/// One node.
pub async fn one(connection: &mut Connection, node: Node) -> Result<NodeStatus, Error> {
    let run = match runs::newest_of(connection, &node.id).await? {
        Some(run) => Some(with_reports(connection, run).await?),
        None => None,
    };
    Ok(of_node(node, run, now()))
}
