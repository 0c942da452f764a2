//! A failed run that is tried again, with what it was asked for.

use slipway_protocol::{ErrorCode, RunState, RunStatus};

use super::request;
use super::run::{Again, Plan, known_run, plan, start};
use crate::base::error::Error;
use crate::run::new_run::NewRun;
use crate::store::runs;
use crate::store::{Store, run_requests};

/// A run to try again.
#[derive(Clone)]
pub struct Retry {
    /// What the run was asked for. Keys for the firmware have to be signed again ([`NewRun::with_keys`]).
    pub new: NewRun,
    /// Id of the run.
    run: String,
    /// Id of its node.
    node: String,
    /// Name or number of the step to begin with, if not with the first.
    pub from: Option<String>,
}

impl Retry {
    /// Returns the id of the run that failed.
    pub fn run(&self) -> &str {
        &self.run
    }
}

/// Returns a run to try again. `reference` is the id of the run, or a node, whose newest run is meant. Fails unless the
/// run is its node's newest, failed, and what it was asked for is kept.
pub async fn retry_of(store: &Store, reference: &str) -> Result<Retry, Error> {
    let mut connection = store.read().await?;
    let run = known_run(&mut connection, reference).await?;
    let newest = runs::newest_of(&mut connection, &run.node).await?.map(|run| run.id);
    let refused = |message: String| Err(Error::refused(ErrorCode::Conflict, message));
    if let Some(newest) = newest.filter(|newest| *newest != run.id) {
        return refused(format!("run {} is not the newest of its node, which is {newest}; retry that one", run.id));
    }
    match run.progress.state {
        RunState::Failed => {}
        RunState::Succeeded => return refused(format!("run {} has succeeded; start another one", run.id)),
        RunState::Pending | RunState::Running => {
            return refused(format!("run {} is not over; cancel it first, or wait for its end", run.id));
        }
    }
    let Some(sealed) = run_requests::get_by_run(&mut connection, &run.id).await? else {
        return refused(format!(
            "what run {} was asked for is not kept, because an earlier version of slipway started it or the node was \
             out of service since then; start another run",
            run.id
        ));
    };
    match request::open(store, &run.id, &sealed)? {
        Ok(new) => Ok(Retry { new, run: run.id, node: run.node, from: None }),
        Err(why) => refused(format!("what run {} was asked for {why}; start another run", run.id)),
    }
}

/// Starts a run that does again what a failed one was asked for. Fails if that is not the newest of its node any more.
///
/// `ca` is the certificate the installed system must trust to report.
pub async fn retry_run(store: &Store, ca: &str, retry: Retry) -> Result<RunStatus, Error> {
    let Retry { new, run, node, from } = retry;
    start(store, ca, &node, new, Some(Again::Retry { run: &run, from: from.as_deref() })).await
}

/// Returns what [`retry_run`] would do.
pub async fn plan_retry(store: &Store, ca: &str, retry: Retry) -> Result<Plan, Error> {
    let Retry { new, run, node, from } = retry;
    plan(store, ca, &node, new, Some(Again::Retry { run: &run, from: from.as_deref() })).await
}
