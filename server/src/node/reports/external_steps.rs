//! External steps, reported by anything that has a run's token. They are separate from the workflow's steps and never
//! change them.

use slipway_protocol::node::external_step::DEFAULT_PRIORITY;
use slipway_protocol::{
    ErrorCode, ExternalStep, ExternalStepAck, ExternalStepReport, ExternalStepStatus, SiteEventKind,
};

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::node::reports::run_token;
use crate::rules::told;
use crate::store;
use crate::store::history::{self, NewEvent};
use crate::store::run_tokens::Purpose;
use crate::store::{Store, external_steps};

/// Maximum number of external steps of a run.
pub const MAX_STEPS: u64 = 100;
/// Longest label in characters, and largest log kept of a step in bytes.
const MAX_LABEL: usize = 200;
const MAX_LOGS: usize = 8 << 10;

/// Stores a report of an [admitted](run_token::admit) caller. A step whose name the run does not expect is stored and
/// flagged.
pub async fn store(
    store: &Store,
    token: &str,
    report: ExternalStepReport,
    now: Millis,
) -> Result<ExternalStepAck, Error> {
    if let Some(problem) = report.problem() {
        return Err(Error::refused(ErrorCode::InvalidRequest, problem));
    }
    check_label(&report)?;
    let mut transaction = store.write().await?;
    let run = run_token::caller(&mut transaction, token, Purpose::Steps, now).await?;
    let before = external_steps::get_by_name(&mut transaction, &run.id, &report.name).await?;
    if before.is_none() && external_steps::count(&mut transaction, &run.id).await? >= MAX_STEPS {
        let message =
            format!("run {} already has {MAX_STEPS} external steps; report under the names of existing steps", run.id);
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    let known = external_steps::expected(&mut transaction, &run.id).await?;
    let unknown = !known.is_empty() && !known.contains(&report.name);
    let warning =
        unknown.then(|| format!("run {} does not expect a step {:?}; the report was stored", run.id, report.name));
    let step = updated(before, report, unknown, now);
    external_steps::save(&mut transaction, &run.id, &step).await?;
    let without_logs = ExternalStep { logs: String::new(), ..step.clone() };
    let event = NewEvent::new(told::of_external_step(&step)).of_run(&run).step(&step.name);
    let event = event.report(store::to_json(&without_logs));
    history::record(&mut transaction, SiteEventKind::ExternalStep, event, now).await?;
    store::commit(transaction).await?;
    Ok(ExternalStepAck { warning })
}

/// Refuses a label that is too long to display.
fn check_label(report: &ExternalStepReport) -> Result<(), Error> {
    let length = report.label.as_deref().map_or(0, |label| label.trim().chars().count());
    if length <= MAX_LABEL {
        return Ok(());
    }
    let message = format!("the label has {length} characters, but may have at most {MAX_LABEL}");
    Err(Error::refused(ErrorCode::InvalidRequest, message))
}

/// Returns a step as changed by a report. Fields that the report leaves out stay, and its log is appended.
fn updated(before: Option<ExternalStep>, report: ExternalStepReport, unknown: bool, now: Millis) -> ExternalStep {
    let begins = begins(before.as_ref().and_then(|step| step.status), &report);
    let mut step = before.unwrap_or_else(|| ExternalStep {
        name: report.name,
        label: None,
        priority: DEFAULT_PRIORITY,
        status: None,
        percent: None,
        unknown,
        reports: 0,
        begins: 0,
        first_at: now,
        updated_at: now,
        logs: String::new(),
    });
    step.reports += 1;
    step.begins += u32::from(begins);
    step.updated_at = now;
    step.label = report.label.map(|label| line(&label)).or(step.label);
    step.priority = report.priority.unwrap_or(step.priority);
    step.status = report.status.or(step.status);
    step.percent = report.percent.or(step.percent);
    if let Some(logs) = report.logs {
        append(&mut step.logs, &logs);
    }
    step
}

/// Whether a step begins with a report: it says so of a step that is not at it, or says nothing else. A report with a
/// log or a percentage is about a step that goes on.
fn begins(before: Option<ExternalStepStatus>, report: &ExternalStepReport) -> bool {
    let goes_on = report.percent.is_some_and(|percent| percent > 0) || report.logs.is_some();
    report.status == Some(ExternalStepStatus::Init) && !(before == Some(ExternalStepStatus::Init) && goes_on)
}

/// Returns the text as one line that is safe for a terminal.
fn line(text: &str) -> String {
    let shown = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    shown.collect::<String>().trim().to_owned()
}

/// Appends lines to a log, and keeps the newest `MAX_LOGS` bytes.
fn append(log: &mut String, lines: &str) {
    let shown = lines.chars().map(|c| if c.is_control() && !matches!(c, '\n' | '\t') { ' ' } else { c });
    log.extend(shown);
    if !log.ends_with('\n') {
        log.push('\n');
    }
    let excess = log.len().saturating_sub(MAX_LOGS);
    let start = (excess..log.len()).find(|at| log.is_char_boundary(*at)).unwrap_or(0);
    log.drain(..start);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(name: &str) -> ExternalStepReport {
        ExternalStepReport { name: name.to_owned(), ..ExternalStepReport::default() }
    }

    #[test]
    fn what_a_report_leaves_out_stays() {
        let (label, percent) = (Some("Packages".to_owned()), Some(10));
        let (priority, status, logs) = (Some(7), Some(ExternalStepStatus::Init), Some("a".to_owned()));
        let begun = ExternalStepReport { label, percent, priority, status, logs, ..report("packages") };
        let step = updated(None, begun, false, 5);
        let more = ExternalStepReport { logs: Some("b\n".to_owned()), ..report("packages") };
        let step = updated(Some(step), more, false, 9);
        assert_eq!((step.label.as_deref(), step.percent, step.priority), (Some("Packages"), Some(10), 7));
        assert_eq!((step.status, step.logs.as_str()), (Some(ExternalStepStatus::Init), "a\nb\n"));
        assert_eq!((step.reports, step.first_at, step.updated_at), (2, 5, 9));
    }

    #[test]
    fn what_is_shown_is_bounded_and_moves_no_cursor() {
        let (label, logs) = (Some(" \u{1b}[2J\nä\n".to_owned()), Some("x\r\u{1b}[0m\ty".to_owned()));
        let step = updated(None, ExternalStepReport { label, logs, ..report("a") }, false, 1);
        assert_eq!(step.label, Some("[2J ä".to_owned()));
        assert_eq!(step.logs, "x  [0m\ty\n");
        let logs = Some(format!("{}end", "ä".repeat(5000)));
        let step = updated(Some(step), ExternalStepReport { logs, ..report("a") }, false, 2);
        assert!(step.logs.len() <= MAX_LOGS && step.logs.ends_with("äend\n"), "{}", step.logs.len());
    }
}
