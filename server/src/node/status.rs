//! The state of nodes and runs, as operators see it.

use std::collections::{HashMap, HashSet};

use slipway_protocol::{
    BootFetch, BootFilesFetched, Claim, ClaimReason, ExternalStep, Identity, Installed, NodeState, NodeStatus,
    RunState, RunStatus, StepState, TaskStatus,
};

use crate::base::error::Error;
use crate::base::time::{Millis, now};
use crate::node::admission::SILENT;
use crate::node::flags::Facts;
use crate::rules::trouble::{GONE, WAITS, system_heard_at};
use crate::rules::{progress, state};
use crate::store::agents::{self, Agent};
use crate::store::claimants::{self, Claimant};
use crate::store::counts::Sizes;
use crate::store::nodes::{self, Node};
use crate::store::power::{self, Power};
use crate::store::runs::{self, Run};
use crate::store::{Connection, Store, boot_fetches, boot_reports, counts, external_steps, notes, systems, tasks};

/// Actions that install a system on a disk.
const INSTALLS: [&str; 2] = ["stream-image", "unpack-archive"];

/// All states, so that monitoring sees those too that nothing is in.
pub const NODE_STATES: [NodeState; 11] = [
    NodeState::Registered,
    NodeState::Held,
    NodeState::Enrolled,
    NodeState::Installing,
    NodeState::Installed,
    NodeState::Booting,
    NodeState::Running,
    NodeState::Draining,
    NodeState::Failed,
    NodeState::Terminating,
    NodeState::Decommissioned,
];
const RUN_STATES: [RunState; 4] = [RunState::Pending, RunState::Running, RunState::Succeeded, RunState::Failed];

/// Returns the status of a node. `fetches` are the boot files fetched since the node was last seen.
fn of_node(
    node: Node,
    mut run: Option<RunStatus>,
    mut claims: Vec<Claim>,
    fetches: Vec<BootFetch>,
    now: Millis,
) -> NodeStatus {
    // Of an earlier start: since then, the machine was let in, or its installed system reported.
    let heard = node.last_seen.max(run.as_ref().and_then(system_heard_at)).unwrap_or_default();
    claims.retain(|claim| claim.last_asked.saturating_add(WAITS) >= heard);
    let silent_since = run.as_mut().and_then(|run| silent_since(node.last_seen, run, now));
    let waiting: Vec<&Claim> = claims.iter().filter(|claim| claim.reason.identifiers_match()).collect();
    NodeStatus {
        silent_since,
        flags: Vec::new(),
        came_back_at: run.as_ref().and_then(|run| came_back_at(&node, run, &claims, now)),
        boot_files_fetched: boot_files_fetched(&node, run.as_ref(), &claims, fetches, now),
        claim_code: match waiting.as_slice() {
            [claim] => Some(claim.code.clone()),
            _ => None,
        },
        claims,
        key: node.key,
        earlier_keys: Vec::new(),
        tpm: node.tpm,
        class: node.class,
        require: node.require,
        mac_only: node.mac_only,
        id: node.id,
        name: node.name,
        state: node.state,
        released: node.released,
        identity: node.identity,
        inventory: node.inventory,
        agent_version: node.agent_version,
        boot_id: node.boot_id,
        timing: node.timing,
        last_seen: node.last_seen,
        enrolled_at: node.enrolled_at,
        network: node.network,
        ssh_keys: node.ssh_keys,
        disk: node.disk,
        site: node.site,
        labels: node.labels,
        power: None,
        agent: None,
        task: None,
        installed: None,
        run,
    }
}

/// Returns the status of a waiting machine that is not a node, as a row of its own.
fn of_stranger(claimant: Claimant, claim: Claim) -> NodeStatus {
    NodeStatus {
        claim_code: Some(claimant.code),
        claims: vec![claim],
        inventory: Some(claimant.report.inventory),
        agent_version: Some(claimant.report.agent_version),
        boot_id: Some(claimant.report.boot_id),
        timing: claimant.report.timing,
        last_seen: Some(claimant.last_asked),
        ..NodeStatus::new(claimant.id, NodeState::Held, claimant.identity)
    }
}

