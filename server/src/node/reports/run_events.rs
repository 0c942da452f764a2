//! Events of runs, as reported by nodes.

use std::collections::HashMap;

use slipway_protocol::workflow::Foreseen;
use slipway_protocol::{
    ErrorCode, Event, EventAck, EventBatch, EventKind, Failure, MAX_EVENTS_PER_BATCH, MAX_SEQ_GAP, NodeState, RunState,
    SiteEventKind, StepState, StepStatus, UsualStep, Workflow,
};

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::image::examine::examine;
use crate::keys::jwt::Subject;
use crate::node::reports::run_meters::{RunMeters, has_ended};
use crate::node::reports::{boot, decommission, node_state, secrets};
use crate::node::tasks;
use crate::rules::changes::MachineFacts;
use crate::rules::state::{self, AfterRun, NodeEvent, RunTransition};
use crate::rules::told;
use crate::rules::trouble::{self, Usual};
use crate::run::facts::Facts;
use crate::run::foresee::{Machine, foreign, foresee, images_of};
use crate::run::go_on;
use crate::store;
use crate::store::history::{self, NewEvent};
use crate::store::nodes::{Access, Node};
use crate::store::runs::{self, Run};
use crate::store::step_times::{self, Kind, StepTime};
use crate::store::{Connection, Store, events, nodes, notes, run_facts, systems};

/// Number of bytes beyond the run's limit that are reserved for events that change a step.
const RESERVE_BYTES: u64 = 1 << 20;
/// The last note of a run whose events have reached the limit.
const BUDGET_SPENT: &str = "the events of this run have reached the server's limit; further notes are dropped";

/// Checks that the machine with this key may send requests as the node. The credentials of a decommissioned node are
/// refused.
pub async fn admit(connection: &mut Connection, subject: &Subject) -> Result<Access, Error> {
    let Some(node) = nodes::access(connection, &subject.node).await? else {
        let message = "the credentials belong to a node that no longer exists";
        return Err(Error::refused(ErrorCode::Unauthenticated, message));
    };
    if node.state == NodeState::Decommissioned {
        return Err(Error::refused(ErrorCode::Decommissioned, "an operator took this node out of service"));
    }
    if !node.released || node.key.as_ref().is_none_or(|key| key.fingerprint != subject.key) {
        let message = "this key is no longer valid for the node; enrol again";
        return Err(Error::refused(ErrorCode::Unauthenticated, message));
    }
    Ok(node)
}

/// What there is to do for a machine that asks for work.
pub enum Work {
    /// Nothing.
    None,
    /// A workflow.
    Workflow(Workflow),
    /// The machine of an ephemeral node is to be reinstalled, as by the run with this id. A run has to be started
    /// for that.
    Anew(String),
}

