//! Nodes that go out of service: at once, or after a run that was their last.

use slipway_protocol::{Afterwards, PowerAct, RunState, SiteEventKind};

use super::secrets;
use crate::base::error::Error;
use crate::base::time::now;
use crate::node::tasks;
use crate::power::ask;
use crate::rules::state::{self, NodeEvent};
use crate::store::Transaction;
use crate::store::history::{self, NewEvent};
use crate::store::nodes::{self, Node};
use crate::store::power;
use crate::store::runs::{self, Run};

/// Takes a node out of service. Its credentials are refused from now on, and its run is ended. The caller records why.
pub async fn decommission(transaction: &mut Transaction, node: &mut Node) -> Result<(), Error> {
    node.released = false;
    (node.armed, node.anew, node.anew_since) = (false, None, None);
    node.state = state::next(node.state, NodeEvent::Decommissioned);
    nodes::save(transaction, node).await?;
    let reason = "the node was taken out of service";
    if let Some(mut run) = runs::newest_of(transaction, &node.id).await? {
        state::end(&mut run.progress, reason, now());
        runs::update(transaction, &run).await?;
    }
    tasks::remove_agent(transaction, node, reason).await?;
    secrets::forget_of_node(transaction, &node.id).await?;
    if let Some(mut power) = power::get_by_node(transaction, &node.id).await? {
        ask::withdraw(transaction, &mut power, reason).await?;
        power::save(transaction, &power).await?;
    }
    Ok(())
}

/// Takes the node of a run out of service, if the run succeeded and was the node's last.
pub async fn after_run(transaction: &mut Transaction, run: &Run) -> Result<(), Error> {
    let Some(afterwards) = run.afterwards.filter(|_| run.progress.state == RunState::Succeeded) else { return Ok(()) };
    let node = nodes::get_by_id(transaction, &run.node).await?;
    let Some(mut node) = node.filter(|node| node.run.as_ref() == Some(&run.id)) else { return Ok(()) };
    decommission(transaction, &mut node).await?;
    tracing::info!(node = node.label(), run = run.id, "the node was taken out of service after its last run");
    let event = NewEvent::new("the node was taken out of service after its last run").of_run(run);
    history::record(transaction, SiteEventKind::State, event, now()).await?;
    if afterwards == Afterwards::Decommission {
        return Ok(());
    }
    match ask::ask(transaction, &node, PowerAct::Off).await {
        // It could be switched when the run was started. The node is out of service all the same.
        Err(Error::Refused { message, .. }) => {
            let event = NewEvent::new(format!("the machine was not switched off: {message}")).of(&node);
            history::record(transaction, SiteEventKind::PowerFailed, event, now()).await
        }
        asked => asked.map(drop),
    }
}