/// Returns the claim of a waiting machine. `node` has all or some of its identifiers; `all` are all waiting machines.
fn claim(claimant: &Claimant, node: Option<&Node>, all: &[Claimant], now: Millis) -> Claim {
    Claim {
        shared: shared(claimant, node, all, now),
        code: claimant.code.clone(),
        reason: claimant.reason,
        node: node.map(|node| node.label().to_owned()),
        address: claimant.address.clone(),
        identity: claimant.identity.clone(),
        tpm: claimant.report.tpm.clone(),
        first_asked: claimant.first_asked,
        last_asked: claimant.last_asked,
    }
}

/// Returns the identifiers of a waiting machine that another machine has too, each as kind and value. Another machine
/// has them if the node has a machine with a different key, or if several such machines wait.
fn shared(claimant: &Claimant, node: Option<&Node>, all: &[Claimant], now: Millis) -> Vec<String> {
    let is_another = |node: &&Node| match claimant.reason {
        ClaimReason::IdentifiersDiffer => node.key.as_ref().is_some_and(|key| key.fingerprint != claimant.key),
        ClaimReason::KeyInUse => node.last_seen > Some(claimant.first_asked),
        _ => false,
    };
    let waits = |other: &&Claimant| now.saturating_sub(other.last_asked) <= WAITS && other.key != claimant.key;
    let is_stranger = |other: &&Claimant| !other.reason.identifiers_match();
    let strangers = all.iter().filter(|_| is_stranger(&claimant)).filter(waits).filter(is_stranger);
    let others: Vec<&Identity> =
        node.filter(is_another).map(|node| &node.identity).into_iter().chain(strangers.map(|s| &s.identity)).collect();
    let is_shared = |found: &(&str, &str)| others.iter().any(|other| other.values().any(|value| value == *found));
    claimant.identity.values().filter(is_shared).map(|(kind, value)| format!("{kind} {value}")).collect()
}

/// Returns when the machine was last heard from, if that is too long ago for a machine executing this run. Also clears
/// the run's rate and remaining time, because they are out of date.
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

/// Returns when a machine that had left for its installed system asked for work again, if nothing was heard from that
/// system since. The machine must have been seen recently, so that it is still in slipway.
fn came_back_at(node: &Node, run: &RunStatus, claims: &[Claim], now: Millis) -> Option<Millis> {
    let has_system =
        matches!(node.state, NodeState::Booting | NodeState::Installed | NodeState::Running | NodeState::Draining);
    let has_installed = run.state == RunState::Succeeded
        && run.steps.iter().any(|step| INSTALLS.contains(&&*step.action))
        && state::leaves(&run.steps);
    // The system of the run before goes on.
    let was_withdrawn = run.state == RunState::Failed && run.started_at.is_none() && node.state != NodeState::Installed;
    let has_left = has_system && (has_installed || was_withdrawn);
    let since = run.finished_at.max(system_heard_at(run))?;
    let is_here = |seen: Millis| now.saturating_sub(seen) <= GONE;
    let restarted = node.enrolled_at.filter(|_| node.last_seen.is_some_and(is_here));
    let waiting = claims.iter().filter(|claim| claim.reason.identifiers_match() && is_here(claim.last_asked));
    let asked = restarted.into_iter().chain(waiting.map(|claim| claim.first_asked));
    asked.filter(|at| has_left && *at >= since).min()
}

/// Adds what the agent of the installed system says and does. A machine whose system has started since it asked for
/// work did not stay in slipway.
fn with_agent(node: NodeStatus, agent: Option<Agent>, task: Option<TaskStatus>) -> NodeStatus {
    let agent = agent.and_then(Agent::shown);
    let started = agent.as_ref().map(|agent| agent.boot_seen_at);
    let came_back_at = node.came_back_at.filter(|at| Some(*at) > started);
    NodeStatus { agent, task, came_back_at, ..node }
}

/// Returns the boot files fetched since slipway on the machine, its installed system, or a machine that waits to be
/// admitted as this node was last heard from.
fn boot_files_fetched(
    node: &Node,
    run: Option<&RunStatus>,
    claims: &[Claim],
    mut files: Vec<BootFetch>,
    now: Millis,
) -> Option<BootFilesFetched> {
    let asked = claims.iter().map(|claim| claim.last_asked).max();
    let heard = node.last_seen.max(run.and_then(system_heard_at)).max(asked);
    files.retain(|fetch| Some(fetch.at) > heard);
    let newest = files.last().filter(|_| node.state != NodeState::Decommissioned)?.at;
    let silent_since = (now.saturating_sub(newest) >= boot_fetches::AWAITED).then_some(newest);
    Some(BootFilesFetched { files, silent_since })
}

