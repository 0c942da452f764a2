//! States of nodes, runs and steps, and the events that change them. The functions are pure; the store keeps the
//! results.

use slipway_protocol::{Event, EventKind, Failure, NodeState, Progress, RunState, Step, StepState, StepStatus};

use crate::base::time::Millis;

/// An event in the life of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// The machine asked to enrol and must wait.
    ToldToWait,
    /// The machine got its credentials.
    Enrolled,
    /// An operator started a run on the node.
    GivenWork,
    /// The machine fetched its run.
    TookWork,
    /// The machine fetched its last run, after which it goes out of service, or began a step of it.
    TookLastWork,
    /// The machine began a step.
    StepStarted,
    /// Every step of the run succeeded.
    RunSucceeded(AfterRun),
    /// A step failed for good.
    RunFailed,
    /// An operator cancelled the run before any step had begun.
    RunWithdrawn,
    /// The installed system has reported: that of the newest run, or of the one before if the newest was not fetched.
    PhonedHome,
    /// The installed system has finished starting, and no other report from it is expected.
    SystemRuns,
    /// The work of the running system is being taken away.
    DrainBegan,
    /// The running system keeps its work, or has it again.
    DrainEnded,
    /// An operator took the node out of service.
    Decommissioned,
    /// An operator put the node back into service.
    Recommissioned,
}

/// Whether the installed system reports, as known when its run succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterRun {
    /// The system does not report.
    NotAsked,
    /// A report is expected.
    Awaited,
    /// The system has already reported.
    Reported,
}

/// Returns the state of a node after an event.
pub fn next(state: NodeState, what: NodeEvent) -> NodeState {
    use NodeState as S;
    match (state, what) {
        (_, NodeEvent::Decommissioned) => S::Decommissioned,
        (S::Decommissioned, NodeEvent::Recommissioned) => S::Registered,
        // No event of the machine brings a node back.
        (S::Decommissioned, _) => state,
        (S::Registered | S::Held | S::Enrolled, NodeEvent::ToldToWait) => S::Held,
        (S::Registered | S::Held, NodeEvent::Enrolled) => S::Enrolled,
        // Its last run was taken back.
        (S::Terminating, NodeEvent::RunWithdrawn) => S::Enrolled,
        // A power-cycled machine enrols again, and that alone changes nothing.
        (_, NodeEvent::ToldToWait | NodeEvent::Enrolled | NodeEvent::RunWithdrawn | NodeEvent::Recommissioned) => state,
        // An installed system goes on until its machine takes the run.
        (S::Registered | S::Held | S::Installed | S::Booting | S::Running | S::Draining, NodeEvent::GivenWork) => state,
        (S::Running, NodeEvent::DrainBegan) => S::Draining,
        (S::Draining, NodeEvent::DrainEnded) => S::Running,
        (_, NodeEvent::DrainBegan | NodeEvent::DrainEnded) => state,
        // The new run replaces the state from an earlier run, whether that installed a system or failed.
        (_, NodeEvent::GivenWork | NodeEvent::TookWork) => S::Enrolled,
        (_, NodeEvent::TookLastWork) => S::Terminating,
        (_, NodeEvent::StepStarted) => S::Installing,
        (_, NodeEvent::RunSucceeded(AfterRun::NotAsked)) => S::Installed,
        (_, NodeEvent::RunSucceeded(AfterRun::Awaited)) => S::Booting,
        (_, NodeEvent::RunSucceeded(AfterRun::Reported)) => S::Running,
        (_, NodeEvent::RunFailed) => S::Failed,
        (S::Booting | S::Installed, NodeEvent::PhonedHome | NodeEvent::SystemRuns) => S::Running,
        // While the run is in progress, the report is only recorded; see [`AfterRun::Reported`].
        (_, NodeEvent::PhonedHome | NodeEvent::SystemRuns) => state,
    }
}

/// The part of a run that events change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunProgress {
    /// State of the run.
    pub state: RunState,
    /// State of each step.
    pub steps: Vec<StepStatus>,
    /// When the run ended, in milliseconds since 1970. `None` while it has not.
    pub finished_at: Option<Millis>,
    /// Whether an operator ended the run.
    pub ended: bool,
}

