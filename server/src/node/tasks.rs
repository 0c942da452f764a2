//! What the agents of installed systems are told to do. A task is stored before an agent hears of it, and it ends once:
//! by the agent's report, by what the machine does instead, or by an operator.

use slipway_protocol::workflow::agent::DRAIN;
use slipway_protocol::{
    AgentAct, AgentStatus, ErrorCode, NodeState, Proof, SiteEventKind, TaskOptions, TaskState, TaskStatus,
};

use crate::base::error::Error;
use crate::base::random;
use crate::base::time::{Millis, now};
use crate::power;
use crate::rules::state::{self, NodeEvent};
use crate::store::agents::{self, Agent};
use crate::store::history::{self, NewEvent};
use crate::store::nodes::{self, Node};
use crate::store::runs::{self, Run};
use crate::store::{self, Connection, Store, Transaction, clock, tasks, to_word};

/// The most seconds of a task: a day.
pub const MAX_LIMIT: u32 = 24 * 60 * 60;
/// Milliseconds without a heartbeat after which an agent counts as gone. Two may be lost.
pub const GONE: Millis = 150_000;

/// A task to be asked for.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    /// Its name.
    pub name: &'a str,
    /// How it is to be done.
    pub how: TaskOptions,
    /// Seconds after which it is stopped.
    pub limit_seconds: u32,
    /// The run that the machine is to fetch after it.
    pub run: Option<&'a Run>,
}

/// Asks the agent of a node for a task, in place of one that it has not begun. Fails if there is no agent, if it may
/// not do that, or while it does something else.
pub async fn ask(transaction: &mut Transaction, node: &mut Node, asked: Asked<'_>) -> Result<TaskStatus, Error> {
    let label = node.label().to_owned();
    let conflict = |message: String| Err(Error::refused(ErrorCode::Conflict, message));
    let Asked { name, how, limit_seconds, run } = asked;
    if !(1..=MAX_LIMIT).contains(&limit_seconds) {
        let message = format!("the limit of a task is 1 to {MAX_LIMIT} seconds");
        return Err(Error::refused(ErrorCode::InvalidRequest, message));
    }
    let agent = agents::get_by_node(transaction, &node.id).await?.and_then(Agent::shown);
    let Some(agent) = agent else {
        return conflict(format!(
            "the installed system of node {label} has no agent that reports: one that was just installed does so once \
             its system has started; otherwise install an operating system that has one (`os add --agent`)"
        ));
    };
    if !node.key_left || !is_newest_boot(node, &agent) {
        return conflict(format!(
            "the machine of node {label} is in slipway, and not in the system that has the agent"
        ));
    }
    if !agent.tasks.iter().any(|task| task == name) {
        let known = agent.tasks.join(", ");
        return conflict(format!(
            "the agent of node {label} may not do {name:?}, but {}: its operating system names what it may do \
             (`os add --task`, `--drain`), and a run of that installs it",
            if known.is_empty() { "nothing" } else { &known }
        ));
    }
    if name == DRAIN && !matches!(node.state, NodeState::Running | NodeState::Draining) {
        return conflict(format!("node {label} is {}: only a running system is drained", to_word(&node.state)));
    }
    if let Some(mut open) = tasks::open_of(transaction, &node.id).await? {
        if open.state == TaskState::Running {
            return conflict(format!(
                "the agent of node {label} is busy: the machine {}; wait, or stop that with `node task {label} \
                 --cancel`",
                open.in_words()
            ));
        }
        if open.run.is_some() && run.is_none() {
            return conflict(format!(
                "the machine of node {label} is to be restarted into slipway for run {}; cancel that run first",
                open.run.unwrap_or_default()
            ));
        }
        end(transaction, node, &mut open, TaskState::Withdrawn, Some("something else was asked for")).await?;
    }
    let task = TaskStatus {
        id: random::id(),
        name: name.to_owned(),
        how,
        state: TaskState::Asked,
        limit_seconds,
        asked_at: clock::now(transaction).await?,
        started_at: None,
        boot_id: None,
        ended_at: None,
        run: run.map(|run| run.id.clone()),
        line: None,
        reason: None,
        output: None,
    };
    tasks::save(transaction, &node.id, &task).await?;
    let event = NewEvent::new(format!("the machine {}", task.in_words())).of(node);
    let event = run.into_iter().fold(event, |event, run| event.of_run(run));
    history::did(transaction, SiteEventKind::Task, event, now()).await?;
    if name == DRAIN && !how.undo {
        change_state(transaction, node, NodeEvent::DrainBegan).await?;
    }
    Ok(task)
}

