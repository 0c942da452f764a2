//! `seed-cloud-init`: gives the installed system its identity and the tasks of its first boot. cloud-init gets them as
//! a NoCloud seed (cloud-init documentation, "NoCloud") in the root file system or in a partition; Ignition gets them
//! as its config.

mod cidata;
mod configuration;
pub(super) mod ignition;
mod root;

use slipway_protocol::{SeedCloudInit, SeedPlace};
use slipway_user_data::image::Seed;
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
    /// It is mounted. The text says why a seed cannot be put where the system looks for it, if so.
    Open(System, Option<String>),
    /// It cannot or must not be mounted, for this reason.
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
    let obstacle = match &root {
        Root::Open(_, obstacle) => obstacle.clone(),
        Root::Closed(reason) => Some(reason.clone()),
    };
    let is_partition = match (obstacle, inputs.seed) {
        (Some(reason), SeedPlace::Root) => {
            return Err(refused(format!("its root file system cannot be seeded: {reason}; set seed: cidata")));
        }
        (None, SeedPlace::Auto | SeedPlace::Root) => false,
        (reason, _) => {
            let note = |reason| Report::Note(format!("writing the seed to a partition of its own: {reason}"));
            reason.map(note).into_iter().for_each(&mut *report);
            true
        }
    };
    let seed = Seed {
        has_network: inputs.network_config.is_some(),
        has_vendor_data: inputs.vendor_data.is_some(),
        has_phone_home: inputs.phone_home.is_some(),
        is_partition,
    };
    let (system, changes, warnings) = match root {
        Root::Open(system, _) => {
            let (changes, mut warnings) = system.changes(seed, &path)?;
            warnings.splice(0..0, system.warnings());
            (Some(system), changes, warnings)
        }
        Root::Closed(_) => (None, Vec::new(), Vec::new()),
    };
    let name = match system {
        Some(system) if !is_partition => {
            system.seed(&files, &changes)?;
            let name = system.name.clone();
            drop((system, disk));
            for old in cidata::forget(&path, &places)? {
                report(Report::Note(format!("removed the old seed in {old}")));
            }
            name
        }
        system => {
            let plan = cidata::plan(&disk, &places, &files)?;
            system.map_or(Ok(()), |system| system.make_way(&changes))?;
            drop(disk);
            let name = plan.name.clone();
            plan.write(&path, &places)?;
            name
        }
    };
    // The instance ID is left out, because anyone who knows it can report for it.
    Ok(Done::go_on(format!("seeded cloud-init in {name}"), warnings))
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
    let obstacle = system.obstacle()?;
    if let Some(reason) = obstacle.as_ref().filter(|_| system.has_lasting_seed()) {
        let reason = format!(
            "{reason} and has a seed of its own, whose instance-id would take precedence: remove that seed from the \
             image"
        );
        return Err(TargetError::Seed { disk: disk.path().to_owned(), reason }.into());
    }
    Ok(Root::Open(system, obstacle))
}

/// Makes the files of a NoCloud seed.
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