/// Returns the status of a run at a time, without reports from outside of its workflow.
pub fn of_run(run: Run, now: Millis) -> RunStatus {
    RunStatus {
        percent: progress::percent(run.progress.state, &run.progress.steps, now),
        restored: run.is_held(),
        begins: run.begins,
        id: run.id,
        node: run.node,
        state: run.progress.state,
        created_at: run.created_at,
        started_at: run.started_at,
        finished_at: run.progress.finished_at,
        phoned_home_at: run.phoned_home_at,
        last_contact_at: run.last_contact_at,
        phone_home: run.phone_home,
        os: run.os,
        image: run.image,
        afterwards: run.afterwards,
        done: run.done,
        steps: run.progress.steps,
        external_steps: Vec::new(),
        boot: None,
    }
}

/// Returns the status of a run, with the reports from outside of its workflow.
pub async fn with_reports(connection: &mut Connection, mut run: Run) -> Result<RunStatus, Error> {
    notes::add_to(connection, &mut run).await?;
    let external_steps = external_steps::of_run(connection, &run.id).await?;
    let boot = boot_reports::of_run(connection, &run.id).await?;
    Ok(RunStatus { external_steps, boot, ..of_run(run, now()) })
}

/// Returns the status of all nodes, and of waiting machines that are not nodes. Logs of external steps are left out.
pub async fn all(store: &Store) -> Result<Vec<NodeStatus>, Error> {
    all_at(store, now()).await
}

/// Like [`all`], but as of this time: if the server has not run since, machines are not silent because of that.
pub async fn all_at(store: &Store, now: Millis) -> Result<Vec<NodeStatus>, Error> {
    let mut connection = store.read().await?;
    let Seen { mut nodes, strangers, left } = unflagged(&mut connection, None, now).await?;
    let facts = Facts::load(&mut connection, None, now).await?.of(&mut connection, &nodes, left).await?;
    nodes.iter_mut().for_each(|node| node.flags = facts.flags(node, now));
    Ok(nodes.into_iter().chain(strangers).collect())
}

/// Returns the status of nodes with these ids, and of everything that asks to be let in, as of this time. Notes and
/// logs of external steps are left out, as are ids that no node has.
pub async fn some_at(store: &Store, ids: HashSet<String>, now: Millis) -> Result<Vec<NodeStatus>, Error> {
    let mut connection = store.read().await?;
    let ids: Vec<String> = claimed(&mut connection).await?.union(&ids).cloned().collect();
    let Seen { mut nodes, strangers, left } = unflagged(&mut connection, Some(&ids), now).await?;
    let found = runs::installed_of_nodes(&mut connection, &ids).await?;
    let mut installed = beside_systems(&mut connection, found).await?;
    let facts = Facts::load(&mut connection, None, now).await?.of(&mut connection, &nodes, left).await?;
    for node in &mut nodes {
        node.installed = installed.remove(&node.id);
        node.flags = facts.flags(node, now);
    }
    Ok(nodes.into_iter().chain(strangers).collect())
}

/// Returns the status of what asks to be let in, without its trouble: nodes, and waiting machines that are not nodes.
/// With many nodes, most of which are in, this is faster than [`all`].
pub async fn waiting(store: &Store) -> Result<Vec<NodeStatus>, Error> {
    let mut connection = store.read().await?;
    let claimed: Vec<String> = claimed(&mut connection).await?.into_iter().collect();
    let Seen { nodes, strangers, .. } = unflagged(&mut connection, Some(&claimed), now()).await?;
    Ok(nodes.into_iter().chain(strangers).filter(asks_to_be_let_in).collect())
}

/// Returns the ids of the nodes whose identifiers a waiting machine has.
async fn claimed(connection: &mut Connection) -> Result<HashSet<String>, Error> {
    Ok(claimants::all(connection).await?.into_iter().filter_map(|claimant| claimant.node).collect())
}

/// Whether a machine asks to be let in as this node, or as a new one.
pub fn asks_to_be_let_in(node: &NodeStatus) -> bool {
    is_stranger(node) || node.claims.iter().any(|claim| claim.reason.identifiers_match())
}

