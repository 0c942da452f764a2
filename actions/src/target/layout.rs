//! Which file system of the installed system holds a path, by what the system mounts when it starts: fstab(5) and
//! systemd's mount units.

use rustix::fs::{Access, AtFlags, accessat};
use rustix::io::Errno;
use slipway_formats::fstab::{self, Entry};

use crate::disk::open::OpenDisk;
use crate::disk::partitions::Partition;
use crate::error::Error;
use crate::target::mount::{self, MountError, SearchLog, Source};
use crate::target::root::{MAX_LINKS, TargetRoot, target_file};
use crate::target::verity::{self, Place};
use crate::target::{Target, roles};
use crate::text;

const FSTAB: &str = "fstab";
/// Folder below /etc of the units that an administrator made. Those that come with packages mount kernel file systems.
const UNITS: &str = "systemd/system";
/// Folders of file systems that are not on a disk.
const KERNEL: &[&str] = &["proc", "sys", "dev", "run"];

/// What the installed system mounts.
#[derive(Debug)]
pub(crate) struct Layout<'a> {
    disk: &'a OpenDisk,
    places: Vec<Place>,
    root: &'a TargetRoot,
    /// Number of the root's partition, and its device.
    home: (u32, &'a Source),
    /// Path of the running system's root on its file system, as a prefix: it is empty or ends with a slash.
    base: String,
    mounted: Vec<Mounted>,
}

/// A file system that is mounted, and the file that says so.
#[derive(Debug)]
struct Mounted {
    entry: Entry,
    by: String,
}

/// Where a path is.
#[derive(Debug)]
pub(crate) enum Held {
    /// In the root file system, at this path.
    Root(String),
    /// In another file system of the disk.
    Mounted(Folder),
    /// Not on this disk, for this reason.
    Away(String),
}

impl Held {
    /// Returns the folder in the file system that holds the path, which may be the target's own file system. Otherwise
    /// returns why there is no such folder.
    pub(crate) fn folder(self, target: &Target) -> Result<Result<Folder, String>, Error> {
        Ok(match self {
            Self::Root(path) => {
                Ok(Folder { root: target.root.again()?, path, name: target.name.clone(), kind: target.kind })
            }
            Self::Mounted(folder) => Ok(folder),
            Self::Away(reason) => Err(reason),
        })
    }
}

/// A path in a mounted file system.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) root: TargetRoot,
    pub(crate) path: String,
    /// The file system in words.
    pub(crate) name: String,
    /// File system type.
    pub(crate) kind: &'static str,
}

/// A mount of the system besides its root.
#[derive(Debug)]
pub(crate) struct Extra {
    pub(crate) origin: Origin,
    /// Mount point, without slashes at its ends.
    pub(crate) place: String,
    /// Whether the system starts without it.
    pub(crate) may_fail: bool,
}

/// Where what is mounted comes from.
#[derive(Debug)]
pub(crate) enum Origin {
    /// A file system of the disk.
    Device {
        source: Source,
        kind: &'static str,
        /// The option that chooses a subvolume.
        subvolume: Option<String>,
    },
    /// A folder or file of the system.
    Bound {
        /// Path of the bound folder or file, without slashes at its ends.
        folder: String,
        /// Whether what is mounted below it is bound too.
        is_recursive: bool,
    },
}

/// What the running system mounts over a path.
#[derive(Debug)]
pub(crate) struct Hidden {
    /// What is mounted over the path, in words.
    pub(crate) reason: String,
    /// Whether what is mounted is on this disk.
    pub(crate) is_on_disk: bool,
}

/// Where a path leads.
struct Located<'m> {
    /// The mount that the path is in; none if it is in the root file system.
    mounted: Option<&'m Mounted>,
    /// The path in that mount, or in the root file system.
    path: String,
    /// The mounts on the way, such as bound folders.
    through: Vec<&'m Mounted>,
}

impl Folder {
    /// The path of a file below the folder.
    pub(crate) fn at(&self, path: &str) -> String {
        if self.path.is_empty() { path.to_owned() } else { format!("{}/{path}", self.path) }
    }

