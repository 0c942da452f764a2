//! `seed-cloud-init`: gives the installed system its identity and the tasks of its first boot. cloud-init gets them as
//! a NoCloud seed (cloud-init documentation, "NoCloud") in the root file system or in a partition; Ignition gets them
//! as its config.

mod cidata;
pub(super) mod ignition;
mod root;

use slipway_protocol::{SeedCloudInit, SeedPlace};
use slipway_user_data::seed::{Unusable, judge};
use slipway_user_data::{Refusal, inject_phone_home, quoted};

use crate::action::Done;
use crate::disk::choose;
use crate::disk::open::{Access, OpenDisk};
use crate::error::{Error, TargetError};
use crate::machine::Machine;
use crate::report::{Report, Tell};
use crate::target::verity::{self, Place};
use crate::text;
use root::System;

/// State of the root file system of a disk.
enum Root {
    /// It is writable.
    Open(System),
    /// It is writable, but a seed in it would not be found, for this reason.
    Beside(System, String),
    /// It cannot or must not be written to, for this reason.
    Closed(String),
}

pub(crate) fn run(inputs: &SeedCloudInit, machine: &dyn Machine, report: Tell) -> Result<Done, Error> {
    judge(inputs).map_err(|Unusable { input, source }| unusable(input, source))?;
    match inputs.is_for_ignition() {
        true => ignition::run(inputs, machine, report),
        false => seed_cloud_init(inputs, machine, report),
    }
}

fn seed_cloud_init(inputs: &SeedCloudInit, machine: &dyn Machine, report: Tell) -> Result<Done, Error> {
    let files = files(inputs)?;
    let disk = choose::open(&inputs.disk, Access::Read, machine, report)?;
    let path = disk.path().to_owned();
    let refused = |reason: String| Error::Target(TargetError::Seed { disk: path.clone(), reason });
    let places = verity::places(&disk)?;
    if inputs.seed == SeedPlace::Auto && ignition::find(&disk, &places)?.is_some() {
        let reason = "it is set up by Ignition: give an Ignition config as its user-data, or set seed: root or seed: \
                      cidata if it also has cloud-init";
        return Err(refused(reason.to_owned()));
    }
    let root = find_root(&disk, &places, inputs.seed, report)?;
    machine.cancel().check()?;
    let warnings = match &root {
        Root::Open(system) | Root::Beside(system, _) => system.warnings(),
        Root::Closed(_) => Vec::new(),
    };
    let name = match (root, inputs.seed) {
        (Root::Closed(reason) | Root::Beside(_, reason), SeedPlace::Root) => {
            return Err(refused(format!("its root file system cannot be seeded: {reason}; set seed: cidata")));
        }
        (Root::Open(system), SeedPlace::Auto | SeedPlace::Root) => {
            system.seed(&files)?;
            let name = system.name.clone();
            drop((system, disk));
            for old in cidata::forget(&path, &places)? {
                report(Report::Note(format!("removed the old seed in {old}")));
            }
            name
        }
        (root, _) => {
            let plan = cidata::plan(&disk, &places, &files)?;
            make_way(root, report)?;
            drop(disk);
            let name = plan.name.clone();
            plan.write(&path, &places)?;
            name
        }
    };
    // The instance ID is left out, because anyone who knows it can report for it.
    Ok(Done::go_on(format!("seeded cloud-init in {name}"), warnings))
}

/// Makes sure that the root file system does not interfere with a seed in a partition.
fn make_way(root: Root, report: Tell) -> Result<(), Error> {
    let (system, reason) = match root {
        Root::Open(system) => (Some(system), None),
        Root::Beside(system, reason) => (Some(system), Some(reason)),
        Root::Closed(reason) => (None, Some(reason)),
    };
    if let Some(reason) = reason {
        report(Report::Note(format!("writing the seed to a partition of its own: {reason}")));
    }
    system.map_or(Ok(()), |system| system.make_way())
}

/// Finds the root file system, and whether it can be written to.
fn find_root(disk: &OpenDisk, places: &[Place], wanted: SeedPlace, report: Tell) -> Result<Root, Error> {
    if let Some(reason) = verity::reason(disk, places)? {
        return Ok(Root::Closed(reason));
    }
    let system = match root::find(disk, places, report) {
        Ok(system) => system,
        // A seed in a partition does not need a root file system.
        Err(error @ Error::Target(TargetError::NotFound { is_transient: false, .. }))
            if wanted == SeedPlace::Cidata =>
        {
            return Ok(Root::Closed(text::chain(&error)));
        }
        Err(error) => return Err(error),
    };
    match system.obstacle()? {
        None => Ok(match system.hidden()? {
            None => Root::Open(system),
            Some(reason) => Root::Beside(system, reason),
        }),
        Some(reason) if system.has_seed() => {
            let reason = format!(
                "{reason} and has a seed of its own, whose instance-id would take precedence: remove that seed from \
                 the image"
            );
            Err(TargetError::Seed { disk: disk.path().to_owned(), reason }.into())
        }
        Some(reason) => Ok(Root::Closed(reason)),
    }
}

/// The files of a NoCloud seed.
fn files(inputs: &SeedCloudInit) -> Result<Vec<(&'static str, String)>, Error> {
    let user_data = match &inputs.phone_home {
        Some(phone_home) => {
            inject_phone_home(&inputs.user_data, phone_home).map_err(|source| unusable("user-data", source))?
        }
        None => inputs.user_data.clone(),
    };
    let mut files = vec![("user-data", user_data), ("meta-data", meta_data(inputs))];
    let optional = [("vendor-data", &inputs.vendor_data), ("network-config", &inputs.network_config)];
    files.extend(optional.into_iter().filter_map(|(name, content)| Some((name, content.clone()?))));
    Ok(files)
}

fn unusable(input: &'static str, source: Refusal) -> Error {
    TargetError::SeedInput { input, source }.into()
}

fn meta_data(inputs: &SeedCloudInit) -> String {
    let mut meta_data = format!("instance-id: {}\n", quoted(&inputs.instance_id));
    if let Some(hostname) = &inputs.hostname {
        meta_data.push_str(&format!("local-hostname: {}\n", quoted(hostname)));
    }
    if !inputs.ssh_keys.is_empty() {
        meta_data.push_str("public-keys:\n");
        inputs.ssh_keys.iter().for_each(|key| meta_data.push_str(&format!("- {}\n", quoted(key))));
    }
    meta_data
}
