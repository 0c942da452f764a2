//! What is wrong with a node, derived from what is known of it. Each kind of trouble says what was noticed, since when,
//! the likely cause, and the command to run next. docs/reference/states.md lists them.

use std::time::Duration;

use slipway_protocol::shared::{duration, printable};
use slipway_protocol::{
    Claim, ClaimReason, ExternalStep, ExternalStepStatus, Flag, FlagKind, NodeClass, NodeState, NodeStatus,
    POLL_SECONDS, PowerAct, PowerState, RunState, RunStatus, Severity, StepState, StepStatus,
};

use crate::base::time::Millis;
use crate::rules::limits::Limits;
use crate::rules::state;

/// Milliseconds for which a machine still counts as waiting after it last asked. A waiting machine asks every two
/// seconds.
pub const WAITS: Millis = 60_000;
/// Milliseconds without a request after which a machine without work counts as gone. It polls every `POLL_SECONDS`; one
/// poll may be lost.
pub const GONE: Millis = (2 * POLL_SECONDS + 5) * 1000;
/// Milliseconds over which boots, keys and refused reports of a node are counted.
pub const WINDOW: Millis = 60 * 60 * 1000;
/// Milliseconds that a step may take longer than usual, however short it usually is.
const LEEWAY: Millis = 30_000;
/// The command that prints the log of an installed system.
const HOST_LOG: &str = "node log NODE --kind host_boot";

/// What is known of a node beside its status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Since when servers have been able to hear nodes. Silence before that says nothing.
    pub heard_since: Millis,
    /// Whether the machine said that it leaves for its installed system.
    pub has_left: bool,
    /// Starts of slipway in the last hour.
    pub boots: Often,
    /// Runs that the machine fetched in the last hour. Each explains a start, and the new key that comes with it.
    pub runs: u64,
    /// New keys in the last hour.
    pub keys: Often,
    /// Reports that were not accepted in the last hour.
    pub refused: Option<Refused>,
    /// How the running step goes on other machines.
    pub usual: Option<Usual>,
}

/// How often something happened, and since when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Often {
    /// The number of times.
    pub times: u64,
    /// The first time.
    pub since: Millis,
}

/// Reports that were not accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// When the first of them came.
    pub since: Millis,
    /// When the last one came.
    pub at: Millis,
    /// Which report the last one was, and why it was refused.
    pub message: String,
}

/// How a step usually goes: medians over the runs that had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usual {
    /// Number of runs.
    pub runs: u64,
    /// How long it takes, in milliseconds.
    pub millis: Millis,
    /// Bytes per second, if it moves bytes.
    pub rate: Option<u64>,
}

/// Returns the medians of times that a step took, each in milliseconds and with the bytes that it moved. `None` without
/// any.
pub fn usual(times: &[(Millis, u64)]) -> Option<Usual> {
    let median = |mut values: Vec<u64>| {
        values.sort_unstable();
        values.get(values.len().saturating_sub(1) / 2).copied()
    };
    let rates = times.iter().filter(|(_, bytes)| *bytes > 0).map(|(millis, bytes)| rate(*bytes, *millis));
    Some(Usual {
        runs: times.len() as u64,
        millis: median(times.iter().map(|(millis, _)| *millis).collect())?,
        rate: median(rates.collect()),
    })
}

/// Returns bytes per second.
fn rate(bytes: u64, millis: Millis) -> u64 {
    u64::try_from(u128::from(bytes) * 1000 / u128::from(millis.max(1))).unwrap_or(u64::MAX)
}

/// Returns all trouble with a node, the worst first.
pub fn flags(node: &NodeStatus, known: &Known, limits: &Limits, now: Millis) -> Vec<Flag> {
    if node.state == NodeState::Decommissioned {
        return Vec::new();
    }
    let look = Look { node, run: node.run.as_ref(), known, limits, now };
    let silent = look.silent();
    let is_silent = silent.is_some();
    let mut flags: Vec<Flag> = silent.filter(|_| !look.may_be_gone()).into_iter().collect();
    flags.extend(look.stuck(is_silent));
    flags.extend(look.looping());
    flags.extend(look.came_back());
    flags.extend(look.contested());
    flags.extend(look.refused());
    flags.extend(look.power());
    flags.extend(look.task());
    flags.extend(look.draining());
    flags.extend(look.degraded());
    flags.extend(look.slow().filter(|_| !is_silent));
    sort(&mut flags);
    flags
}