/// Whether this is a waiting machine, and not a node.
pub fn is_stranger(node: &NodeStatus) -> bool {
    let is_none = |claim: &Claim| claim.node.is_none() || !claim.reason.identifiers_match();
    let is_it = |code: &String| node.claims.iter().any(|claim| claim.code == *code && is_none(claim));
    node.state == NodeState::Held && node.claim_code.as_ref().is_some_and(is_it)
}

/// Nodes and machines, without their trouble.
#[derive(Debug)]
pub struct Seen {
    /// The nodes.
    pub nodes: Vec<NodeStatus>,
    /// Waiting machines that are not nodes.
    pub strangers: Vec<NodeStatus>,
    /// Ids of the nodes whose machines left for their installed system.
    pub left: HashSet<String>,
}

/// Returns the status of all nodes without their trouble; or only of those with these ids, and then without notes and
/// without what is installed.
pub async fn unflagged(connection: &mut Connection, ids: Option<&[String]>, now: Millis) -> Result<Seen, Error> {
    let (nodes, mut runs, steps, boots, mut fetches) = match ids {
        None => (
            nodes::all(connection).await?,
            runs::newest(connection).await?,
            external_steps::newest(connection).await?,
            boot_reports::newest(connection).await?,
            boot_fetches::since_heard(connection, None).await?,
        ),
        Some(ids) => (
            nodes::by_ids(connection, ids).await?,
            runs::newest_of_nodes(connection, ids).await?,
            external_steps::newest_of_nodes(connection, ids).await?,
            boot_reports::newest_of_nodes(connection, ids).await?,
            boot_fetches::since_heard_of_nodes(connection, ids).await?,
        ),
    };
    let mut power = power::of_nodes(connection, ids).await?;
    let mut agents = agents::of_nodes(connection, ids).await?;
    let mut tasks = tasks::newest_of_nodes(connection, ids).await?;
    let mut installed = HashMap::new();
    if ids.is_none() {
        notes::add_to_newest(connection, &mut runs).await?;
        installed = self::installed(connection, None).await?;
    }
    let left = nodes.iter().filter(|node| node.key_left).map(|node| node.id.clone()).collect();
    let mut external_steps: HashMap<String, Vec<ExternalStep>> = HashMap::new();
    for (run, step) in steps {
        external_steps.entry(run).or_default().push(step);
    }
    let mut boots: HashMap<_, _> = boots.into_iter().collect();
    let with_reports = |run: Run| {
        let (external_steps, boot) = (external_steps.remove(&run.id).unwrap_or_default(), boots.remove(&run.id));
        (run.node.clone(), RunStatus { external_steps, boot, ..of_run(run, now) })
    };
    let mut runs: HashMap<_, _> = runs.into_iter().map(with_reports).collect();
    let claimants = claimants::all(connection).await?;
    let by_id: HashMap<&str, &Node> = nodes.iter().map(|node| (node.id.as_str(), node)).collect();
    let told: Vec<Claim> = claimants
        .iter()
        .map(|claimant| {
            let node = claimant.node.as_deref().and_then(|id| by_id.get(id).copied());
            claim(claimant, node, &claimants, now)
        })
        .collect();
    let mut claims: HashMap<String, Vec<Claim>> = HashMap::new();
    let mut strangers = Vec::new();
    for (claimant, claim) in claimants.into_iter().zip(told) {
        if let Some(node) = &claimant.node {
            claims.entry(node.clone()).or_default().push(claim.clone());
        }
        if !claimant.reason.identifiers_match() || claimant.node.is_none() {
            strangers.push(of_stranger(claimant, claim));
        }
    }
    let of_node = |node: Node| {
        let run = runs.remove(&node.id);
        let claims = claims.remove(&node.id).unwrap_or_default();
        let fetches = fetches.remove(&node.id).unwrap_or_default();
        let installed = installed.remove(&node.id);
        let power = power.remove(&node.id).map(Power::status);
        let (agent, task) = (agents.remove(&node.id), tasks.remove(&node.id));
        let node = of_node(node, run, claims, fetches, now);
        NodeStatus { installed, power, ..with_agent(node, agent, task) }
    };
    Ok(Seen { nodes: nodes.into_iter().map(of_node).collect(), strangers, left })
}

/// How many nodes and runs there are, and the room that the store takes.
#[derive(Clone, Debug)]
pub struct Counts {
    /// The number of machines in each state, as [`all`] returns them.
    pub nodes: Vec<(NodeState, u64)>,
    /// The number of nodes that are silent during a step.
    pub silent: u64,
    /// The number of runs in each state.
    pub runs: Vec<(RunState, u64)>,
    /// The room that the store takes.
    pub sizes: Sizes,
}

