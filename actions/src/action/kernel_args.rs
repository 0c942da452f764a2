//! `kernel-args`: changes the kernel command lines of the installed system, wherever its boot loader keeps them, and
//! the templates from which later kernels get theirs. Reads every file before it writes the first, so a refusal changes
//! nothing.

use slipway_formats::boot_config::EntryScope;
use slipway_formats::boot_config::places::menu_maker;
use slipway_protocol::{KernelArgs, RunInTarget};

use crate::action::{Done, run_in_target};
use crate::disk::choose;
use crate::disk::open::{Access, OpenDisk};
use crate::error::{BootError, Error};
use crate::machine::Machine;
use crate::report::{Report, Tell};
use crate::target::mount::SearchLog;
use crate::target::volume::Volume;
use crate::target::volumes::mount_all;
use plan::Plan;

mod images;
mod plan;

pub(crate) fn run(inputs: &KernelArgs, machine: &dyn Machine, report: Tell) -> Result<Done, Error> {
    run_for(EntryScope::Default, inputs, machine, report)
}

/// Like [`run`], with a choice of the entries that get the added arguments.
pub(crate) fn run_for(
    entries: EntryScope,
    inputs: &KernelArgs,
    machine: &dyn Machine,
    report: Tell,
) -> Result<Done, Error> {
    let disk = choose::open(&inputs.disk, Access::Read, machine, report)?;
    let (mut changed, mut is_made, mut warnings) = (0, false, Vec::new());
    loop {
        let (volumes, looked_at) = mount_all(&disk, machine.cancel())?;
        let plan = Plan::make(&volumes, inputs, entries)?;
        changed += plan.changes();
        // The menu may be on a file system that could not be looked into.
        let may_be_made = !is_made && plan.entries() == 0 && looked_at.refusals.is_empty();
        let Some((program, dir)) = menu_maker(&volumes)?.filter(|_| may_be_made) else {
            let mut done = finish(&disk, &plan, &volumes, looked_at, inputs, changed)?;
            done.outcome.warnings.splice(..0, warnings);
            return Ok(done);
        };
        plan.carry_out(&volumes)?;
        // A file system must not be mounted twice.
        drop(volumes);
        report(Report::Note(format!("there is no {dir}/grub.cfg yet: {program} of the installed system makes it")));
        warnings = generate(&disk, program, dir, machine, report)?;
        changed += 1;
        is_made = true;
    }
}

/// Fails where [`run_for`] would fail before changing anything, as far as the file systems of the disk show. A menu
/// that is still to be generated cannot be checked.
pub(crate) fn check(
    entries: EntryScope,
    inputs: &KernelArgs,
    disk: &OpenDisk,
    volumes: &[Volume],
    looked_at: SearchLog,
) -> Result<(), Error> {
    let plan = Plan::make(volumes, inputs, entries)?;
    let may_be_made = looked_at.refusals.is_empty() && menu_maker(volumes)?.is_some();
    if plan.entries() == 0 && !may_be_made { Err(not_found(looked_at, &plan, disk)) } else { Ok(()) }
}

fn not_found(mut looked_at: SearchLog, plan: &Plan, disk: &OpenDisk) -> Error {
    for file in plan.others() {
        looked_at.note_miss(format!("{file} has kernel arguments that slipway cannot change"));
    }
    looked_at.not_found("a boot loader's configuration", disk)
}

/// Carries out a plan, after checking that it achieves what is wanted.
fn finish(
    disk: &OpenDisk,
    plan: &Plan,
    volumes: &[Volume],
    looked_at: SearchLog,
    inputs: &KernelArgs,
    changed: usize,
) -> Result<Done, Error> {
    if plan.entries() == 0 {
        return Err(not_found(looked_at, plan, disk));
    }
    if let Some(missing) = inputs.replace.iter().find(|replacement| !plan.has(&replacement.new)) {
        let reason = "no boot entry has it; to add an argument, use append";
        return Err(BootError::KernelArgument { operation: "replacing", argument: missing.old.clone(), reason }.into());
    }
    if let Some(argument) = inputs.added().find(|argument| !plan.has(argument)) {
        let reason = "there are only entries for recovery, which get no added arguments";
        let argument = argument.to_owned();
        return Err(BootError::KernelArgument { operation: "adding", argument, reason }.into());
    }
    plan.carry_out(volumes)?;
    let mut warnings = looked_at.refusals;
    warnings.extend(plan.warnings());
    Ok(Done::go_on(summary(inputs, changed, plan.entries()), warnings))
}

/// Has the installed system make GRUB's menu, for this disk only. Returns the warnings.
fn generate(
    disk: &OpenDisk,
    program: &str,
    dir: &str,
    machine: &dyn Machine,
    report: Tell,
) -> Result<Vec<String>, Error> {
    let run = RunInTarget {
        script: Some(format!("mkdir -p {dir}\n{program} -o {dir}/grub.cfg\n")),
        environment: [("GRUB_DISABLE_OS_PROBER".to_owned(), "true".to_owned())].into(),
        ..RunInTarget::default()
    };
    run_in_target::run_on(disk, &run, machine, report).map(|done| done.outcome.warnings)
}

fn summary(inputs: &KernelArgs, changed: usize, entries: usize) -> String {
    let added: Vec<&str> = inputs.append_if_missing.iter().chain(&inputs.append).map(String::as_str).collect();
    let mut done = Vec::new();
    if !inputs.delete.is_empty() {
        done.push(format!("deleted {}", inputs.delete.join(" ")));
    }
    done.extend(
        inputs.replace.iter().map(|replacement| format!("replaced {} with {}", replacement.old, replacement.new)),
    );
    let place = if done.is_empty() { "to" } else { "in" };
    if !added.is_empty() {
        done.push(format!("added {}", added.join(" ")));
    }
    match changed {
        0 if entries == 1 => "the kernel arguments are already as requested in the boot file".to_owned(),
        0 => format!("the kernel arguments are already as requested in all {entries} boot files"),
        1 => format!("{} {place} 1 file", done.join(", ")),
        _ => format!("{} {place} {changed} files", done.join(", ")),
    }
}

/// The error for a file that cannot be edited.
fn refused(path: &str, reason: String) -> Error {
    Error::Boot(BootError::Config { path: path.to_owned(), reason })
}
