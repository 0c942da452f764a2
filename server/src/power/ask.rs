//! Asks for power acts, which a server does as soon as it can.

use slipway_protocol::{
    ErrorCode, NodePower, NodeState, PowerAct, PowerActState, PowerActStatus, PowerMode, SiteEventKind,
};

use super::wanted::is_here;
use crate::base::error::Error;
use crate::base::random;
use crate::base::time::now;
use crate::store::history::{self, NewEvent};
use crate::store::nodes::Node;
use crate::store::power::{self, Act, Power};
use crate::store::runs::Run;
use crate::store::{Connection, Transaction, clock};

/// Asks for an act in place of one that is not over. To ask for the status in the meantime only waits for that one.
/// Fails if nothing switches the machine, if that is disabled, or if the node is out of service and is to be switched
/// on.
pub async fn ask(transaction: &mut Transaction, node: &Node, act: PowerAct) -> Result<NodePower, Error> {
    let label = node.label();
    if node.state == NodeState::Decommissioned && !matches!(act, PowerAct::Off | PowerAct::Status) {
        let message = format!("node {label} is out of service: it can only be switched off");
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    let power = switch(transaction, node).await?;
    if act == PowerAct::Status && power.open_act().is_some() {
        return Ok(power.status());
    }
    let power = store(transaction, power, act, None).await?;
    let message = format!("the machine is to be {}", act.in_words());
    history::did(transaction, SiteEventKind::Power, NewEvent::new(message).of(node), now()).await?;
    Ok(power.status())
}

/// Returns what switches the machine of a node. Fails if nothing does, or if that is disabled.
pub async fn switch(connection: &mut Connection, node: &Node) -> Result<Power, Error> {
    let label = node.label();
    let message = match power::get_by_node(connection, &node.id).await? {
        Some(power) if power.settings.mode != PowerMode::Disabled => return Ok(power),
        Some(_) => {
            format!("switching the power of node {label} is disabled: `node power set {label} --mode real` enables it")
        }
        None => format!("nothing switches the power of node {label}: name what does with `node power set {label}`"),
    };
    Err(Error::refused(ErrorCode::Conflict, message))
}

/// Asks that a machine boots slipway for a run, if something switches its power. Nothing is done if it fetches the run
/// by itself.
pub async fn boot(transaction: &mut Transaction, node: &Node, run: &Run) -> Result<(), Error> {
    let Some(power) = boots(transaction, node).await? else { return Ok(()) };
    store(transaction, power, PowerAct::Boot, Some(run.id.clone())).await?;
    let message = format!("the machine is to be {}", PowerAct::Boot.in_words());
    history::did(transaction, SiteEventKind::Power, NewEvent::new(message).of_run(run), now()).await
}

/// Returns what switches the power of a machine, if a run is to boot slipway on it.
async fn boots(connection: &mut Connection, node: &Node) -> Result<Option<Power>, Error> {
    let power = power::get_by_node(connection, &node.id).await?;
    Ok(power.filter(|power| power.settings.mode != PowerMode::Disabled))
}

/// Whether a run would switch the machine on, as far as it is known before.
pub async fn would_boot(connection: &mut Connection, node: &Node) -> Result<bool, Error> {
    Ok(match boots(connection, node).await? {
        Some(power) => !is_here(connection, &power, node, now()).await?,
        None => false,
    })
}

/// Ends the act of a machine that is not over, because of what else an operator does.
pub async fn withdraw(transaction: &mut Transaction, power: &mut Power, reason: &str) -> Result<(), Error> {
    let Some(act) = power.open_act() else { return Ok(()) };
    let state = if act.status.switched { PowerActState::Failed } else { PowerActState::Withdrawn };
    end(transaction, power, state, Some(reason.to_owned())).await
}

/// Ends an act, and records how. The caller stores it.
pub(super) async fn end(
    transaction: &mut Transaction,
    power: &mut Power,
    state: PowerActState,
    reason: Option<String>,
) -> Result<(), Error> {
    let now = now();
    let Some(act) = &mut power.act else { return Ok(()) };
    let is_status = act.status.act == PowerAct::Status;
    (act.status.state, act.status.reason, act.status.ended_at) = (state, reason, Some(now));
    match state {
        // That nobody can look does not hide that the machine may be off.
        PowerActState::Failed if is_status && power.failed.is_some() => {}
        PowerActState::Failed => power.failed = Some(act.status.clone()),
        PowerActState::Done if is_status => {
            power.failed = power.failed.take().filter(|failed| failed.act != PowerAct::Status);
        }
        PowerActState::Done => power.failed = None,
        _ => {}
    }
    let (kind, message) = match state {
        PowerActState::Done if is_status => return Ok(()),
        PowerActState::Done => (SiteEventKind::Power, format!("done: {}", act.status.act.in_words())),
        PowerActState::Failed => (SiteEventKind::PowerFailed, format!("the machine {}", act.status.in_words())),
        _ => (SiteEventKind::Power, format!("the machine {}", act.status.in_words())),
    };
    tracing::info!(node = power.node, "{message}");
    let event = NewEvent::new(message).of_id(&power.node);
    let event = act.status.run.iter().fold(event, |event, run| event.of_run_id(run));
    history::did(transaction, kind, event, now).await
}

async fn store(
    transaction: &mut Transaction,
    mut power: Power,
    act: PowerAct,
    run: Option<String>,
) -> Result<Power, Error> {
    // Somebody has to bring a machine to an end that was switched off.
    let switched = power.open_act().is_some_and(|open| open.status.switched);
    if power.open_act().is_some() {
        let reason = Some("something else was asked for".to_owned());
        end(transaction, &mut power, PowerActState::Withdrawn, reason).await?;
    }
    let status = PowerActStatus {
        id: random::id(),
        act,
        state: PowerActState::Asked,
        asked_at: clock::now(transaction).await?,
        switched,
        ended_at: None,
        run,
        reason: None,
    };
    power.act = Some(Act { status, is_told: false });
    power::save(transaction, &power).await?;
    Ok(power)
}
