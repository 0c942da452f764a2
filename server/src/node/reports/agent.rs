//! The agents of installed systems: their credentials, their heartbeats, and how their tasks go on.

use slipway_protocol::node::agent::{MAX_TASK_LINE_BYTES, MAX_TASK_NAMES, MAX_TASK_OUTPUT_BYTES, MAX_VERSION_BYTES};
use slipway_protocol::shared::printable;
use slipway_protocol::workflow::agent::is_task_name;
use slipway_protocol::{
    Action, AgentAct, AgentCredentials, AgentStatus, ErrorCode, HOST_BOOT_LOG, Heartbeat, HeartbeatAnswer, NodeState,
    RunState, SiteEventKind, Task, TaskProgress, TaskReport, TaskState, TaskStatus,
};

use crate::base::error::Error;
use crate::base::random::{self, token_hash};
use crate::base::rate::Rate;
use crate::base::time::Millis;
use crate::node::reports::{boot, run_token};
use crate::node::tasks;
use crate::store;
use crate::store::agents::{self, Agent};
use crate::store::boot_reports::{self, HostLog};
use crate::store::history::{self, NewEvent};
use crate::store::nodes::{self, Node};
use crate::store::run_tokens::Purpose;
use crate::store::runs::{self, Run};
use crate::store::{Connection, Store, Transaction, tasks as stored};

/// Milliseconds after which an agent gets a new token.
const RENEW: Millis = 12 * 60 * 60 * 1000;
/// Milliseconds after which it gets another one if it has not used the new one. It may never have got it.
const RENEW_AGAIN: Millis = 10 * 60 * 1000;
/// Milliseconds by which the time of a start may differ from what was known, because clocks differ.
const SAME_START: Millis = 5_000;

/// Gives the agent of an installed system credentials of its own, in exchange for the run's token. The run's token can
/// be used again until the agent has used its own, because the answer may be lost.
pub async fn register(store: &Store, token: &str, now: Millis) -> Result<AgentCredentials, Error> {
    let mut transaction = store.write().await?;
    let run = run_token::caller(&mut transaction, token, Purpose::Boot, now).await?;
    if !has_agent(&run) {
        return Err(Error::refused(ErrorCode::NotFound, format!("run {} installed no agent", run.id)));
    }
    let known = agents::get_by_node(&mut transaction, &run.node).await?.filter(|agent| agent.run == run.id);
    if known.as_ref().is_some_and(|agent| agent.removed) {
        return Err(removed());
    }
    if known.as_ref().is_some_and(|agent| agent.is_used) {
        let message = format!(
            "the agent of run {} has credentials of its own by now; whoever has the run's token gets none again",
            run.id
        );
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    let token = random::token();
    let agent = Agent {
        node: run.node,
        run: run.id,
        token_hash: token_hash(&token),
        next_hash: None,
        issued_at: now,
        is_used: false,
        removed: false,
        status: None,
    };
    agents::save(&mut transaction, &agent).await?;
    store::commit(transaction).await?;
    Ok(AgentCredentials { token: token.into() })
}

/// Whether a step of a run installed an agent.
fn has_agent(run: &Run) -> bool {
    let names_one = |action: &Action| matches!(action, Action::BootReporter(reporter) if reporter.agent.is_some());
    boot::is_awaited(run) && run.workflow.iter().any(|step| names_one(&step.action))
}

fn unknown() -> Error {
    // It does not end the agent: this may be a backup from before it had the token.
    Error::refused(ErrorCode::Unauthenticated, "no agent has this token")
}

fn removed() -> Error {
    Error::refused(ErrorCode::TokenExpired, "the agent was removed")
}

/// Admits an agent before its request is processed, and returns the id of its node. Every request counts against the
/// rate limit. An unknown token costs one query and is not counted.
pub async fn admit(store: &Store, rate: &Rate, token: &str) -> Result<String, Error> {
    let hash = token_hash(token);
    let agent = agents::get_by_hash(&mut *store.read().await?, &hash).await?.ok_or_else(unknown)?;
    rate.take(&agent.node)?;
    Ok(agent.node)
}

/// Returns the agent with this token and its node. The token is valid until the node's next run is fetched.
async fn caller(connection: &mut Connection, token: &str) -> Result<(Agent, Node), Error> {
    let agent = agents::get_by_hash(connection, &token_hash(token)).await?.ok_or_else(unknown)?;
    let node = nodes::get_by_id(connection, &agent.node).await?.ok_or_else(unknown)?;
    if node.state == NodeState::Decommissioned {
        let message = format!("node {} was taken out of service by an operator", node.label());
        return Err(Error::refused(ErrorCode::Decommissioned, message));
    }
    if agent.removed {
        return Err(removed());
    }
    if !runs::is_current(connection, &node, &agent.run).await? {
        let message = format!("run {} is over: node {} has fetched a newer run", agent.run, node.label());
        return Err(Error::refused(ErrorCode::TokenExpired, message));
    }
    Ok((agent, node))
}

/// What an agent is told beside its task.
#[derive(Clone, Copy, Debug)]
pub struct Telling<'a> {
    /// When its next heartbeat is due, in seconds.
    pub every_seconds: u32,
    /// The certificates that may sign the server's certificate, in PEM.
    pub ca: &'a str,
}

