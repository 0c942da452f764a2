//! All file systems of a disk.

use super::mount::{self, SearchLog, Unmounted};
use super::verity;
use super::volume::Volume;
use crate::disk::open::OpenDisk;
use crate::error::Error;
use crate::machine::Cancel;

/// Mounts every file system of a disk that can be mounted.
pub(crate) fn mount_all(disk: &OpenDisk, cancel: &Cancel) -> Result<(Vec<Volume>, SearchLog), Error> {
    let (mut volumes, mut looked_at) = (Vec::new(), SearchLog::default());
    for ((partition, found), closed) in verity::judged(disk)? {
        let name = partition.describe(disk);
        let mountable = found.clone().filter(|found| mount::is_mountable(found.kind));
        let (reason, is_refused) = match (closed, mountable) {
            (Some(reason), _) => (format!("{name} is left alone: {reason}"), false),
            (None, None) => (format!("{name} has no file system that can be mounted"), false),
            (None, Some(file_system)) => {
                cancel.check()?;
                match mount::mount(disk, &partition, file_system.kind) {
                    Ok(root) => {
                        looked_at.note_miss(format!("{name} ({}) has none", file_system.kind));
                        volumes.push(Volume::new(name, partition, file_system, root));
                        continue;
                    }
                    Err(error) => (looked_at.refused(&name, &error), true),
                }
            }
        };
        if !is_refused {
            looked_at.note_miss(reason.clone());
        }
        looked_at.unmounted.push(Unmounted { partition, file_system: found, reason, is_refused });
    }
    Ok((volumes, looked_at))
}