/// The effect of an event on its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunTransition {
    /// The run continues, or had already ended.
    None,
    /// A step began.
    StepStarted,
    /// The last step of the run succeeded, and so did the run.
    Succeeded,
    /// A step failed finally, and so did the run.
    Failed,
}

/// The event names a step that its workflow does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event {seq} is about step {step}, but the run has {steps} steps, counted from 0")]
pub struct NoSuchStep {
    /// Sequence number of the event.
    pub seq: u64,
    /// Index of the step in the event.
    pub step: u32,
    /// Number of steps in the run.
    pub steps: usize,
}

/// Returns the progress of a run that no machine has fetched yet.
pub fn pending(steps: &[Step]) -> RunProgress {
    let steps = steps.iter().map(|step| blank(step.name.clone(), step.action.name().to_owned())).collect();
    RunProgress { state: RunState::Pending, steps, finished_at: None, ended: false }
}

fn blank(name: String, action: String) -> StepStatus {
    StepStatus {
        name,
        action,
        state: StepState::Pending,
        attempt: 0,
        started_at: None,
        finished_at: None,
        progressed_at: None,
        usual: None,
        progress: None,
        notes: Vec::new(),
        outcome: None,
        failure: None,
    }
}

/// Applies one event to its run. `now` is the server's clock, the only clock used for a run, because the machine's
/// clock in the event may be off by a second or by years.
///
/// A run that has ended accepts only notes and skipped steps. The first attempt of a step resets that step and the
/// later ones, because the machine was power-cycled and starts over.
pub fn apply(run: &mut RunProgress, event: &Event, now: Millis) -> Result<RunTransition, NoSuchStep> {
    let at = usize::try_from(event.step).unwrap_or(usize::MAX);
    let steps = run.steps.len();
    if at >= steps {
        return Err(NoSuchStep { seq: event.seq, step: event.step, steps });
    }
    if !is_open(run.state) && !matches!(event.kind, EventKind::Note(_) | EventKind::Skipped) {
        return Ok(RunTransition::None);
    }
    if matches!(event.kind, EventKind::Started) && event.attempt == 1 {
        begin_again(&mut run.steps[at..]);
    }
    let turn = apply_to_step(&mut run.steps[at], event, now);
    match turn {
        RunTransition::StepStarted => run.state = RunState::Running,
        RunTransition::Failed => {
            end_as_failed(run, now);
        }
        RunTransition::Succeeded if run.steps.iter().all(|step| step.state == StepState::Succeeded) => {
            run.state = RunState::Succeeded;
            run.finished_at = Some(now);
        }
        RunTransition::Succeeded | RunTransition::None => return Ok(RunTransition::None),
    }
    Ok(turn)
}

/// Makes steps pending, because the machine begins with the first of them.
pub fn begin_again(steps: &mut [StepStatus]) {
    for step in steps {
        let usual = step.usual;
        *step = StepStatus { usual, ..blank(std::mem::take(&mut step.name), std::mem::take(&mut step.action)) };
    }
}

fn apply_to_step(step: &mut StepStatus, event: &Event, now: Millis) -> RunTransition {
    step.attempt = step.attempt.max(event.attempt);
    match &event.kind {
        EventKind::Started => {
            step.state = StepState::Running;
            step.started_at.get_or_insert(now);
            (step.progressed_at, step.progress) = (Some(now), None);
            return RunTransition::StepStarted;
        }
        EventKind::Progress(progress) => {
            let moved = |progress: &Progress| (progress.bytes, progress.fetched);
            if step.progress.as_ref().map(moved) != Some(moved(progress)) {
                step.progressed_at = Some(now);
            }
            step.progress = Some(progress.clone());
        }
        // Notes are stored separately, by `store::notes`.
        EventKind::Note(_) => step.progressed_at = Some(now),
        EventKind::Retrying(failure) => {
            step.progressed_at = Some(now);
            step.failure = Some(failure.clone());
        }
        EventKind::Skipped => step.state = StepState::Skipped,
        EventKind::Succeeded(outcome) => {
            step.state = StepState::Succeeded;
            step.finished_at = Some(now);
            step.outcome = Some(outcome.clone());
            step.failure = None;
            return RunTransition::Succeeded;
        }
        EventKind::Failed(failure) => return end_step(step, StepState::Failed, failure, now),
        EventKind::TimedOut(failure) => return end_step(step, StepState::TimedOut, failure, now),
    }
    RunTransition::None
}

