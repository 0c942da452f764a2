//! Writes a config where Ignition looks for it at the first boot: on the boot partition of Fedora CoreOS and similar
//! systems, as coreos-installer does, or on the OEM partition of Flatcar (Flatcar documentation, "Installing to disk").

use slipway_protocol::SeedCloudInit;
use slipway_user_data::ignition::{Additions, complete};

use crate::action::Done;
use crate::disk::choose;
use crate::disk::open::{Access, OpenDisk};
use crate::error::{Error, TargetError};
use crate::machine::Machine;
use crate::report::Tell;
use crate::target::mount;
use crate::target::root::TargetRoot;
use crate::target::verity::{self, Place};

const COREOS: (&str, &str) = ("boot", "ignition/config.ign");
/// While this file exists, the next boot is treated as the first.
const COREOS_STAMP: &str = "ignition.firstboot";
const COREOS_ENTRIES: &str = "loader/entries";
pub(in crate::action) const FLATCAR: (&str, &str) = ("OEM", "config.ign");
/// Name of another partition, by which Flatcar is recognised.
const FLATCAR_USR: &str = "USR-A";
/// Mode of the file with the config, which contains secrets.
pub(in crate::action) const MODE: u32 = 0o600;

/// The file system for the config, and its path there.
#[derive(Debug)]
pub(in crate::action) struct Found {
    pub(in crate::action) root: TargetRoot,
    pub(in crate::action) path: &'static str,
    /// Description of the partition.
    pub(in crate::action) name: String,
    /// A warning for the operator if Ignition has already run.
    pub(in crate::action) warning: Option<String>,
}

/// Writes the Ignition config of a step.
pub(super) fn run(inputs: &SeedCloudInit, machine: &dyn Machine, report: Tell) -> Result<Done, Error> {
    let config = complete(&inputs.user_data, &Additions::of(inputs))
        .map_err(|source| super::unusable("Ignition config", source))?;
    let disk = choose::open(&inputs.disk, Access::Read, machine, report)?;
    let places = verity::places(&disk)?;
    machine.cancel().check()?;
    let Some(found) = find(&disk, &places)? else {
        let reason = "nothing on it reads an Ignition config: it has neither a partition labelled boot with boot \
                      entries that mention Ignition, as Fedora CoreOS has, nor a partition labelled OEM beside USR-A, \
                      as Flatcar has";
        return Err(TargetError::Seed { disk: disk.path().to_owned(), reason: reason.to_owned() }.into());
    };
    found.root.write(found.path, config.as_bytes(), MODE)?;
    found.root.sync()?;
    let summary = format!("wrote the Ignition config to /{} in {}", found.path, found.name);
    Ok(Done::go_on(summary, found.warning.into_iter().collect()))
}

/// Finds where the system on a disk looks for an Ignition config; `None` if it does not use Ignition.
pub(in crate::action) fn find(disk: &OpenDisk, places: &[Place]) -> Result<Option<Found>, Error> {
    let is_flatcar = places.iter().any(|(partition, _)| partition.name == FLATCAR_USR);
    for (partition, found) in places {
        let Some(found) = found.as_ref().filter(|found| mount::is_mountable(found.kind)) else { continue };
        let path = match found.label.as_deref() {
            Some(label) if label == COREOS.0 => COREOS.1,
            Some(label) if label == FLATCAR.0 && is_flatcar => FLATCAR.1,
            _ => continue,
        };
        let Ok(root) = mount::mount(disk, partition, found.kind) else { continue };
        if path == FLATCAR.1 || is_coreos(&root)? {
            let has_run = path == COREOS.1 && !root.exists(COREOS_STAMP);
            let warning = has_run.then(|| {
                format!(
                    "there is no /{COREOS_STAMP} beside it, so Ignition has already run and will not run again: \
                         write the image again"
                )
            });
            return Ok(Some(Found { root, path, name: partition.describe(disk), warning }));
        }
    }
    Ok(None)
}

/// Whether the boot entries on a boot partition start Ignition.
fn is_coreos(root: &TargetRoot) -> Result<bool, Error> {
    if root.exists(COREOS_STAMP) {
        return Ok(true);
    }
    for name in root.list(COREOS_ENTRIES)?.iter().filter(|name| name.ends_with(".conf")) {
        let entry = root.read(&format!("{COREOS_ENTRIES}/{name}"))?.unwrap_or_default();
        if entry.contains("ignition") {
            return Ok(true);
        }
    }
    Ok(false)
}
