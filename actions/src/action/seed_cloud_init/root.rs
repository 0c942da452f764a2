//! A seed in the root file system of the installed system, and what of former ones has to go.

use rustix::fs::{Access, AtFlags, Dir, FileType, accessat};
use rustix::io::Errno;

use crate::disk::open::OpenDisk;
use crate::error::{Error, TargetError};
use crate::report::Report;
use crate::target::root::{TargetRoot, target_file};
use crate::target::verity::Place;
use crate::target::{self, Target, mount};

/// Below /var.
const SEED: &str = "lib/cloud/seed/nocloud";
/// What makes cloud-init believe that it has run, and seeds it would read instead. Below /var.
const LEFTOVERS: &[&str] =
    &["lib/cloud/instance", "lib/cloud/instances", "lib/cloud/sem", "lib/cloud/data", "lib/cloud/seed/nocloud-net"];
/// What keeps cloud-init from running. Below /etc.
const DISABLED: &str = "cloud/cloud-init.disabled";
/// One line, because ds-identify, which decides at boot whether cloud-init runs at all, reads no more than that. Below /etc.
const DATASOURCE: (&str, &str) = ("cloud/cloud.cfg.d/99_slipway.cfg", "datasource_list: [ NoCloud, None ]\n");
const PROGRAM: &str = "bin/cloud-init";
/// Files of a seed that it may have or not.
const OPTIONAL: &[&str] = &["vendor-data", "network-config"];
/// The seed holds secrets.
const SEED_MODE: u32 = 0o600;
/// Systems of OSTree, each with its /var and its deployments (libostree documentation, "Deployments").
const OSTREE: &str = "ostree/deploy";
/// Where a file system of its own would hide a seed from the running system.
const ABOVE_SEED: &[&str] = &["/var", "/var/lib", "/var/lib/cloud"];
/// More of either would be no installed system.
const MAX_DEPLOYMENTS: usize = 16;

/// The root file system, and where in it the folders of the running system are.
#[derive(Debug)]
pub(super) struct System {
    root: TargetRoot,
    /// The partition in words.
    pub(super) name: String,
    warnings: Vec<String>,
    vars: Vec<String>,
    etcs: Vec<String>,
    usrs: Vec<String>,
}

/// Mounts the root file system, of a usual system or of one of OSTree.
pub(super) fn find(disk: &OpenDisk, places: &[Place], report: &mut dyn FnMut(Report)) -> Result<System, Error> {
    match target::find_root(disk, report) {
        Ok(Target { root, name, warnings, .. }) => {
            let [vars, etcs, usrs] = ["var", "etc", "usr"].map(|dir| vec![dir.to_owned()]);
            Ok(System { root, name, warnings, vars, etcs, usrs })
        }
        Err(error @ Error::Target(TargetError::NotFound { .. })) => find_ostree(disk, places, report)?.ok_or(error),
        Err(error) => Err(error),
    }
}

fn find_ostree(disk: &OpenDisk, places: &[Place], report: &mut dyn FnMut(Report)) -> Result<Option<System>, Error> {
    for (partition, found) in places {
        let kind = found.as_ref().map_or("", |found| found.kind);
        if target::roles::is_usr(partition) || partition.read_only || !mount::is_mountable(kind) || kind == "vfat" {
            continue;
        }
        let Ok(root) = mount::mount(disk, partition, kind) else { continue };
        let name = partition.describe(disk);
        if root.exists("ostree/repo") {
            report(Report::Note(format!("the root file system is {kind} of {name}, by OSTree")));
            return deployed(root, name);
        }
    }
    Ok(None)
}

/// The system of an OSTree root, where anything is deployed in it.
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

/// Names of the directories in one, sorted; none where it is none.
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

/// The folder above a seed that a file system is mounted on (fstab(5)).
fn mounted_over(fstab: &str) -> Option<&'static str> {
    let places = fstab.lines().filter(|line| !line.trim_start().starts_with('#'));
    let mut places = places.filter_map(|line| line.split_whitespace().nth(1));
    places.find_map(|place| ABOVE_SEED.iter().copied().find(|above| place.trim_end_matches('/') == *above))
}

impl System {
    /// Why nothing can be written to the root file system, if that is so: the kernel mounts what is marked as read-only without
    /// a word.
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

    /// Whether there is a seed of NoCloud.
    pub(super) fn has_seed(&self) -> bool {
        self.vars.iter().any(|var| self.root.exists(&format!("{var}/{SEED}/meta-data")))
    }

    /// Why a seed would not be found in this file system, if that is so: the system mounts another over its place.
    pub(super) fn hidden(&self) -> Result<Option<String>, Error> {
        for etc in &self.etcs {
            if let Some(place) = mounted_over(&self.root.read(&format!("{etc}/fstab"))?.unwrap_or_default()) {
                return Ok(Some(format!("its fstab has {place} on another file system")));
            }
        }
        Ok(None)
    }

    /// What there is to be said of it.
    pub(super) fn warnings(&self) -> Vec<String> {
        let has_cloud_init = self.usrs.iter().any(|usr| self.root.exists(&format!("{usr}/{PROGRAM}")));
        let mut warnings = self.warnings.clone();
        if !has_cloud_init {
            warnings.push("the installed system has no /usr/bin/cloud-init, so nothing will read the seed".to_owned());
        }
        warnings
    }

    /// Takes away what former seeds left, and has cloud-init look for one of NoCloud.
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

    /// Makes way for a seed elsewhere.
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
