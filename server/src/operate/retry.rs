//! A failed run that is tried again: with what it was asked for, from its first step or a later one.

use slipway_protocol::{ErrorCode, RunState, RunStatus, StepState};

use super::kept::Kept;
use super::run::{Plan, Wanted, known_run, plan, start};
use crate::base::error::Error;
use crate::run::compose::Secrets;
use crate::run::new_run::NewRun;
use crate::store::runs::{self, Run};
use crate::store::{Store, run_requests};

/// A run to try again.
#[derive(Clone)]
pub struct Retry {
    /// What the run was asked for, to be signed again ([`NewRun::with_keys`]).
    pub new: NewRun,
    run: Run,
    /// The secrets of the run, which the system has that it installed so far.
    secrets: Secrets,
    /// Number of steps that were done when the run began.
    done: usize,
    /// Number of steps of the run that are not done again.
    skipped: usize,
}

/// Returns a run to try again from its first step. `reference` is the id of the run, or a node, whose newest run is
/// meant. Fails unless it is a node's newest run, failed, and what it was asked for is kept.
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
    let sealed = run_requests::get_by_run(&mut connection, &run.id).await?;
    let Some(sealed) = sealed else {
        return refused(format!(
            "what run {} was asked for is not kept, because an earlier version of slipway started it or the node was \
             out of service since then; start another run",
            run.id
        ));
    };
    match Kept::open(store, &run.id, &sealed)? {
        Ok(Kept { new, secrets, done }) => Ok(Retry { new, run, secrets, done, skipped: 0 }),
        Err(why) => refused(format!("what run {} was asked for {why}; start another run", run.id)),
    }
}

impl Retry {
    /// The id of the run.
    pub fn run(&self) -> &str {
        &self.run.id
    }

    /// Goes on with the step of this name or number, counted from 1. Fails if there is none, or if one before it has
    /// not succeeded: its work would be missing.
    pub fn from(mut self, step: &str) -> Result<Self, Error> {
        let steps = &self.run.progress.steps;
        let refused = |message: String| Err(Error::refused(ErrorCode::InvalidRequest, message));
        let named: Vec<usize> =
            steps.iter().enumerate().filter(|(_, known)| known.name == step).map(|(index, _)| index).collect();
        let number = step.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
        let index = match (named.as_slice(), number.filter(|index| *index < steps.len())) {
            ([index], _) => *index,
            ([], Some(index)) => index,
            ([], None) => {
                let names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
                return refused(format!("run {} has no step {step:?}; it has {}", self.run.id, names.join(", ")));
            }
            _ => return refused(format!("run {} has several steps {step:?}; give the number of one", self.run.id)),
        };
        let is_done = |step: &slipway_protocol::StepStatus| step.state == StepState::Succeeded;
        if let Some(missing) = steps.iter().take(index).find(|step| !is_done(step)) {
            return refused(format!(
                "step {:?} has not succeeded, and what comes after it needs its work; go on with it, or with a step \
                 before it",
                missing.name
            ));
        }
        self.skipped = index;
        Ok(self)
    }

    fn wanted(self) -> Wanted {
        let done = self.done + self.skipped;
        // If all is done again, nothing has the earlier secrets.
        let kept = match done {
            0 => Kept::new(self.new),
            _ => Kept { new: self.new, secrets: self.secrets, done },
        };
        Wanted { kept, retried: Some(self.run) }
    }
}

/// Starts a run that does again what failed.
///
/// `ca` is the certificate the installed system must trust to report.
pub async fn retry_run(store: &Store, ca: &str, retry: Retry) -> Result<RunStatus, Error> {
    let node = retry.run.node.clone();
    start(store, ca, &node, retry.wanted()).await
}

/// Returns what [`retry_run`] would do.
pub async fn plan_retry(store: &Store, ca: &str, retry: Retry) -> Result<Plan, Error> {
    let node = retry.run.node.clone();
    plan(store, ca, &node, retry.wanted()).await
}
