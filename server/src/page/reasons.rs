//! Why a node needs an operator, and what to do.

use slipway_protocol::shared::printable::line;
use slipway_protocol::{
    Claim, ClaimReason, ExternalStepStatus, Flag, NodeState, NodeStatus, RunState, RunStatus, Severity, StepState,
    StepStatus, TaskState, TaskStatus,
};

use crate::base::time::Millis;
use crate::page::words::Tone;
use crate::store::to_word;

/// A sentence about a node, in its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// How bad it is: [`Tone::Quiet`] for what only tells more.
    pub tone: Tone,
    /// The sentence, without a duration, so that it stays the same as time passes.
    pub text: String,
    /// The likely cause, and what to do about it. Empty if the sentence says it.
    pub cause: String,
    /// Since when, in milliseconds since 1970.
    pub since: Option<Millis>,
    /// The command to run next.
    pub command: Option<String>,
}

impl Reason {
    /// A sentence about nothing that has a beginning or that a command changes.
    pub fn new(tone: Tone, text: impl Into<String>) -> Self {
        Self { tone, text: text.into(), cause: String::new(), since: None, command: None }
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
pub fn first(node: &NodeStatus) -> Option<Reason> {
    let run = node.run.as_ref();
    failed(node, run)
        .filter(|reason| reason.is_flag() || node.flags.is_empty())
        .or_else(|| node.flags.first().map(of_flag))
        .or_else(|| power(node))
        .or_else(|| task(node))
        .or_else(|| restored(node, run?))
        .or_else(|| boot_files(node))
        .or_else(|| external(run?))
        .or_else(|| held(node))
        .or_else(|| pending(node, run?))
}

/// What was noticed, with its cause and the command to run next.
pub fn of_flag(flag: &Flag) -> Reason {
    let tone = match flag.severity {
        Severity::Bad => Tone::Bad,
        Severity::Warn => Tone::Warn,
    };
    Reason {
        cause: line(&flag.cause).into_owned(),
        since: Some(flag.since),
        command: Some(line(&flag.command).into_owned()),
        ..Reason::new(tone, line(&flag.reason))
    }
}

/// The step of a run that says how far it is: the running or failed one, else the last that is done.
pub fn current(run: &RunStatus) -> Option<(usize, &StepStatus)> {
    let steps = || run.steps.iter().enumerate();
    let now = |step: &StepStatus| matches!(step.state, StepState::Running | StepState::Failed | StepState::TimedOut);
    let done = || steps().rev().find(|(_, step)| step.state == StepState::Succeeded);
    steps().find(|(_, step)| now(step)).or_else(done).or_else(|| steps().next())
}

fn failed(node: &NodeStatus, run: Option<&RunStatus>) -> Option<Reason> {
    let run = run?;
    if run.state != RunState::Failed
        || matches!(node.state, NodeState::Decommissioned | NodeState::Running | NodeState::Draining)
    {
        return None;
    }
    let failure = current(run)?.1.failure.as_ref()?;
    // A run that an operator ended before its machine began is no failure of the machine.
    let tone = if node.state == NodeState::Failed { Tone::Bad } else { Tone::Quiet };
    let label = line(node.name.as_deref().unwrap_or(&node.id));
    let command = (tone == Tone::Bad).then(|| format!("slipway-server run compare {label}"));
    Some(Reason { since: run.finished_at, command, ..Reason::new(tone, failure.in_one_line()) })
}

fn restored(node: &NodeStatus, run: &RunStatus) -> Option<Reason> {
    let label = node.name.as_deref().unwrap_or(&node.id);
    let reason = Reason::new(Tone::Warn, "has a run from a restored backup, which waits to be confirmed");
    run.restored.then(|| reason.command(format!("slipway-server run confirm {label}")))
}

/// What is being done with its power.
fn power(node: &NodeStatus) -> Option<Reason> {
    let act = node.power.as_ref()?.act.as_ref().filter(|act| act.state.is_open())?;
    Some(Reason::new(Tone::Quiet, line(&act.in_words())).since(act.asked_at))
}

/// What the agent of its system does or did to it.
fn task(node: &NodeStatus) -> Option<Reason> {
    node.agent.as_ref()?;
    let is_drained = |state| node.state == NodeState::Draining && state == TaskState::Succeeded;
    let is_told = |task: &&TaskStatus| task.state.is_open() || is_drained(task.state);
    let task = node.task.as_ref().filter(is_told)?;
    Some(Reason::new(Tone::Quiet, line(&task.in_words())).since(task.asked_at))
}

fn boot_files(node: &NodeStatus) -> Option<Reason> {
    let newest = node.boot_files_fetched.as_ref()?.files.last()?;
    let (file, way) = (line(&newest.file), to_word(&newest.way));
    Some(Reason::new(Tone::Quiet, format!("fetched {file} by {way} from {}", newest.address)).since(newest.at))
}

/// A step outside of the workflow that reported that it failed.
fn external(run: &RunStatus) -> Option<Reason> {
    let step = run.external_steps.iter().rev().find(|step| step.status == Some(ExternalStepStatus::Failed))?;
    Some(Reason::new(Tone::Warn, format!("external step {} failed", line(&step.name))).since(step.updated_at))
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
