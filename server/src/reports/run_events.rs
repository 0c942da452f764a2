//! Events of runs, as nodes report them.

use slipway_protocol::{
    ErrorCode, Event, EventAck, EventBatch, EventKind, MAX_EVENTS_PER_BATCH, NodeState, RunState, Workflow,
};

use crate::error::Error;
use crate::reports::{boot, node_state};
use crate::state::{self, AfterRun, NodeEvent, RunTransition};
use crate::store::nodes::Node;
use crate::store::runs::{self, Run};
use crate::store::{self, Connection, Store, events, nodes};
use crate::time::Millis;

/// The node, if it may ask and report. The credentials of a decommissioned node are refused.
pub async fn admitted_node(connection: &mut Connection, id: &str) -> Result<Node, Error> {
    let Some(node) = nodes::get_by_id(connection, id).await? else {
        let message = "the credentials belong to a node that no longer exists";
        return Err(Error::refused(ErrorCode::Unauthenticated, message));
    };
    if node.state == NodeState::Decommissioned {
        let message = format!("node {} was taken out of service by an operator", node.label());
        return Err(Error::refused(ErrorCode::Decommissioned, message));
    }
    if !node.released {
        return Err(Error::refused(ErrorCode::Forbidden, format!("node {} is not released", node.label())));
    }
    Ok(node)
}

/// The workflow for a node, which counts as fetched from now on. A run that has ended is not handed out again. One that
/// is in progress is, because the machine may have been power-cycled.
pub async fn hand_out_workflow(store: &Store, node: &str, now: Millis) -> Result<Option<Workflow>, Error> {
    let open = |run: &Run| state::is_open(run.progress.state);
    // Reading needs no write lock, and most polls find nothing.
    let mut connection = store.read().await?;
    admitted_node(&mut connection, node).await?;
    let found = runs::newest_of(&mut connection, node).await?;
    drop(connection);
    if !found.as_ref().is_some_and(open) {
        return Ok(None);
    }
    let mut transaction = store.write().await?;
    let Some(mut run) = runs::newest_of(&mut transaction, node).await?.filter(open) else { return Ok(None) };
    run.progress.state = RunState::Running;
    run.started_at.get_or_insert(now);
    runs::update(&mut transaction, &run).await?;
    store::commit(transaction).await?;
    Ok(Some(Workflow { run: run.id, next_seq: run.last_seq + 1, steps: run.workflow }))
}

/// Stores events of a node's run. Those at or below the highest sequence number stored are skipped.
pub async fn store_events(store: &Store, node: &str, batch: &EventBatch, now: Millis) -> Result<EventAck, Error> {
    check_batch(batch)?;
    let mut transaction = store.write().await?;
    let Some(mut run) = runs::get_by_id(&mut transaction, &batch.run).await?.filter(|run| run.node == node) else {
        return Err(Error::refused(ErrorCode::NotFound, format!("this node has no run {:?}", batch.run)));
    };
    for event in &batch.events {
        if event.seq <= run.last_seq {
            continue;
        }
        let turn = state::apply(&mut run.progress, event, now);
        let turn = turn.map_err(|error| Error::refused(ErrorCode::InvalidRequest, error.to_string()))?;
        run.last_seq = event.seq;
        if turn == RunTransition::StepStarted && is_beginning(event) {
            // The machine was switched off in the middle and begins again. Earlier reports are not of the system that
            // is installed now.
            run.phoned_home_at = None;
            run.last_contact_at = None;
            run.phone_home.clear();
        }
        if !matches!(event.kind, EventKind::Progress(_)) {
            events::insert(&mut transaction, &run.id, event).await?;
        }
        if let Some(node_event) = node_event(turn, &run) {
            node_state::advance(&mut transaction, &run, node_event).await?;
        }
    }
    runs::update(&mut transaction, &run).await?;
    store::commit(transaction).await?;
    Ok(EventAck { seq: run.last_seq, ended: run.progress.ended })
}

fn check_batch(batch: &EventBatch) -> Result<(), Error> {
    let invalid = |message: String| Err(Error::refused(ErrorCode::InvalidRequest, message));
    if batch.events.len() > MAX_EVENTS_PER_BATCH {
        return invalid(format!(
            "the batch has {} events, but may have at most {MAX_EVENTS_PER_BATCH}",
            batch.events.len()
        ));
    }
    if let Some(pair) = batch.events.windows(2).find(|pair| pair[0].seq >= pair[1].seq) {
        return invalid(format!("event {} follows event {}; sequence numbers must increase", pair[1].seq, pair[0].seq));
    }
    if let Some(event) = batch.events.iter().find(|event| event.seq == 0 || i64::try_from(event.seq).is_err()) {
        return invalid(format!("{} is not a valid sequence number; they start at 1", event.seq));
    }
    Ok(())
}

/// Whether the run begins, or begins again, with this event.
fn is_beginning(event: &Event) -> bool {
    event.step == 0 && event.attempt == 1 && matches!(event.kind, EventKind::Started)
}

fn node_event(turn: RunTransition, run: &Run) -> Option<NodeEvent> {
    match turn {
        RunTransition::None => None,
        RunTransition::StepStarted => Some(NodeEvent::StepStarted),
        RunTransition::Failed => Some(NodeEvent::RunFailed),
        RunTransition::Succeeded => Some(NodeEvent::RunSucceeded(match (&run.phone_home_hash, run.phoned_home_at) {
            (_, Some(_)) => AfterRun::Reported,
            (Some(_), None) => AfterRun::Awaited,
            (None, None) if boot::is_asked_for(&run.workflow) => AfterRun::Awaited,
            (None, None) => AfterRun::NotAsked,
        })),
    }
}