/// Takes a heartbeat, and returns what the agent is to do. Most heartbeats change nothing but when the node was last
/// heard from, which the caller notes.
pub async fn heartbeat(
    store: &Store,
    token: &str,
    beat: &Heartbeat,
    telling: Telling<'_>,
    now: Millis,
) -> Result<HeartbeatAnswer, Error> {
    check(beat)?;
    let mut connection = store.read().await?;
    let (agent, node) = caller(&mut connection, token).await?;
    let open = stored::open_of(&mut connection, &node.id).await?;
    let is_over = match &open {
        Some(task) => !is_wanted(&mut connection, &node, task).await?,
        None => false,
    };
    drop(connection);
    let status = status_after(&agent, beat, now);
    let is_new = agent.status.as_ref() != Some(&status) || (!node.key_left && tasks::is_newest_boot(&node, &status));
    let is_renewed = uses_next(&agent, token) || is_due(&agent, now) || !agent.is_used;
    let (mut task, mut new_token) = (open, None);
    if is_new || is_renewed || is_over || task.as_ref().is_some_and(|task| is_told(task, beat)) {
        let mut transaction = store.write().await?;
        let (mut agent, mut node) = caller(&mut transaction, token).await?;
        if uses_next(&agent, token)
            && let Some(next) = agent.next_hash.take()
        {
            agent.token_hash = next;
        }
        agent.is_used = true;
        if is_due(&agent, now) {
            let token = random::token();
            (agent.next_hash, agent.issued_at) = (Some(token_hash(&token)), now);
            new_token = Some(token.into());
        }
        note(&mut transaction, &mut node, &mut agent, beat, now).await?;
        agents::save(&mut transaction, &agent).await?;
        task = stored::open_of(&mut transaction, &node.id).await?;
        if let Some(open) = &mut task {
            go_on(&mut transaction, &mut node, open, beat, now).await?;
        }
        store::commit(transaction).await?;
    }
    Ok(HeartbeatAnswer {
        every_seconds: telling.every_seconds,
        task: task.and_then(told),
        token: new_token,
        ca: (beat.ca.hex() != token_hash(telling.ca)).then(|| telling.ca.to_owned()),
    })
}

/// Returns what an agent is to do, for a heartbeat that is held.
pub async fn task(store: &Store, token: &str) -> Result<Option<Task>, Error> {
    let mut connection = store.read().await?;
    let (_, node) = caller(&mut connection, token).await?;
    Ok(stored::open_of(&mut connection, &node.id).await?.and_then(told))
}

/// Returns a task in the form in which the agent gets it.
fn told(task: TaskStatus) -> Option<Task> {
    let TaskStatus { id, name, how, limit_seconds, state, .. } = task;
    state.is_open().then_some(Task { id, name, how, limit_seconds })
}

fn uses_next(agent: &Agent, token: &str) -> bool {
    agent.next_hash.as_ref() == Some(&token_hash(token))
}

/// Whether an agent is to get a new token.
fn is_due(agent: &Agent, now: Millis) -> bool {
    let age = now.abs_diff(agent.issued_at);
    if agent.next_hash.is_some() { age >= RENEW_AGAIN } else { age >= RENEW }
}

