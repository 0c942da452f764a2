//! Runs: what a node is to do next.

use std::collections::{BTreeMap, HashMap};

use slipway_protocol::{
    Action, Afterwards, Digest, Disk, DiskHints, ErrorCode, NodeState, NodeStatus, RunState, RunStatus, SiteEventKind,
    Step, StepState,
};

use super::{did, known_node, request};
use crate::base::error::Error;
use crate::base::objects::Seen;
use crate::base::random;
use crate::base::time::{Millis, now};
use crate::image::examine::examine;
use crate::image::turn;
use crate::node::reports::{node_state, run_events, secrets};
use crate::node::status;
use crate::node::tasks;
use crate::power;
use crate::rules::changes::{self, Named};
use crate::rules::state::{self, NodeEvent};
use crate::run::compose::{Composed, Loaded, Secrets, compose, images};
use crate::run::facts::Facts;
use crate::run::foresee::{self, Machine, foresee};
use crate::run::go_on::{go_on, take_over};
use crate::run::new_run::{NewRun, Task};
use crate::store;
use crate::store::history::NewEvent;
use crate::store::nodes::{self, Node};
use crate::store::run_tokens::{self, Purpose};
use crate::store::runs::{self, Run};
use crate::store::systems::{self, System};
use crate::store::{Connection, Store, Transaction, external_steps, notes, run_facts, run_requests, to_json, to_word};

/// Starts a run on a node, which fetches the run at its next poll, or at once if it is polling.
///
/// `ca` is the certificate the installed system must trust to report.
pub async fn start_run(store: &Store, ca: &str, reference: &str, new: NewRun) -> Result<RunStatus, Error> {
    start(store, ca, reference, new, None).await
}

/// The run that a run does again.
#[derive(Clone, Copy, Debug)]
pub(super) enum Again<'a> {
    /// One that failed.
    Retry {
        /// Id of the failed run.
        run: &'a str,
        /// Name or number of the step to begin with, if not with the first.
        from: Option<&'a str>,
    },
    /// One that succeeded on an ephemeral node.
    Anew {
        /// Id of the run.
        run: &'a str,
    },
}

impl Again<'_> {
    fn run(&self) -> &str {
        match self {
            Self::Retry { run, .. } | Self::Anew { run } => run,
        }
    }

    /// Says that a run does another one again, and why.
    fn in_words(&self) -> String {
        match self {
            Self::Retry { run, .. } => format!(": it tries run {run} again"),
            Self::Anew { run } => {
                format!(" again, as run {run} did: the node is ephemeral, and its machine has booted slipway")
            }
        }
    }
}

/// Starts a run like [`start_run`], which does another run again, if one is given.
pub(super) async fn start(
    store: &Store,
    ca: &str,
    reference: &str,
    new: NewRun,
    again: Option<Again<'_>>,
) -> Result<RunStatus, Error> {
    // Before the transaction, because it may take minutes. Names of images are looked up again in the transaction.
    let seen = examine(store, images_of(store, &new.task).await?).await?;
    let id = random::id();
    let request = request::seal(store, &id, &new)?;
    // A machine that is to be reinstalled is in slipway, and fetches the run by itself.
    let leaves_power = new.no_power || matches!(again, Some(Again::Anew { .. }));
    let afterwards = new.afterwards;
    let now = now();
    let mut transaction = store.write().await?;
    let failed = check_again(&mut transaction, reference, again).await?;
    let Ready { mut node, os, composed, replaced } = ready(&mut transaction, &seen, ca, reference, new, now).await?;
    if matches!(again, Some(Again::Anew { .. })) && node.key.as_ref().is_none_or(|key| key.proof < composed.require) {
        // The machine would not get the run.
        let message = format!("its machine has to prove more by now: {}", composed.require.name());
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    let settings = settings(&composed);
    let taken = take_over(&mut transaction, &node, failed, &settings, &composed.steps, now).await?;
    if let Some(replaced) = replaced {
        replace(&mut transaction, replaced, &id, now).await?;
    }
    let own = if afterwards.is_some() { "erases disks" } else { "has a workflow of its own" };
    let what = os.as_ref().map_or_else(|| own.to_owned(), |os| format!("installs {os}"));
    let again = again.map(|again| again.in_words()).unwrap_or_default();
    let from = composed.steps.get(taken.len()).filter(|_| !taken.is_empty());
    let from = from.map(|step| format!(" from step {}", step.name)).unwrap_or_default();
    turn::check_steady(&mut transaction, &to_json(&composed.steps)).await?;
    let mut run = Run { os, afterwards, ..pending(&node, &id, &composed, now) };
    go_on(&mut run, taken, node.boot_id.clone());
    insert(&mut transaction, &run, composed, now).await?;
    run_facts::insert(&mut transaction, &id, &settings).await?;
    run_requests::insert(&mut transaction, &node, &id, &request).await?;
    node.run = Some(id);
    node.state = state::next(node.state, NodeEvent::GivenWork);
    node.armed = node.released;
    nodes::save(&mut transaction, &node).await?;
    let then =
        afterwards.map(|afterwards| format!("; when it succeeded, {}", afterwards.in_words())).unwrap_or_default();
    let event = NewEvent::new(format!("run {} {what}{again}{from}{then}", run.id)).of_run(&run);
    did(&mut transaction, SiteEventKind::RunStarted, event).await?;
    if !leaves_power {
        tasks::boot_slipway(&mut transaction, &mut node, &run).await?;
    }
    secrets::forget_of_node(&mut transaction, &node.id).await?;
    store::commit(transaction).await?;
    tracing::info!(node = node.label(), run = run.id, "run started");
    Ok(status::of_run(run, now))
}

/// What a run would do to its machine, to be said before an operator starts it.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The node, as it is now.
    pub node: NodeStatus,
    /// How it goes on with what a failed run did, if it does.
    pub goes_on: Option<GoesOn>,
    /// What is destroyed, in the order of the steps.
    pub destroyed: Vec<Destroyed>,
    /// Id of the run that is not over, and will be replaced.
    pub replaced: Option<String>,
    /// What has the machine boot slipway, if anything does.
    pub boots: Option<BootsBy>,
    /// What becomes of the node once the run succeeded.
    pub afterwards: Option<Afterwards>,
    /// The options of its steps, with a few digits in place of each secret.
    pub settings: Named,
}