/// Sorts flags, the worst first.
pub fn sort(flags: &mut [Flag]) {
    flags.sort_by_key(|flag| (flag.severity, flag.kind, flag.since));
}

/// Says why a run that gets nowhere is to end, if a limit has it end.
pub fn end(node: &NodeStatus, known: &Known, limits: &Limits, now: Millis) -> Option<String> {
    let run = node.run.as_ref().filter(|run| !run.restored)?;
    let look = Look { node, run: Some(run), known, limits, now };
    let beyond = |since: Option<Millis>, most: Option<Millis>| {
        let most = most?;
        look.beyond(since?, most).map(|_| duration::words(Duration::from_millis(most)))
    };
    match (run.state, running(run)) {
        (RunState::Pending, _) => beyond(Some(run.created_at), limits.end("stuck.pending"))
            .map(|after| format!("the machine did not fetch the run within {after}")),
        (RunState::Running, None) if !has_begun(run) => beyond(run.started_at, limits.end("stuck.enrolled"))
            .map(|after| format!("the run did not begin within {after} after it was fetched")),
        (RunState::Running, Some((_, step))) => {
            let silent = beyond(node.last_seen, limits.end("silent.step"))
                .map(|after| format!("nothing was heard from the machine for {after}"));
            let progressed = step.progressed_at.or(step.started_at);
            silent.or_else(|| {
                beyond(progressed, limits.end_of_step(&step.action))
                    .map(|after| format!("the step made no progress for {after}"))
            })
        }
        (RunState::Running | RunState::Succeeded | RunState::Failed, _) => None,
    }
}

/// Returns when the installed system of a run was last heard from.
pub fn system_heard_at(run: &RunStatus) -> Option<Millis> {
    let booted = run.boot.as_ref().map(|boot| boot.at);
    let stepped = run.external_steps.iter().map(|step| step.updated_at).max();
    run.last_contact_at.max(booted).max(stepped)
}

/// Whether a claim is one that an operator must decide on: its machine waits now, and is not simply to be released.
pub fn is_contested(claim: &Claim, now: Millis) -> bool {
    claim.reason.identifiers_match()
        && !matches!(claim.reason, ClaimReason::NotReleased | ClaimReason::NothingToDo)
        && now.saturating_sub(claim.last_asked) <= WAITS
}

fn running(run: &RunStatus) -> Option<(usize, &StepStatus)> {
    run.steps.iter().enumerate().find(|(_, step)| step.state == StepState::Running)
}

fn has_begun(run: &RunStatus) -> bool {
    run.steps.iter().skip(run.done as usize).any(|step| step.state != StepState::Pending)
}

/// Names a step: `step 2/5 stream-image`.
fn named(run: &RunStatus, index: usize, step: &StepStatus) -> String {
    format!("step {}/{} {}", index + 1, run.steps.len(), step.name)
}

/// A look at a node.
struct Look<'a> {
    node: &'a NodeStatus,
    run: Option<&'a RunStatus>,
    known: &'a Known,
    limits: &'a Limits,
    now: Millis,
}