/// Returns what is known of the system after a heartbeat.
fn status_after(agent: &Agent, beat: &Heartbeat, now: Millis) -> AgentStatus {
    let before = agent.status.as_ref().filter(|status| status.boot_id == beat.boot_id);
    let up_since = now.saturating_sub(beat.uptime_seconds.saturating_mul(1000));
    let is_same = |status: &&AgentStatus| {
        (&status.failed_units, &status.system_state) == (&beat.failed_units, &beat.system_state)
    };
    AgentStatus {
        run: agent.run.clone(),
        version: beat.version.clone(),
        boot_id: beat.boot_id.clone(),
        // By clocks that differ a little, it would be another time with each heartbeat.
        up_since: before
            .map(|status| status.up_since)
            .filter(|at| at.abs_diff(up_since) < SAME_START)
            .unwrap_or(up_since),
        boot_seen_at: before.map_or(now, |status| status.boot_seen_at),
        image: beat.image.clone(),
        system_state: beat.system_state.clone(),
        failed_units: beat.failed_units.clone(),
        changed_at: before.filter(is_same).map_or(now, |status| status.changed_at),
        tasks: beat.tasks.clone(),
    }
}

/// Stores what is known of the system, and records what is new.
async fn note(
    transaction: &mut Transaction,
    node: &mut Node,
    agent: &mut Agent,
    beat: &Heartbeat,
    now: Millis,
) -> Result<(), Error> {
    let status = status_after(agent, beat, now);
    let message = match &agent.status {
        None => Some(format!("the agent of the installed system reports, with slipway {}", beat.version)),
        Some(before) if before.boot_id != beat.boot_id => Some("the installed system was restarted".to_owned()),
        Some(_) => None,
    };
    if let Some(message) = message {
        let event = NewEvent::new(message).of(node);
        history::record(transaction, SiteEventKind::Agent, event, now).await?;
    }
    if !node.key_left && tasks::is_newest_boot(node, &status) {
        // Its machine is not in slipway, whatever its run said last.
        node.key_left = true;
        nodes::save(transaction, node).await?;
    }
    agent.status = Some(status);
    Ok(())
}

/// Whether a heartbeat may change a task.
fn is_told(task: &TaskStatus, beat: &Heartbeat) -> bool {
    let reported = beat.task.as_ref().filter(|report| report.id == task.id);
    match task.state {
        TaskState::Asked => reported.is_some(),
        _ => {
            let is_same = reported.is_some_and(|report| {
                report.progress == TaskProgress::Running && line_of(report) == task.line
                    || report.progress == TaskProgress::Accepted
            });
            !is_same || task.boot_id.as_ref() != Some(&beat.boot_id)
        }
    }
}

/// Does with a task that is not over what a heartbeat says of it.
async fn go_on(
    transaction: &mut Transaction,
    node: &mut Node,
    task: &mut TaskStatus,
    beat: &Heartbeat,
    now: Millis,
) -> Result<(), Error> {
    let report = beat.task.as_ref().filter(|report| report.id == task.id);
    if !is_wanted(transaction, node, task).await? {
        let reason = Some("its run does not wait for the machine any more");
        return tasks::end(transaction, node, task, TaskState::Withdrawn, reason).await;
    }
    if task.state == TaskState::Asked {
        if report.is_none() {
            return Ok(());
        }
        (task.state, task.started_at) = (TaskState::Running, Some(now));
        task.boot_id = Some(beat.boot_id.clone());
        let event = NewEvent::new(format!("the machine {}", task.in_words())).of(node);
        history::record(transaction, SiteEventKind::Task, event, now).await?;
    } else if task.boot_id.as_ref() != Some(&beat.boot_id) {
        let (state, reason) = match task.name.as_str() {
            name if name == AgentAct::Reboot.name() => (TaskState::Succeeded, None),
            name if name == AgentAct::BootSlipway.name() => {
                (TaskState::Failed, Some("the machine was restarted, and started its installed system again"))
            }
            _ => (TaskState::Failed, Some("the machine was restarted before it was done")),
        };
        return tasks::end(transaction, node, task, state, reason).await;
    }
    let Some(report) = report else {
        let reason = Some("the agent was started again, and does not know how far it was");
        return tasks::end(transaction, node, task, TaskState::Failed, reason).await;
    };
    task.line = line_of(report).or(task.line.take());
    let TaskReport { progress, reason, output, .. } = report;
    task.output = output.as_deref().map(|output| printable::lines(output).into_owned());
    match progress {
        TaskProgress::Accepted | TaskProgress::Running => stored::save(transaction, &node.id, task).await,
        TaskProgress::Succeeded => tasks::end(transaction, node, task, TaskState::Succeeded, None).await,
        TaskProgress::Failed => {
            let reason = reason.as_deref().map(|reason| printable::short_line(reason, MAX_TASK_LINE_BYTES));
            tasks::end(transaction, node, task, TaskState::Failed, reason.as_deref()).await
        }
    }
}

