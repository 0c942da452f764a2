//! Notices trouble with nodes, records when it begins and ends, and ends runs by limits that are set to do so.
//!
//! One server of a site does so at a time. All that it needs is in the database, so another one can go on at any time.

use std::time::Duration;

use slipway_protocol::{Flag, NodeStatus, SiteEventKind, StepState};

use crate::base::error::{Error, chain};
use crate::base::set_clock::Clocks;
use crate::base::time::{Millis, now};
use crate::node::flags::Facts;
use crate::node::reports::{node_state, secrets};
use crate::node::status::{self, Seen};
use crate::node::tasks;
use crate::rules::state::{self, NodeEvent};
use crate::site::leases::Lease;
use crate::store::history::{self, NewEvent};
use crate::store::{self, Connection, Store, flags, nodes, runs};

/// Interval at which is looked for trouble.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Name of the lease of the server that looks.
const LEASE: &str = "noticing trouble";

/// Looks for trouble, as long as the server runs, if no other server does. `server` is the id of this one.
pub async fn keep(store: &Store, server: &str) {
    // A server that was away, or whose clock was set, cannot tell who was silent meanwhile.
    let (mut heard_since, mut is_failing, mut clocks) = (0, false, Clocks::read());
    loop {
        let held = Lease::new(store, LEASE, server).wait().await;
        let looking = async {
            loop {
                if clocks.look().is_some() {
                    heard_since = now();
                }
                match look(store, heard_since, now()).await {
                    Ok(()) => is_failing = false,
                    Err(error) => {
                        heard_since = now();
                        if !std::mem::replace(&mut is_failing, true) {
                            tracing::error!(error = chain(&error), "could not look for trouble with nodes");
                        }
                    }
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        // It ends when the lease is lost, as in an outage of the database.
        let _: Option<()> = held.during(looking).await;
        heard_since = now();
    }
}

/// What is different from what was noticed before.
#[derive(Debug, Default)]
struct Difference {
    /// Trouble that begins, with the id of the node.
    begins: Vec<(String, Flag)>,
    /// Trouble that is over.
    is_over: Vec<(String, Flag)>,
    /// Nodes whose runs are to end.
    ends: Vec<String>,
}

/// Looks at all nodes once, and records what is different from what was noticed before. Silence before `heard_since`
/// does not count.
pub async fn look(store: &Store, heard_since: Millis, now: Millis) -> Result<(), Error> {
    let mut connection = store.read().await?;
    let facts = Facts::load(&mut connection, None, now).await?.hearing_since(heard_since);
    // Most nodes of a large site are idle, and to read all of them each time would be half of what the server does.
    let suspects = facts.suspects(&mut connection, now).await?;
    let Seen { nodes, left, .. } = status::unflagged(&mut connection, Some(&suspects), now).await?;
    let facts = facts.of(&mut connection, &nodes, left).await?;
    drop(connection);
    tasks::end_forgotten(store, facts.heard_since(), now).await?;
    let found = compare(&nodes, &facts, now);
    if found.begins.is_empty() && found.is_over.is_empty() && found.ends.is_empty() {
        return Ok(());
    }
    let mut transaction = store.write().await?;
    // Another server that lost the lease may have been as fast.
    for (node, flag) in &found.begins {
        if flags::insert(&mut transaction, node, flag).await? {
            let message = format!("the machine {}", flag.reason);
            record(&mut transaction, SiteEventKind::Flagged, node, flag, message, now).await?;
        }
    }
    for (node, flag) in &found.is_over {
        if flags::remove(&mut transaction, node, flag).await? {
            let message = format!("over: the machine {}", flag.reason);
            record(&mut transaction, SiteEventKind::Unflagged, node, flag, message, now).await?;
        }
    }
    for node in &found.ends {
        // Its machine may have reported while the others waited for their turn to write.
        let fresh = status::unflagged(&mut transaction, Some(std::slice::from_ref(node)), now).await?.nodes;
        for node in &fresh {
            if let (Some(run), Some(reason)) = (&node.run, facts.end(node, now)) {
                end(&mut transaction, &run.id, &reason, now).await?;
            }
        }
    }
    store::commit(transaction).await
}

fn compare(nodes: &[NodeStatus], facts: &Facts, now: Millis) -> Difference {
    let mut found = Difference::default();
    for node in nodes {
        let (flags, before) = (facts.flags(node, now), facts.noticed(&node.id));
        let ended = before.iter().filter(|before| !flags.iter().any(|flag| flag.is_same(before)));
        found.is_over.extend(ended.map(|flag| (node.id.clone(), flag.clone())));
        let begun = flags.into_iter().filter(|flag| !before.iter().any(|before| before.is_same(flag)));
        found.begins.extend(begun.map(|flag| (node.id.clone(), flag)));
        found.ends.extend(facts.end(node, now).map(|_| node.id.clone()));
    }
    found
}

async fn record(
    connection: &mut Connection,
    kind: SiteEventKind,
    node: &str,
    flag: &Flag,
    message: String,
    now: Millis,
) -> Result<(), Error> {
    let event = NewEvent::new(message).of_id(node).report(store::to_json(flag));
    let event = flag.step.iter().fold(event, |event, step| event.step(step));
    history::record(connection, kind, event, now).await
}

/// Ends a run as failed, unless it ended or was confirmed meanwhile.
async fn end(connection: &mut Connection, run: &str, reason: &str, now: Millis) -> Result<(), Error> {
    let Some(mut run) = runs::get_by_id(connection, run).await? else { return Ok(()) };
    if !state::is_open(run.progress.state) || run.is_held() {
        return Ok(());
    }
    let began = run.progress.steps.iter().skip(run.done as usize).any(|step| step.state != StepState::Pending);
    state::end(&mut run.progress, &format!("ended by a limit: {reason}"), now);
    runs::update(connection, &run).await?;
    let event = NewEvent::new(format!("the run was ended by a limit: {reason}")).of_run(&run);
    history::record(connection, SiteEventKind::RunEnded, event, now).await?;
    let ended = if began { NodeEvent::RunFailed } else { NodeEvent::RunWithdrawn };
    node_state::advance(connection, &run, ended).await?;
    secrets::forget_of_node(connection, &run.node).await?;
    if let Some(node) = nodes::get_by_id(connection, &run.node).await? {
        tracing::warn!(node = node.label(), run = run.id, reason, "run ended by a limit");
    }
    Ok(())
}
