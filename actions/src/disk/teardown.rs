//! Takes down everything that uses a disk before it is overwritten or captured: swap, mounts, mappings, arrays, caches,
//! loop devices.

mod plan;

use std::ffi::CString;
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};
use std::{io, thread};

use rustix::mount::UnmountFlags;
use slipway_protocol::Disk;

use crate::error::Error;
use crate::machine::Machine;
use crate::report::{Report, Tell};
use crate::sys;
use plan::{Step, plan};

/// How long something may take to disappear after it was stopped. bcache first writes back its data.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long something may be busy before that is an error. A device that was just released may stay busy for a moment.
const BUSY_PATIENCE: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// More steps than any machine needs. If they are exceeded, something restores what is taken down.
const MAX_STEPS: usize = 10_000;

/// Takes down everything that holds a disk, if slipway is the operating system, with one note for each thing. On a
/// running system of somebody else nothing is touched: there a disk in use is not chosen, and cannot be opened.
pub(crate) fn tear_down(disk: &Disk, machine: &dyn Machine, report: Tell) -> Result<(), Error> {
    take_down_at(disk, &kernel_name(&disk.path), machine, report)
}

/// As [`tear_down`], for one partition of a disk, by its node.
pub(crate) fn tear_down_partition(disk: &Disk, node: &Path, machine: &dyn Machine, report: Tell) -> Result<(), Error> {
    let place = format!("{}/{}", kernel_name(&disk.path), kernel_name(&node.display().to_string()));
    take_down_at(disk, &place, machine, report)
}

/// sysfs replaces a slash in a device name by an exclamation mark.
fn kernel_name(path: &str) -> String {
    path.strip_prefix("/dev/").unwrap_or(path).replace('/', "!")
}

/// `place` is a path below /sys/block.
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
        holder: "something that comes back whenever it is taken down".to_owned(),
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
    }
}