impl Plan {
    /// Whether another plan does the same to the same machine.
    pub fn does_the_same(&self, other: &Self) -> bool {
        let done = |plan: &Self| (plan.node.id.clone(), plan.destroyed.clone(), plan.replaced.clone(), plan.boots);
        done(self) == done(other) && self.settings == other.settings
    }
}

/// What has a machine boot slipway for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootsBy {
    /// The agent of its system.
    Agent,
    /// Its power: it is switched on, and off before if it is on.
    Power,
}

/// How a run goes on with what a failed one did.
#[derive(Clone, Debug, PartialEq)]
pub struct GoesOn {
    /// Name of the step that it begins with.
    pub from: String,
    /// What is destroyed if the machine is restarted before the end, because the run then begins with its first step.
    pub again: Vec<Destroyed>,
}

/// A disk that steps destroy, as far as it is known before the machine chooses it.
#[derive(Clone, Debug, PartialEq)]
pub struct Destroyed {
    /// Names of the steps.
    pub steps: Vec<String>,
    /// What selects the disk.
    pub hints: DiskHints,
    /// The disks that fit the hints, as last seen.
    pub disks: Vec<Disk>,
}

/// Returns what a run would do if it was started now. Fails as [`start_run`] would.
pub async fn plan_run(store: &Store, ca: &str, reference: &str, new: NewRun) -> Result<Plan, Error> {
    plan(store, ca, reference, new, None).await
}

/// Returns what [`start`] would do.
pub(super) async fn plan(
    store: &Store,
    ca: &str,
    reference: &str,
    new: NewRun,
    again: Option<Again<'_>>,
) -> Result<Plan, Error> {
    let seen = examine(store, images_of(store, &new.task).await?).await?;
    let (leaves_power, afterwards) = (new.no_power, new.afterwards);
    let mut connection = store.read().await?;
    let failed = check_again(&mut connection, reference, again).await?;
    let Ready { node, composed, replaced, .. } = ready(&mut connection, &seen, ca, reference, new, now()).await?;
    let settings = settings(&composed);
    let taken = take_over(&mut connection, &node, failed, &settings, &composed.steps, now()).await?;
    let disks = node.inventory.as_ref().map(|inventory| inventory.disks.as_slice()).unwrap_or_default();
    let goes_on = composed.steps.get(taken.len()).filter(|_| !taken.is_empty());
    let goes_on = goes_on.map(|step| GoesOn { from: step.name.clone(), again: destroyed(&composed.steps, disks) });
    let destroyed = destroyed(composed.steps.get(taken.len()..).unwrap_or_default(), disks);
    let replaced = replaced.map(|run| run.id);
    let by_agent = !leaves_power && tasks::reboots_by_agent(&mut connection, &node, composed.require).await?;
    let boots = match by_agent {
        true => Some(BootsBy::Agent),
        false if leaves_power => None,
        false => power::ask::would_boot(&mut connection, &node).await?.then_some(BootsBy::Power),
    };
    Ok(Plan {
        goes_on,
        destroyed,
        replaced,
        settings,
        boots,
        afterwards,
        node: status::one(&mut connection, node).await?,
    })
}

