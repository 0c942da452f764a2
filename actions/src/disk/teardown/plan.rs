//! What uses a disk, topmost first, from sysfs and procfs.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

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

/// What has to be taken down, in a possible order, or what holds the disk and cannot be taken down. `place` is the path
/// of a disk or a partition below /sys/block.
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
    /// A process that sees the mount, if this process does not.
    seen_by: Option<String>,
}

impl Mount {
    /// How it uses its device, in words.
    fn using(&self) -> String {
        let seen = self.seen_by.as_ref().map(|id| format!(" for process {id}")).unwrap_or_default();
        format!("{} is mounted at {}{seen}", self.source, self.place)
    }
}

/// A loop device.
#[derive(Clone, Debug)]
struct Loop {
    name: String,
    /// Its backing file or device.
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
    /// Whether loop devices count that are about to be freed.
    with_leaving: bool,
    seen: HashSet<String>,
    /// Each with how it uses what is below it, in words.
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
            // The first line is a heading; its first word is no path.
            swaps: text("swaps").lines().filter_map(|line| line.split_whitespace().next()).map(unescape).collect(),
            loops: names(&sys.join("block")).into_iter().filter_map(bound).collect(),
            with_leaving: true,
            seen: HashSet::new(),
            steps: Vec::new(),
        }
    }

    /// As everybody sees it: with the mounts of other namespaces, as containers have them. Without loop devices that
    /// only wait for their last user, which may be a process that is ending.
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

    /// What uses a disk, in words, from the disk on upwards. `name` is that below /sys/block.
    pub(super) fn uses_of(&self, name: &str) -> Vec<String> {
        let mut stack = self.clone();
        stack.clear(&self.sys.join("block").join(name));
        stack.in_words()
    }

    /// What uses a regular file, in words: swap, and loop devices that are in use themselves.
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

    /// bcache: a device it uses has a folder of this name (kernel documentation, bcache). In that of a caching device,
    /// `set` is its cache set, with the devices it caches. In that of a backing device, `dev` is the device made of it.
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

    /// The mounts of the file system on a node. btrfs mounts have their own device number, and name only one of several
    /// devices.
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

    /// A mapping over several partitions is found once for each of them.
    fn push(&mut self, step: Step, using: String) {
        if !self.steps.iter().any(|(other, _)| *other == step) {
            self.steps.push((step, using));
        }
    }
}

impl Loop {
    /// How it uses its backing file or device, in words.
    fn using(&self) -> String {
        format!("{} is held by {}", self.backing, self.name)
    }
}

/// The number of the block device at a path, as in sysfs. None if it is none.
fn device_number(path: &str) -> Option<String> {
    let metadata = fs::metadata(path).ok().filter(|metadata| metadata.file_type().is_block_device())?;
    Some(format!("{}:{}", major(metadata.rdev()), minor(metadata.rdev())))
}

/// Whether an array is a container of firmware RAID, which only groups other arrays. These have to be stopped before it
/// (kernel documentation, md, metadata_version).
fn is_container(dir: &Path) -> bool {
    read_attribute(&dir.join("md/metadata_version"))
        .is_some_and(|version| version.starts_with("external:") && !version.starts_with("external:/"))
}

/// The mounts of a mountinfo, which another process may see.
fn mounts(mountinfo: &str, seen_by: Option<&str>) -> Vec<Mount> {
    let mounts = mountinfo.lines().filter_map(mount);
    mounts.map(|mount| Mount { seen_by: seen_by.map(str::to_owned), ..mount }).collect()
}

fn mount(line: &str) -> Option<Mount> {
    let (own, rest) = line.split_once(" - ")?;
    let mut fields = own.split(' ');
    let (id, parent, number) = (fields.next()?.to_owned(), fields.next()?.to_owned(), fields.next()?.to_owned());
    let (place, source) = (unescape(fields.nth(1)?), unescape(rest.split(' ').nth(1)?));
    Some(Mount { id, parent, number, place, source, seen_by: None })
}

