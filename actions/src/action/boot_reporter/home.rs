//! Finds the place of the boot reporter in an installed system. Sealed and read-only file systems are not changed.

use rustix::fs::{StatVfsMountFlags, fstatvfs};
use rustix::io::Errno;
use slipway_formats::fstab;
use slipway_protocol::node::boot_report::places;

use super::ostree;
use crate::action::seed_cloud_init::ignition;
use crate::disk::open::OpenDisk;
use crate::error::{Error, TargetError};
use crate::report::{Report, Tell};
use crate::target::layout::{Folder, Held, Layout};
use crate::target::mount::Source;
use crate::target::root::{TargetRoot, target_file};
use crate::target::verity::{self, Place};
use crate::target::{self, Target, mount, os_release, roles};

const SYSTEMD: &[&str] = &["usr/lib/systemd/systemd", "lib/systemd/systemd"];
/// Folder by which systemd is recognised in a root file system without /usr.
const SYSTEMD_SETTINGS: &str = "etc/systemd";
const USR: &str = "usr";
/// Folder of the systemd units.
const UNITS: &str = "etc/systemd/system";
/// Folders for the program in a system whose /usr is another file system.
const WITHOUT_USR: &[&str] = &[places::OPT, places::VAR];
const MACHINE_ID: &str = "etc/machine-id";

/// The place for the reporter.
#[derive(Debug)]
pub(super) enum Home {
    /// In the files of the system.
    Files(Files),
    /// In the config that sets the system up in its first boot.
    Ignition(ignition::Found),
}

/// Files of a system.
#[derive(Debug)]
pub(super) struct Files {
    /// The folder that contains the system's /etc.
    pub(super) etc: TargetRoot,
    /// The folder of the program.
    pub(super) store: Folder,
    /// Path of the program's folder in the running system.
    pub(super) folder: &'static str,
    /// The system in words.
    pub(super) name: String,
    /// Partitions that could not be searched.
    pub(super) warnings: Vec<String>,
    /// Keeps the file system mounted.
    pub(super) _mount: TargetRoot,
}

pub(super) fn find(disk: &OpenDisk, report: Tell) -> Result<Home, Error> {
    let partitions = verity::places(disk)?;
    if let Some(found) = ignition::find(disk, &partitions)?
        && !has_run(disk, &partitions, &found)?
    {
        return Ok(Home::Ignition(found));
    }
    match target::find_root(disk, report) {
        Ok(target) => in_root(disk, target, &partitions).map(Home::Files),
        Err(error @ Error::Target(TargetError::NotFound { .. })) => {
            in_parts(disk, report)?.map(Home::Files).ok_or(error)
        }
        Err(error) => Err(error),
    }
}