/// Returns the line that a task printed last, as it is stored.
fn line_of(report: &TaskReport) -> Option<String> {
    report.line.as_deref().map(|line| printable::short_line(line, MAX_TASK_LINE_BYTES))
}

/// Whether the run still waits for the machine that asked for a task.
async fn is_wanted(connection: &mut Connection, node: &Node, task: &TaskStatus) -> Result<bool, Error> {
    let Some(run) = &task.run else { return Ok(true) };
    let newest = runs::newest_of(connection, &node.id).await?;
    Ok(newest
        .is_some_and(|newest| newest.id == *run && newest.progress.state == RunState::Pending && !newest.is_held()))
}

/// Stores a gzip-compressed log of the boot with this id.
pub async fn store_log(store: &Store, token: &str, boot_id: &str, data: &[u8], now: Millis) -> Result<(), Error> {
    boot::check_system(boot_id, None, &[])?;
    let mut transaction = store.write().await?;
    let (agent, node) = caller(&mut transaction, token).await?;
    let log = HostLog { node: &node.id, kind: HOST_BOOT_LOG, boot_id, run: &agent.run, data };
    boot_reports::insert_log(&mut transaction, &log, now).await?;
    store::commit(transaction).await
}

/// Forgets an agent that someone on the machine removed.
pub async fn leave(store: &Store, token: &str, now: Millis) -> Result<(), Error> {
    let mut transaction = store.write().await?;
    let (_, mut node) = caller(&mut transaction, token).await?;
    tasks::remove_agent(&mut transaction, &mut node, "the agent was removed on the machine").await?;
    tasks::end_drain(&mut transaction, &mut node).await?;
    let event = NewEvent::new("the agent was removed, by someone on the machine").of(&node);
    history::record(&mut transaction, SiteEventKind::Agent, event, now).await?;
    store::commit(transaction).await
}

fn check(beat: &Heartbeat) -> Result<(), Error> {
    boot::check_system(&beat.boot_id, beat.system_state.as_deref(), &beat.failed_units)?;
    let invalid = |message: String| Err(Error::refused(ErrorCode::InvalidRequest, message));
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".+-".contains(&byte);
    if !(1..=MAX_VERSION_BYTES).contains(&beat.version.len()) || !beat.version.bytes().all(is_plain) {
        return invalid(format!("the version is not valid: use 1 to {MAX_VERSION_BYTES} letters, digits and . + -"));
    }
    if beat.tasks.len() > MAX_TASK_NAMES || !beat.tasks.iter().all(|name| is_task_name(name)) {
        return invalid(format!("tasks is not valid: give at most {MAX_TASK_NAMES} names of tasks"));
    }
    let Some(report) = &beat.task else { return Ok(()) };
    let is_long = |text: &Option<String>, most: usize| text.as_ref().is_some_and(|text| text.chars().count() > most);
    if is_long(&report.line, MAX_TASK_LINE_BYTES)
        || is_long(&report.reason, MAX_TASK_LINE_BYTES)
        || is_long(&report.output, MAX_TASK_OUTPUT_BYTES)
    {
        return invalid(format!(
            "the report of the task is too long: give at most {MAX_TASK_LINE_BYTES} characters as line and as reason, \
             and {MAX_TASK_OUTPUT_BYTES} as output"
        ));
    }
    Ok(())
}
