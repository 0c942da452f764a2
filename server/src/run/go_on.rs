//! Runs that go on with what a failed run has done, instead of doing it again.

use slipway_protocol::{Action, DiskErasure, DiskHints, Erasure, ErrorCode, Step, StepState, StepStatus};

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::rules::changes::Named;
use crate::rules::state;
use crate::store::nodes::Node;
use crate::store::runs::Run;
use crate::store::{Connection, run_facts};

/// Returns the steps that a failed run has done and that a run which begins with the step `from` need not do again.
/// `settings` and `steps` are those of the new run.
///
/// Refuses if it is not certain that the disk is as the failed run left it, or if the new run would do other things
/// than the failed one did.
pub async fn take_over(
    connection: &mut Connection,
    node: &Node,
    failed: Option<(Run, &str)>,
    settings: &Named,
    steps: &[Step],
    now: Millis,
) -> Result<Vec<StepStatus>, Error> {
    let Some((failed, from)) = failed else { return Ok(Vec::new()) };
    let refused = |message: String| {
        let whole = "without --from, the run begins with its first step";
        Err(Error::refused(ErrorCode::Conflict, format!("{message}; {whole}")))
    };
    let Some(done) = place(steps, from) else {
        let names = steps.iter().map(|step| step.name.as_str()).collect::<Vec<_>>().join(", ");
        let message = format!("the run has no step {from:?}; its steps are {names}");
        return Err(Error::refused(ErrorCode::InvalidRequest, message));
    };
    if done == 0 {
        return Ok(Vec::new());
    }
    let run = &failed.id;
    let facts = run_facts::of_run(connection, run).await?.unwrap_or_default();
    if facts.settings.as_ref() != Some(settings) {
        return refused(format!(
            "what run {run} did and what the new one does differ, because the operating system, its image or the node \
             was changed since"
        ));
    }
    let known = failed.progress.steps.get(..done).unwrap_or_default();
    if let Some(step) = known.iter().find(|step| step.state != StepState::Succeeded) {
        return refused(format!("step {} of run {run} was not done", step.name));
    }
    if known.len() < done || failed.workflow.len() != steps.len() {
        return refused(format!("run {run} had other steps"));
    }
    let before = steps.get(..done).unwrap_or_default();
    if let Some(step) = before.iter().find(|step| is_of_its_run(&step.action)) {
        return refused(format!("step {} has to be done by each run itself: begin with it, or before it", step.name));
    }
    if !node.is_in_slipway(now) {
        return refused(format!("the machine of node {} is silent; look at it, and try again", node.label()));
    }
    if failed.boot_id.is_none() {
        return refused(format!("it is not known whether the machine was restarted since run {run} began"));
    }
    if failed.boot_id != node.boot_id {
        return refused(format!("the machine was restarted since run {run} began, and its disk may have changed"));
    }
    if written(before, known).is_none() {
        return refused(format!(
            "the steps before {from} do not name one disk by a serial number, so another could have taken its place"
        ));
    }
    Ok(known.to_vec())
}

/// Marks the first steps of a new run as done, in a boot of the machine.
pub fn go_on(run: &mut Run, taken: Vec<StepStatus>, boot_id: Option<String>) {
    run.boot_id = boot_id.filter(|_| !taken.is_empty());
    run.done = u32::try_from(taken.len()).unwrap_or_default();
    run.destroyed = run.workflow.iter().take(taken.len()).any(|step| step.action.destroys());
    for (step, taken) in run.progress.steps.iter_mut().zip(taken) {
        *step = taken;
    }
}

/// Returns the steps of a run as its machine gets them. Later steps with the same hints as the step that erased a disk
/// name just that disk, by what it is called in this boot of the machine.
pub fn pinned(run: &Run) -> Vec<Step> {
    let mut steps = run.workflow.clone();
    let done = steps.len().min(run.done as usize);
    let (before, after) = steps.split_at_mut(done);
    if let Some((hints, disk)) = written(before, &run.progress.steps) {
        for step in after {
            if let Some(named) = step.action.disk_mut().filter(|named| **named == hints) {
                *named = disk.clone();
            }
        }
    }
    steps
}

/// Has a run begin with its first step after all, because its machine was restarted.
pub fn start_over(run: &mut Run) {
    run.done = 0;
    state::begin_again(&mut run.progress.steps);
}

/// Returns the index of a step by its name, or by its number from 1 on.
fn place(steps: &[Step], from: &str) -> Option<usize> {
    let by_name = steps.iter().position(|step| step.name == from);
    by_name.or_else(|| from.parse::<usize>().ok()?.checked_sub(1).filter(|index| *index < steps.len()))
}

/// Whether an action leaves something that is of its run alone: tokens, keys, or a state of the machine.
fn is_of_its_run(action: &Action) -> bool {
    match action {
        Action::SeedCloudInit(_)
        | Action::BootReporter(_)
        | Action::CaptureDisk(_)
        | Action::EncryptRoot(_)
        | Action::EnrolSecureBoot(_)
        | Action::Kexec(_)
        | Action::Reboot(_) => true,
        Action::EraseDisk(_)
        | Action::StreamImage(_)
        | Action::Partition(_)
        | Action::MakeFileSystem(_)
        | Action::KernelArgs(_)
        | Action::WriteFile(_)
        | Action::UnpackArchive(_)
        | Action::RunInTarget(_)
        | Action::EfiBootOrder(_) => false,
    }
}

/// Returns the hints of the step that erased a disk, and hints for just that disk. `None` unless all steps are about
/// the disk that one of them erased, and it can be told from one that is put in its place.
fn written(steps: &[Step], done: &[StepStatus]) -> Option<(DiskHints, DiskHints)> {
    let erases = |step: &Step| matches!(step.action, Action::EraseDisk(_));
    let (step, status) = steps.iter().zip(done).find(|(step, _)| erases(step))?;
    let hints = step.action.disk()?.clone();
    let erased = |disk: &&DiskErasure| matches!(disk.result, Erasure::Erased { .. });
    let mut disks = status.outcome.iter().flat_map(|outcome| &outcome.disks).filter(erased);
    let (Some(disk), None) = (disks.next(), disks.next()) else { return None };
    let are_same = steps.iter().filter_map(|step| step.action.disk()).all(|other| *other == hints);
    if !are_same || hints.device.is_some() {
        // An operator who names a path means whatever disk is there.
        return are_same.then(|| (hints.clone(), hints));
    }
    // A hint may have operators.
    let is_plain = |serial: &&String| serial.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    let serial = disk.serial.as_ref().filter(is_plain)?.parse().ok();
    Some((hints, DiskHints { device: Some(disk.path.clone()), serial, ..DiskHints::default() }))
}