/// The kernel escapes white space and backslashes in paths as a backslash and three octal digits.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The entries of a folder, sorted; none if there is no such folder.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Reads a file of sysfs. None if it is missing or empty.
fn read_attribute(path: &Path) -> Option<String> {
    let text = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&text).trim_end_matches('\n').to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks what is taken down from `sda` on a machine with these files in sysfs and procfs.
    fn check(files: &[(&str, &str)], expect: Result<&[&str], &str>) {
        let dir = crate::text::folder(files);
        let found = plan(dir.path(), dir.path(), "sda");
        let found: Result<Vec<String>, String> = found.map(|steps| steps.iter().map(Step::doing).collect());
        let expect = expect.map(|steps| steps.iter().map(ToString::to_string).collect()).map_err(ToString::to_string);
        assert_eq!(found, expect, "{files:?}");
    }

    const DISK: [(&str, &str); 4] = [
        ("block/sda/dev", "8:0\n"),
        ("block/sda/sda1/partition", "1\n"),
        ("block/sda/sda1/dev", "8:1\n"),
        ("block/sda/sda2/partition", "2\n"),
    ];

    #[test]
    fn a_free_disk_needs_nothing_whatever_stands_on_others() {
        check(&[], Ok(&[]));
        let others = [
            ("self/mountinfo", "20 1 8:16 / /srv rw - ext4 /dev/sdb rw\nno line of a mount\n21 1 8:1 / -\n"),
            ("swaps", "Filename Type\n/dev/sdb1 partition 1 0 -2\n"),
            ("block/sdb/holders/md0/md/level", "raid1"),
        ];
        check(&[&DISK[..], &others[..]].concat(), Ok(&[]));
    }

    #[test]
    fn mounts_go_innermost_first_with_what_lies_in_them() {
        let files = [
            (
                "self/mountinfo",
                "20 1 8:1 / /mnt/the\\040target rw - ext4 /dev/sda1 rw\n\
                 21 20 0:5 / /mnt/the\\040target/proc rw - proc proc rw\n\
                 22 20 8:2 / /mnt/the\\040target/boot rw - ext4 /dev/sda2 rw\n\
                 23 22 8:3 / /mnt/the\\040target/boot/efi rw - vfat /dev/sda3 rw\n\
                 24 1 8:1 /sub /bound rw - ext4 /dev/sda1 rw\n",
            ),
            ("block/loop3/loop/backing_file", "/mnt/the target/image\n"),
            ("block/loop4/loop/backing_file", "/mnt/the targets\n"),
            ("swaps", "Filename Type\n/dev/sda2 partition 1 0 -2\n/mnt/the\\040target/swap file 1 0 -3\n"),
        ];
        let expect = [
            "unmounting /bound",
            "unmounting /mnt/the target/boot/efi",
            "unmounting /mnt/the target/boot",
            "unmounting /mnt/the target/proc",
            "releasing the loop device loop3",
            "turning off swap on /mnt/the target/swap",
            "unmounting /mnt/the target",
            "turning off swap on /dev/sda2",
        ];
        check(&[&DISK[..], &files[..]].concat(), Ok(&expect));
    }

    #[test]
    fn a_stack_of_devices_goes_from_the_top() {
        let files = [
            ("block/sda/sda1/holders/md127/x", ""),
            ("block/sda/sda2/holders/dm-0/x", ""),
            ("block/md127/md/level", "raid1\n"),
            ("block/md127/holders/dm-0/x", ""),
            ("block/dm-0/dm/name", "vg-root\n"),
            ("block/dm-0/dev", "253:0\n"),
            ("block/dm-0/holders/dm-1/x", ""),
            ("block/dm-1/dm/name", "crypt\n"),
            ("block/dm-1/dev", "253:1\n"),
            ("self/mountinfo", "20 1 253:1 / /srv rw - ext4 /dev/mapper/crypt rw\n"),
        ];
        let expect = [
            "unmounting /srv",
            "removing the mapping crypt (dm-1)",
            "removing the mapping vg-root (dm-0)",
            "stopping the array md127",
        ];
        check(&[&DISK[..], &files[..]].concat(), Ok(&expect));
    }

    #[test]
    fn firmware_raid_stops_before_what_contains_it() {
        let files = [
            ("block/sda/holders/md126/x", ""),
            ("block/sda/holders/md125/x", ""),
            ("block/md125/md/metadata_version", "external:imsm\n"),
            ("block/md126/md/metadata_version", "external:/md125/0\n"),
        ];
        check(&files, Ok(&["stopping the array md126", "stopping the array md125"]));
    }

    #[test]
    fn every_device_of_a_btrfs_volume_is_held_by_its_mount() {
        let files = [
            ("fs/btrfs/0123/devices/sda/x", ""),
            ("fs/btrfs/0123/devices/sdb/x", ""),
            ("fs/btrfs/4567/devices/sdc/x", ""),
            ("self/mountinfo", "20 1 0:40 / /pool rw - btrfs /dev/sdb rw\n21 1 0:41 / /other rw - btrfs /dev/sdc rw\n"),
        ];
        check(&files, Ok(&["unmounting /pool"]));
    }

    #[test]
    fn caches_are_stopped_after_what_stands_on_them() {
        let files = [("block/sda/bcache/stop", ""), ("block/sda/holders/bcache0/x", "")];
        check(&files, Ok(&["stopping the cache on sda"]));
        let files = [("block/sda/bcache/set/stop", ""), ("block/sda/bcache/set/bdev0/x", "")];
        check(&files, Ok(&["stopping the cache on sda"]));
    }

    #[test]
    fn what_cannot_be_taken_down_is_named() {
        let expect = Err("drbd0, which is built on /dev/sda and is of a kind unknown to slipway,");
        check(&[("block/sda/holders/drbd0/x", "")], expect);
        let files = &[&DISK[..], &[("self/mountinfo", "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n")]].concat();
        check(files, Err("the root file system, from /dev/sda1,"));
    }

    #[test]
    fn holders_that_hold_each_other_end() {
        let files =
            [("block/sda/holders/dm-0/x", ""), ("block/dm-0/dm/name", "a\n"), ("block/dm-0/holders/dm-0/x", "")];
        check(&files, Ok(&["removing the mapping a (dm-0)"]));
    }

    /// Checks what uses `sda` in the words of an operator.
    fn check_uses(files: &[(&str, &str)], expect: &[&str]) {
        let dir = crate::text::folder(files);
        let [own, other] = [dir.path().join("self/ns"), dir.path().join("7/ns")];
        if dir.path().join("7").exists() {
            for (folder, namespace) in [(own, "mnt:[1]"), (other, "mnt:[2]")] {
                fs::create_dir_all(&folder).unwrap();
                std::os::unix::fs::symlink(namespace, folder.join("mnt")).unwrap();
            }
        }
        assert_eq!(Stack::of_everybody(dir.path(), dir.path()).uses_of("sda"), expect, "{files:?}");
    }

    #[test]
    fn what_stands_on_what_stands_on_the_disk_uses_it() {
        let mounted = |number: &str, device: &str| format!("20 1 {number} / /srv rw - ext4 /dev/{device} rw\n");
        let on_loop = mounted("7:1", "loop1");
        let loops = [
            ("block/loop1/loop/backing_file", "/dev/sda1\n"),
            ("block/loop1/loop/autoclear", "1\n"),
            ("block/loop1/dev", "7:1\n"),
        ];
        let expect = ["/dev/sda1 is held by loop1", "/dev/loop1 is mounted at /srv"];
        check_uses(&[&DISK[..], &loops, &[("self/mountinfo", &on_loop)]].concat(), &expect);
        // Nothing uses it, and it goes by itself or stays.
        check_uses(&[&DISK[..], &loops].concat(), &[]);
        let stays = [loops[0], ("block/loop1/loop/autoclear", "0\n")];
        check_uses(&[&DISK[..], &stays].concat(), &expect[..1]);
        // A partition of a loop device, a volume in it, and swap on that.
        let deep = [
            ("block/loop1/loop1p2/partition", "2\n"),
            ("block/loop1/loop1p2/holders/dm-0/x", ""),
            ("block/dm-0/dm/name", "vg-swap\n"),
            ("swaps", "Filename Type\n/dev/dm-0 partition 1 0 -2\n"),
        ];
        let expect =
            ["/dev/sda1 is held by loop1", "/dev/loop1p2 is held by dm-0 (vg-swap)", "/dev/dm-0 is used as swap"];
        check_uses(&[&DISK[..], &loops, &deep].concat(), &expect);
        let md = [("block/sda/holders/md0/x", ""), ("block/md0/md/level", "raid1"), ("block/md0/holders/drbd0/x", "")];
        check_uses(&md, &["/dev/sda is held by md0", "/dev/md0 is held by drbd0"]);
        check_uses(&[("block/sda/bcache/stop", "")], &["/dev/sda is used by bcache"]);
        let root = mounted("8:1", "sda1").replace("/srv", "/");
        check_uses(&[&DISK[..], &[("self/mountinfo", &root)]].concat(), &["/dev/sda1 is mounted at /"]);
    }

    #[test]
    fn a_mount_that_only_a_container_has_uses_the_disk() {
        let mountinfo = "90 1 8:1 / /data rw - ext4 /dev/sda1 rw\n";
        let files = [("7/mountinfo", mountinfo), ("self/mountinfo", "20 1 8:16 / /srv rw - ext4 /dev/sdb rw\n")];
        check_uses(&[&DISK[..], &files].concat(), &["/dev/sda1 is mounted at /data for process 7"]);
    }

    #[test]
    fn a_file_is_used_through_a_loop_device_or_as_swap() {
        let check = |files: &[(&str, &str)], expect: &[&str]| {
            let dir = crate::text::folder(files);
            let stack = Stack::of_everybody(dir.path(), dir.path());
            assert_eq!(stack.uses_of_file(|file| file == "/disk"), expect, "{files:?}");
        };
        let bound = [("block/loop1/loop/backing_file", "/disk\n"), ("block/loop1/dev", "7:1\n")];
        check(&bound, &[]);
        let mounted = ("self/mountinfo", "20 1 7:1 / /srv rw - ext4 /dev/loop1 rw\n");
        check(&[&bound[..], &[mounted]].concat(), &["/disk is held by loop1", "/dev/loop1 is mounted at /srv"]);
        check(&[("swaps", "Filename Type\n/disk file 1 0 -2\n")], &["/disk is used as swap"]);
    }
}
