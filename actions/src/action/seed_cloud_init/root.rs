//! Writes a seed to the root file system of the installed system, and removes the traces of former ones.

use rustix::fs::{Access, AtFlags, Dir, FileType, accessat};
use rustix::io::Errno;

use crate::disk::open::OpenDisk;
use crate::error::{Error, TargetError};
use crate::report::{Report, Tell};
use crate::target::root::{TargetRoot, target_file};
use crate::target::verity::Place;
use crate::target::{self, Target, mount};

/// Below /var.
const SEED: &str = "lib/cloud/seed/nocloud";
/// State that makes cloud-init believe that it has run, and seeds it would read instead. Below /var.
const LEFTOVERS: &[&str] =
    &["lib/cloud/instance", "lib/cloud/instances", "lib/cloud/sem", "lib/cloud/data", "lib/cloud/seed/nocloud-net"];
/// This file keeps cloud-init from running. Below /etc.
const DISABLED: &str = "cloud/cloud-init.disabled";
/// A single line, because ds-identify, which decides at boot whether cloud-init runs at all, reads no more. Below /etc.
const DATASOURCE: (&str, &str) = ("cloud/cloud.cfg.d/99_slipway.cfg", "datasource_list: [ NoCloud, None ]\n");
const PROGRAM: &str = "bin/cloud-init";
/// Optional files of a seed.
const OPTIONAL: &[&str] = &["vendor-data", "network-config"];
/// The seed contains secrets.
const SEED_MODE: u32 = 0o600;
/// OSTree systems, each with its /var and its deployments (libostree documentation, "Deployments").
const OSTREE: &str = "ostree/deploy";
/// A separate file system mounted here would hide the seed from the running system.
const ABOVE_SEED: &[&str] = &["/var", "/var/lib", "/var/lib/cloud"];
/// An installed system does not have more systems or deployments than this.
const MAX_DEPLOYMENTS: usize = 16;

/// The root file system, and the folders of the running system in it.
#[derive(Debug)]
pub(super) struct System {
    root: TargetRoot,
    /// Description of the partition.
    pub(super) name: String,
    warnings: Vec<String>,
    vars: Vec<String>,
    etcs: Vec<String>,
    usrs: Vec<String>,
}

/// Mounts the root file system of a usual or an OSTree system.
pub(super) fn find(disk: &OpenDisk, places: &[Place], report: Tell) -> Result<System, Error> {
    match target::find_root(disk, report) {
        Ok(Target { root, name, warnings, .. }) => {
            let [vars, etcs, usrs] = ["var", "etc", "usr"].map(|dir| vec![dir.to_owned()]);
            Ok(System { root, name, warnings, vars, etcs, usrs })
        }
        Err(error @ Error::Target(TargetError::NotFound { .. })) => find_ostree(disk, places, report)?.ok_or(error),
        Err(error) => Err(error),
    }
}

fn find_ostree(disk: &OpenDisk, places: &[Place], report: Tell) -> Result<Option<System>, Error> {
    for (partition, found) in places {
        let kind = found.as_ref().map_or("", |found| found.kind);
        if target::roles::is_usr(partition) || partition.read_only || !mount::is_mountable(kind) || kind == "vfat" {
            continue;
        }
        let Ok(root) = mount::mount(disk, partition, kind) else { continue };
        let name = partition.describe(disk);
        if root.exists("ostree/repo") {
            report(Report::Note(format!("the root file system is {kind} on {name}, managed by OSTree")));
            return deployed(root, name);
        }
    }
    Ok(None)
}

/// The system of an OSTree root; `None` if nothing is deployed in it.
fn deployed(root: TargetRoot, name: String) -> Result<Option<System>, Error> {
    let (mut vars, mut etcs, mut usrs) = (Vec::new(), Vec::new(), Vec::new());
    for os in directories(&root, OSTREE)? {
        let deployments = directories(&root, &format!("{OSTREE}/{os}/deploy"))?;
        if !deployments.is_empty() {
            vars.push(format!("{OSTREE}/{os}/var"));
        }
        for deployment in deployments {
            let [etc, usr] = ["etc", "usr"].map(|dir| format!("{OSTREE}/{os}/deploy/{deployment}/{dir}"));
            etcs.push(etc);
            usrs.push(usr);
        }
    }
    Ok((!vars.is_empty()).then_some(System { root, name, warnings: Vec::new(), vars, etcs, usrs }))
}