fn destroyed(steps: &[Step], disks: &[Disk]) -> Vec<Destroyed> {
    let mut all: Vec<Destroyed> = Vec::new();
    for step in steps.iter().filter(|step| step.action.destroys()) {
        let Some(hints) = step.action.disk() else { continue };
        match all.iter_mut().find(|other| other.hints == *hints) {
            Some(other) => other.steps.push(step.name.clone()),
            None => all.push(Destroyed {
                steps: vec![step.name.clone()],
                hints: hints.clone(),
                disks: foresee::possible(hints, disks).into_iter().cloned().collect(),
            }),
        }
    }
    all
}

/// Makes sure that the run that is done again is the newest of its node, and failed, or is to be done again. Returns a
/// failed run with the step to go on with, if it is not the first.
async fn check_again<'a>(
    connection: &mut Connection,
    node: &str,
    again: Option<Again<'a>>,
) -> Result<Option<(Run, &'a str)>, Error> {
    let Some(again) = again else { return Ok(None) };
    let refused = |since: &str| {
        let message = format!("another run was started since run {} {since}; nothing was done", again.run());
        Error::refused(ErrorCode::Conflict, message)
    };
    match again {
        Again::Retry { run, from } => {
            let newest = runs::newest_of(connection, node).await?;
            let failed = newest.filter(|newest| newest.id == run && newest.progress.state == RunState::Failed);
            let failed = failed.ok_or_else(|| refused("failed"))?;
            Ok(from.map(|from| (failed, from)))
        }
        Again::Anew { run } => {
            let access = nodes::access(connection, node).await?;
            let anew = match &access {
                Some(access) => run_events::anew(connection, access).await?,
                None => None,
            };
            anew.filter(|anew| anew == run).map(|_| None).ok_or_else(|| refused("succeeded"))
        }
    }
}

/// A run that may be started.
struct Ready {
    node: Node,
    /// The operating system that it installs by name.
    os: Option<String>,
    composed: Composed,
    /// The run that is not over.
    replaced: Option<Run>,
}