/// Returns the workflow for a node, and records that it was fetched. A run that has ended is not handed out again. A
/// run in progress is, because the machine may have been power-cycled.
///
/// Nothing is handed out to a machine that proved less than the run requires. A run that is known to fail later is
/// ended here, before the machine erases a disk. Disks are only checked on the machine: the machine enrols when it has
/// found the first disk, and checks the run when it has found all disks.
pub async fn hand_out_workflow(
    store: &Store,
    meters: &RunMeters,
    subject: &Subject,
    now: Millis,
) -> Result<Work, Error> {
    // Reading needs no write lock, and most polls find no work.
    let mut connection = store.read().await?;
    let access = admit(&mut connection, subject).await?;
    if !access.has_open_run {
        return Ok(anew(&mut connection, &access).await?.map_or(Work::None, Work::Anew));
    }
    let Some((_, run)) = open_run(&mut connection, subject).await? else { return Ok(Work::None) };
    let mut usual = HashMap::new();
    for step in run.progress.steps.iter().filter(|_| run.started_at.is_none()) {
        let kind = Kind::of(run.image.as_ref(), step);
        let found = trouble::usual(&step_times::of(&mut connection, &kind).await?);
        usual.extend(found.map(|Usual { millis, rate, .. }| (kind, UsualStep { millis, rate })));
    }
    drop(connection);
    let seen = examine(store, images_of(&run.workflow)).await?;
    let mut transaction = store.write().await?;
    let Some((mut node, mut run)) = open_run(&mut transaction, subject).await? else { return Ok(Work::None) };
    let arch = node.inventory.as_ref().map_or("", |inventory| inventory.cpu.arch.as_str());
    let machine = Machine { arch, ..Machine::default() };
    let facts = Facts::load(&mut transaction).await?;
    // Nobody may have known the machine when the run was started.
    let system = match &run.os {
        Some(os) => systems::get_by_name(&mut transaction, os).await?,
        None => None,
    };
    let foreign = system.and_then(|system| foreign(&system, arch)).map(|problem| Foreseen { step: 0, problem });
    if let Some(foreseen) = foreign.or_else(|| foresee(&seen, &facts, machine, &run.workflow)) {
        let has_begun = run.progress.steps.iter().any(|step| step.state != StepState::Pending);
        let reason = foreseen.reason(&run.workflow, has_begun);
        let failure = Failure { reason, causes: vec![foreseen.problem], log_tail: Vec::new() };
        state::fail(&mut run.progress, &failure, now);
        runs::update(&mut transaction, &run).await?;
        record_end(&mut transaction, &run, now).await?;
        node_state::advance(&mut transaction, &run, NodeEvent::RunFailed).await?;
        secrets::forget_of_node(&mut transaction, &node.id).await?;
        store::commit(transaction).await?;
        meters.run_ended(run.progress.state);
        return Ok(Work::None);
    }
    if node.key_left {
        // The machine asks for work, so it has not left for the installed system.
        node.key_left = false;
        nodes::save(&mut transaction, &node).await?;
    }
    if run.done > 0 && run.boot_id != node.boot_id {
        // Nobody knows what became of its disk meanwhile.
        go_on::start_over(&mut run);
        let message = "the machine was restarted, as far as is known, so the run begins with its first step";
        let event = NewEvent::new(message).of_run(&run);
        history::record(&mut transaction, SiteEventKind::Restarted, event, now).await?;
    }
    run.progress.state = RunState::Running;
    let is_first = run.started_at.is_none();
    if is_first {
        run.started_at = Some(now);
        // Noted now, so that what is said of the run's progress does not change with the runs of other machines.
        for step in &mut run.progress.steps {
            step.usual = usual.get(&Kind::of(run.image.as_ref(), step)).copied();
        }
        let event = NewEvent::new(format!("the machine has run {}", run.id)).of_run(&run);
        history::record(&mut transaction, SiteEventKind::RunFetched, event, now).await?;
        // The system that it was in ends here.
        tasks::left_system(&mut transaction, &node.id).await?;
        tasks::remove_agent(&mut transaction, &mut node, "the machine has another run").await?;
    }
    runs::update(&mut transaction, &run).await?;
    let address = node.key.map(|key| key.address);
    let inventory = node.inventory.unwrap_or_default();
    let machine = MachineFacts { version: node.agent_version, address, inventory };
    run_facts::set_machine(&mut transaction, &run.id, &machine).await?;
    if is_first {
        let took = run.afterwards.map_or(NodeEvent::TookWork, |_| NodeEvent::TookLastWork);
        node_state::advance(&mut transaction, &run, took).await?;
        // Those of the run before, whose system is not awaited any more.
        secrets::forget_of_node(&mut transaction, &run.node).await?;
    }
    store::commit(transaction).await?;
    let (steps, done) = (go_on::pinned(&run), run.done);
    Ok(Work::Workflow(Workflow { run: run.id, next_seq: run.last_seq + 1, steps, done }))
}

/// Returns the run that is to be done again on a node, if its machine proved what the run requires.
pub async fn anew(connection: &mut Connection, access: &Access) -> Result<Option<String>, Error> {
    let Some(id) = access.anew.as_ref().filter(|_| !access.has_open_run) else { return Ok(None) };
    let run = runs::get_by_id(connection, id).await?;
    let may = |run: &Run| access.key.as_ref().is_some_and(|key| key.proof >= run.require);
    Ok(run.filter(may).map(|run| run.id))
}

/// Returns the run that the machine with this key may execute, with its node.
async fn open_run(connection: &mut Connection, subject: &Subject) -> Result<Option<(Node, Run)>, Error> {
    if !admit(connection, subject).await?.has_open_run {
        return Ok(None);
    }
    let Some(node) = nodes::get_by_id(connection, &subject.node).await? else { return Ok(None) };
    let run = runs::newest_of(connection, &node.id).await?;
    let is_live = |run: &Run| state::is_open(run.progress.state) && !run.is_held();
    let may = |run: &Run| is_live(run) && node.key.as_ref().is_some_and(|key| key.proof >= run.require);
    Ok(run.filter(may).map(|run| (node, run)))
}