    /// Whether the folder cannot be written to. The kernel silently mounts a file system read-only if it is marked so,
    /// and a subvolume may be read-only by itself.
    pub(crate) fn is_read_only(&self) -> Result<bool, Error> {
        let mut path = &*self.path;
        loop {
            match self.root.open_directory(path.as_bytes()) {
                // The folder will be made in its parent.
                Err(Errno::NOENT | Errno::NOTDIR) if !path.is_empty() => {
                    path = path.rsplit_once('/').map_or("", |(parent, _)| parent);
                }
                Err(errno) => return Err(target_file("looking at", path, errno.into())),
                Ok(place) => return Ok(accessat(place, ".", Access::WRITE_OK, AtFlags::empty()) == Err(Errno::ROFS)),
            }
        }
    }

    /// Whether the file system stores owners and modes.
    pub(crate) fn keeps_owners(&self) -> bool {
        mount::keeps_owners(self.kind)
    }
}

impl<'a> Layout<'a> {
    /// Reads what the system on a root file system mounts.
    pub(crate) fn of(disk: &'a OpenDisk, target: &'a Target) -> Result<Self, Error> {
        Self::read(disk, &target.root, (target.partition.number, &target.source), "")
    }

    /// Reads what a system mounts. `base` is the folder of `root` with the system: it is empty or ends with a slash.
    pub(crate) fn read(
        disk: &'a OpenDisk,
        root: &'a TargetRoot,
        home: (u32, &'a Source),
        base: &str,
    ) -> Result<Self, Error> {
        let etc = format!("{base}etc");
        let mut mounted = Vec::new();
        // A mount unit replaces the one that systemd generates from fstab for the same path.
        for name in root.list(&format!("{etc}/{UNITS}"))?.into_iter().filter(|name| name.ends_with(".mount")) {
            let path = format!("{etc}/{UNITS}/{name}");
            let text = if root.exists(&path) { root.read(&path)? } else { None };
            mounted.extend(text.and_then(|text| fstab::of_unit(&text)).map(|entry| Mounted { entry, by: name }));
        }
        let text = root.read(&format!("{etc}/{FSTAB}"))?.unwrap_or_default();
        // A boot file system counts even if it is mounted only for updates.
        for entry in fstab::entries(&text).into_iter().chain(fstab::boot_entries(&text)) {
            if mounted.iter().all(|earlier: &Mounted| earlier.entry.place != entry.place) {
                mounted.push(Mounted { entry, by: FSTAB.to_owned() });
            }
        }
        // Binding a folder to itself changes nothing.
        mounted.retain(|mounted| mounted.entry.bound().is_none_or(|folder| folder != mounted.entry.place));
        Ok(Self { disk, places: verity::places(disk)?, root, home, base: base.to_owned(), mounted })
    }

    /// Finds where a path of the running system is. Mounts the file system that has the path.
    pub(crate) fn held(&self, path: &str) -> Result<Held, Error> {
        let Located { mounted, path, .. } = self.locate(path);
        let Some(Mounted { entry, by }) = mounted else { return Ok(Held::Root(path)) };
        let away = |reason: Option<String>| {
            let what = reason.as_ref().map_or(&*entry.kind, |_| "another file system");
            let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
            Ok(Held::Away(format!("its {by} mounts {what} on /{}{reason}", entry.place)))
        };
        let (partition, kind) = match self.partition(entry) {
            Ok(found) => found,
            Err(reason) => return away(reason),
        };
        let mut name = partition.describe(self.disk);
        if let Some(subvolume) = entry.subvolume().filter(|_| kind == "btrfs") {
            name = format!("{subvolume} of {name}");
        }
        match self.mount(partition, kind, entry.subvolume()) {
            Ok(root) => Ok(Held::Mounted(Folder { root, path, name, kind })),
            Err(error @ MountError::Refused { .. }) => away(Some(text::chain(&error))),
            Err(error) => {
                let mut looked_at = SearchLog::default();
                looked_at.refused(&name, &error);
                Err(looked_at.not_found("the file system for a folder", self.disk))
            }
        }
    }

    /// Returns what the running system mounts on the way to a path, but not on the way to `folder`.
    pub(crate) fn hidden(&self, path: &str, folder: &str) -> Option<Hidden> {
        let Located { mounted, through, .. } = self.locate(path);
        let over = self.locate(folder).through;
        let is_new = |there: &&&Mounted| over.iter().all(|over| over.entry.place != there.entry.place);
        let Mounted { entry, by } = through.iter().find(is_new)?;
        Some(Hidden {
            reason: format!("its {by} mounts {} on /{}", entry.source, entry.place),
            is_on_disk: mounted.is_none_or(|mounted| self.partition(&mounted.entry).is_ok()),
        })
    }

    fn mount(
        &self,
        partition: &Partition,
        kind: &'static str,
        subvolume: Option<&str>,
    ) -> Result<TargetRoot, MountError> {
        // A file system must not be mounted through two devices.
        match self.home {
            (number, source) if number == partition.number => mount::mount_subvolume(source, kind, subvolume),
            _ => mount::mount_subvolume(&mount::source(self.disk, partition)?, kind, subvolume),
        }
    }

    /// Returns what else the system mounts from this disk, in such an order that each mount point exists when it is
    /// needed. Also returns warnings about what cannot be mounted although it is on a disk.
    pub(crate) fn extras(&self) -> (Vec<Extra>, Vec<String>) {
        let (mut extras, mut warnings) = (Vec::new(), Vec::new());
        for Mounted { entry, .. } in self.mounted.iter().filter(|mounted| !mounted.entry.place.is_empty()) {
            let place = entry.place.clone();
            match self.origin(entry) {
                Ok(origin) => extras.push(Extra { origin, place, may_fail: entry.may_fail() }),
                Err(Some(reason)) => warnings.push(format!("/{place} is not mounted: {reason}")),
                Err(None) => {}
            }
        }
        (in_order(extras), warnings)
    }

    /// Returns where an entry mounts from, else why it is not mounted; no reason if its source is not on a disk.
    fn origin(&self, entry: &Entry) -> Result<Origin, Option<String>> {
        if let Some(folder) = entry.bound() {
            if KERNEL.iter().any(|name| folder.split('/').next() == Some(name)) {
                return Err(None);
            }
            let away = self.locate(&folder).mounted.map(|mounted| self.partition(&mounted.entry));
            return match away.transpose() {
                Ok(_) => {
                    Ok(Origin::Bound { folder, is_recursive: entry.options.iter().any(|option| option == "rbind") })
                }
                Err(reason) => Err(Some(reason.unwrap_or_else(|| format!("/{folder} is not on this disk")))),
            };
        }
        let (partition, kind) = self.partition(entry)?;
        let source = match partition.number == self.home.0 {
            true => Ok(self.home.1.again()),
            false => mount::source(self.disk, partition),
        };
        let source = source.map_err(|error| Some(text::chain(&error)))?;
        let subvolume = entry.subvolume().filter(|_| kind == "btrfs").map(str::to_owned);
        Ok(Origin::Device { source, kind, subvolume })
    }

    /// Finds where a path leads. Follows bound folders and links to folders while they are in the root file system.
    fn locate(&self, path: &str) -> Located<'_> {
        let names = |path: &str| path.rsplit('/').map(str::to_owned).collect::<Vec<_>>();
        let (mut done, mut left, mut turns, mut through) = (Vec::new(), names(path), 0, Vec::new());
        while let Some(name) = left.pop() {
            match &*name {
                "" | "." => continue,
                ".." => _ = done.pop(),
                _ => done.push(name),
            }
            let here = done.join("/");
            let turn = if let Some((mounted, rest)) = self.over(&here, &left) {
                through.push(mounted);
                match mounted.entry.bound() {
                    Some(folder) if turns < MAX_LINKS => format!("{folder}/{rest}"),
                    _ => return Located { mounted: Some(mounted), path: rest, through },
                }
            } else {
                match self.root.link_at(&format!("{}{here}", self.base)) {
                    Ok(Some(target)) if turns < MAX_LINKS && !left.is_empty() => {
                        // `link_at` puts the folder of the link, with `base`, before a relative target.
                        let target = target.strip_prefix(&self.base).unwrap_or(&target).to_owned();
                        format!("{target}/{}", left.iter().rev().cloned().collect::<Vec<_>>().join("/"))
                    }
                    _ => continue,
                }
            };
            turns += 1;
            done.clear();
            left = names(&turn);
        }
        Located { mounted: None, path: done.join("/"), through }
    }

