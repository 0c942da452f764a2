//! The config drive of a virtual machine: a small disk, disc or partition with files for the machine (OpenStack Nova,
//! "Config drives"). It is only read.

use std::fs;
use std::path::Path;

use crate::disk::open::{Access, OpenDisk};
use crate::disk::partitions::Partition;
use crate::disk::probe;
use crate::error::Error;
use crate::target::mount;
use crate::target::root::TargetRoot;

/// Label of the file system, in any case: FAT labels are capitals.
const LABEL: &str = "config-2";
/// Kinds of file systems, as the probe calls them.
const KINDS: &[&str] = &["iso9660", "vfat"];
/// Largest config drive in bytes. Those of OpenStack have 64 MiB at most. Larger disks are not opened, because a broken
/// one may not answer.
const LARGEST: u64 = 512 << 20;
/// `size` in sysfs counts sectors of this many bytes.
const SECTOR: u64 = 512;
/// Largest file in bytes.
const LARGEST_FILE: u64 = 64 << 10;

/// A config drive, mounted to be read. Dropping it unmounts it.
#[derive(Debug)]
pub struct ConfigDrive {
    device: String,
    root: TargetRoot,
}

/// A config drive cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("reading {what} on the config drive {device}")]
pub struct ConfigDriveError {
    /// The file system, or the path of a file.
    what: String,
    /// Path of the device.
    device: String,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl ConfigDrive {
    /// Finds and mounts the first config drive, in the order of the kernel's names; none if there is none. `sys` is the
    /// mount point of sysfs, `dev` that of devtmpfs.
    pub fn find(sys: &Path, dev: &Path) -> Result<Option<Self>, ConfigDriveError> {
        let entries = fs::read_dir(sys.join("class/block")).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        for name in names {
            let size = fs::read_to_string(sys.join("class/block").join(&name).join("size")).unwrap_or_default();
            let sectors: u64 = size.trim().parse().unwrap_or(0);
            let device = dev.join(name.replace('!', "/")).display().to_string();
            if !(1..=LARGEST / SECTOR).contains(&sectors) {
                continue;
            }
            // A device that cannot be read has no config drive. It may be a drive without a medium.
            if let Ok(Some(kind)) = kind_of_config_drive(&device) {
                return match mount::mount_read_only(Path::new(&device), kind) {
                    Ok(root) => Ok(Some(Self { device, root })),
                    Err(error) => Err(ConfigDriveError { what: kind.to_owned(), device, source: Box::new(error) }),
                };
            }
        }
        Ok(None)
    }

    /// Reads a text file of at most 64 KiB; none if there is no such file.
    pub fn read(&self, path: &str) -> Result<Option<String>, ConfigDriveError> {
        self.root.read_up_to(path, LARGEST_FILE).map_err(|error| ConfigDriveError {
            what: path.to_owned(),
            device: self.device.clone(),
            source: match error {
                // The error would speak of an installed system.
                Error::Target(crate::error::TargetError::File { source, .. }) => Box::new(source),
                other => Box::new(other),
            },
        })
    }
}

/// Returns the kind of the file system of a device if it is a config drive.
fn kind_of_config_drive(device: &str) -> Result<Option<&'static str>, Error> {
    let disk = OpenDisk::open(device, Access::Read)?;
    let found = probe::file_system(&disk, &Partition::whole(&disk))?;
    let found = found.filter(|found| found.label.as_deref().is_some_and(|label| label.eq_ignore_ascii_case(LABEL)));
    Ok(found.map(|found| found.kind).filter(|kind| KINDS.contains(kind)))
}
