//! Unpacks the entries of an archive into a staging directory, until the whole archive is known to be right. No entry
//! can escape from this directory, because symbolic links are never followed (openat2(2), RESOLVE_NO_SYMLINKS).

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags, chownat, fchmod,
    fsetxattr, futimens, linkat, lsetxattr, makedev, mkdirat, mknodat, openat, openat2, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::STAGING;
use super::tar::{Entry, Kind};

/// Maximum depth of directories. Each level holds descriptors while it is moved or removed.
const MAX_DEPTH: usize = 128;
/// Maximum length of a path and of a name in bytes (linux/limits.h).
const MAX_PATH: usize = 4095;
const MAX_NAME: usize = 255;

/// Why an entry was not unpacked.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The entry is not allowed.
    Wanted(String),
    /// The kernel reported an error.
    Failed(io::Error),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Refusal::Failed(error)
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Refusal::Failed(errno.into())
    }
}

impl From<&str> for Refusal {
    fn from(reason: &str) -> Self {
        Refusal::Wanted(reason.to_owned())
    }
}

/// The staging directory.
pub(crate) struct Staging {
    root: OwnedFd,
    /// Whether the file system keeps owners and modes.
    keeps_owners: bool,
    /// Whether device nodes may be created.
    devices: bool,
    /// Nested directories that may still get entries, with the times to set afterwards.
    open: Vec<(Vec<u8>, Timestamps)>,
}

impl Staging {
    pub(crate) fn new(root: OwnedFd, keeps_owners: bool, devices: bool) -> Self {
        Self { root, keeps_owners, devices, open: Vec::new() }
    }

