//! What operators have the agent of an installed system do.

use serde::{Deserialize, Serialize};
use slipway_protocol::workflow::agent::{DRAIN, is_task_name};
use slipway_protocol::{
    AgentAct, ErrorCode, NodePower, PowerAct, PowerMode, SiteEventKind, TaskOptions, TaskState, TaskStatus,
};

use super::{did, known_node};
use crate::base::error::Error;
use crate::node::tasks::{self, Asked};
use crate::power::ask;
use crate::store::agents;
use crate::store::history::NewEvent;
use crate::store::{self, Connection, Store, Transaction, power, tasks as stored};

/// Seconds after which a task is stopped, unless another limit is given.
pub const LIMIT: u32 = 600;
/// Seconds in which a system is to shut down for a reboot.
const REBOOT_LIMIT: u32 = 15 * 60;

/// What an agent is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTask {
    /// The name of the task: one that the node's agent may do, such as `drain`.
    #[schema(pattern = "^[a-z0-9][a-z0-9-]{0,31}$")]
    pub name: String,
    /// Seconds after which it is stopped. Default: 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 86_400)]
    pub limit_seconds: Option<u32>,
    /// How it is to be done.
    #[serde(default)]
    pub how: TaskOptions,
}

/// Asks the agent of a node for a task, which it begins within a few seconds. One that it has not begun is replaced.
pub async fn ask_task(store: &Store, reference: &str, new: NewTask) -> Result<TaskStatus, Error> {
    let NewTask { name, limit_seconds, how } = new;
    let invalid = |message: String| Err(Error::refused(ErrorCode::InvalidRequest, message));
    if !is_task_name(&name) {
        return invalid(format!("{name:?} is not the name of a task: use small letters, digits and hyphens"));
    }
    if name != DRAIN && how != TaskOptions::default() {
        return invalid("`cordon_only`, `force` and `undo` are for the task `drain`".to_owned());
    }
    if how.undo && (how.cordon_only || how.force) {
        return invalid("`undo` cannot be used together with `cordon_only` or `force`".to_owned());
    }
    let mut transaction = store.write().await?;
    let mut node = known_node(&mut transaction, reference).await?;
    let limit_seconds = limit_seconds.unwrap_or(LIMIT);
    let asked = Asked { name: &name, how, limit_seconds, run: None };
    let task = tasks::ask(&mut transaction, &mut node, asked).await?;
    store::commit(transaction).await?;
    Ok(task)
}

/// Ends the task that the agent of a node does or is to do. What the agent's command has done stays done.
pub async fn cancel_task(store: &Store, reference: &str) -> Result<TaskStatus, Error> {
    let mut transaction = store.write().await?;
    let mut node = known_node(&mut transaction, reference).await?;
    let Some(mut open) = stored::open_of(&mut transaction, &node.id).await? else {
        let message = format!("the agent of node {} has nothing to do", node.label());
        return Err(Error::refused(ErrorCode::Conflict, message));
    };
    let reason = Some("cancelled by an operator");
    tasks::end(&mut transaction, &mut node, &mut open, TaskState::Withdrawn, reason).await?;
    store::commit(transaction).await?;
    Ok(open)
}

/// Returns what the agent of a node did and is to do, the newest first.
pub async fn list_tasks(store: &Store, reference: &str) -> Result<Vec<TaskStatus>, Error> {
    let mut connection = store.read().await?;
    let node = known_node(&mut connection, reference).await?;
    stored::of_node(&mut connection, &node.id).await
}

/// Removes the agent of a node: its credentials end, and it removes itself from the system once it hears of it.
pub async fn remove_agent(store: &Store, reference: &str) -> Result<(), Error> {
    let mut transaction = store.write().await?;
    let mut node = known_node(&mut transaction, reference).await?;
    let agent = agents::get_by_node(&mut transaction, &node.id).await?.filter(|agent| !agent.removed);
    if agent.is_none() {
        let message = format!("node {} has no agent", node.label());
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    tasks::remove_agent(&mut transaction, &mut node, "the agent was removed").await?;
    tasks::end_drain(&mut transaction, &mut node).await?;
    let event = NewEvent::new("the agent was removed, and its credentials with it").of(&node);
    did(&mut transaction, SiteEventKind::Agent, event).await?;
    store::commit(transaction).await
}

/// What reboots a machine.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reboot {
    /// The agent of its system, which shuts the system down first.
    Task(Box<TaskStatus>),
    /// Its power, which is switched off and on again without telling the system.
    Power(Box<NodePower>),
}

/// Says what would reboot a machine: true if its agent would.
pub async fn reboots_by_agent(store: &Store, reference: &str) -> Result<bool, Error> {
    let mut connection = store.read().await?;
    let node = known_node(&mut connection, reference).await?;
    let is_by_agent = tasks::is_able(&mut connection, &node, AgentAct::Reboot).await?;
    if !is_by_agent {
        refuse_unless_switched(&mut connection, &node).await?;
    }
    Ok(is_by_agent)
}

/// Reboots a machine: by the agent of its system if that was heard from a short time ago, or else by its power.
/// `by_agent` says what the operator was told; if that has changed, nothing is done.
pub async fn reboot(store: &Store, reference: &str, by_agent: Option<bool>) -> Result<Reboot, Error> {
    let mut transaction = store.write().await?;
    let mut node = known_node(&mut transaction, reference).await?;
    let is_by_agent = tasks::is_able(&mut transaction, &node, AgentAct::Reboot).await?;
    if by_agent.is_some_and(|told| told != is_by_agent) {
        let message =
            format!("nothing was done: the agent of node {} fell silent or came back meanwhile", node.label());
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    let done = match is_by_agent {
        true => {
            let name = AgentAct::Reboot.name();
            let asked = Asked { name, how: TaskOptions::default(), limit_seconds: REBOOT_LIMIT, run: None };
            Reboot::Task(Box::new(tasks::ask(&mut transaction, &mut node, asked).await?))
        }
        false => by_power(&mut transaction, &node).await?,
    };
    store::commit(transaction).await?;
    Ok(done)
}

async fn by_power(transaction: &mut Transaction, node: &store::nodes::Node) -> Result<Reboot, Error> {
    refuse_unless_switched(transaction, node).await?;
    Ok(Reboot::Power(Box::new(ask::ask(transaction, node, PowerAct::Cycle).await?)))
}

async fn refuse_unless_switched(connection: &mut Connection, node: &store::nodes::Node) -> Result<(), Error> {
    let switched = power::get_by_node(connection, &node.id).await?;
    if switched.is_some_and(|power| power.settings.mode != PowerMode::Disabled) {
        return Ok(());
    }
    let label = node.label();
    let message = format!(
        "node {label} cannot be rebooted: no agent of its system that may do so was heard from in the last minutes, \
         and nothing switches its power (`node power set {label}`)"
    );
    Err(Error::refused(ErrorCode::Conflict, message))
}