/// Counts what [`all`] returns, without reading it.
pub async fn count(store: &Store) -> Result<Counts, Error> {
    let mut connection = store.read().await?;
    let mut nodes: HashMap<NodeState, u64> = counts::nodes(&mut connection).await?.into_iter().collect();
    for (reason, has_node, count) in counts::claimants(&mut connection).await? {
        if !has_node || !reason.identifiers_match() {
            *nodes.entry(NodeState::Held).or_default() += count;
        }
    }
    let runs: HashMap<RunState, u64> = counts::runs(&mut connection).await?.into_iter().collect();
    let silent = counts::silent(&mut connection, now().saturating_sub(SILENT)).await?;
    drop(connection);
    let nodes = NODE_STATES.map(|state| (state, nodes.get(&state).copied().unwrap_or_default())).to_vec();
    let runs = RUN_STATES.map(|state| (state, runs.get(&state).copied().unwrap_or_default())).to_vec();
    Ok(Counts { nodes, silent, runs, sizes: counts::sizes(store).await? })
}

/// Returns the status of one node.
pub async fn one(connection: &mut Connection, node: Node) -> Result<NodeStatus, Error> {
    let run = match runs::newest_of(connection, &node.id).await? {
        Some(run) => Some(with_reports(connection, run).await?),
        None => None,
    };
    let claimants = claimants::of_node(connection, &node.id).await?;
    let now = now();
    let claims = claimants.iter().map(|claimant| claim(claimant, Some(&node), &claimants, now)).collect();
    let earlier_keys = nodes::keys(connection, &node.id).await?.into_iter().skip(1).collect();
    let fetches = boot_fetches::since_heard(connection, Some(&node.id)).await?.remove(&node.id).unwrap_or_default();
    let installed = installed(connection, Some(&node.id)).await?.remove(&node.id);
    let left = Some(node.id.clone()).filter(|_| node.key_left).into_iter().collect();
    let power = power::get_by_node(connection, &node.id).await?.map(Power::status);
    let agent = agents::get_by_node(connection, &node.id).await?;
    let task = tasks::newest_of(connection, &node.id).await?;
    let node = with_agent(of_node(node, run, claims, fetches, now), agent, task);
    let mut node = NodeStatus { earlier_keys, installed, power, ..node };
    let facts = Facts::load(connection, Some(&node.id), now).await?;
    let facts = facts.of(connection, std::slice::from_ref(&node), left).await?;
    node.flags = facts.flags(&node, now);
    Ok(node)
}

/// Returns what is installed on one node, or on all if `node` is `None`, by the id of the node.
async fn installed(connection: &mut Connection, node: Option<&str>) -> Result<HashMap<String, Installed>, Error> {
    let found = runs::installed(connection, node).await?;
    beside_systems(connection, found).await
}

/// Returns what is installed by the id of the node, with whether its operating system has another image by now.
async fn beside_systems(
    connection: &mut Connection,
    found: Vec<runs::Installed>,
) -> Result<HashMap<String, Installed>, Error> {
    if found.is_empty() {
        return Ok(HashMap::new());
    }
    let systems = systems::all(connection).await?;
    let of_node = |runs::Installed { node, run, os, image, since }| {
        let newest = systems.iter().find(|system| Some(&system.name) == os.as_ref());
        let behind = newest.is_some_and(|system| system.image != image);
        (node, Installed { run, os, image, since, behind })
    };
    Ok(found.into_iter().map(of_node).collect())
}

/// Returns the newest boot file fetched from each address in the last day, newest first. Left out are addresses of
/// nodes, and those from which a machine has asked to enrol since.
pub async fn strange_fetches(store: &Store) -> Result<Vec<BootFetch>, Error> {
    boot_fetches::of_strangers(&mut *store.read().await?, now()).await
}

/// Returns the status of a waiting machine that is not a node.
pub async fn stranger(connection: &mut Connection, claimant: Claimant) -> Result<NodeStatus, Error> {
    let node = match &claimant.node {
        Some(id) => nodes::get_by_id(connection, id).await?,
        None => None,
    };
    let all = claimants::all(connection).await?;
    let claim = claim(&claimant, node.as_ref(), &all, now());
    Ok(of_stranger(claimant, claim))
}
