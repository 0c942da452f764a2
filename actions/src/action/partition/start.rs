//! Has the kernel start the new arrays and volumes, without mdadm and lvm, so that later steps can use them.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{io, thread};

use rustix::fs::{major, minor};

use super::lvm::Group;
use super::raid::Array;
use crate::error::{Error, PartitionError, Tried, advised};
use crate::sys::device_mapper::{self, LinearTarget};
use crate::sys::md;

/// The program that the kernel itself uses to load modules.
const MODPROBE: &str = "/sbin/modprobe";
/// File that makes an array when the name of the array is written to it (kernel documentation, md, "new_array").
const NEW_ARRAY: &str = "/sys/module/md_mod/parameters/new_array";
const LEVELS: &str = "/proc/mdstat";
const DEVICE_MAPPER: &str = "/dev/mapper/control";
/// How long a stopped array may take to disappear.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
const SECTOR: u64 = 512;

/// Checks, before anything is written, that the kernel has the driver for the array's level and that the array's name
/// is free.
pub(super) fn prepare_array(array: &Array) -> Result<(), Error> {
    let level = array.level.name();
    load("md_mod");
    load(level);
    let levels = fs::read_to_string(LEVELS).unwrap_or_default();
    if !Path::new(NEW_ARRAY).exists() || !levels.contains(&format!("[{level}]")) {
        let reason = format!("the kernel has no driver for {level}; use a kernel and a boot image that have it");
        return Err(PartitionError::Layer { what: format!("array {}", array.name), reason }.into());
    }
    let dir = format!("/sys/block/{}", device_name(array));
    let deadline = Instant::now() + PATIENCE;
    while Path::new(&dir).exists() {
        if Instant::now() > deadline {
            let reason =
                "other disks have an array with this name; choose another name, or erase those disks".to_owned();
            return Err(PartitionError::Layer { what: format!("array {}", array.name), reason }.into());
        }
        thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}

/// Checks, before anything is written, that the kernel has the device mapper.
pub(super) fn prepare_volumes(group: &Group) -> Result<(), Error> {
    load("dm_mod");
    match Path::new(DEVICE_MAPPER).exists() {
        true => Ok(()),
        false => {
            let reason = "the kernel has no device mapper; use a kernel and a boot image that have it".to_owned();
            Err(PartitionError::Layer { what: format!("volume group {}", group.name), reason }.into())
        }
    }
}

/// Loads a module. Failure is ignored: the driver may be built in, and a missing driver is noticed later.
fn load(module: &str) {
    let quietly = |command: &mut Command| command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    _ = quietly(Command::new(MODPROBE).args(["-q", "--", module]).env_clear().stdin(Stdio::null()));
}

/// Returns the kernel's name for an array. mdadm links it as /dev/md/NAME.
fn device_name(array: &Array) -> String {
    format!("md_{}", array.name)
}

/// Starts an array from the superblocks of its members, given by device nodes. Returns the node of the array.
pub(super) fn start_array(array: &Array, members: &[PathBuf]) -> Result<PathBuf, Error> {
    let name = device_name(array);
    let doing = |what: &str| format!("starting array {}: {what}", array.name);
    fs::write(NEW_ARRAY, &name)
        .map_err(|source| failed(doing("making its device"), advised(Tried::Assemble, source)))?;
    let node = Path::new("/dev").join(&name);
    let open = File::options().read(true).write(true).open(&node);
    let device = open.map_err(|source| failed(doing(&format!("opening {}", node.display())), source))?;
    let assembled = assemble(array, members, &device);
    if assembled.is_err() {
        // Nobody would find an array without members to stop it, and its name would stay taken.
        _ = md::stop(&device);
    }
    assembled.map(|()| node)
}

/// Adds the members to a new array, and runs it.
fn assemble(array: &Array, members: &[PathBuf], device: &File) -> Result<(), Error> {
    let doing = |what: &str| format!("starting array {}: {what}", array.name);
    md::prepare(device, array.minor_version())
        .map_err(|errno| failed(doing("setting the version of its superblock"), errno.into()))?;
    for member in members {
        let add = || md::add(device, number(member)?).map_err(io::Error::from);
        add().map_err(|source| failed(doing(&format!("adding {}", member.display())), source))?;
    }
    md::run(device).map_err(|errno| failed(doing("running it"), errno.into()))
}

/// Starts the volumes of a group on its physical volumes, given by device nodes.
pub(super) fn start_volumes(group: &Group, physical: &[PathBuf]) -> Result<(), Error> {
    let doing = |what: &str| format!("starting volume group {}: {what}", group.name);
    let open = File::options().read(true).write(true).open(DEVICE_MAPPER);
    let control = open.map_err(|source| failed(doing("opening the device mapper"), advised(Tried::Map, source)))?;
    for volume in &group.volumes {
        let mut start = 0;
        let mut targets = Vec::new();
        for segment in &volume.segments {
            let node = &physical[segment.physical];
            let device =
                number(node).map_err(|source| failed(doing(&format!("looking at {}", node.display())), source))?;
            let (bytes, device) = (segment.bytes(), (major(device), minor(device)));
            let len = (bytes.end - bytes.start) / SECTOR;
            targets.push(LinearTarget { start, len, device, offset: bytes.start / SECTOR });
            start += len;
        }
        let (name, uuid) = (group.mapping_name(volume), group.mapping_uuid(volume));
        device_mapper::start(&control, &name, &uuid, &targets)
            .map_err(|errno| failed(doing(&format!("mapping {}", volume.name)), errno.into()))?;
    }
    Ok(())
}

/// Returns the device number of a device node.
fn number(node: &Path) -> io::Result<u64> {
    Ok(fs::metadata(node)?.rdev())
}

fn failed(what: String, source: io::Error) -> Error {
    Error::Partitions(PartitionError::StartLayer { what, source })
}
