//! What uses a disk, topmost first, from sysfs and procfs.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};
use slipway_formats::escapes::decoded_text;

/// One thing to take down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Swap on a device or in a file, by its path.
    Swap(String),
    /// A mount. The id tells apart several mounts at one place.
    Unmount { id: String, place: String },
    /// A device-mapper mapping: LVM, LUKS, multipath and others.
    Mapping { node: String, name: String },
    /// An array of the md driver.
    Array(String),
    /// A disk or partition that bcache uses, and the file that makes bcache release it.
    Cache { node: String, stop: PathBuf },
    /// A loop device.
    Loop(String),
    /// What cannot be taken down, in words.
    Fixed(String),
}

impl Step {
    /// What the step does, in words.
    pub(super) fn doing(&self) -> String {
        match self {
            Step::Swap(path) => format!("turning off swap on {path}"),
            Step::Unmount { place, .. } => format!("unmounting {place}"),
            Step::Mapping { node, name } => format!("removing the mapping {name} ({node})"),
            Step::Array(node) => format!("stopping the array {node}"),
            Step::Cache { node, .. } => format!("stopping the cache on {node}"),
            Step::Loop(node) => format!("releasing the loop device {node}"),
            Step::Fixed(what) => format!("releasing {what}"),
        }
    }
}

/// Returns what has to be taken down, in a possible order. The error names what cannot be taken down. `place` is the
/// path of a disk or a partition below /sys/block.
pub(super) fn plan(sys: &Path, proc: &Path, place: &str) -> Result<Vec<Step>, String> {
    let mut stack = Stack::read(sys, proc);
    stack.clear(&sys.join("block").join(place));
    let steps: Vec<Step> = stack.steps.into_iter().map(|(step, _)| step).collect();
    match steps.iter().find_map(|step| if let Step::Fixed(what) = step { Some(what.clone()) } else { None }) {
        Some(holder) => Err(holder),
        None => Ok(steps),
    }
}

/// A line of mountinfo (proc_pid_mountinfo(5)).
#[derive(Clone, Debug)]
struct Mount {
    id: String,
    parent: String,
    number: String,
    place: String,
    source: String,
    /// ID of a process that sees the mount, if this process does not.
    seen_by: Option<String>,
}

impl Mount {
    /// Describes how the mount uses its device.
    fn using(&self) -> String {
        let seen = self.seen_by.as_ref().map(|id| format!(" for process {id}")).unwrap_or_default();
        format!("{} is mounted at {}{seen}", self.source, self.place)
    }
}

/// A loop device.
#[derive(Clone, Debug)]
struct Loop {
    name: String,
    /// Path of the backing file or device.
    backing: String,
    /// Whether the kernel frees it once nothing has it open.
    is_automatic: bool,
}

/// What the kernel has in use, and what was found to use the disk so far.
#[derive(Clone, Debug)]
pub(super) struct Stack {
    sys: PathBuf,
    mounts: Vec<Mount>,
    swaps: Vec<String>,
    loops: Vec<Loop>,
    /// Whether loop devices that are about to be freed count as users.
    with_leaving: bool,
    seen: HashSet<String>,
    /// Steps so far, each with a description of how its object uses the layer below.
    steps: Vec<(Step, String)>,
}

impl Stack {
    fn read(sys: &Path, proc: &Path) -> Self {
        let text = |file: &str| String::from_utf8_lossy(&fs::read(proc.join(file)).unwrap_or_default()).into_owned();
        let bound = |name: String| {
            let dir = sys.join("block").join(&name).join("loop");
            let backing = read_attribute(&dir.join("backing_file"))?;
            Some(Loop { name, backing, is_automatic: read_attribute(&dir.join("autoclear")).as_deref() == Some("1") })
        };
        Self {
            sys: sys.to_owned(),
            mounts: mounts(&text("self/mountinfo"), None),
            // The first line is a heading; its first word is not a path.
            swaps: text("swaps").lines().filter_map(|line| line.split_whitespace().next()).map(unescaped).collect(),
            loops: names(&sys.join("block")).into_iter().filter_map(bound).collect(),
            with_leaving: true,
            seen: HashSet::new(),
            steps: Vec::new(),
        }
    }