/// Whether Ignition has already set the system up. Ignition does not read its config again after that.
fn has_run(disk: &OpenDisk, partitions: &[Place], found: &ignition::Found) -> Result<bool, Error> {
    if found.path != ignition::FLATCAR.1 {
        return Ok(found.warning.is_some());
    }
    let marked = |(partition, found): &&Place| roles::rank(partition, found.as_ref()) < roles::UNMARKED;
    let roots = partitions.iter().filter(marked).filter(|(partition, _)| !partition.read_only);
    for (partition, found) in roots {
        let kind = found.as_ref().map_or("", |found| found.kind);
        if mount::is_mountable(kind)
            && let Some(kind) = found.as_ref().map(|found| found.kind)
            && let Ok(root) = mount::mount(disk, partition, kind)
            && root.read(MACHINE_ID)?.is_some_and(|id| !id.trim().is_empty())
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Finds the place in a root file system that has an os-release.
fn in_root(disk: &OpenDisk, target: Target, partitions: &[Place]) -> Result<Files, Error> {
    let Target { root, partition, name, kind, source, warnings, .. } = target;
    let refused = |reason: &str| unfit(&name, reason);
    if is_read_only(&root)? {
        return Err(refused(super::READ_ONLY));
    }
    let folders: &[&str] = match SYSTEMD.iter().any(|path| root.exists(path)) {
        true => places::FOLDERS,
        false if lacks_usr(&root, partitions)? && root.exists(SYSTEMD_SETTINGS) => WITHOUT_USR,
        false => return Err(refused(super::NO_SYSTEMD)),
    };
    let home = Root { disk, root: &root, home: (partition.number, &source), name: &name, kind };
    let (folder, store) = home.store("", "", folders)?;
    Ok(Files { etc: root.below("")?, store, folder, name, warnings, _mount: root })
}

/// A root file system, and what it is mounted from.
struct Root<'a> {
    disk: &'a OpenDisk,
    root: &'a TargetRoot,
    home: (u32, &'a Source),
    name: &'a str,
    kind: &'static str,
}

impl Root<'_> {
    /// Chooses the folder for the program of a system in the folder `base`, whose /var is in the folder `shared`. Both
    /// end with a slash, or are empty. Prefers folders in the root file system, because others may not be mounted in
    /// the emergency shell.
    fn store(&self, base: &str, shared: &str, folders: &[&'static str]) -> Result<(&'static str, Folder), Error> {
        let layout = Layout::read(self.disk, self.root, self.home, base)?;
        match layout.held(UNITS)? {
            Held::Root(_) => {}
            Held::Mounted(Folder { name, .. }) => return Err(self.hidden(&format!("it mounts {name} on /etc"))),
            Held::Away(reason) => return Err(self.hidden(&reason)),
        }
        let (mut elsewhere, mut away) = (None, None);
        for &folder in folders {
            match layout.held(folder)? {
                Held::Root(path) => {
                    let (root, path) = (self.root.again()?, format!("{shared}{path}"));
                    return Ok((folder, Folder { root, path, name: self.name.to_owned(), kind: self.kind }));
                }
                Held::Mounted(found) => elsewhere = elsewhere.or(Some((folder, found))),
                Held::Away(reason) => away = away.or(Some(reason)),
            }
        }
        elsewhere.ok_or_else(|| self.hidden(&away.unwrap_or_default()))
    }

    fn hidden(&self, reason: &str) -> Error {
        unfit(
            self.name,
            &format!("{reason}, which would hide the reporter; include it in the image, or leave the step out"),
        )
    }
}

/// Finds the place in a system whose root file system has no os-release: one with OSTree, or without its /usr.
fn in_parts(disk: &OpenDisk, report: Tell) -> Result<Option<Files>, Error> {
    let mut judged = verity::judged(disk)?;
    judged.sort_by_key(|((partition, found), _)| roles::rank(partition, found.as_ref()));
    let partitions: Vec<Place> = judged.iter().map(|(place, _)| place.clone()).collect();
    let open = judged.into_iter().filter(|(_, closed)| closed.is_none());
    for ((partition, found), _) in open {
        let Some(kind) = found.as_ref().map(|found| found.kind).filter(|kind| mount::is_mountable(kind)) else {
            continue;
        };
        if kind == "vfat" {
            continue;
        }
        let Ok(source) = mount::source(disk, &partition) else { continue };
        let Ok((root, _)) = mount::mount_source(&source, kind) else { continue };
        let name = partition.describe(disk);
        if let Some((deployment, system)) = ostree::find(disk, &root)? {
            let name = format!("{system} in {name}");
            report(Report::Note(format!("the system that starts is {name}")));
            let etc = root.below(&deployment.root)?;
            if is_read_only(&root)? {
                return Err(unfit(&name, super::READ_ONLY));
            }
            if !SYSTEMD.iter().any(|path| etc.exists(path)) {
                return Err(unfit(&name, super::NO_SYSTEMD));
            }
            let home = Root { disk, root: &root, home: (partition.number, &source), name: &name, kind };
            let (base, shared) = (format!("{}/", deployment.root), format!("{}/", deployment.state));
            let (folder, store) = home.store(&base, &shared, &[places::VAR])?;
            return Ok(Some(Files { etc, store, folder, name, warnings: Vec::new(), _mount: root }));
        }
        let is_marked = roles::rank(&partition, found.as_ref()) < roles::UNMARKED;
        let is_root = is_marked || os_release::PATHS.iter().any(|path| root.has(path));
        if is_root && lacks_usr(&root, &partitions)? {
            if is_read_only(&root)? {
                return Err(unfit(&name, super::READ_ONLY));
            }
            report(Report::Note(format!("the root file system is {kind} on {name}, and its /usr is elsewhere")));
            let home = Root { disk, root: &root, home: (partition.number, &source), name: &name, kind };
            let (folder, store) = home.store("", "", WITHOUT_USR)?;
            return Ok(Some(Files { etc: root.below("")?, store, folder, name, warnings: Vec::new(), _mount: root }));
        }
    }
    Ok(None)
}

/// Whether /usr is another file system: the folder is empty, and fstab mounts /usr or there is a partition for it.
fn lacks_usr(root: &TargetRoot, partitions: &[Place]) -> Result<bool, Error> {
    let is_named = |name: &str| {
        let name = name.to_ascii_lowercase();
        name == USR || name.starts_with("usr-") || name.ends_with("-usr")
    };
    let is_usr = |(partition, found): &Place| {
        let label = found.as_ref().and_then(|found| found.label.as_deref()).unwrap_or_default();
        roles::is_usr(partition) || is_named(&partition.name) || is_named(label)
    };
    let fstab = root.read("etc/fstab")?.unwrap_or_default();
    let is_mounted = fstab::entries(&fstab).iter().any(|entry| entry.place == USR);
    let is_empty = root.list(USR)?.is_empty() && root.directories(USR)?.is_empty();
    Ok(is_empty && (is_mounted || partitions.iter().any(is_usr)))
}

fn is_read_only(root: &TargetRoot) -> Result<bool, Error> {
    let look = |errno: Errno| target_file("looking at", "", errno.into());
    let flags = root.directory().and_then(fstatvfs).map_err(look)?.f_flag;
    Ok(flags.contains(StatVfsMountFlags::RDONLY))
}

fn unfit(partition: &str, reason: &str) -> Error {
    TargetError::BootReporter { partition: partition.to_owned(), reason: reason.to_owned() }.into()
}
