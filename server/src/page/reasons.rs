//! Why a node needs an operator, and what to do.

use slipway_protocol::node::boot_report::MAINTENANCE;
use slipway_protocol::shared::printable::line;
use slipway_protocol::{
    BootStatus, Claim, ClaimReason, ExternalStepStatus, NodeState, NodeStatus, RunState, RunStatus, Severity,
    StepState, StepStatus,
};

use crate::base::time::Millis;
use crate::page::words::Tone;
use crate::rules::trouble::WAITS;
use crate::store::to_word;

/// A sentence about a node, in its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// How bad it is: [`Tone::Quiet`] for what only tells more.
    pub tone: Tone,
    /// The sentence, without a duration, so that it stays the same as time passes.
    pub text: String,
    /// Since when, in milliseconds since 1970.
    pub since: Option<Millis>,
    /// The command to run next.
    pub command: Option<String>,
}

impl Reason {
    fn new(tone: Tone, text: impl Into<String>) -> Self {
        Self { tone, text: text.into(), since: None, command: None }
    }

    fn since(self, since: Millis) -> Self {
        Self { since: Some(since), ..self }
    }

    fn command(self, command: String) -> Self {
        Self { command: Some(command), ..self }
    }

    /// Whether an operator should look.
    pub fn is_flag(&self) -> bool {
        matches!(self.tone, Tone::Warn | Tone::Bad)
    }
}

/// Returns what an operator should know first of a node. `None` if its state says it all.
pub fn first(node: &NodeStatus, now: Millis) -> Option<Reason> {
    let run = node.run.as_ref();
    contested(node, now)
        .or_else(|| failed(node, run?))
        .or_else(|| restored(node, run?))
        .or_else(|| flagged(node))
        .or_else(|| boot_files(node))
        .or_else(|| reported(run?))
        .or_else(|| held(node))
        .or_else(|| pending(node, run?))
}

/// The worst trouble that the server noticed.
fn flagged(node: &NodeStatus) -> Option<Reason> {
    let flag = node.flags.iter().min_by_key(|flag| flag.severity)?;
    let tone = match flag.severity {
        Severity::Bad => Tone::Bad,
        Severity::Warn => Tone::Warn,
    };
    Some(Reason::new(tone, line(&flag.reason)).since(flag.since).command(flag.command.clone()))
}

/// Machines that claim to be a node which has another machine.
fn contested(node: &NodeStatus, now: Millis) -> Option<Reason> {
    let is_other = |claim: &&Claim| {
        let is_own = matches!(claim.reason, ClaimReason::NotReleased | ClaimReason::NothingToDo);
        claim.reason.identifiers_match() && !is_own && now.saturating_sub(claim.last_asked) <= WAITS
    };
    let claim = node.claims.iter().find(is_other)?;
    let others = node.claims.iter().filter(is_other).count() - 1;
    let more = if others > 0 { format!(", and {others} more") } else { String::new() };
    let why = claim.reason.in_words();
    let text = format!("contested by a machine at {}, claim code {}{more}: {why}", claim.address, claim.code);
    Some(Reason::new(Tone::Bad, text).since(claim.first_asked))
}

/// The step of a run that says how far it is: the running or failed one, else the last that is done.
pub fn current(run: &RunStatus) -> Option<(usize, &StepStatus)> {
    let steps = || run.steps.iter().enumerate();
    let now = |step: &StepStatus| matches!(step.state, StepState::Running | StepState::Failed | StepState::TimedOut);
    let done = || steps().rev().find(|(_, step)| step.state == StepState::Succeeded);
    steps().find(|(_, step)| now(step)).or_else(done).or_else(|| steps().next())
}

fn failed(node: &NodeStatus, run: &RunStatus) -> Option<Reason> {
    if run.state != RunState::Failed || matches!(node.state, NodeState::Decommissioned | NodeState::Running) {
        return None;
    }
    let failure = current(run)?.1.failure.as_ref()?;
    // A run that an operator ended before its machine began is no failure of the machine.
    let tone = if node.state == NodeState::Failed { Tone::Bad } else { Tone::Quiet };
    Some(Reason { since: run.finished_at, ..Reason::new(tone, failure.in_one_line()) })
}

fn restored(node: &NodeStatus, run: &RunStatus) -> Option<Reason> {
    let label = node.name.as_deref().unwrap_or(&node.id);
    let reason = Reason::new(Tone::Warn, "has a run from a restored backup, which waits to be confirmed");
    run.restored.then(|| reason.command(format!("slipway-server run confirm {label}")))
}

fn boot_files(node: &NodeStatus) -> Option<Reason> {
    let fetched = node.boot_files_fetched.as_ref()?;
    let newest = fetched.files.last()?;
    let silent = "was not heard from after it fetched its boot files: the kernel or its network did not come up; look \
                  at its console";
    let reason = match fetched.silent_since {
        Some(_) => Reason::new(Tone::Warn, silent),
        None => {
            let (file, way) = (line(&newest.file), to_word(&newest.way));
            Reason::new(Tone::Quiet, format!("fetched {file} by {way} from {}", newest.address))
        }
    };
    Some(reason.since(newest.at))
}

/// What was reported from outside of the workflow.
fn reported(run: &RunStatus) -> Option<Reason> {
    let failed = |status: &BootStatus| {
        let units = &status.report.failed_units;
        let stopped = status.report.system_state.as_deref() == Some(MAINTENANCE);
        let text = match units.first() {
            _ if stopped => "the installed system stopped in the emergency or rescue shell".to_owned(),
            None => return None,
            Some(unit) if units.len() == 1 => format!("the unit {} failed in the installed system", line(unit)),
            Some(unit) => {
                format!("the unit {} and {} more failed in the installed system", line(unit), units.len() - 1)
            }
        };
        Some(Reason::new(Tone::Warn, text).since(status.at))
    };
    let step = || run.external_steps.iter().rev().find(|step| step.status == Some(ExternalStepStatus::Failed));
    let of_step = || {
        let step = step()?;
        Some(Reason::new(Tone::Warn, format!("external step {} failed", line(&step.name))).since(step.updated_at))
    };
    run.boot.as_ref().and_then(failed).or_else(of_step)
}

fn held(node: &NodeStatus) -> Option<Reason> {
    let is_its_own = |claim: &&Claim| claim.reason.identifiers_match() || node.claim_code.as_ref() == Some(&claim.code);
    let claim = node.claims.iter().find(is_its_own).filter(|_| node.state == NodeState::Held)?;
    let shared = match claim.shared.as_slice() {
        [] => String::new(),
        shared => format!("; {} is probably shared by several machines", line(&shared.join(" and "))),
    };
    let code = &claim.code;
    let text = match (claim.reason, &claim.node) {
        (ClaimReason::NotReleased | ClaimReason::Unregistered, _) => {
            format!("asks to be let in from {}: claim code {code}{shared}", claim.address)
        }
        (reason, Some(other)) => format!("claim code {code}: {} ({}){shared}", reason.in_words(), line(other)),
        (reason, None) => format!("claim code {code}: {}{shared}", reason.in_words()),
    };
    Some(Reason::new(Tone::Quiet, text).command(format!("slipway-server node release {code}")))
}

fn pending(node: &NodeStatus, run: &RunStatus) -> Option<Reason> {
    let waits = run.state == RunState::Pending && node.state != NodeState::Decommissioned;
    waits.then(|| Reason::new(Tone::Quiet, "has a run, and takes it when it boots slipway").since(run.created_at))
}