impl Look<'_> {
    fn age(&self, since: Millis) -> Millis {
        self.now.saturating_sub(since)
    }

    /// Whether its system runs, and is to go on.
    fn is_up(&self) -> bool {
        matches!(self.node.state, NodeState::Running | NodeState::Draining)
            && !self.run.is_some_and(|run| state::is_open(run.state) && !run.restored)
    }

    /// Returns since when nothing happened, if that is as long as a limit. Time before any server listened does not
    /// count.
    fn beyond(&self, since: Millis, most: Millis) -> Option<Millis> {
        let since = since.max(self.known.heard_since);
        (self.age(since) >= most).then_some(since)
    }

    /// Makes a flag. In the command, `NODE` stands for the node.
    fn flag(
        &self,
        (kind, severity): (FlagKind, Severity),
        since: Millis,
        reason: impl Into<String>,
        cause: impl Into<String>,
        command: &str,
    ) -> Flag {
        let label = self.node.name.as_deref().or(self.node.claim_code.as_deref()).unwrap_or(&self.node.id);
        let command = format!("slipway-server {}", command.replace("NODE", label));
        let (reason, cause) = (reason.into(), cause.into());
        Flag { kind, severity, since, step: None, limit: None, reason, cause, command }
    }

    /// Says which limit there is on the silence of the machine, what it does, and when it was last heard from. Nothing
    /// if nobody expects it to say something.
    fn awaited(&self) -> Option<(&'static str, String, Millis)> {
        let seen = self.node.last_seen;
        if self.node.boot_files_fetched.is_some() {
            // It was restarted since.
            return None;
        }
        match (self.node.state, self.run) {
            (NodeState::Decommissioned | NodeState::Registered, _) => None,
            // The backup knows it as it was then: its system may run by now.
            (_, Some(run)) if run.restored => None,
            (NodeState::Held, _) => {
                let asked = self.node.claims.iter().map(|claim| claim.last_asked).max()?;
                Some(("silent.waiting", "while it waited to be let in".to_owned(), asked))
            }
            (_, Some(run)) if run.state == RunState::Running => Some(match running(run) {
                Some((index, step)) => ("silent.step", format!("in {}", named(run, index, step)), seen?),
                None => ("silent.waiting", "between two steps".to_owned(), seen?),
            }),
            // Whether its machine fetches the run is another question.
            (_, Some(run)) if run.state == RunState::Pending => None,
            (NodeState::Booting | NodeState::Running | NodeState::Draining, _) if self.node.agent.is_some() => {
                Some(("silent.agent", "while its system ran".to_owned(), seen?))
            }
            // Without an agent, an installed system sends no signs of life.
            _ if self.known.has_left => None,
            // It came back once, and may run its system by now.
            (NodeState::Installed, Some(run)) if state::leaves(&run.steps) => None,
            (NodeState::Booting | NodeState::Running | NodeState::Draining, _) => None,
            (
                NodeState::Enrolled
                | NodeState::Installing
                | NodeState::Installed
                | NodeState::Failed
                | NodeState::Terminating,
                _,
            ) => Some(("silent.waiting", "while it waited for work".to_owned(), seen?)),
        }
    }

    fn silent(&self) -> Option<Flag> {
        let (limit, doing, heard) = self.awaited()?;
        let since = self.beyond(heard, self.limits.millis(limit))?;
        let reason = format!("has been silent {doing}");
        let (severity, cause, command) = match limit {
            "silent.step" => (
                Severity::Bad,
                "it was switched off, crashed, or lost its network; if it does not come back, power-cycle it: it \
                 begins the run again",
                "node log NODE",
            ),
            "silent.agent" => (
                Severity::Bad,
                "its system crashed, was switched off, or lost its network, or its agent was stopped",
                "node agent NODE",
            ),
            _ => (
                Severity::Warn,
                "it was switched off, started something else, or lost its network",
                "events --node NODE",
            ),
        };
        Some(self.flag((FlagKind::Silent, severity), since, reason, cause, command).by_limit(limit))
    }

    /// Whether the silence of its machine says nothing, because it may be taken away at any time.
    fn may_be_gone(&self) -> bool {
        self.node.class == NodeClass::Spot
    }

    fn stuck(&self, is_silent: bool) -> Vec<Flag> {
        // A machine that fetched boot files was restarted, which says more.
        let silent = self.boot_files().filter(|_| !self.may_be_gone());
        let booting = self.booting().filter(|_| !self.may_be_gone());
        let flags = silent.or_else(|| self.pending()).into_iter().chain(booting);
        flags.chain(self.begun().filter(|_| !is_silent)).chain(self.external()).collect()
    }

    fn pending(&self) -> Option<Flag> {
        let run = self.run.filter(|run| run.state == RunState::Pending && !run.restored)?;
        let limit = "stuck.pending";
        let since = self.beyond(run.created_at, self.limits.millis(limit))?;
        let cause = match self.node.last_seen.is_some_and(|seen| self.age(seen) <= WAITS) {
            true => {
                "it is in slipway and asks for work, but proved less than its run requires: restart it, and look \
                     at what it must prove"
            }
            false => {
                "it was not restarted, or did not start slipway: restart it from the network or a boot medium, \
                      and look at its console"
            }
        };
        Some(self.flag(STUCK, since, "has not fetched its run", cause, "node show NODE").by_limit(limit))
    }

    fn boot_files(&self) -> Option<Flag> {
        // Whoever fetches boot files of a machine whose system runs is not the machine, unless it is to take a run.
        let fetched = self.node.boot_files_fetched.as_ref().filter(|_| !self.is_up())?;
        let newest = fetched.files.last()?.at;
        let limit = "stuck.boot-files";
        let since = self.beyond(newest, self.limits.millis(limit))?;
        let (reason, cause) = (
            "has been silent after fetching its boot files",
            "the kernel or its network did not come up; look at its console",
        );
        Some(self.flag(STUCK, since, reason, cause, "status NODE").by_limit(limit))
    }

    /// A run that was fetched: whether it begins, and its running step.
    fn begun(&self) -> Option<Flag> {
        let run = self.run.filter(|run| run.state == RunState::Running && !run.restored)?;
        let Some((index, step)) = running(run) else {
            let fetched = run.started_at.filter(|_| !has_begun(run))?;
            let limit = "stuck.enrolled";
            let since = self.beyond(fetched, self.limits.millis(limit))?;
            let cause = "slipway looks for disks, or at the images of the run, and does not come to an end";
            return Some(self.flag(STUCK, since, "has not begun its run", cause, "node log NODE").by_limit(limit));
        };
        let since = self.beyond(step.progressed_at.or(step.started_at)?, self.limits.of_step(&step.action))?;
        let cause = match step.progress.as_ref().and_then(|progress| progress.waiting_for) {
            Some(stage) => format!("the step waits for {}; look at the log", stage.in_words()),
            None => "the step waits for a disk, a network or a program; look at the log".to_owned(),
        };
        let reason = format!("has made no progress in {}", named(run, index, step));
        let flag = self.flag(STUCK, since, reason, cause, "node log NODE");
        Some(flag.of_step(&step.name).by_limit(self.limits.name_of_step(&step.action)))
    }

    fn external(&self) -> Vec<Flag> {
        let limit = "stuck.external";
        let most = self.limits.millis(limit);
        let cause = "what reports it hangs, ended without a word, or cannot reach the server";
        let command = "events --node NODE --kind external-step,report-refused";
        let of_step = |step: &ExternalStep| {
            let since = self.beyond(step.updated_at, most)?;
            let reason = format!("has not reported the external step {} again", step.name);
            let flag = self.flag((FlagKind::Stuck, Severity::Warn), since, reason, cause, command);
            Some(flag.of_step(&step.name).by_limit(limit))
        };
        let begun = |step: &&ExternalStep| step.status == Some(ExternalStepStatus::Init);
        self.external_steps().iter().filter(begun).filter_map(of_step).collect()
    }

    fn external_steps(&self) -> &[ExternalStep] {
        self.run.map(|run| run.external_steps.as_slice()).unwrap_or_default()
    }

    fn looping(&self) -> Vec<Flag> {
        // A job that runs each day ends each time.
        let limit = "looping.external";
        let is_repeated = |step: &&ExternalStep| {
            step.status != Some(ExternalStepStatus::Done) && u64::from(step.begins) >= self.limits.times(limit)
        };
        let external = self.external_steps().iter().filter(is_repeated).map(|step| {
            let reason = format!("began the external step {} {} times", step.name, step.begins);
            let cause = "what reports it fails and is started again, or its machine restarts in the middle";
            let command = "events --node NODE --kind external-step";
            let flag = self.flag((FlagKind::Looping, Severity::Warn), step.first_at, reason, cause, command);
            flag.of_step(&step.name).by_limit(limit)
        });
        // One of them, because each of the later ones follows from the one before.
        // A machine whose system runs is out of it.
        let often = || self.keys().or_else(|| self.boots()).filter(|_| !self.is_up());
        let machine = self.begins().or_else(|| self.anew()).or_else(often).or_else(|| self.system_boots());
        machine.into_iter().chain(external).collect()
    }

    fn begins(&self) -> Option<Flag> {
        let run = self.run.filter(|run| run.state == RunState::Running && !run.restored)?;
        let limit = "looping.begins";
        if u64::from(run.begins) < self.limits.times(limit) {
            return None;
        }
        let reason = format!("began its run {} times", run.begins);
        let cause = "it restarts in the middle: power, memory, a watchdog, or a step that makes its kernel crash";
        let command = "events --node NODE --kind restarted,step-started";
        let since = run.started_at.unwrap_or(run.created_at);
        Some(self.flag(LOOPING, since, reason, cause, command).by_limit(limit))
    }

    /// An ephemeral node that is installed again and again.
    fn anew(&self) -> Option<Flag> {
        let limit = "looping.boots";
        if self.node.class != NodeClass::Ephemeral || self.known.runs < self.limits.times(limit) {
            return None;
        }
        let reason = format!("took {} runs within an hour", self.known.runs);
        let cause = "its firmware starts slipway first, so that each restart of its system reinstalls it: check the \
                     boot order, or raise the limit if that is meant";
        let command = "events --node NODE --kind enrolled,run-started";
        Some(self.flag(LOOPING, self.known.boots.since, reason, cause, command).by_limit(limit))
    }

    fn keys(&self) -> Option<Flag> {
        let limit = "looping.keys";
        let keys = Some(self.known.keys).filter(|keys| self.unexplained(keys) >= self.limits.times(limit))?;
        let reason = format!("had {} new keys within an hour", keys.times);
        let cause = "it restarts again and again, or two machines have the same identifiers";
        let command = "events --node NODE --kind key-changed,enrolled";
        Some(self.flag(LOOPING, keys.since, reason, cause, command).by_limit(limit))
    }

    /// How often something happened for which there was no run.
    fn unexplained(&self, often: &Often) -> u64 {
        often.times.saturating_sub(self.known.runs)
    }

    fn boots(&self) -> Option<Flag> {
        let boots = Some(self.known.boots).filter(|boots| self.unexplained(boots) >= self.limits.times(BOOTS))?;
        let for_runs =
            if self.known.runs > 0 { format!(", {} of them for runs", self.known.runs) } else { String::new() };
        let reason = format!("started slipway {} times within an hour{for_runs}", boots.times);
        let cause = "it restarts again and again, or does not start from its disk: look at the boot order";
        let command = "events --node NODE --kind enrolled,run-ended";
        Some(self.flag(LOOPING, boots.since, reason, cause, command).by_limit(BOOTS))
    }

    fn contested(&self) -> Option<Flag> {
        let is_contested = |claim: &&Claim| is_contested(claim, self.now);
        let claim = self.node.claims.iter().find(is_contested)?;
        let others = self.node.claims.iter().filter(is_contested).count() - 1;
        let more = if others > 0 { format!(", and by {others} more") } else { String::new() };
        let (address, code, why) = (&claim.address, &claim.code, claim.reason.in_words());
        let reason =
            format!("is claimed by a machine at {address} with claim code {code}, which is not let in: {why}{more}");
        let cause = "two machines have the same identifiers, or the machine, its TPM or its boot files changed; \
                     compare both before you release one";
        Some(self.flag((FlagKind::Contested, Severity::Bad), claim.first_asked, reason, cause, "status NODE"))
    }

    fn refused(&self) -> Option<Flag> {
        // A report that was accepted later makes up for it.
        let accepted = self.run.and_then(system_heard_at);
        let refused = self.known.refused.as_ref().filter(|refused| accepted < Some(refused.at))?;
        let reason = format!("sent a report that was not accepted: {}", refused.message);
        let cause = "it came from the system of an earlier run, with a wrong token, or too often";
        let command = "events --node NODE --kind report-refused";
        Some(self.flag((FlagKind::ReportRefused, Severity::Warn), refused.since, reason, cause, command))
    }

    fn power(&self) -> Option<Flag> {
        let power = self.node.power.as_ref()?;
        let act = power.failed.as_ref()?;
        let (at, run) = (act.ended_at?, self.run.filter(|run| act.run.as_ref() == Some(&run.id)));
        // Somebody may have pressed the button.
        let has_started = act.act != PowerAct::Off && self.node.last_seen > Some(at);
        let run = run.filter(|run| run.state == RunState::Pending);
        // Without its run there is nothing to be done, unless the machine was left off.
        let is_over = act.run.is_some() && run.is_none() && (!act.switched || power.state == Some(PowerState::On));
        if has_started || is_over {
            return None;
        }
        let why = act.reason.as_deref().unwrap_or("no reason is known");
        let reason = format!("could not be {}: {why}", act.act.in_words());
        let cause = "the address, the user or the password is wrong, or the BMC does not answer; try again once that \
                     is mended, or press the button";
        let command = match act.act {
            PowerAct::On => "node power on NODE",
            PowerAct::Off => "node power off NODE",
            PowerAct::Cycle => "node power cycle NODE",
            PowerAct::Status => "node power status NODE",
            PowerAct::Boot => "node power boot NODE",
        };
        let severity = if run.is_some() { Severity::Bad } else { Severity::Warn };
        Some(self.flag((FlagKind::Power, severity), at, reason, cause, command))
    }

    fn slow(&self) -> Option<Flag> {
        let run = self.run.filter(|run| run.state == RunState::Running && !run.restored)?;
        // The times of a later attempt cannot be told from those of the earlier ones.
        let (index, step) = running(run).filter(|(_, step)| step.attempt <= 1)?;
        let usual = self.known.usual.filter(|usual| usual.runs >= self.limits.times("slow.runs"))?;
        let (began, times) = (step.started_at?, self.limits.times("slow.times"));
        let elapsed = self.age(began);
        let own = step.progress.as_ref().map(|progress| rate(progress.bytes, elapsed)).filter(|rate| *rate > 0);
        let what = named(run, index, step);
        let reason = match (own, usual.rate) {
            (Some(own), Some(usual)) => {
                let (own_size, usual_size) = (printable::size(own), printable::size(usual));
                let is_slow = own.saturating_mul(times) < usual && elapsed > LEEWAY;
                is_slow.then(|| format!("is slow in {what}: {own_size}/s, where {usual_size}/s is usual"))
            }
            _ => {
                let is_slow = elapsed > usual.millis.saturating_mul(times).max(usual.millis + LEEWAY);
                let words = duration::words(Duration::from_millis(usual.millis));
                is_slow.then(|| format!("is slow in {what}, which usually takes {words}"))
            }
        };
        let cause = "its disk or its network is slower than those of other machines, or many machines install now";
        let flag = self.flag((FlagKind::Slow, Severity::Warn), began, reason?, cause, "run compare NODE");
        Some(flag.of_step(&step.name).by_limit("slow.times"))
    }
}

const STUCK: (FlagKind, Severity) = (FlagKind::Stuck, Severity::Bad);
const LOOPING: (FlagKind, Severity) = (FlagKind::Looping, Severity::Bad);
/// The limit on starts of slipway, and of installed systems.
const BOOTS: &str = "looping.boots";

mod system;
#[cfg(test)]
mod tests;
