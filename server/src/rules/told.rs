//! What the history of the site says of the reports of machines.

use std::time::Duration;

use slipway_protocol::shared::duration;
use slipway_protocol::{
    BootReport, BootStage, Event, EventKind, ExternalStep, RunState, SiteEventKind, StepState, StepStatus,
};

use crate::base::time::Millis;

/// Returns the kind of an event of a step and a sentence, or nothing for one that is of no interest later. `steps` are
/// the steps of the run.
pub fn of_step(event: &Event, steps: &[StepStatus]) -> Option<(SiteEventKind, String)> {
    let index = usize::try_from(event.step).ok()?;
    let name = &steps.get(index)?.name;
    let step = format!("step {}/{} {name}", index + 1, steps.len());
    let again = match event.attempt {
        0 | 1 => String::new(),
        attempt => format!(", attempt {attempt}"),
    };
    Some(match &event.kind {
        EventKind::Started => (SiteEventKind::StepStarted, format!("{step} began{again}")),
        EventKind::Retrying(failure) => {
            (SiteEventKind::StepRetrying, format!("{step} is tried again: {}", failure.in_one_line()))
        }
        EventKind::Succeeded(outcome) if outcome.left_out => {
            let reason = outcome.warnings.first().unwrap_or(&outcome.summary);
            (SiteEventKind::StepEnded, format!("{step} was left out: {reason}"))
        }
        EventKind::Succeeded(outcome) => (SiteEventKind::StepEnded, format!("{step} is done: {}", outcome.summary)),
        EventKind::Failed(failure) => (SiteEventKind::StepEnded, format!("{step} failed: {}", failure.in_one_line())),
        EventKind::TimedOut(failure) => {
            (SiteEventKind::StepEnded, format!("{step} took too long: {}", failure.in_one_line()))
        }
        EventKind::Progress(_) | EventKind::Note(_) | EventKind::Skipped => return None,
    })
}

/// Says how a run ended. `began` is when it was started, `ended` when it ended.
pub fn of_end(state: RunState, steps: &[StepStatus], began: Millis, ended: Millis) -> String {
    let took = duration::words(Duration::from_millis(ended.saturating_sub(began)));
    let failed = |step: &&StepStatus| matches!(step.state, StepState::Failed | StepState::TimedOut);
    match steps.iter().find(failed) {
        Some(step) => {
            let reason = step.failure.as_ref().map(|failure| format!(": {}", failure.in_one_line()));
            format!("the run failed after {took}, in step {}{}", step.name, reason.unwrap_or_default())
        }
        None if state == RunState::Succeeded => format!("the run succeeded after {took}"),
        None => format!("the run ended after {took}"),
    }
}

/// Says what a boot reporter reported. `boots` is the number of boots so far.
pub fn of_boot(report: &BootReport, boots: u32) -> String {
    let stage = match report.stage {
        BootStage::Booting => "is starting",
        BootStage::Restarted => "was restarted and is starting",
        BootStage::Running => "has started",
    };
    let state = report.system_state.as_ref().map(|state| format!(", systemd says {state}")).unwrap_or_default();
    let units = match report.failed_units.as_slice() {
        [] => String::new(),
        units => format!("; these units failed: {}", units.join(", ")),
    };
    format!("the installed system {stage} in boot {boots}{state}{units}")
}

/// Says what an external step is at after a report.
pub fn of_external_step(step: &ExternalStep) -> String {
    let label = step.label.as_ref().filter(|label| *label != &step.name);
    let label = label.map(|label| format!(" ({label})")).unwrap_or_default();
    let status = step.status.map_or_else(String::new, |status| format!(": {}", status.word()));
    let percent = step.percent.map(|percent| format!(", {percent} %")).unwrap_or_default();
    format!("external step {}{label}{status}{percent}, report {}", step.name, step.reports)
}
