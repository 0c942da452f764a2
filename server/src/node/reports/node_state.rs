//! How reports change the state of a node.

use slipway_protocol::shared::printable;
use slipway_protocol::{NodeClass, NodeState, SiteEventKind, StepState, StepStatus};

use crate::base::error::{Error, MOST_LOGGED};
use crate::base::time::now;
use crate::rules::ipxe::Known;
use crate::rules::state::{self, NodeEvent};
use crate::store::history::{self, NewEvent};
use crate::store::nodes::Node;
use crate::store::runs::{self, Run};
use crate::store::{Connection, nodes, power, run_requests, to_word};

/// Returns what a boot loader may know about a node. While a run waits to be confirmed, the machine boots from disk,
/// unless an operator asked for it to boot slipway.
pub async fn known_to_loader(connection: &mut Connection, node: &Node) -> Result<Known, Error> {
    let run = runs::newest_of(connection, &node.id).await?;
    let power = power::get_by_node(connection, &node.id).await?;
    let is_asked = power.is_some_and(|power| power.is_to_boot_slipway(node.enrolled_at, now()));
    Ok(match run {
        Some(run) if run.is_held() => Known::Node { state: NodeState::Installed, run: None, is_asked },
        run => Known::Node { state: node.state, run: run.map(|run| run.progress.state), is_asked },
    })
}

/// Returns why a run failed. `None` if it did not fail.
fn reason(run: &Run) -> Option<String> {
    let failed = |step: &&StepStatus| matches!(step.state, StepState::Failed | StepState::TimedOut);
    let step = run.progress.steps.iter().find(failed)?;
    let failure = step.failure.as_ref()?.in_one_line();
    Some(printable::short_line(&format!("step {}: {failure}", step.name), MOST_LOGGED))
}

/// Has no run done again when the machine of a node boots slipway, and forgets what that run was asked for. The caller
/// stores the node.
pub async fn forget_anew(connection: &mut Connection, node: &mut Node) -> Result<(), Error> {
    node.anew_since = None;
    let Some(run) = node.anew.take() else { return Ok(()) };
    run_requests::remove(connection, &run).await
}

/// Moves the node to its next state, if this is its newest run. An older run does not affect the node, unless its
/// system reports and no newer run was fetched.
pub async fn advance(connection: &mut Connection, run: &Run, event: NodeEvent) -> Result<(), Error> {
    let Some(mut node) = nodes::get_by_id(connection, &run.node).await? else { return Ok(()) };
    let is_report = matches!(event, NodeEvent::PhonedHome | NodeEvent::SystemRuns);
    let counts =
        node.run.as_deref() == Some(&run.id) || (is_report && runs::is_current(connection, &node, &run.id).await?);
    if !counts {
        return Ok(());
    }
    let next = match event {
        // The machine is in slipway, whatever it had before.
        NodeEvent::RunWithdrawn if node.is_in_slipway(now()) => state::next(node.state, NodeEvent::TookWork),
        event => state::next(node.state, event),
    };
    if next != node.state {
        let (from, to, reason) = (to_word(&node.state), to_word(&next), reason(run));
        tracing::info!(node = node.label(), run = run.id, from, to, reason, "node changed its state");
        let message = format!("the node is {to}, and was {from}");
        let event = NewEvent::new(message).of(&node).of_run(run);
        history::record(connection, SiteEventKind::State, event, now()).await?;
        node.state = next;
    }
    if matches!(event, NodeEvent::RunSucceeded(_)) && node.class == NodeClass::Ephemeral && run.boot_id.is_some() {
        (node.anew, node.anew_since) = (Some(run.id.clone()), None);
    }
    match node.state {
        NodeState::Booting => {}
        NodeState::Running if node.anew.as_ref() == Some(&run.id) => node.anew_since = node.anew_since.or(Some(now())),
        NodeState::Running | NodeState::Draining => {}
        // There is no system that has reported, or is expected to.
        _ => forget_anew(connection, &mut node).await?,
    }
    if matches!(event, NodeEvent::RunSucceeded(_) | NodeEvent::RunFailed | NodeEvent::RunWithdrawn) {
        // No other machine can take over now, because there is nothing left to do.
        node.armed = false;
    }
    match event {
        NodeEvent::RunSucceeded(_) => node.key_left = state::leaves(&run.progress.steps),
        NodeEvent::RunFailed => node.key_left = false,
        _ => {}
    }
    nodes::save(connection, &node).await
}