/// Sorted names of the directories in a directory; empty if `path` is not a directory.
fn directories(root: &TargetRoot, path: &str) -> Result<Vec<String>, Error> {
    let list = |fd| -> Result<Vec<String>, Errno> {
        let mut names = Vec::new();
        for entry in Dir::new(fd)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type() == FileType::Directory && !name.starts_with('.') && names.len() < MAX_DEPLOYMENTS {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    };
    match root.open_directory(path.as_bytes()).and_then(list) {
        Ok(names) => Ok(names),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(Vec::new()),
        Err(errno) => Err(target_file("reading", path, errno.into())),
    }
}

/// The folder above the seed that is a mount point of its own (fstab(5)).
fn mounted_over(fstab: &str) -> Option<&'static str> {
    let places = fstab.lines().filter(|line| !line.trim_start().starts_with('#'));
    let mut places = places.filter_map(|line| line.split_whitespace().nth(1));
    places.find_map(|place| ABOVE_SEED.iter().copied().find(|above| place.trim_end_matches('/') == *above))
}

impl System {
    /// Why the root file system cannot be written to, if so. The kernel silently mounts a file system read-only if it
    /// is marked as such.
    pub(super) fn obstacle(&self) -> Result<Option<String>, Error> {
        let is_read_only = || -> Result<bool, Errno> {
            let root = self.root.directory()?;
            let mut places = vec![root];
            places.extend(self.vars.iter().filter_map(|var| self.root.open_directory(var.as_bytes()).ok()));
            let denied = |place| accessat(place, ".", Access::WRITE_OK, AtFlags::empty()) == Err(Errno::ROFS);
            Ok(places.iter().any(denied))
        };
        let is_read_only = is_read_only().map_err(|errno| target_file("looking at", "", errno.into()))?;
        Ok(is_read_only.then(|| format!("{} is read-only", self.name)))
    }

    /// Whether there is a NoCloud seed.
    pub(super) fn has_seed(&self) -> bool {
        self.vars.iter().any(|var| self.root.exists(&format!("{var}/{SEED}/meta-data")))
    }

    /// Why a seed in this file system would not be found, if so: the system mounts another file system over its place.
    pub(super) fn hidden(&self) -> Result<Option<String>, Error> {
        for etc in &self.etcs {
            if let Some(place) = mounted_over(&self.root.read(&format!("{etc}/fstab"))?.unwrap_or_default()) {
                return Ok(Some(format!("its fstab mounts another file system on {place}")));
            }
        }
        Ok(None)
    }

    /// Warnings for the operator.
    pub(super) fn warnings(&self) -> Vec<String> {
        let has_cloud_init = self.usrs.iter().any(|usr| self.root.exists(&format!("{usr}/{PROGRAM}")));
        let mut warnings = self.warnings.clone();
        if !has_cloud_init {
            warnings.push("the installed system has no /usr/bin/cloud-init, so nothing will read the seed".to_owned());
        }
        warnings
    }

    /// Removes what former seeds left, and has cloud-init look for a NoCloud seed.
    fn prepare(&self) -> Result<(), Error> {
        for var in &self.vars {
            LEFTOVERS.iter().try_for_each(|path| self.root.remove(&format!("{var}/{path}")))?;
        }
        for etc in &self.etcs {
            self.root.remove(&format!("{etc}/{DISABLED}"))?;
            self.root.write(&format!("{etc}/{}", DATASOURCE.0), DATASOURCE.1.as_bytes(), 0o644)?;
        }
        Ok(())
    }

    /// Writes a seed.
    pub(super) fn seed(&self, files: &[(&str, String)]) -> Result<(), Error> {
        self.prepare()?;
        for var in &self.vars {
            for (name, content) in files {
                self.root.write(&format!("{var}/{SEED}/{name}"), content.as_bytes(), SEED_MODE)?;
            }
            for name in OPTIONAL.iter().filter(|name| files.iter().all(|(file, _)| file != *name)) {
                self.root.remove(&format!("{var}/{SEED}/{name}"))?;
            }
        }
        self.root.sync()
    }

    /// Prepares for a seed elsewhere.
    pub(super) fn make_way(&self) -> Result<(), Error> {
        self.prepare()?;
        self.vars.iter().try_for_each(|var| self.root.remove(&format!("{var}/{SEED}")))?;
        self.root.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_over_a_seed_is_seen_in_fstab() {
        let check = |fstab: &str, expect: Option<&str>| assert_eq!(mounted_over(fstab), expect, "{fstab:?}");
        check("", None);
        check("UUID=a / ext4 defaults 0 1\nUUID=b /var/log ext4\n# UUID=c /var ext4\n", None);
        check("UUID=a / ext4\n\tUUID=b\t/var\text4 defaults 0 2\n", Some("/var"));
        check("UUID=a /var/lib/ btrfs subvol=@lib", Some("/var/lib"));
        check("/dev/sda3", None);
    }
}