/// Stores events of a node's run, up to `budget` bytes for the whole run. Events up to the highest stored sequence
/// number are skipped.
pub async fn store_events(
    store: &Store,
    meters: &RunMeters,
    node: &str,
    batch: &EventBatch,
    budget: u64,
    now: Millis,
) -> Result<EventAck, Error> {
    check_batch(batch)?;
    let mut transaction = store.write().await?;
    let Some(mut run) = runs::get_by_id(&mut transaction, &batch.run).await?.filter(|run| run.node == node) else {
        return Err(Error::refused(ErrorCode::NotFound, "this node has no run with this id"));
    };
    check_gap(batch, run.last_seq)?;
    if batch.events.last().is_some_and(|event| event.seq > run.last_seq) {
        if run.is_held() {
            // The machine works on the run, so the run had not ended at the time of the backup, nor has it now.
            runs::confirm(&mut transaction, &run.id).await?;
        }
        // A backup may be from before the run was fetched.
        run.started_at.get_or_insert(now);
    }
    // Counted when they are stored.
    let (was_open, mut ended) = (state::is_open(run.progress.state), Vec::new());
    for event in &batch.events {
        if event.seq <= run.last_seq {
            continue;
        }
        let step = usize::try_from(event.step).unwrap_or(usize::MAX);
        let before = run.progress.steps.get(step).map(|step| step.state);
        let first = run.progress.steps.get(run.done as usize);
        let has_begun = first.is_some_and(|first| first.state != StepState::Pending);
        let turn = state::apply(&mut run.progress, event, now);
        let turn = turn.map_err(|error| Error::refused(ErrorCode::InvalidRequest, error.to_string()))?;
        run.last_seq = event.seq;
        ended.extend(
            run.progress.steps.get(step).filter(|step| before != Some(step.state) && has_ended(step.state)).cloned(),
        );
        let destroys = || run.workflow.get(step).is_some_and(|step| step.action.destroys());
        run.destroyed |= turn == RunTransition::StepStarted && destroys();
        if turn == RunTransition::StepStarted && is_beginning(&run, event) {
            if run.done == 0 {
                let node = nodes::get_by_id(&mut transaction, node).await?;
                run.boot_id = node.and_then(|node| node.boot_id);
            }
            // The machine was power-cycled during the run and starts over. Earlier reports are not about the system
            // that is being installed now.
            run.begins = run.begins.saturating_add(1);
            run.phoned_home_at = None;
            run.last_contact_at = None;
            run.phone_home.clear();
        }
        if turn == RunTransition::StepStarted && event.attempt == 1 {
            notes::forget_from(&mut transaction, &run.id, event.step).await?;
        }
        // What is beyond the budget of a run fills neither its log nor the history of the site.
        if keep(&mut transaction, &mut run, event, budget).await? {
            record(&mut transaction, &run, event, has_begun, now).await?;
        }
        if let Some(node_event) = node_event(turn, &run) {
            node_state::advance(&mut transaction, &run, node_event).await?;
        }
    }
    runs::update(&mut transaction, &run).await?;
    // Steps that ended in one request have times of their own, because the time is a part of the key.
    for (step, at) in ended.iter().zip(now..) {
        keep_time(&mut transaction, &run, step, at).await?;
    }
    if !state::is_open(run.progress.state) {
        secrets::forget_of_node(&mut transaction, node).await?;
    }
    if was_open && !state::is_open(run.progress.state) {
        record_end(&mut transaction, &run, now).await?;
        decommission::after_run(&mut transaction, &run).await?;
    }
    store::commit(transaction).await?;
    ended.iter().for_each(|step| meters.step_ended(step));
    if was_open && !state::is_open(run.progress.state) {
        meters.run_ended(run.progress.state);
    }
    Ok(EventAck { seq: run.last_seq, ended: run.progress.ended })
}

/// Records an event in the history of the site. `has_begun` says whether the run had begun before.
async fn record(
    connection: &mut Connection,
    run: &Run,
    event: &Event,
    has_begun: bool,
    now: Millis,
) -> Result<(), Error> {
    if is_beginning(run, event) && has_begun {
        let restarted = NewEvent::new("the machine began the run again from its first step").of_run(run);
        history::record(connection, SiteEventKind::Restarted, restarted, now).await?;
    }
    let Some((kind, message)) = told::of_step(event, &run.progress.steps) else { return Ok(()) };
    let step = usize::try_from(event.step).ok().and_then(|step| run.progress.steps.get(step));
    let told = NewEvent::new(message).of_run(run).step(step.map_or("", |step| &step.name));
    history::record(connection, kind, told, now).await
}