    /// If `here` is a mount point, returns the innermost mount on the whole path, and the rest of the path in it.
    fn over(&self, here: &str, left: &[String]) -> Option<(&Mounted, String)> {
        self.mounted.iter().find(|mounted| !here.is_empty() && mounted.entry.place == here)?;
        let whole = left.iter().rev().fold(here.to_owned(), |path, name| format!("{path}/{name}"));
        let over = self.mounted.iter().filter_map(|mounted| Some((mounted, mounted.entry.below(&whole)?)));
        let (innermost, rest) = over.max_by_key(|(mounted, _)| mounted.entry.place.len())?;
        Some((innermost, rest.trim_matches('/').to_owned()))
    }

    /// Returns the partition that an entry refers to, and its file system. Otherwise returns why there is none; no
    /// reason if the entry does not name a device.
    fn partition(&self, entry: &Entry) -> Result<(&Partition, &'static str), Option<String>> {
        let is_meant = |(partition, found): &&Place| match entry.tag() {
            Some(_) => entry.means(&roles::tags(partition, found.as_ref())),
            None => self.number(&entry.source) == Some(partition.number),
        };
        let Some((partition, found)) = self.places.iter().find(is_meant) else {
            if self.may_be_anywhere(&entry.source) {
                return Err(Some(format!("{} may be on any disk; name it by UUID or label in fstab", entry.source)));
            }
            let is_device = entry.tag().is_some() || entry.source.starts_with("/dev/");
            return Err(is_device.then(|| format!("{} is not on this disk", entry.source)));
        };
        if let Some(reason) = verity::closed(partition, found.as_ref(), None) {
            return Err(Some(format!("{} is left alone: {reason}", partition.describe(self.disk))));
        }
        match found.as_ref().map(|found| found.kind) {
            Some(kind) if mount::is_mountable(kind) => Ok((partition, kind)),
            kind => Err(Some(format!("{} has {}", partition.describe(self.disk), kind.unwrap_or("no file system")))),
        }
    }