    /// Adds an entry; `content` is the content of a file.
    pub(super) fn add(&mut self, entry: &Entry, content: &mut dyn io::Read) -> Result<(), Refusal> {
        let names = names(&entry.path)?;
        // The entry for the top directory. The target directory keeps its own attributes.
        let Some((name, parents)) = names.split_last() else { return Ok(()) };
        if names.first() == Some(&STAGING.as_bytes()) {
            return Err("its path is reserved for the directory in which archives are unpacked first".into());
        }
        self.leave(&names)?;
        let parent = self.parent(parents)?;
        if entry.kind != Kind::Directory {
            match unlinkat(&parent, *name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR) => return Err("an earlier entry made a directory of the same name".into()),
                Err(errno) => return Err(errno.into()),
            }
        }
        self.make(entry, parent.as_fd(), name, content)?;
        if entry.kind == Kind::Directory {
            self.open.push((names.join(&b'/'), times(entry)));
        }
        Ok(())
    }

    /// Sets the times of the directories, once no more entries come.
    pub(super) fn finish(&mut self) -> Result<(), Refusal> {
        self.leave(&[])
    }

    /// Sets the times of the open directories that do not contain the path.
    fn leave(&mut self, names: &[&[u8]]) -> Result<(), Refusal> {
        let path = names.join(&b'/');
        let is_in = |dir: &[u8]| path.strip_prefix(dir).is_some_and(|rest| rest.starts_with(b"/"));
        while let Some((dir, times)) = self.open.pop_if(|(dir, _)| !is_in(dir)) {
            futimens(self.directory(&dir)?, &times)?;
        }
        Ok(())
    }

    fn make(
        &self,
        entry: &Entry,
        parent: BorrowedFd<'_>,
        name: &[u8],
        content: &mut dyn io::Read,
    ) -> Result<(), Refusal> {
        match entry.kind {
            Kind::File => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let mut file = File::from(openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?);
                io::copy(content, &mut file)?;
                self.apply_metadata(entry, file.as_fd())?;
                futimens(&file, &times(entry))?;
            }
            Kind::Directory => {
                match mkdirat(parent, name, Mode::RWXU) {
                    Err(Errno::EXIST) | Ok(()) => {}
                    Err(errno) => return Err(errno.into()),
                }
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let dir = openat(parent, name, flags, Mode::empty()).map_err(|errno| match errno {
                    Errno::NOTDIR | Errno::LOOP => "an earlier entry of the same name is not a directory".into(),
                    errno => Refusal::from(errno),
                })?;
                self.apply_metadata(entry, dir.as_fd())?;
            }
            Kind::HardLink => self.link(&entry.link, parent, name)?,
            Kind::Symlink => {
                symlinkat(&*entry.link, parent, name)?;
                self.dress_node(entry, parent, name)?;
            }
            Kind::Fifo => self.node(entry, FileType::Fifo, parent, name)?,
            Kind::CharDevice => self.node(entry, FileType::CharacterDevice, parent, name)?,
            Kind::BlockDevice => self.node(entry, FileType::BlockDevice, parent, name)?,
        }
        Ok(())
    }

    /// Makes a hard link to a file that was unpacked before.
    fn link(&self, target: &[u8], parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Refusal> {
        let unknown = || Refusal::from("it is a hard link to an entry that does not come before it in the archive");
        let names = names(target).map_err(|_| unknown())?;
        let (last, parents) = names.split_last().ok_or_else(unknown)?;
        let from = self.directory(&parents.join(&b'/')).map_err(|_| unknown())?;
        match linkat(&from, *last, parent, name, AtFlags::empty()) {
            Err(Errno::NOENT | Errno::PERM) => Err(unknown()),
            other => Ok(other?),
        }
    }

    fn node(&self, entry: &Entry, kind: FileType, parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Refusal> {
        if kind != FileType::Fifo && !self.devices {
            return Err("it is a device node; set `devices: true` to allow device nodes".into());
        }
        let mode = Mode::from_raw_mode(entry.mode);
        mknodat(parent, name, kind, mode, makedev(entry.device.0, entry.device.1))?;
        // Set again, because mknodat applies the umask of the process.
        if self.keeps_owners {
            rustix::fs::chmodat(parent, name, mode, AtFlags::empty())?;
        }
        self.dress_node(entry, parent, name)
    }

    /// Sets owner, mode and extended attributes of a file or directory, in this order: changing the owner clears mode
    /// bits and capabilities.
    fn apply_metadata(&self, entry: &Entry, file: BorrowedFd<'_>) -> Result<(), Refusal> {
        if self.keeps_owners {
            rustix::fs::fchown(file, Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)))?;
            fchmod(file, Mode::from_raw_mode(entry.mode))?;
        }
        for (name, value) in &entry.xattrs {
            fsetxattr(file, &**name, value, XattrFlags::empty()).map_err(|errno| no_xattr(name, errno))?;
        }
        Ok(())
    }

    /// Sets owner, extended attributes and times of a file that cannot be opened.
    fn dress_node(&self, entry: &Entry, parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Refusal> {
        if self.keeps_owners {
            let (uid, gid) = (Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)));
            chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        // There is no system call for the attributes of a name in a directory.
        let path = PathBuf::from(format!("/proc/self/fd/{}", parent.as_raw_fd())).join(OsStr::from_bytes(name));
        for (name, value) in &entry.xattrs {
            lsetxattr(&path, &**name, value, XattrFlags::empty()).map_err(|errno| no_xattr(name, errno))?;
        }
        Ok(utimensat(parent, name, &times(entry), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Opens the parent directory of an entry, and creates it if the archive has no entry for it.
    fn parent(&self, names: &[&[u8]]) -> Result<OwnedFd, Refusal> {
        let path = names.join(&b'/');
        match self.directory(&path) {
            Err(Errno::NOENT) => {}
            Err(Errno::LOOP) => return Err("its path leads through a symbolic link".into()),
            Err(Errno::NOTDIR) => return Err("its path leads through something that is not a directory".into()),
            other => return Ok(other?),
        }
        let (last, above) = names.split_last().ok_or(Errno::NOENT)?;
        let parent = self.parent(above)?;
        mkdirat(&parent, *last, Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH)?;
        Ok(self.directory(&path)?)
    }

    fn directory(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let path: &[u8] = if path.is_empty() { b"." } else { path };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat2(&self.root, path, flags, Mode::empty(), resolve)
    }
}

fn no_xattr(name: &[u8], errno: Errno) -> Refusal {
    let name = String::from_utf8_lossy(name);
    Refusal::Wanted(format!("its extended attribute {name:?} cannot be set: {errno}"))
}

fn times(entry: &Entry) -> Timestamps {
    let time = Timespec { tv_sec: entry.modified.0, tv_nsec: entry.modified.1.into() };
    Timestamps { last_access: time, last_modification: time }
}

/// Splits a path into its names. Refuses a path that could lead elsewhere, whatever exists there.
fn names(path: &[u8]) -> Result<Vec<&[u8]>, Refusal> {
    if path.starts_with(b"/") {
        return Err("its path is absolute".into());
    }
    if path.is_empty() || path.len() > MAX_PATH || path.contains(&0) {
        return Err("its path is empty, too long, or has a zero byte".into());
    }
    let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
    if names.contains(&&b".."[..]) {
        return Err("its path has \"..\", which could lead out of the target".into());
    }
    if names.len() > MAX_DEPTH || names.iter().any(|name| name.len() > MAX_NAME) {
        return Err("its path is deeper than 128 directories, or has a name longer than 255 bytes".into());
    }
    Ok(names)
}