    /// Reads what any process uses: with the mounts of other namespaces, as containers have them. Leaves out loop
    /// devices that only wait for their last user, which may be a process that is ending.
    pub(super) fn of_everybody(sys: &Path, proc: &Path) -> Self {
        let mut stack = Self { with_leaving: false, ..Self::read(sys, proc) };
        let namespace = |id: &str| fs::read_link(proc.join(id).join("ns/mnt")).ok();
        let mut known: HashSet<PathBuf> = namespace("self").into_iter().collect();
        for id in names(proc).into_iter().filter(|name| name.bytes().all(|digit| digit.is_ascii_digit())) {
            if namespace(&id).is_some_and(|namespace| known.insert(namespace)) {
                let text = fs::read(proc.join(&id).join("mountinfo")).unwrap_or_default();
                stack.mounts.extend(mounts(&String::from_utf8_lossy(&text), Some(&id)));
            }
        }
        stack
    }

    /// Describes the uses of a disk, from the lowest layer up. `name` is the disk's name below /sys/block.
    pub(super) fn uses_of(&self, name: &str) -> Vec<String> {
        let mut stack = self.clone();
        stack.clear(&self.sys.join("block").join(name));
        stack.in_words()
    }

    /// Describes what uses a regular file: swap, and loop devices that are in use themselves.
    pub(super) fn uses_of_file(&self, is_it: impl Fn(&str) -> bool) -> Vec<String> {
        let mut stack = self.clone();
        for bound in self.loops.iter().filter(|bound| is_it(&bound.backing)) {
            let before = stack.steps.len();
            stack.clear(&self.sys.join("block").join(&bound.name));
            if stack.steps.len() > before {
                stack.push(Step::Loop(bound.name.clone()), bound.using());
            }
        }
        stack.stop_swap(is_it);
        stack.in_words()
    }

    fn in_words(self) -> Vec<String> {
        self.steps.into_iter().rev().map(|(_, using)| using).collect()
    }

    /// Plans to take down everything that uses a block device and its partitions.
    fn clear(&mut self, dir: &Path) {
        let partitions =
            names(dir).into_iter().map(|name| dir.join(name)).filter(|node| node.join("partition").exists());
        for node in partitions.collect::<Vec<_>>().iter().map(PathBuf::as_path).chain([dir]) {
            let name = file_name(node);
            if self.seen.insert(name.clone()) {
                self.clear_node(node, &name);
            }
        }
    }

    fn clear_node(&mut self, node: &Path, name: &str) {
        let path = format!("/dev/{}", name.replace('!', "/"));
        let number = read_attribute(&node.join("dev"));
        self.release_loops(|file| file == path || number.is_some() && device_number(file) == number);
        self.stop_swap(|swap| swap == path);
        for mount in self.mounted_from(node, name, &path) {
            self.unmount(&mount);
        }
        let mut holders = names(&node.join("holders"));
        holders.sort_by_key(|holder| is_container(&self.sys.join("block").join(holder)));
        for holder in holders.iter().filter(|holder| !holder.starts_with("bcache")) {
            self.remove_holder(holder, &path);
        }
        self.stop_cache(node, name, &path);
    }

    fn remove_holder(&mut self, holder: &str, held: &str) {
        let dir = self.sys.join("block").join(holder);
        self.clear(&dir);
        let using = format!("{held} is held by {holder}");
        match read_attribute(&dir.join("dm/name")) {
            Some(name) => {
                let using = format!("{using} ({name})");
                self.push(Step::Mapping { node: holder.to_owned(), name }, using);
            }
            None if dir.join("md").exists() => self.push(Step::Array(holder.to_owned()), using),
            None => {
                let what = format!("{holder}, which is built on {held} and is of a kind unknown to slipway,");
                self.push(Step::Fixed(what), using);
            }
        }
    }

    /// Plans to stop bcache. A device that bcache uses has a folder `bcache` (kernel documentation, bcache). For a
    /// caching device, `set` in this folder is its cache set, with the devices it caches. For a backing device, `dev`
    /// is the device built on it.
    fn stop_cache(&mut self, node: &Path, name: &str, path: &str) {
        let (own, set) = (node.join("bcache"), node.join("bcache/set"));
        if !own.exists() {
            return;
        }
        let cached =
            names(&set).into_iter().filter(|name| name.starts_with("bdev")).map(|name| set.join(name).join("dev"));
        for device in cached.chain([own.join("dev")]) {
            if let Ok(device) = fs::canonicalize(device) {
                self.clear(&device);
            }
        }
        let stop = if set.exists() { set.join("stop") } else { own.join("stop") };
        self.push(Step::Cache { node: name.to_owned(), stop }, format!("{path} is used by bcache"));
    }