fn end_step(step: &mut StepStatus, state: StepState, failure: &Failure, at: Millis) -> RunTransition {
    step.state = state;
    step.finished_at = Some(at);
    step.failure = Some(failure.clone());
    RunTransition::Failed
}

/// Ends a run on an operator's behalf, unless it has ended. The current step fails with this reason.
pub fn end(run: &mut RunProgress, reason: &str, now: Millis) {
    run.ended |= is_open(run.state);
    fail(run, &Failure { reason: reason.to_owned(), ..Failure::default() }, now);
}

/// Why the step failed that an operator's `run cancel` ended.
pub const CANCELLED: &str = "cancelled by an operator";

/// Whether an operator cancelled the run with these steps. Its state is that of a failed run.
pub fn is_cancelled(steps: &[StepStatus]) -> bool {
    steps.iter().any(|step| step.failure.as_ref().is_some_and(|failure| failure.reason == CANCELLED))
}

/// Ends a run that cannot continue, unless it has ended. The current step fails with this failure.
pub fn fail(run: &mut RunProgress, failure: &Failure, now: Millis) {
    if !is_open(run.state) {
        return;
    }
    let current = run.steps.iter_mut().find(|step| matches!(step.state, StepState::Running | StepState::Pending));
    if let Some(step) = current {
        end_step(step, StepState::Failed, failure, now);
    }
    end_as_failed(run, now);
}

/// Names of actions after which the machine runs the installed system instead of slipway.
const LEAVES: [&str; 2] = ["reboot", "kexec"];

/// Returns whether the last of these steps makes the machine leave slipway for the installed system.
pub fn leaves(steps: &[StepStatus]) -> bool {
    steps.last().is_some_and(|step| LEAVES.contains(&&*step.action))
}

/// Returns whether a run in this state has not ended.
pub fn is_open(run: RunState) -> bool {
    matches!(run, RunState::Pending | RunState::Running)
}

fn end_as_failed(run: &mut RunProgress, now: Millis) {
    run.state = RunState::Failed;
    run.finished_at = Some(now);
    for step in run.steps.iter_mut().filter(|step| step.state == StepState::Pending) {
        step.state = StepState::Skipped;
    }
}

#[cfg(test)]
mod tests {
    use slipway_protocol::{Action, EraseDisk, Outcome, Reboot};

    use super::*;

