//! Reports of installed systems' boot reporters. The caller has already [admitted](run_token::admit) the token.

use slipway_protocol::node::boot_report::{MAX_BOOT_WORD_BYTES, MAX_FAILED_UNITS, is_unit_name};
use slipway_protocol::{
    Action, BootKnown, BootReport, BootStage, BootStatus, ErrorCode, HOST_BOOT_LOG, NodeState, SiteEventKind, Step,
    StepStatus,
};

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::node::reports::{node_state, run_token};
use crate::rules::state::NodeEvent;
use crate::rules::told;
use crate::store;
use crate::store::boot_reports::{self, HostLog};
use crate::store::history::{self, NewEvent};
use crate::store::run_tokens::Purpose;
use crate::store::runs::Run;
use crate::store::{Connection, Store, nodes};

/// Returns whether the installed system of a run has a boot reporter: a step installs one and was not left out.
pub fn is_awaited(run: &Run) -> bool {
    let has_one = |(step, status): (&Step, &StepStatus)| {
        let is_left_out = status.outcome.as_ref().is_some_and(|outcome| outcome.left_out);
        matches!(step.action, Action::BootReporter(_)) && !is_left_out
    };
    run.workflow.iter().zip(&run.progress.steps).any(has_one)
}

/// Returns what a boot reporter needs to know before its first report.
pub async fn known(store: &Store, token: &str, now: Millis) -> Result<BootKnown, Error> {
    let mut transaction = store.write().await?;
    let run = run_token::caller(&mut transaction, token, Purpose::Boot, now).await?;
    let last = boot_reports::of_run(&mut transaction, &run.id).await?;
    let node = state_of(&mut transaction, &run).await?;
    store::commit(transaction).await?;
    Ok(BootKnown { node, last: last.map(|status| status.report) })
}

/// Stores a report. If the system runs, its node goes from `booting` to `running`, unless cloud-init in the system
/// phones home: then only that report changes the state.
pub async fn store(store: &Store, token: &str, report: BootReport, now: Millis) -> Result<BootKnown, Error> {
    check_system(&report.boot_id, report.system_state.as_deref(), &report.failed_units)?;
    let mut transaction = store.write().await?;
    let run = run_token::caller(&mut transaction, token, Purpose::Boot, now).await?;
    let before = boot_reports::of_run(&mut transaction, &run.id).await?;
    let status = status(before, report.clone(), now);
    boot_reports::save(&mut transaction, &run.id, &status).await?;
    let event = NewEvent::new(told::of_boot(&report, status.boots)).of_run(&run).report(store::to_json(&report));
    history::record(&mut transaction, SiteEventKind::BootReport, event, now).await?;
    if report.stage == BootStage::Running && run.phone_home_hash.is_none() {
        node_state::advance(&mut transaction, &run, NodeEvent::SystemRuns).await?;
    }
    let node = state_of(&mut transaction, &run).await?;
    store::commit(transaction).await?;
    Ok(BootKnown { node, last: Some(report) })
}

/// Stores a gzip-compressed log of the boot with this id.
pub async fn store_log(store: &Store, token: &str, boot_id: &str, data: &[u8], now: Millis) -> Result<(), Error> {
    check_word("boot_id", boot_id)?;
    let mut transaction = store.write().await?;
    let run = run_token::caller(&mut transaction, token, Purpose::Boot, now).await?;
    let log = HostLog { node: &run.node, kind: HOST_BOOT_LOG, boot_id, run: &run.id, data };
    boot_reports::insert_log(&mut transaction, &log, now).await?;
    store::commit(transaction).await
}

async fn state_of(connection: &mut Connection, run: &Run) -> Result<NodeState, Error> {
    let node = nodes::get_by_id(connection, &run.node).await?;
    node.map(|node| node.state).ok_or_else(|| Error::refused(ErrorCode::NotFound, "the node no longer exists"))
}

fn status(before: Option<BootStatus>, report: BootReport, now: Millis) -> BootStatus {
    let (boots, first_at) = match &before {
        Some(before) if before.report.boot_id == report.boot_id => (before.boots, before.first_at),
        Some(before) => (before.boots.saturating_add(1), before.first_at),
        None => (1, now),
    };
    BootStatus { report, boots, first_at, at: now }
}

/// Checks what a boot reporter or an agent says of its system.
pub fn check_system(boot_id: &str, state: Option<&str>, units: &[String]) -> Result<(), Error> {
    check_word("boot_id", boot_id)?;
    state.map_or(Ok(()), |state| check_word("system_state", state))?;
    if units.len() <= MAX_FAILED_UNITS && units.iter().all(|unit| is_unit_name(unit)) {
        return Ok(());
    }
    let message = format!("failed_units is not valid: give at most {MAX_FAILED_UNITS} names of units");
    Err(Error::refused(ErrorCode::InvalidRequest, message))
}

/// Checks a text from a report that operators see: letters, digits and hyphens only.
fn check_word(name: &str, word: &str) -> Result<(), Error> {
    let shown = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if shown && (1..=MAX_BOOT_WORD_BYTES).contains(&word.len()) {
        return Ok(());
    }
    let message = format!("the {name} is not valid: use 1 to {MAX_BOOT_WORD_BYTES} letters, digits and hyphens");
    Err(Error::refused(ErrorCode::InvalidRequest, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boots_are_counted_by_their_ids() {
        let report = |boot_id: &str| BootReport {
            stage: BootStage::Booting,
            boot_id: boot_id.to_owned(),
            system_state: Some("starting".to_owned()),
            failed_units: Vec::new(),
        };
        let mut known = None;
        for (boot_id, now, boots) in [("a", 1, 1), ("a", 2, 1), ("b", 3, 2), ("c", 4, 3)] {
            let next = status(known, report(boot_id), now);
            assert_eq!((next.boots, next.first_at, next.at), (boots, 1, now), "{boot_id}");
            known = Some(next);
        }
    }

    #[test]
    fn words_that_are_shown_are_words() {
        for good in ["starting", "d2c8d5b6-5a59-4b3e-8c3c-2a5d8e2b1f00"] {
            check_word("boot_id", good).expect(good);
        }
        for bad in ["", "a b", "a\u{1b}", &"a".repeat(65)] {
            check_word("boot_id", bad).expect_err(bad);
        }
    }
}