    /// Returns the mounts of the file system on a node. btrfs mounts have their own device number, and name only one of
    /// several devices.
    fn mounted_from(&self, node: &Path, name: &str, path: &str) -> Vec<Mount> {
        let number = read_attribute(&node.join("dev"));
        let volumes = self.sys.join("fs/btrfs");
        let devices = names(&volumes).into_iter().map(|id| names(&volumes.join(id).join("devices")));
        let siblings = devices.filter(|devices| devices.iter().any(|device| device == name)).flatten();
        let sources: Vec<String> = siblings.map(|device| format!("/dev/{device}")).chain([path.to_owned()]).collect();
        let is_here = |mount: &&Mount| Some(&mount.number) == number.as_ref() || sources.contains(&mount.source);
        self.mounts.iter().rev().filter(is_here).cloned().collect()
    }

    fn unmount(&mut self, mount: &Mount) {
        if mount.place == "/" {
            return self.push(Step::Fixed(format!("the root file system, from {},", mount.source)), mount.using());
        }
        if !self.seen.insert(format!("mount {}", mount.id)) {
            return;
        }
        let inner: Vec<Mount> = self.mounts.iter().rev().filter(|inner| inner.parent == mount.id).cloned().collect();
        for inner in inner {
            self.unmount(&inner);
        }
        let is_inside = |file: &str| Path::new(file).starts_with(&mount.place);
        self.release_loops(is_inside);
        self.stop_swap(is_inside);
        self.push(Step::Unmount { id: mount.id.clone(), place: mount.place.clone() }, mount.using());
    }

    fn release_loops(&mut self, is_bound: impl Fn(&str) -> bool) {
        for bound in self.loops.clone().into_iter().filter(|bound| is_bound(&bound.backing)) {
            let before = self.steps.len();
            self.clear(&self.sys.join("block").join(&bound.name));
            if self.with_leaving || !bound.is_automatic || self.steps.len() > before {
                self.push(Step::Loop(bound.name.clone()), bound.using());
            }
        }
    }

    fn stop_swap(&mut self, is_meant: impl Fn(&str) -> bool) {
        for swap in self.swaps.clone() {
            if is_meant(&swap) {
                let using = format!("{swap} is used as swap");
                self.push(Step::Swap(swap), using);
            }
        }
    }

    /// Adds a step unless it is already there: a mapping over several partitions is found once for each of them.
    fn push(&mut self, step: Step, using: String) {
        if !self.steps.iter().any(|(other, _)| *other == step) {
            self.steps.push((step, using));
        }
    }
}

impl Loop {
    /// Describes how the loop device uses its backing file or device.
    fn using(&self) -> String {
        format!("{} is held by {}", self.backing, self.name)
    }
}

/// Returns the number of the block device at a path, as in sysfs; `None` if there is no block device.
fn device_number(path: &str) -> Option<String> {
    let metadata = fs::metadata(path).ok().filter(|metadata| metadata.file_type().is_block_device())?;
    Some(format!("{}:{}", major(metadata.rdev()), minor(metadata.rdev())))
}

/// Whether an array is a container of firmware RAID, which only groups other arrays. The other arrays have to be
/// stopped first (kernel documentation, md, metadata_version).
fn is_container(dir: &Path) -> bool {
    read_attribute(&dir.join("md/metadata_version"))
        .is_some_and(|version| version.starts_with("external:") && !version.starts_with("external:/"))
}

/// Parses the mounts of a mountinfo. `seen_by` is the ID of the process that it belongs to; `None` for this process.
fn mounts(mountinfo: &str, seen_by: Option<&str>) -> Vec<Mount> {
    let mounts = mountinfo.lines().filter_map(mount);
    mounts.map(|mount| Mount { seen_by: seen_by.map(str::to_owned), ..mount }).collect()
}

fn mount(line: &str) -> Option<Mount> {
    let (own, rest) = line.split_once(" - ")?;
    let mut fields = own.split(' ');
    let (id, parent, number) = (fields.next()?.to_owned(), fields.next()?.to_owned(), fields.next()?.to_owned());
    let (place, source) = (unescaped(fields.nth(1)?), unescaped(rest.split(' ').nth(1)?));
    Some(Mount { id, parent, number, place, source, seen_by: None })
}

/// The kernel escapes white space and backslashes in paths as a backslash and three octal digits.
fn unescaped(path: &str) -> String {
    decoded_text(path, "\\", 3, 8)
}

/// Lists the names in a folder, sorted; none if there is no such folder.
pub(super) fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Reads a file of sysfs; `None` if it is missing or empty.
fn read_attribute(path: &Path) -> Option<String> {
    let text = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&text).trim_end_matches('\n').to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests;
