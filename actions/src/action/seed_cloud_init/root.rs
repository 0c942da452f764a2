//! Writes a seed where /var/lib/cloud of the installed system will be, and removes the traces of former ones.

use slipway_formats::boot_config::places::{self, BootText};
use slipway_user_data::image::{File, Seed};

use super::configuration::{self, Change, Etc};
use crate::disk::open::OpenDisk;
use crate::disk::partitions::Partition;
use crate::disk::probe::FileSystem;
use crate::error::{Error, TargetError};
use crate::report::{Report, Tell};
use crate::target::layout::{Folder, Held, Layout};
use crate::target::mount::Source;
use crate::target::ostree::Deployment;
use crate::target::root::TargetRoot;
use crate::target::verity::Place;
use crate::target::volume::Volume;
use crate::target::{self, Target, mount, ostree, roles};
use crate::text::chain;

/// Folder of cloud-init's state. Its folder `seed` may have seeds.
const STATE: &str = "var/lib/cloud";
/// Folder of the seed that is written, below `STATE`.
const SEED: &str = "seed/nocloud";
/// State that makes cloud-init believe that it has run, and a seed that it would read instead. Paths below the state.
const LEFTOVERS: &[&str] = &["instance", "instances", "sem", "data", "seed/nocloud-net"];
/// Where boot file systems are mounted.
const BOOT: &[&str] = &["boot", "boot/efi", "efi"];
const PROGRAM: &str = "bin/cloud-init";
/// Maximum bytes of a script's first line, which names its interpreter (Linux, `BINPRM_BUF_SIZE`).
const MAX_SHEBANG: u64 = 256;
/// Optional files of a seed.
const OPTIONAL: &[&str] = &["vendor-data", "network-config"];
/// Mode of the files of a seed, which contain secrets.
const SEED_MODE: u32 = 0o600;
/// A system on the disk, with the folders that it has when it runs, wherever they are mounted from.
#[derive(Debug)]
pub(super) struct System {
    /// Description of the file system with the seed, or of the root file system.
    pub(super) name: String,
    warnings: Vec<String>,
    /// Folders with cloud-init's state.
    states: Vec<Folder>,
    /// Why the running system's state is not on this disk, if so.
    away: Option<String>,
    etcs: Vec<Etc>,
    /// Boot files that contain kernel arguments.
    boot: Vec<File>,
}

/// A root file system, and what it is mounted from.
struct Found<'a> {
    disk: &'a OpenDisk,
    root: TargetRoot,
    home: (u32, Source),
    name: String,
    kind: &'static str,
}

/// Mounts the file systems of a usual or an OSTree system.
pub(super) fn find(disk: &OpenDisk, places: &[Place], report: Tell) -> Result<System, Error> {
    match target::find_root(disk, report) {
        Ok(Target { root, partition, name, kind, source, warnings, .. }) => {
            let found = Found { disk, root, home: (partition.number, source), name, kind };
            let mut system = found.system(places)?;
            system.warnings.splice(0..0, warnings);
            found.add("", "", &mut system)?;
            Ok(system)
        }
        Err(error @ Error::Target(TargetError::NotFound { .. })) => find_ostree(disk, places, report)?.ok_or(error),
        Err(error) => Err(error),
    }
}

fn find_ostree(disk: &OpenDisk, places: &[Place], report: Tell) -> Result<Option<System>, Error> {
    for (partition, found) in places {
        let kind = found.as_ref().map_or("", |found| found.kind);
        if roles::is_usr(partition) || partition.read_only || !mount::is_mountable(kind) || kind == "vfat" {
            continue;
        }
        let Ok(source) = mount::source(disk, partition) else { continue };
        let Ok((root, _)) = mount::mount_source(&source, kind) else { continue };
        let name = partition.describe(disk);
        if root.exists("ostree/repo") {
            report(Report::Note(format!("the root file system is {kind} on {name}, managed by OSTree")));
            return deployed(Found { disk, root, home: (partition.number, source), name, kind }, places);
        }
    }
    Ok(None)
}