async fn record_end(connection: &mut Connection, run: &Run, now: Millis) -> Result<(), Error> {
    let message = told::of_end(run.progress.state, &run.progress.steps, run.created_at, now);
    history::record(connection, SiteEventKind::RunEnded, NewEvent::new(message).of_run(run), now).await
}

/// Stores how long a step took, if it succeeded and was not left out.
async fn keep_time(connection: &mut Connection, run: &Run, step: &StepStatus, now: Millis) -> Result<(), Error> {
    let is_done = step.outcome.as_ref().is_some_and(|outcome| !outcome.left_out);
    let (Some(began), Some(ended), true) = (step.started_at, step.finished_at, is_done) else { return Ok(()) };
    let bytes = step.progress.as_ref().map(|progress| progress.bytes).unwrap_or_default();
    let millis = ended.saturating_sub(began);
    let time = StepTime { kind: Kind::of(run.image.as_ref(), step), at: now, run: &run.id, millis, bytes };
    step_times::insert(connection, &time).await
}

/// Adds an event to the history of its run, within the run's limit. Returns whether it did.
async fn keep(connection: &mut Connection, run: &mut Run, event: &Event, budget: u64) -> Result<bool, Error> {
    if matches!(event.kind, EventKind::Progress(_)) {
        return Ok(false);
    }
    let mut json = store::to_json(event);
    let beyond = |run: &Run, json: &str, limit: u64| run.event_bytes + json.len() as u64 > limit;
    match &event.kind {
        EventKind::Note(_) | EventKind::Retrying(_) if beyond(run, &json, budget) => {
            if !notes::mark(connection, &run.id, event.step, event.seq, BUDGET_SPENT).await? {
                return Ok(false);
            }
            // From now on the limit counts as reached, so that later, shorter notes are dropped too.
            run.event_bytes = run.event_bytes.max(budget);
            json = store::to_json(&Event { kind: EventKind::Note(BUDGET_SPENT.to_owned()), ..event.clone() });
        }
        EventKind::Note(note) => notes::insert(connection, &run.id, event.step, event.seq, note).await?,
        _ => {}
    }
    if beyond(run, &json, budget + RESERVE_BYTES) {
        return Ok(false);
    }
    run.event_bytes += json.len() as u64;
    events::insert(connection, &run.id, event.seq, &json).await?;
    Ok(true)
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
    if batch.events.iter().any(|event| event.seq == 0) {
        return invalid("0 is not a valid sequence number; they start at 1".to_owned());
    }
    batch.events.iter().find_map(Event::problem).map_or(Ok(()), invalid)
}

/// Refuses sequence numbers that no node reaches. If the highest possible number were stored, no later event could be.
fn check_gap(batch: &EventBatch, last: u64) -> Result<(), Error> {
    match batch.events.last() {
        Some(event) if event.seq.saturating_sub(last) > MAX_SEQ_GAP => {
            let message = format!(
                "event {} comes too far after event {last}, the last one stored; its number may be at most \
                 {MAX_SEQ_GAP} higher",
                event.seq
            );
            Err(Error::refused(ErrorCode::InvalidRequest, message))
        }
        _ => Ok(()),
    }
}

/// Returns whether the run begins, or starts over, with this event.
fn is_beginning(run: &Run, event: &Event) -> bool {
    event.step == run.done && event.attempt == 1 && matches!(event.kind, EventKind::Started)
}

fn node_event(turn: RunTransition, run: &Run) -> Option<NodeEvent> {
    match turn {
        RunTransition::None => None,
        RunTransition::StepStarted if run.afterwards.is_some() => Some(NodeEvent::TookLastWork),
        RunTransition::StepStarted => Some(NodeEvent::StepStarted),
        RunTransition::Failed => Some(NodeEvent::RunFailed),
        // The node goes out of service with the run.
        RunTransition::Succeeded if run.afterwards.is_some() => None,
        RunTransition::Succeeded => Some(NodeEvent::RunSucceeded(match (&run.phone_home_hash, run.phoned_home_at) {
            (_, Some(_)) => AfterRun::Reported,
            (Some(_), None) => AfterRun::Awaited,
            (None, None) if boot::is_awaited(run) => AfterRun::Awaited,
            (None, None) => AfterRun::NotAsked,
        })),
    }
}
