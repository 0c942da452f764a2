//! Systems that are made of OSTree deployments, such as Fedora CoreOS and Red Hat CoreOS (OSTree documentation,
//! "Anatomy of an OSTree repository" and "Deployments"): each is a whole system in
//! `/ostree/deploy/OS/deploy/CHECKSUM.SERIAL`, with an /etc of its own. All of one OS share `/ostree/deploy/OS/var`.

use std::collections::BTreeMap;

use slipway_formats::boot_entry::bls::{self, MenuEntry, Start};

use crate::disk::open::OpenDisk;
use crate::error::{Error, TargetError};
use crate::machine::Cancel;
use crate::target::os_release::OsRelease;
use crate::target::root::TargetRoot;
use crate::target::volume::MAX_ENTRY;
use crate::target::volumes::mount_all;

const SYSTEMS: &str = "ostree/deploy";

/// A deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Deployment {
    /// Path of its root.
    pub(super) root: String,
    /// Path of the folder with `var`, which it shares with others.
    pub(super) state: String,
    /// In words.
    pub(super) name: String,
}

/// The deployment that the boot loader starts; none if the file system has none.
pub(super) fn find(disk: &OpenDisk, root: &TargetRoot) -> Result<Option<Deployment>, Error> {
    let mut deployments = all(root)?;
    if deployments.len() < 2 {
        return Ok(deployments.pop());
    }
    let started = started(disk)?;
    let is_started = |deployment: &Deployment| started.iter().any(|path| root.is_same(path, &deployment.root));
    if let Some(at) = deployments.iter().position(is_started) {
        return Ok(Some(deployments.swap_remove(at)));
    }
    let names: Vec<&str> = deployments.iter().map(|deployment| deployment.name.as_str()).collect();
    let reason = format!("no boot entry says by ostree= which of these is started: {}", names.join(", "));
    Err(TargetError::BootReporter { partition: disk.path().to_owned(), reason }.into())
}

fn all(root: &TargetRoot) -> Result<Vec<Deployment>, Error> {
    let mut deployments = Vec::new();
    for os in root.directories(SYSTEMS)? {
        let state = format!("{SYSTEMS}/{os}");
        for name in root.directories(&format!("{state}/deploy"))? {
            let path = format!("{state}/deploy/{name}");
            if root.exists(&format!("{path}/usr")) {
                let system = OsRelease::of(&root.below(&path)?).name.unwrap_or_else(|| os.clone());
                let name = format!("{system} in /{path}");
                deployments.push(Deployment { root: path, state: state.clone(), name });
            }
        }
    }
    Ok(deployments)
}

/// The path in the argument `ostree=` of the entry that the boot loader starts.
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
