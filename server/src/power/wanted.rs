//! Whether what was asked for is still to be done. A machine that installs, or that fetches its run by itself, is not
//! switched off for it.

use std::time::Duration;

use slipway_protocol::{NodeState, PowerAct, PowerActState, PowerMode, PowerState, RunState};
use tokio::time::Instant;

use crate::base::error::Error;
use crate::base::time::{Millis, now};
use crate::rules::trouble::{GONE, WAITS};
use crate::store::nodes::Node;
use crate::store::power::{Act, Power};
use crate::store::{Connection, claimants, runs};

/// How long it takes until a machine that runs slipway has asked for work.
pub const ASKS: Duration = Duration::from_millis(GONE);

/// Whether an act is to go on.
pub enum Wanted {
    /// It is.
    Yes,
    /// Not yet: the machine probably fetches its run by itself.
    Later,
    /// It ends in this state, with a reason.
    No(PowerActState, String),
}

/// What there is to do for a node.
pub struct Known {
    /// The power of its machine.
    pub power: Power,
    /// The node.
    pub node: Node,
    /// The act.
    pub act: Act,
}

/// Says whether an act is to go on, for a machine that is on or off as far as is known. `listens` is since when this
/// server has known which machines are silent.
pub async fn wanted(
    connection: &mut Connection,
    known: &Known,
    is: Option<PowerState>,
    listens: Instant,
) -> Result<Wanted, Error> {
    let Known { power, node, act } = known;
    if power.settings.mode == PowerMode::Disabled {
        return Ok(no(act, "switching its power was disabled"));
    }
    if act.status.act != PowerAct::Boot || act.status.state == PowerActState::SwitchingOn {
        return Ok(Wanted::Yes);
    }
    // What was switched off is switched on again, whatever becomes of its run.
    if is == Some(PowerState::Off) && act.status.switched {
        return Ok(Wanted::Yes);
    }
    if let Some(reason) = pointless(connection, act, node).await? {
        return Ok(no(act, &reason));
    }
    if is == Some(PowerState::Off) {
        return Ok(Wanted::Yes);
    }
    // A server that has just begun to listen cannot tell who is silent.
    let may_ask = node.last_seen.is_some() && listens.elapsed() < ASKS;
    Ok(match is_here(connection, power, node, now()).await? {
        true if act.status.run.is_none() => no(act, "it runs slipway already"),
        true => Wanted::Later,
        false if may_ask => Wanted::Later,
        false => Wanted::Yes,
    })
}

/// Ends an act that is not wanted any more: as failed if the machine may be off because of it.
fn no(act: &Act, reason: &str) -> Wanted {
    let state = if act.status.switched { PowerActState::Failed } else { PowerActState::Withdrawn };
    Wanted::No(state, reason.to_owned())
}

/// Says why a machine has no reason any more to boot slipway.
async fn pointless(connection: &mut Connection, act: &Act, node: &Node) -> Result<Option<String>, Error> {
    if node.state == NodeState::Decommissioned {
        return Ok(Some("the node is out of service".to_owned()));
    }
    let newest = runs::newest_of(connection, &node.id).await?;
    let state = newest.as_ref().map(|run| run.progress.state);
    Ok(match (&act.status.run, newest) {
        (Some(run), Some(newest)) if *run == newest.id && state == Some(RunState::Pending) && !newest.is_held() => None,
        (Some(_), _) => Some("its run does not wait for it any more".to_owned()),
        (None, Some(newest)) if state == Some(RunState::Running) => {
            Some(format!("run {} is going on; `node power cycle` switches it all the same", newest.id))
        }
        (None, _) => None,
    })
}

/// Whether the machine of a node runs slipway now: it works, or waits for work or to be let in.
pub async fn is_here(connection: &mut Connection, power: &Power, node: &Node, now: Millis) -> Result<bool, Error> {
    // It was off after it was last heard from.
    if power.state == Some(PowerState::Off) && power.state_at > node.last_seen {
        return Ok(false);
    }
    let waits = claimants::of_node(connection, &node.id).await?;
    let waits = waits.iter().any(|claimant| now.saturating_sub(claimant.last_asked) <= WAITS);
    Ok(waits || node.is_in_slipway(now))
}