    #[test]
    fn a_node_goes_from_registered_to_running() {
        use NodeEvent as H;
        use NodeState as S;
        let table = [
            (S::Registered, H::ToldToWait, S::Held),
            (S::Registered, H::Enrolled, S::Enrolled),
            (S::Held, H::Enrolled, S::Enrolled),
            (S::Enrolled, H::StepStarted, S::Installing),
            (S::Installing, H::Enrolled, S::Installing),
            (S::Installing, H::RunSucceeded(AfterRun::NotAsked), S::Installed),
            (S::Installing, H::RunSucceeded(AfterRun::Awaited), S::Booting),
            (S::Installing, H::RunSucceeded(AfterRun::Reported), S::Running),
            (S::Installing, H::PhonedHome, S::Installing),
            (S::Installing, H::RunFailed, S::Failed),
            (S::Booting, H::PhonedHome, S::Running),
            (S::Installed, H::PhonedHome, S::Running),
            (S::Booting, H::SystemRuns, S::Running),
            (S::Installing, H::SystemRuns, S::Installing),
            (S::Failed, H::SystemRuns, S::Failed),
            (S::Running, H::PhonedHome, S::Running),
            (S::Running, H::Enrolled, S::Running),
            (S::Running, H::StepStarted, S::Installing),
            (S::Failed, H::PhonedHome, S::Failed),
            (S::Failed, H::Enrolled, S::Failed),
            (S::Failed, H::StepStarted, S::Installing),
            (S::Registered, H::GivenWork, S::Registered),
            (S::Held, H::GivenWork, S::Held),
            (S::Running, H::GivenWork, S::Running),
            (S::Running, H::TookWork, S::Enrolled),
            (S::Running, H::RunWithdrawn, S::Running),
            (S::Booting, H::GivenWork, S::Booting),
            (S::Booting, H::TookWork, S::Enrolled),
            (S::Failed, H::GivenWork, S::Enrolled),
            (S::Enrolled, H::TookWork, S::Enrolled),
            (S::Decommissioned, H::TookWork, S::Decommissioned),
            (S::Enrolled, H::PhonedHome, S::Enrolled),
            (S::Running, H::TookLastWork, S::Terminating),
            (S::Enrolled, H::TookLastWork, S::Terminating),
            (S::Terminating, H::TookLastWork, S::Terminating),
            (S::Terminating, H::Enrolled, S::Terminating),
            (S::Terminating, H::PhonedHome, S::Terminating),
            (S::Terminating, H::RunFailed, S::Failed),
            (S::Terminating, H::RunWithdrawn, S::Enrolled),
            (S::Terminating, H::GivenWork, S::Enrolled),
            (S::Terminating, H::Decommissioned, S::Decommissioned),
            (S::Decommissioned, H::TookLastWork, S::Decommissioned),
            (S::Running, H::Decommissioned, S::Decommissioned),
            (S::Decommissioned, H::Recommissioned, S::Registered),
            (S::Running, H::Recommissioned, S::Running),
            (S::Decommissioned, H::Enrolled, S::Decommissioned),
            (S::Decommissioned, H::PhonedHome, S::Decommissioned),
            (S::Decommissioned, H::GivenWork, S::Decommissioned),
            (S::Running, H::DrainBegan, S::Draining),
            (S::Draining, H::DrainBegan, S::Draining),
            (S::Draining, H::DrainEnded, S::Running),
            (S::Draining, H::GivenWork, S::Draining),
            (S::Draining, H::TookWork, S::Enrolled),
            (S::Draining, H::PhonedHome, S::Draining),
            (S::Draining, H::Enrolled, S::Draining),
            (S::Installing, H::DrainBegan, S::Installing),
            (S::Enrolled, H::DrainEnded, S::Enrolled),
            (S::Decommissioned, H::DrainEnded, S::Decommissioned),
        ];
        for (state, what, expect) in table {
            assert_eq!(next(state, what), expect, "{state:?} after {what:?}");
        }
    }

    fn two_steps() -> RunProgress {
        let step = |name: &str, action| Step { name: name.to_owned(), action, retries: 0, timeout: None };
        pending(&[
            step("erase", Action::EraseDisk(EraseDisk::default())),
            step("reboot", Action::Reboot(Reboot::default())),
        ])
    }

    fn event(step: u32, attempt: u32, kind: EventKind) -> Event {
        Event { seq: 1, at: 7, step, attempt, kind }
    }

    fn failure(reason: &str) -> Failure {
        Failure { reason: reason.to_owned(), ..Failure::default() }
    }

    /// Applies the events and checks the states of the run and its two steps and the last transition. Returns the run.
    fn check(events: &[Event], expect: (RunState, [StepState; 2], RunTransition)) -> RunProgress {
        let mut run = two_steps();
        let mut turn = RunTransition::None;
        for event in events {
            turn = apply(&mut run, event, 9).expect("the step exists");
        }
        let states = [run.steps[0].state, run.steps[1].state];
        assert_eq!((run.state, states, turn), expect, "{events:?}");
        run
    }