/// Returns the system of an OSTree root; `None` if nothing is deployed in it.
fn deployed(found: Found, places: &[Place]) -> Result<Option<System>, Error> {
    let mut system = found.system(places)?;
    for Deployment { root, state, .. } in ostree::deployments(&found.root)? {
        found.add(&format!("{root}/"), &format!("{state}/"), &mut system)?;
    }
    Ok((!system.etcs.is_empty()).then_some(system))
}

impl Found<'_> {
    /// Makes a system without folders, with the boot files of the root file system and of partitions for booting.
    fn system(&self, places: &[Place]) -> Result<System, Error> {
        let mut system = System {
            name: self.name.clone(),
            warnings: Vec::new(),
            states: Vec::new(),
            away: None,
            etcs: Vec::new(),
            boot: Vec::new(),
        };
        system.read_boot(&self.folder("")?, "")?;
        for (partition, found) in places.iter().filter(|(partition, _)| partition.number != self.home.0) {
            let is_boot = roles::is_for_booting(partition, found.as_ref()) && !partition.read_only;
            let Some(kind) = found.as_ref().map(|found| found.kind).filter(|kind| is_boot && mount::is_mountable(kind))
            else {
                continue;
            };
            if let Ok(root) = mount::mount(self.disk, partition, kind) {
                let name = partition.describe(self.disk);
                system.read_boot(
                    &Folder { root, path: String::new(), name: name.clone(), kind },
                    &format!(" of {name}"),
                )?;
            }
        }
        Ok(system)
    }

    /// Adds the folders of a system whose root is the folder `base` and whose /var is in the folder `shared`. Both end
    /// with a slash, or are empty.
    fn add(&self, base: &str, shared: &str, system: &mut System) -> Result<(), Error> {
        let layout = Layout::read(self.disk, &self.root, (self.home.0, &self.home.1), base)?;
        for place in BOOT {
            if let Held::Mounted(folder) = layout.held(place)? {
                system.read_boot(&folder, &format!(" of {}", folder.name))?;
            }
        }
        match layout.held(STATE)? {
            Held::Root(path) => {
                let is_new = |state: &Folder| state.path != format!("{shared}{path}");
                if system.states.iter().all(is_new) {
                    system.states.push(self.folder(&format!("{shared}{path}"))?);
                }
            }
            Held::Mounted(folder) => {
                system.name.clone_from(&folder.name);
                system.states.push(folder);
            }
            Held::Away(reason) => system.away = Some(reason),
        }
        let (folder, closed) = match layout.held("etc")? {
            Held::Root(path) => (self.folder(&format!("{base}{path}"))?, None),
            Held::Mounted(folder) => (folder, None),
            Held::Away(reason) => (self.folder(&format!("{base}etc"))?, Some(reason)),
        };
        let closed = closed.or(folder.is_read_only()?.then(|| format!("{} is read-only", folder.name)));
        system.etcs.push(Etc { folder, usr: self.folder(&format!("{base}usr"))?, closed });
        Ok(())
    }

    fn folder(&self, path: &str) -> Result<Folder, Error> {
        Ok(Folder { root: self.root.again()?, path: path.to_owned(), name: self.name.clone(), kind: self.kind })
    }
}

/// Returns the interpreter that /usr/bin/cloud-init names, if that interpreter is missing.
fn missing_interpreter(usr: &Folder) -> Option<String> {
    let head = usr.root.head(&usr.at(PROGRAM), MAX_SHEBANG).ok()??;
    let line = String::from_utf8_lossy(&head);
    let mut words = line.lines().next()?.strip_prefix("#!")?.split_whitespace();
    let path = match words.next()? {
        "/usr/bin/env" => format!("/usr/bin/{}", words.find(|word| !word.starts_with('-'))?),
        path => path.to_owned(),
    };
    // Other folders are not looked into. /bin is the same as /usr/bin where cloud-init is.
    let below =
        path.strip_prefix("/usr/").or_else(|| path.strip_prefix('/').filter(|path| path.starts_with("bin/")))?;
    (!usr.root.has(&usr.at(below))).then_some(path)
}

