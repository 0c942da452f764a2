//! File systems of the installed system.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use rustix::fs::{Mode, OFlags, fstat, openat};
use slipway_formats::boot_config::places::BootFiles;
use slipway_formats::fstab::Tags;

use crate::disk::partitions::Partition;
use crate::disk::probe::FileSystem;
use crate::error::Error;
use crate::target::roles;
use crate::target::root::{TargetRoot, target_file};

/// A mounted file system.
#[derive(Debug)]
pub(crate) struct Volume {
    /// The partition in words.
    pub(crate) name: String,
    pub(crate) partition: Partition,
    pub(crate) file_system: FileSystem,
    pub(crate) root: TargetRoot,
    is_boot_of_itself: bool,
}

impl Volume {
    pub(crate) fn new(name: String, partition: Partition, file_system: FileSystem, root: TargetRoot) -> Self {
        // The inode number is not enough: the root of a subvolume has the same number in every btrfs.
        let inode = |path: &[u8]| root.open_directory(path).and_then(fstat).map(|stat| (stat.st_dev, stat.st_ino)).ok();
        let is_boot_of_itself = inode(b"boot").is_some() && inode(b"boot") == inode(b".");
        Self { name, partition, file_system, root, is_boot_of_itself }
    }

    /// Returns what may name the file system in an fstab.
    pub(crate) fn tags(&self) -> Tags<'_> {
        roles::tags(&self.partition, Some(&self.file_system))
    }
}

impl BootFiles for Volume {
    type Error = Error;

    fn names(&self, folder: &str) -> Result<Vec<String>, Error> {
        self.root.list(folder)
    }

    fn folders(&self, folder: &str) -> Result<Vec<String>, Error> {
        self.root.directories(folder)
    }

    fn is_file(&self, path: &str) -> Result<bool, Error> {
        Ok(self.root.is_file(path))
    }

    fn text(&self, path: &str, max: u64) -> Result<Option<String>, Error> {
        self.root.read_up_to(path, max)
    }

    fn bytes(&self, folder: &str, name: &str, offset: u64, len: u64) -> Result<Vec<u8>, Error> {
        let read = || -> io::Result<Vec<u8>> {
            let folder = self.root.open_directory(folder.as_bytes())?;
            // Non-blocking, because it may not be a regular file, and reading could block for ever.
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let mut file = File::from(openat(folder, name, flags, Mode::empty())?);
            let mut bytes = Vec::new();
            file.seek(SeekFrom::Start(offset))?;
            file.take(len).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(target_file("reading", &format!("{folder}/{name}"), error))
            }
            read => Ok(read.unwrap_or_default()),
        }
    }

    fn is_boot_of_itself(&self) -> bool {
        self.is_boot_of_itself
    }

    fn refused(&self, folder: &str, reason: String) -> Error {
        target_file("reading", folder, io::Error::other(reason))
    }
}