/// Has a machine boot slipway for a run, unless it fetches the run by itself: by the agent of its system, or else by
/// its power.
pub async fn boot_slipway(transaction: &mut Transaction, node: &mut Node, run: &Run) -> Result<(), Error> {
    if !reboots_by_agent(transaction, node, run.require).await? {
        return power::ask::boot(transaction, node, run).await;
    }
    let (name, limit_seconds) = (AgentAct::BootSlipway.name(), BOOT_LIMIT);
    if let Some(open) = tasks::open_of(transaction, &node.id).await?.filter(|open| open.state == TaskState::Running) {
        // The machine is on its way to slipway, and takes this run there.
        return tasks::save(transaction, &node.id, &TaskStatus { run: Some(run.id.clone()), ..open }).await;
    }
    ask(transaction, node, Asked { name, how: TaskOptions::default(), limit_seconds, run: Some(run) }).await.map(drop)
}

/// Seconds in which an agent fetches the boot files and leaves its system.
pub const BOOT_LIMIT: u32 = 15 * 60;

/// Whether the agent of a node's system would restart the machine into slipway for a run that requires this proof: it
/// was heard from a short time ago, may do so, and does nothing else. A machine that must be attested is not restarted
/// so, because its TPM would show the boot of its system.
pub async fn reboots_by_agent(connection: &mut Connection, node: &Node, require: Proof) -> Result<bool, Error> {
    if require.max(node.require) >= Proof::Attested || !is_able(connection, node, AgentAct::BootSlipway).await? {
        return Ok(false);
    }
    let open = tasks::open_of(connection, &node.id).await?.filter(|task| task.state == TaskState::Running);
    Ok(open.is_none_or(|task| task.name == AgentAct::BootSlipway.name()))
}

/// Whether the agent of a node's system was heard from a short time ago, in the newest boot of its machine, and may do
/// this.
pub async fn is_able(connection: &mut Connection, node: &Node, act: AgentAct) -> Result<bool, Error> {
    let runs_system = matches!(node.state, NodeState::Booting | NodeState::Running | NodeState::Draining);
    let is_heard = node.last_seen.is_some_and(|seen| now().saturating_sub(seen) <= GONE) && node.key_left;
    if !runs_system || !is_heard {
        return Ok(false);
    }
    let agent = agents::get_by_node(connection, &node.id).await?.filter(|agent| agent.may(act.name()));
    Ok(agent.and_then(Agent::shown).is_some_and(|status| is_newest_boot(node, &status)))
}

/// Ends a task, and does what follows from that.
pub async fn end(
    transaction: &mut Transaction,
    node: &mut Node,
    task: &mut TaskStatus,
    state: TaskState,
    reason: Option<&str>,
) -> Result<(), Error> {
    (task.state, task.ended_at) = (state, Some(now()));
    task.reason = reason.map(str::to_owned);
    tasks::save(transaction, &node.id, task).await?;
    let kind = if state == TaskState::Failed { SiteEventKind::TaskFailed } else { SiteEventKind::Task };
    let message = format!("the machine {}", task.in_words());
    tracing::info!(node = node.label(), task = task.name, "{message}");
    let event = NewEvent::new(message).of(node);
    let event = task.run.iter().fold(event, |event, run| event.of_run_id(run));
    history::did(transaction, kind, event, now()).await?;
    let is_over = match (state, task.how.undo) {
        (TaskState::Succeeded, undo) => undo,
        (_, undo) => !undo,
    };
    // What the machine did before goes on, or begins again.
    if task.name == DRAIN && is_over {
        change_state(transaction, node, NodeEvent::DrainEnded).await?;
    }
    if state == TaskState::Failed
        && let Some(run) = &task.run
        && let Some(run) = runs::newest_of(transaction, &node.id).await?.filter(|newest| newest.id == *run)
        && run.started_at.is_none()
        && state::is_open(run.progress.state)
    {
        // Its power, if something switches it, does what its system could not.
        power::ask::boot(transaction, node, &run).await?;
    }
    Ok(())
}

