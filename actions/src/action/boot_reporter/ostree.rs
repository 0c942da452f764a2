//! The OSTree deployment that the boot loader starts.

use std::collections::BTreeMap;

use slipway_formats::boot_config::places::{BootFiles, MAX_ENTRY};
use slipway_formats::boot_entry::bls::{self, MenuEntry, Start};

use crate::disk::open::OpenDisk;
use crate::error::{Error, TargetError};
use crate::machine::Cancel;
use crate::target::os_release::OsRelease;
use crate::target::ostree::{self, Deployment};
use crate::target::root::TargetRoot;
use crate::target::volumes::mount_all;

/// Finds the deployment that the boot loader starts, and describes it; `None` if there is no deployment.
pub(super) fn find(disk: &OpenDisk, root: &TargetRoot) -> Result<Option<(Deployment, String)>, Error> {
    let named = |deployment: Deployment| named(root, &deployment).map(|name| (deployment, name));
    let mut found = ostree::deployments(root)?.into_iter().map(named).collect::<Result<Vec<_>, _>>()?;
    if found.len() < 2 {
        return Ok(found.pop());
    }
    let started = started(disk)?;
    let is_started =
        |(deployment, _): &(Deployment, String)| started.iter().any(|path| root.is_same(path, &deployment.root));
    if let Some(at) = found.iter().position(is_started) {
        return Ok(Some(found.swap_remove(at)));
    }
    let names: Vec<&str> = found.iter().map(|(_, name)| name.as_str()).collect();
    let reason = format!("no boot entry says with ostree= which of these deployments is started: {}", names.join(", "));
    Err(TargetError::BootReporter { partition: disk.path().to_owned(), reason }.into())
}

/// Describes a deployment.
fn named(root: &TargetRoot, deployment: &Deployment) -> Result<String, Error> {
    let Deployment { os, root: path, .. } = deployment;
    let system = OsRelease::of(&root.below(path)?).name;
    Ok(format!("{} in /{path}", system.as_ref().unwrap_or(os)))
}

/// Returns the path in the argument `ostree=` of the entry that the boot loader starts.
fn started(disk: &OpenDisk) -> Result<Option<String>, Error> {
    let (volumes, _) = mount_all(disk, &Cancel::default())?;
    let mut entries = Vec::new();
    for volume in &volumes {
        for folder in volume.entry_folders() {
            for name in volume.files(&folder, ".conf")? {
                let text = volume.root.read_up_to(&format!("{folder}/{name}"), MAX_ENTRY)?;
                entries.extend(text.and_then(|text| bls::parse(&name, &text, &BTreeMap::new())));
            }
        }
    }
    entries.retain(|entry| path_of(entry).is_some());
    Ok(bls::default(&mut entries, &[]).and_then(path_of))
}

fn path_of(entry: &MenuEntry) -> Option<String> {
    let (Start::Kernel(boot) | Start::Program(boot)) = &entry.start else { return None };
    let path = boot.cmdline.split_whitespace().find_map(|word| word.strip_prefix("ostree="))?;
    Some(path.trim_start_matches('/').to_owned())
}