    #[test]
    fn events_move_a_run_to_its_end() {
        use EventKind as K;
        use StepState as S;
        let done = || K::Succeeded(Outcome::default());
        let first = [event(0, 1, K::Started), event(0, 1, done())];
        check(&first[..1], (RunState::Running, [S::Running, S::Pending], RunTransition::StepStarted));
        check(&first, (RunState::Running, [S::Succeeded, S::Pending], RunTransition::None));

        let both = [first.as_slice(), &[event(1, 1, K::Started), event(1, 1, done())]].concat();
        let run = check(&both, (RunState::Succeeded, [S::Succeeded, S::Succeeded], RunTransition::Succeeded));
        assert_eq!(run.finished_at, Some(9));

        let failed = [event(0, 1, K::Started), event(0, 1, K::Failed(failure("no disk")))];
        let run = check(&failed, (RunState::Failed, [S::Failed, S::Skipped], RunTransition::Failed));
        assert_eq!(run.steps[0].failure, Some(failure("no disk")));
        let times = [run.steps[0].started_at, run.steps[0].finished_at, run.finished_at];
        assert_eq!(times, [Some(9); 3], "by one clock, the server's");

        let late = [failed.as_slice(), &[event(1, 1, K::Started)]].concat();
        check(&late, (RunState::Failed, [S::Failed, S::Skipped], RunTransition::None));

        let timed_out = [event(0, 1, K::TimedOut(failure("took 600 s")))];
        check(&timed_out, (RunState::Failed, [S::TimedOut, S::Skipped], RunTransition::Failed));
    }

    #[test]
    fn a_retry_keeps_why_the_last_attempt_failed_and_starts_its_progress_anew() {
        let progress = Progress { bytes: 5, ..Progress::default() };
        let events = [
            event(0, 1, EventKind::Started),
            event(0, 1, EventKind::Progress(progress)),
            event(0, 1, EventKind::Retrying(failure("reset"))),
            event(0, 2, EventKind::Started),
        ];
        let expect = (RunState::Running, [StepState::Running, StepState::Pending], RunTransition::StepStarted);
        let run = check(&events, expect);
        assert_eq!(run.steps[0].attempt, 2);
        assert_eq!(run.steps[0].progress, None);
        assert_eq!(run.steps[0].failure, Some(failure("reset")));
    }

    #[test]
    fn a_machine_that_was_power_cycled_starts_over() {
        let events = [
            event(0, 1, EventKind::Started),
            event(0, 1, EventKind::Succeeded(Outcome::default())),
            event(1, 1, EventKind::Started),
            event(1, 1, EventKind::Note("half-way".to_owned())),
            event(0, 1, EventKind::Started),
        ];
        let expect = (RunState::Running, [StepState::Running, StepState::Pending], RunTransition::StepStarted);
        let run = check(&events, expect);
        assert_eq!(run.steps[0].outcome, None);
        assert_eq!(run.steps[1], two_steps().steps[1]);
    }

    #[test]
    fn an_event_about_a_step_that_does_not_exist_is_refused() {
        let refused = apply(&mut two_steps(), &event(2, 1, EventKind::Started), 9);
        assert_eq!(refused, Err(NoSuchStep { seq: 1, step: 2, steps: 2 }));
    }

    #[test]
    fn a_run_an_operator_ends_says_why() {
        let mut run = two_steps();
        end(&mut run, "replaced by run r2", 9);
        assert_eq!((run.state, run.ended), (RunState::Failed, true));
        assert_eq!(run.steps[0].failure, Some(failure("replaced by run r2")));
        assert_eq!(run.steps[1].state, StepState::Skipped);
        let before = run.clone();
        end(&mut run, "again", 10);
        assert_eq!(run, before, "it was over");
    }

    #[test]
    fn a_run_that_failed_by_itself_was_not_ended() {
        let failed = [event(0, 1, EventKind::Started), event(0, 1, EventKind::Failed(failure("no disk")))];
        let mut run =
            check(&failed, (RunState::Failed, [StepState::Failed, StepState::Skipped], RunTransition::Failed));
        end(&mut run, "replaced by run r2", 10);
        assert!(!run.ended);
        assert_eq!(run.steps[0].failure, Some(failure("no disk")));
    }
}