/// Ends the open task of a machine that runs slipway now instead of its system.
pub async fn left_system(transaction: &mut Transaction, node: &str) -> Result<(), Error> {
    let Some(mut open) = tasks::open_of(transaction, node).await? else { return Ok(()) };
    let Some(mut node) = nodes::get_by_id(transaction, node).await? else { return Ok(()) };
    if open.name == AgentAct::BootSlipway.name() {
        return end(transaction, &mut node, &mut open, TaskState::Succeeded, None).await;
    }
    let state = if open.state == TaskState::Asked { TaskState::Withdrawn } else { TaskState::Failed };
    end(transaction, &mut node, &mut open, state, Some("the machine started slipway")).await
}

/// Removes the agent of a node, if it has one, and ends its open task. Its credentials end, and are told so.
pub async fn remove_agent(transaction: &mut Transaction, node: &mut Node, reason: &str) -> Result<(), Error> {
    if let Some(mut open) = tasks::open_of(transaction, &node.id).await? {
        // What its run waits for is done by the machine's power.
        let state = if open.run.is_some() { TaskState::Failed } else { TaskState::Withdrawn };
        end(transaction, node, &mut open, state, Some(reason)).await?;
    }
    if let Some(mut agent) = agents::get_by_node(transaction, &node.id).await? {
        agent.removed = true;
        agents::save(transaction, &agent).await?;
    }
    Ok(())
}

/// Has a node that was drained count as running again, because nobody can undo that any more.
pub async fn end_drain(transaction: &mut Transaction, node: &mut Node) -> Result<(), Error> {
    change_state(transaction, node, NodeEvent::DrainEnded).await
}

/// Whether the boot in which an agent reports began after the machine was last in slipway. If not, another machine may
/// have been let in as the node since, or it is the same one, in slipway.
pub fn is_newest_boot(node: &Node, status: &AgentStatus) -> bool {
    node.enrolled_at.is_none_or(|at| status.up_since > at)
}

/// Ends tasks that nobody will do any more: those of agents that fell silent. `heard_since` is since when servers have
/// been able to hear agents.
pub async fn end_forgotten(store: &Store, heard_since: Millis, now: Millis) -> Result<(), Error> {
    let open = tasks::all_open(&mut *store.read().await?).await?;
    for (node, task) in open {
        let mut transaction = store.write().await?;
        let Some(mut open) = tasks::open_of(&mut transaction, &node).await?.filter(|open| open.id == task.id) else {
            continue;
        };
        let Some(mut node) = nodes::get_by_id(&mut transaction, &node).await? else { continue };
        // In slipway, the machine is heard, and its agent is not.
        let heard = node.last_seen.filter(|_| node.key_left).unwrap_or_default();
        let heard = heard.max(heard_since).max(open.asked_at);
        let limit = Millis::from(open.limit_seconds) * 1000;
        let reason = match open.state {
            TaskState::Asked if now.saturating_sub(heard) > GONE => "the agent has fallen silent",
            TaskState::Running if now.saturating_sub(heard) > limit.max(GONE) + GONE => {
                "nothing was heard from the agent since it began"
            }
            _ => continue,
        };
        end(&mut transaction, &mut node, &mut open, TaskState::Failed, Some(reason)).await?;
        store::commit(transaction).await?;
    }
    Ok(())
}

/// Moves a node to its next state, stores it, and records that.
async fn change_state(connection: &mut Transaction, node: &mut Node, event: NodeEvent) -> Result<(), Error> {
    let next = state::next(node.state, event);
    if next == node.state {
        return Ok(());
    }
    let message = format!("the node is {}, and was {}", to_word(&next), to_word(&node.state));
    node.state = next;
    nodes::save(connection, node).await?;
    history::record(connection, SiteEventKind::State, NewEvent::new(message).of(node), now()).await
}
