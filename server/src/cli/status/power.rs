//! What `slipway-server status` says of the power of a machine.

use slipway_protocol::shared::printable::line;
use slipway_protocol::{NodePower, NodeStatus};
use slipway_server::base::time::Millis;

use crate::cli::words::duration;

/// Says whether a machine is on, and what is being done about it.
pub fn powered(power: &NodePower, now: Millis) -> String {
    let state = power.state.map_or("unknown".to_owned(), |state| state.to_string());
    let asked = power.state_at.map(|at| format!(", asked {} ago", duration(now.saturating_sub(at))));
    let act = power.act.as_ref().filter(|act| act.state.is_open());
    let act = act.map(|act| format!("; the machine {}", line(&act.in_words())));
    format!("\nPower: {state}{}{}\n", asked.unwrap_or_default(), act.unwrap_or_default())
}

/// Says what the agent of a machine's system does or is to do to it.
pub fn task(node: &NodeStatus) -> Option<String> {
    let task = node.task.as_ref().filter(|task| node.agent.is_some() && task.state.is_open())?;
    Some(task.in_words())
}

/// Says what is being done with the power of a machine.
pub fn power(node: &NodeStatus) -> Option<String> {
    let act = node.power.as_ref()?.act.as_ref().filter(|act| act.state.is_open())?;
    Some(act.in_words())
}
