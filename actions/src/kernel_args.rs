//! `kernel-args`: changes the installed system's kernel command lines, wherever its boot loader keeps them, and what those of
//! later kernels are made from. Every file is read before the first is written, so what is refused changes nothing.

use slipway_protocol::KernelArgs;

use crate::error::Error;
use crate::machine::Machine;
use crate::mount::{self, LookedAt};
use crate::open_disk::{Access, OpenDisk};
use crate::partitions;
use crate::{Done, Report, choose};
use plan::Plan;
use volume::Volume;

mod images;
mod plan;
mod volume;

pub(crate) fn run(inputs: &KernelArgs, machine: &dyn Machine, report: &mut dyn FnMut(Report)) -> Result<Done, Error> {
    let problems = inputs.problems();
    if !problems.is_empty() {
        return Err(Error::Inputs { action: "kernel-args", problems });
    }
    let disk = choose::open(&inputs.disk, Access::Read, machine, report)?;
    let (volumes, looked_at) = mount_all(&disk, machine)?;
    let plan = Plan::make(&volumes, inputs)?;
    if plan.entries() == 0 {
        return Err(looked_at.not_found("a boot loader's configuration", &disk));
    }
    if let Some(missing) = inputs.replace.iter().find(|replacement| !plan.has(&replacement.new)) {
        let reason = "no boot entry has it; give what is to be there to append";
        return Err(Error::KernelArgument { argument: missing.old.clone(), reason });
    }
    plan.carry_out(&volumes)?;
    let mut warnings = looked_at.refusals;
    warnings.extend(plan.warnings());
    Ok(Done::go_on(summary(inputs, plan.changes(), plan.entries()), warnings))
}

/// Every file system of the disk that can be mounted.
fn mount_all(disk: &OpenDisk, machine: &dyn Machine) -> Result<(Vec<Volume>, LookedAt), Error> {
    let (mut volumes, mut looked_at) = (Vec::new(), LookedAt::default());
    for partition in partitions::read(disk)? {
        let name = partition.describe(disk);
        let Some(file_system) = mount::probe(disk, &partition)?.filter(|fs| mount::is_mountable(fs.kind)) else {
            looked_at.in_vain(format!("{name} has no file system that can be mounted"));
            continue;
        };
        machine.cancel().check()?;
        match mount::mount(disk, &partition, file_system.kind) {
            Ok(root) => {
                looked_at.in_vain(format!("{name} ({}) has no boot entries", file_system.kind));
                volumes.push(Volume::new(root));
            }
            Err(error) => looked_at.refused(&name, &error),
        }
    }
    Ok((volumes, looked_at))
}

fn summary(inputs: &KernelArgs, changed: usize, entries: usize) -> String {
    let added: Vec<&str> = inputs.append_if_missing.iter().chain(&inputs.append).map(String::as_str).collect();
    let mut done = Vec::new();
    if !inputs.delete.is_empty() {
        done.push(format!("deleted {}", inputs.delete.join(" ")));
    }
    done.extend(
        inputs.replace.iter().map(|replacement| format!("replaced {} by {}", replacement.old, replacement.new)),
    );
    let place = if done.is_empty() { "to" } else { "in" };
    if !added.is_empty() {
        done.push(format!("added {}", added.join(" ")));
    }
    match changed {
        0 => format!("the kernel arguments are as they should be in all of {entries} boot files"),
        _ => format!("{} {place} {changed} files", done.join(", ")),
    }
}
