//! Loop devices over files.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::disk_image::{can_mount, run};

/// Lets one test at a time work with block devices, if that is possible here. A process that another test forks briefly
/// inherits open files of this process, so a device would still be busy after it was closed.
pub fn alone() -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    can_mount().then(|| ALONE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A loop device. It is detached when dropped.
pub struct Loop(pub String);

impl Loop {
    /// Creates the file, with a size in bytes, and a loop device over it with this sector size in bytes.
    pub fn new(path: &Path, sector: usize, size: usize) -> Self {
        File::create(path).unwrap().set_len(size as u64).unwrap();
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show", "--sector-size", &sector.to_string()]).arg(path);
        Self(run(&mut losetup).trim().to_owned())
    }

    /// Takes the device's bytes away, as the kernel does with a disk that is pulled out while it is open.
    pub fn vanish(device: &str, backing: &Path) {
        File::create(backing).unwrap();
        run(Command::new("losetup").args(["--set-capacity", device]));
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run(Command::new("losetup").args(["--detach", &self.0]));
    }
}
