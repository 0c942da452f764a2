//! Mode `secure`: the disk erases all of its media with a command of its own.

use std::fs;

use slipway_protocol::EraseMode;

use super::samples::Before;
use super::worker::Worker;
use super::{Erased, ata, emmc, nvme};
use crate::error::{EraseError, Error};
use crate::sys;

pub(super) fn erase(worker: &mut Worker<'_>) -> Result<Erased, Error> {
    let name = worker.disk.path().trim_start_matches("/dev/").to_owned();
    let method: fn(&mut Worker<'_>) -> Result<Result<String, String>, Error> = match name.as_str() {
        name if name.starts_with("nvme") => nvme::erase,
        name if name.starts_with("mmcblk") => emmc::erase,
        name if name.starts_with("sd") && is_behind_usb(name) => {
            let reason = "it is connected by USB, and USB bridges cut off such a command and leave the disk locked";
            return Err(cannot(worker, format!("{reason}; attach it directly")));
        }
        name if name.starts_with("sd") => ata::erase,
        _ => {
            let reason = "it is not an NVMe, ATA or eMMC disk, and only these have a command for it".to_owned();
            return Err(cannot(worker, reason));
        }
    };
    if name.starts_with("nvme") {
        nvme::wait_for_sanitize(worker)?;
    }
    let before = Before::read(worker.disk);
    flush_buffers(worker)?;
    let done = method(worker)?.map_err(|reason| cannot(worker, reason))?;
    flush_buffers(worker)?;
    let samples = before.is_gone(worker.disk)?;
    if samples == 0 {
        let path = worker.disk.path();
        let warning =
            format!("nothing on {path} could be read before its secure erase, so its result could not be verified");
        worker.warnings.push(warning);
    }
    worker.reach(worker.disk.size());
    Ok(Erased { method: done, samples })
}

fn cannot(worker: &Worker<'_>, reason: String) -> Error {
    Error::Erase(EraseError::Refused { disk: worker.disk.path().to_owned(), mode: EraseMode::Secure, reason })
}

/// Flushes and drops the kernel's buffers. Cached data must not be written to the disk after the disk has erased
/// itself, nor be read in place of its contents.
fn flush_buffers(worker: &Worker<'_>) -> Result<(), Error> {
    worker.disk.flush()?;
    let failed = |source| worker.disk.failed(Error::FlushDisk { disk: worker.disk.path().to_owned(), source });
    sys::block::flush_buffers(worker.disk.file()).map_err(|errno| failed(errno.into()))
}

/// Whether a disk is behind USB. The disk's link in sysfs names every bus on the way to the disk.
fn is_behind_usb(name: &str) -> bool {
    let device = fs::canonicalize(format!("/sys/block/{name}"));
    device.is_ok_and(|device| device.components().any(|part| part.as_os_str().to_string_lossy().starts_with("usb")))
}
