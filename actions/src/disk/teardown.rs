//! What uses a disk: swap, mounts, mappings, arrays, caches, loop devices, and whatever is built on these. Takes it
//! down before the disk is overwritten or captured.

mod plan;

use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{io, thread};

use rustix::mount::UnmountFlags;
use slipway_protocol::Disk;

use super::list::{kernel_name, paths_to};
use crate::error::Error;
use crate::machine::Machine;
use crate::report::{Report, Tell};
use crate::sys;
use plan::{Stack, Step, names, plan};

/// How long something may take to disappear after it was stopped. bcache first writes back its data.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long something may be busy before that is an error. A device that was just released may stay busy for a moment.
const BUSY_PATIENCE: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Maximum number of uses of a disk that a message names.
const MOST_USES: usize = 4;
/// Maximum number of steps, more than any machine needs. If it is exceeded, something restores what is taken down.
const MAX_STEPS: usize = 10_000;

/// Takes down everything that holds a disk by any path, if slipway is the operating system, with one note for each
/// thing. On a running system of somebody else nothing is touched: there a disk in use is not chosen, and cannot be
/// opened.
pub(crate) fn tear_down(disk: &Disk, machine: &dyn Machine, report: Tell) -> Result<(), Error> {
    let mut paths = paths_to(Path::new("/sys"), &disk.path).into_iter();
    paths.try_for_each(|path| take_down_at(disk, &kernel_name(&path), machine, report))
}

/// Like [`tear_down`], for one partition of a disk, by the partition's node.
pub(crate) fn tear_down_partition(disk: &Disk, node: &Path, machine: &dyn Machine, report: Tell) -> Result<(), Error> {
    let place = format!("{}/{}", kernel_name(&disk.path), kernel_name(&node.display().to_string()));
    let block = Path::new("/sys/block");
    let number = fs::read(block.join(&place).join("partition")).ok();
    take_down_at(disk, &place, machine, report)?;
    for other in paths_to(Path::new("/sys"), &disk.path).iter().skip(1).map(|path| kernel_name(path)) {
        let is_it = |name: &String| fs::read(block.join(&other).join(name).join("partition")).ok() == number;
        let same = number.as_ref().and_then(|_| names(&block.join(&other)).into_iter().find(is_it));
        same.map_or(Ok(()), |name| take_down_at(disk, &format!("{other}/{name}"), machine, report))?;
    }
    Ok(())
}

/// What is in use on this machine. This is the only place that decides whether a disk is in use, directly or through
/// the layers built on it.
#[derive(Debug)]
pub(crate) struct Usage(Stack);

impl Usage {
    /// Looks at the machine. `sys` and `proc` are the mount points of sysfs and procfs.
    pub(crate) fn read(sys: &Path, proc: &Path) -> Self {
        Self(Stack::of_everybody(sys, proc))
    }

    /// Describes how a disk is in use, from the lowest layer up; `None` if it is not in use.
    pub(crate) fn of(&self, disk: &str) -> Option<String> {
        in_one_line(self.0.uses_of(&kernel_name(disk)))
    }

    /// Like [`Self::of`], for a regular file in place of a disk.
    pub(crate) fn of_file(&self, path: &str) -> Option<String> {
        let identity = |path: &str| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
        let own = identity(path);
        let is_it = |other: &str| other == path || own.is_some() && identity(other) == own;
        in_one_line(self.0.uses_of_file(is_it))
    }
}

/// Joins the first uses, because a machine may have dozens of mounts of one disk.
fn in_one_line(mut uses: Vec<String>) -> Option<String> {
    let more = uses.len().saturating_sub(MOST_USES);
    uses.truncate(MOST_USES);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    (!uses.is_empty()).then(|| format!("{}{more}", uses.join(", ")))
}

/// Takes down what holds a disk or a partition. `place` is its path below /sys/block.
fn take_down_at(disk: &Disk, place: &str, machine: &dyn Machine, report: Tell) -> Result<(), Error> {
    if !machine.setup().is_operating_system || !disk.path.starts_with("/dev/") {
        return Ok(());
    }
    let mut last: Option<(Step, Instant)> = None;
    for _ in 0..MAX_STEPS {
        machine.cancel().check()?;
        // Planned afresh each time, because one thing that is taken down may take others with it.
        let steps = plan(Path::new("/sys"), Path::new("/proc"), place);
        let steps = steps.map_err(|holder| Error::Held { disk: disk.path.clone(), holder })?;
        let Some(step) = steps.into_iter().next() else { return Ok(()) };
        let failed = |source| Error::TakeDown { disk: disk.path.clone(), what: step.doing(), source };
        match &last {
            Some((same, since)) if *same == step => {
                if since.elapsed() > PATIENCE {
                    return Err(failed(io::ErrorKind::TimedOut.into()));
                }
                thread::sleep(LOOK_AGAIN);
            }
            _ => {
                perform_unless_busy(&step).map_err(failed)?;
                report(Report::Note(format!("releasing {}: {}", disk.path, step.doing())));
                last = Some((step, Instant::now()));
            }
        }
    }
    Err(Error::Held {
        disk: disk.path.clone(),
        holder: "something that is started again each time it is stopped".to_owned(),
    })
}

fn perform_unless_busy(step: &Step) -> io::Result<()> {
    let began = Instant::now();
    loop {
        match perform(step) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && began.elapsed() < BUSY_PATIENCE => {
                thread::sleep(LOOK_AGAIN);
            }
            ended => return ended,
        }
    }
}

fn perform(step: &Step) -> io::Result<()> {
    let device = |name: &str| File::open(format!("/dev/{}", name.replace('!', "/")));
    match step {
        Step::Swap(path) => sys::swap::stop(&CString::new(path.as_str())?),
        // Never a lazy unmount: data still in use would be overwritten.
        Step::Unmount { place, .. } => Ok(rustix::mount::unmount(place.as_str(), UnmountFlags::NOFOLLOW)?),
        Step::Mapping { name, .. } => Ok(sys::device_mapper::remove(&File::open("/dev/mapper/control")?, name)?),
        Step::Array(node) => Ok(sys::md::stop(&device(node)?)?),
        Step::Cache { stop, .. } => fs::write(stop, "1"),
        Step::Loop(node) => Ok(sys::loop_device::clear(&device(node)?)?),
        // A plan has no such step.
        Step::Fixed(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}