/// Composes a run, and refuses one that is known to fail or that must not be started now. Changes nothing.
async fn ready(
    connection: &mut Connection,
    seen: &HashMap<Digest, Seen>,
    ca: &str,
    reference: &str,
    new: NewRun,
    now: Millis,
) -> Result<Ready, Error> {
    let node = known_node(connection, reference).await?;
    if node.state == NodeState::Decommissioned {
        let message = format!("node {} is out of service", node.label());
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    let afterwards = new.afterwards;
    if afterwards == Some(Afterwards::DecommissionAndPowerOff) {
        power::ask::switch(connection, &node).await?;
    }
    let newest = runs::newest_of(connection, &node.id).await?;
    let replaced = newest.filter(|run| state::is_open(run.progress.state));
    if let Some(run) = replaced.as_ref().filter(|_| !new.replace) {
        let message = format!(
            "node {} has not finished run {} yet; to end that run as failed, replace it (--replace)",
            node.label(),
            run.id
        );
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    if let Some(run) = replaced.as_ref().filter(|run| run.afterwards.is_some() && afterwards.is_some()) {
        // A disk that erases itself does not stop for another run.
        let message = format!(
            "run {0} erases node {1} already; to begin again, cancel it (`run cancel {0}`)",
            run.id,
            node.label()
        );
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    let facts = Facts::load(connection).await?;
    let os = match &new.task {
        Task::Os(name) => Some(name.clone()),
        Task::Workflow(_) => None,
    };
    let system = system_of(connection, &new.task).await?;
    let arch = node.inventory.as_ref().map_or("", |inventory| inventory.cpu.arch.as_str());
    if let Some(problem) = system.as_ref().and_then(|system| foresee::foreign(system, arch)) {
        return Err(Error::refused(ErrorCode::Conflict, problem));
    }
    let loaded = Loaded { node: &node, system, facts: &facts, ca };
    let composed = compose(new, loaded, &Secrets::draw())?;
    if afterwards.is_some() && !composed.steps.iter().all(|step| matches!(step.action, Action::EraseDisk(_))) {
        // A system that was installed could report to nobody, and would not get what is kept for it.
        let message = "`afterwards` is for runs that do nothing but erase disks: leave it out, or leave out the other \
                       steps";
        return Err(Error::refused(ErrorCode::InvalidRequest, message));
    }
    if let Some(foreseen) = foresee(seen, &facts, machine_of(&node, now), &composed.steps) {
        // The run would fail once the disk was erased.
        let message = format!("{} would fail: {}", foreseen.place(&composed.steps), foreseen.problem);
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    Ok(Ready { node, os, composed, replaced })
}

/// Returns what a run was asked for, to compare it with other runs.
fn settings(composed: &Composed) -> Named {
    let mut settings = changes::settings(&secrets::hidden(composed.plain.clone()));
    let reports = if composed.phone_home_hash.is_some() { "yes" } else { "no" };
    settings.push(("required proof".to_owned(), to_word(&composed.require)));
    settings.push(("reports that it is up".to_owned(), reports.to_owned()));
    settings
}

/// Returns the operating system that a task names. `None` for a workflow, or if there is no system of this name.
async fn system_of(connection: &mut Connection, task: &Task) -> Result<Option<System>, Error> {
    match task {
        Task::Os(name) => systems::get_by_name(connection, name).await,
        Task::Workflow(_) => Ok(None),
    }
}

/// Returns the digests of the images that a task writes, as far as this server may have the images.
async fn images_of(store: &Store, task: &Task) -> Result<Vec<Digest>, Error> {
    let mut connection = store.read().await?;
    match task {
        Task::Workflow(workflow) => {
            let mut steps = workflow.steps.clone();
            images::resolve(&mut steps, &Facts::load(&mut connection).await?)?;
            Ok(foresee::images_of(&steps))
        }
        Task::Os(_) => Ok(system_of(&mut connection, task).await?.into_iter().map(|system| system.image).collect()),
    }
}

/// Returns what is certain about a node's machine. While the machine is off or runs its system, it may get other disks.
/// Its last report must not keep it from a run, because it reports again once it is given one. Its architecture stays.
fn machine_of(node: &Node, now: Millis) -> Machine<'_> {
    let Some(known) = &node.inventory else { return Machine::default() };
    let disks = if node.is_in_slipway(now) { known.disks.as_slice() } else { &[] };
    Machine { arch: &known.cpu.arch, disks }
}

/// Returns a run that no machine has fetched yet.
fn pending(node: &Node, id: &str, composed: &Composed, now: Millis) -> Run {
    let written = |step: &Step| match &step.action {
        Action::StreamImage(stream) => stream.digest.clone(),
        _ => None,
    };
    let image = composed.steps.iter().find_map(written);
    Run {
        id: id.to_owned(),
        node: node.id.clone(),
        progress: state::pending(&composed.steps),
        workflow: composed.steps.clone(),
        last_seq: 0,
        require: composed.require,
        event_bytes: 0,
        phone_home_hash: composed.phone_home_hash.clone(),
        phone_home: BTreeMap::new(),
        created_at: now,
        started_at: None,
        phoned_home_at: None,
        last_contact_at: None,
        keep_metadata: composed.keep_metadata,
        has_metadata_url: false,
        forgotten: false,
        restored: false,
        os: None,
        image,
        afterwards: None,
        done: 0,
        boot_id: None,
        begins: 0,
        destroyed: false,
    }
}

/// Stores a new run, the external steps it expects, and the token of its boot reporter.
async fn insert(connection: &mut Connection, run: &Run, composed: Composed, now: Millis) -> Result<(), Error> {
    runs::insert(connection, run, &composed.instances).await?;
    external_steps::expect(connection, &run.id, &composed.known_steps).await?;
    let tokens = composed.boot_hash.iter().map(|hash| (hash, Purpose::Boot));
    for (hash, purpose) in tokens.chain(composed.image_hashes.iter().map(|hash| (hash, Purpose::Image))) {
        run_tokens::insert(connection, hash, &run.id, purpose, now).await?;
    }
    Ok(())
}

/// Ends a run because of another one.
async fn replace(transaction: &mut Transaction, mut run: Run, by: &str, now: Millis) -> Result<(), Error> {
    state::end(&mut run.progress, &format!("replaced by run {by}"), now);
    let event = NewEvent::new(format!("the run was replaced by run {by}")).of_run(&run);
    did(transaction, SiteEventKind::RunEnded, event).await?;
    runs::update(transaction, &run).await
}

/// Returns the runs of a node, or of all nodes, oldest first, without reports from outside of their workflows.
pub async fn list_runs(store: &Store, reference: Option<&str>) -> Result<Vec<RunStatus>, Error> {
    let mut connection = store.read().await?;
    let mut runs = match reference {
        Some(reference) => {
            let node = known_node(&mut connection, reference).await?;
            runs::of_node(&mut connection, &node.id).await?
        }
        None => runs::all(&mut connection).await?,
    };
    for run in &mut runs {
        notes::add_to(&mut connection, run).await?;
    }
    Ok(runs.into_iter().map(|run| status::of_run(run, now())).collect())
}

/// Returns the runs that were started since a time, in milliseconds since 1970, oldest first, without reports from
/// outside of their workflows.
pub async fn runs_since(store: &Store, since: Millis) -> Result<Vec<RunStatus>, Error> {
    let runs = runs::since(&mut *store.read().await?, since).await?;
    Ok(runs.into_iter().map(|run| status::of_run(run, now())).collect())
}

/// Returns a run with its reports, and its steps with their options, without secrets. `reference` is the id of the run,
/// or a node, whose newest run is meant.
pub async fn show_run(store: &Store, reference: &str) -> Result<(RunStatus, Vec<Step>), Error> {
    let mut connection = store.read().await?;
    let run = known_run(&mut connection, reference).await?;
    let steps = secrets::masked(run.workflow.clone());
    Ok((status::with_reports(&mut connection, run).await?, steps))
}

/// Ends the run with this id, or the newest run of a node, as failed. The machine stops the current step, and waits.
pub async fn cancel_run(store: &Store, reference: &str) -> Result<RunStatus, Error> {
    let mut transaction = store.write().await?;
    let mut run = known_run(&mut transaction, reference).await?;
    if !state::is_open(run.progress.state) {
        let message = format!("run {} is over; there is nothing to cancel", run.id);
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    let mut steps = run.progress.steps.iter().skip(run.done as usize);
    let began = run.last_seq > 0 || steps.any(|step| step.state != StepState::Pending);
    state::end(&mut run.progress, state::CANCELLED, now());
    runs::update(&mut transaction, &run).await?;
    // A machine that has not begun keeps its state.
    let event = if began { NodeEvent::RunFailed } else { NodeEvent::RunWithdrawn };
    let ended = NewEvent::new("the run was cancelled").of_run(&run);
    did(&mut transaction, SiteEventKind::RunEnded, ended).await?;
    node_state::advance(&mut transaction, &run, event).await?;
    secrets::forget_of_node(&mut transaction, &run.node).await?;
    notes::add_to(&mut transaction, &mut run).await?;
    store::commit(transaction).await?;
    tracing::info!(node = run.node, run = run.id, "run cancelled");
    Ok(status::of_run(run, now()))
}

/// Confirms an unfinished run of a restored backup, so that its machine gets it. `reference` is the id of the run, or a
/// node, whose newest run is meant.
pub async fn confirm_run(store: &Store, reference: &str) -> Result<RunStatus, Error> {
    let mut transaction = store.write().await?;
    let mut run = known_run(&mut transaction, reference).await?;
    if !run.is_held() {
        let message =
            format!("run {} does not wait to be confirmed: only unfinished runs of a restored backup do", run.id);
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    runs::confirm(&mut transaction, &run.id).await?;
    run.restored = false;
    let event = NewEvent::new("the run, which came from a backup, was confirmed").of_run(&run);
    did(&mut transaction, SiteEventKind::Operator, event).await?;
    notes::add_to(&mut transaction, &mut run).await?;
    store::commit(transaction).await?;
    tracing::info!(node = run.node, run = run.id, "restored run confirmed");
    Ok(status::of_run(run, now()))
}

pub(super) async fn known_run(connection: &mut Connection, reference: &str) -> Result<Run, Error> {
    if let Some(run) = runs::get_by_id(connection, reference).await? {
        return Ok(run);
    }
    let Some(node) = nodes::find(connection, reference).await? else {
        let message = format!("no run has the id {reference:?}, and no node has that id or name");
        return Err(Error::refused(ErrorCode::NotFound, message));
    };
    let run = runs::newest_of(connection, &node.id).await?;
    run.ok_or_else(|| Error::refused(ErrorCode::Conflict, format!("node {} has no run", node.label())))
}