    /// Returns the number of the partition with this device name, if fstab names the root by its device: 3 for
    /// `/dev/sda3` if the root is partition 2 and fstab calls it `/dev/sda2`.
    fn number(&self, source: &str) -> Option<u32> {
        if self.root_source()? == source {
            return Some(self.home.0);
        }
        let ((disk, number), (root_disk, root_number)) = (numbered(source)?, numbered(self.root_source()?)?);
        (disk == root_disk && root_number == self.home.0).then_some(number)
    }

    /// Whether a source is the device name of a partition, and the root's name in fstab does not tell of which disk.
    fn may_be_anywhere(&self, source: &str) -> bool {
        let root = self.root_source().and_then(numbered);
        numbered(source).is_some() && root.is_none_or(|(_, number)| number != self.home.0)
    }

    /// Returns the source by which fstab names the root.
    fn root_source(&self) -> Option<&str> {
        let root = self.mounted.iter().find(|mounted| mounted.entry.place.is_empty())?;
        Some(&root.entry.source)
    }
}

impl Extra {
    /// Whether the other must be mounted first: this is mounted below it, or bound from it.
    fn needs(&self, other: &Self) -> bool {
        let bound = match &self.origin {
            Origin::Bound { folder, .. } => Some(folder),
            Origin::Device { .. } => None,
        };
        let is_in = |path: &String| {
            path.strip_prefix(&other.place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        is_in(&self.place) || bound.is_some_and(is_in)
    }
}

/// Sorts mounts, so that each comes after those that it needs.
fn in_order(mut left: Vec<Extra>) -> Vec<Extra> {
    let mut ordered = Vec::new();
    while !left.is_empty() {
        let is_next = |extra: &Extra| left.iter().all(|other| std::ptr::eq(other, extra) || !extra.needs(other));
        // If some need each other, the first of them is taken.
        let next = left.iter().position(is_next).unwrap_or_default();
        ordered.push(left.remove(next));
    }
    ordered
}

/// Splits the device name of a partition into the disk and the number of the partition.
fn numbered(name: &str) -> Option<(&str, u32)> {
    let name = name.strip_prefix("/dev/")?;
    let disk = name.trim_end_matches(|c: char| c.is_ascii_digit());
    Some((disk, name.strip_prefix(disk)?.parse().ok()?))
}