impl System {
    /// Adds the boot files of a file system. `of` is appended to their paths, to name a file system other than the
    /// root's.
    fn read_boot(&mut self, folder: &Folder, of: &str) -> Result<(), Error> {
        let file_system = FileSystem { kind: folder.kind, uuid: None, label: None };
        let volume = Volume::new(folder.name.clone(), Partition::default(), file_system, folder.root.again()?);
        let texts = places::texts(&volume).unwrap_or_else(|error| {
            self.warnings.push(format!("could not read the kernel arguments in {}: {}", folder.name, chain(&error)));
            Vec::new()
        });
        for BootText { path, text, .. } in texts {
            let file = File { path: format!("/{path}{of}"), text };
            if !self.boot.contains(&file) {
                self.boot.push(file);
            }
        }
        Ok(())
    }

    /// Returns why a seed cannot be put where the running system looks for it, if so.
    pub(super) fn obstacle(&self) -> Result<Option<String>, Error> {
        for state in &self.states {
            if state.is_read_only()? {
                return Ok(Some(format!("{} is read-only", state.name)));
            }
        }
        Ok(self.away.clone())
    }

    /// Whether there is a NoCloud seed that cannot be removed.
    pub(super) fn has_lasting_seed(&self) -> bool {
        let has_seed = |state: &Folder| state.root.exists(&state.at(&format!("{SEED}/meta-data")));
        self.states.iter().any(|state| has_seed(state) && !state.is_read_only().is_ok_and(|read_only| !read_only))
    }

    /// Returns warnings for the operator.
    pub(super) fn warnings(&self) -> Vec<String> {
        let has_cloud_init = self.etcs.iter().any(|etc| etc.usr.root.exists(&etc.usr.at(PROGRAM)));
        let mut warnings = self.warnings.clone();
        if !has_cloud_init {
            warnings.push("the installed system has no /usr/bin/cloud-init, so nothing will read the seed".to_owned());
        }
        let missing = self.etcs.iter().find_map(|etc| missing_interpreter(&etc.usr));
        warnings.extend(missing.map(|path| {
            format!("the installed system has no {path}, which runs /usr/bin/cloud-init: nothing will read the seed")
        }));
        warnings
    }

    /// Plans what has to change in each /etc for cloud-init to take a seed. Returns warnings too. Fails if no change
    /// helps.
    pub(super) fn changes(&self, seed: Seed, disk: &str) -> Result<(Vec<Change>, Vec<String>), Error> {
        let (mut changes, mut warnings) = (Vec::new(), Vec::new());
        for etc in &self.etcs {
            let (change, more) = configuration::plan(etc, seed, &self.boot, disk)?;
            changes.push(change);
            warnings.extend(more);
        }
        Ok((changes, warnings))
    }

    /// Removes what former seeds left, and makes cloud-init look for a NoCloud seed.
    fn prepare(&self, changes: &[Change]) -> Result<(), Error> {
        for (etc, change) in self.etcs.iter().zip(changes) {
            change.make(&etc.folder)?;
            etc.folder.root.sync()?;
        }
        for state in &self.states {
            if !state.is_read_only()? {
                LEFTOVERS.iter().try_for_each(|path| state.root.remove(&state.at(path)))?;
            }
        }
        Ok(())
    }

    /// Writes a seed.
    pub(super) fn seed(&self, files: &[(&str, String)], changes: &[Change]) -> Result<(), Error> {
        self.prepare(changes)?;
        for state in &self.states {
            let at = |name: &str| state.at(&format!("{SEED}/{name}"));
            for (name, content) in files {
                state.root.write(&at(name), content.as_bytes(), SEED_MODE)?;
            }
            for name in OPTIONAL.iter().filter(|name| files.iter().all(|(file, _)| file != *name)) {
                state.root.remove(&at(name))?;
            }
            state.root.sync()?;
        }
        Ok(())
    }

    /// Prepares for a seed in a partition of its own: also removes the seeds in folders with cloud-init's state.
    pub(super) fn make_way(&self, changes: &[Change]) -> Result<(), Error> {
        self.prepare(changes)?;
        for state in &self.states {
            if !state.is_read_only()? {
                state.root.remove(&state.at(SEED))?;
                state.root.sync()?;
            }
        }
        Ok(())
    }
}
