//! Files of the installed system. Paths are resolved inside its root (openat2(2), RESOLVE_IN_ROOT), so no symbolic link
//! of the image leads outside.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{
    AtFlags, Dir, DirEntry, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, fchmod, fchown, fstat, fsync, mkdirat,
    openat, openat2, readlinkat, renameat, statat, symlinkat, syncfs, unlinkat,
};
use rustix::io::Errno;

use crate::error::{Error, TargetError};
use crate::text;
use xattrs::Xattrs;

mod links;
mod xattrs;

/// The root of a mounted file system. Dropping it unmounts.
#[derive(Debug)]
pub(crate) struct TargetRoot(OwnedFd);

/// Maximum size of a configuration file in bytes. A larger file is something else.
const MAX_FILE: u64 = 16 << 20;
/// Maximum number of names in a configuration directory. A larger directory is something else.
const MAX_NAMES: usize = 4096;
/// Mode of directories that are created.
const DIR_MODE: u32 = 0o755;
/// Number of tries if the kernel could not be sure that a `..` stays inside the root, because something was renamed or
/// mounted at the same time, anywhere on the machine (openat2(2), EAGAIN).
const MAX_RACES: usize = 1000;
/// Maximum number of consecutive links to follow, as in the kernel (path_resolution(7)).
pub(crate) const MAX_LINKS: usize = 40;

impl TargetRoot {
    pub(crate) fn new(root: OwnedFd) -> Self {
        Self(root)
    }

    /// Opens a directory as a root of its own, out of which no path or link leads. Does not keep the file system
    /// mounted.
    pub(crate) fn below(&self, path: &str) -> Result<Self, Error> {
        let directory = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY);
        directory.map(Self).map_err(|errno| target_file("opening", path, errno.into()))
    }

    /// Whether two paths lead to the same existing file or directory.
    pub(crate) fn is_same(&self, one: &str, other: &str) -> bool {
        let inode = |path| self.open(path, OFlags::PATH).and_then(fstat).map(|stat| (stat.st_dev, stat.st_ino)).ok();
        inode(one).is_some() && inode(one) == inode(other)
    }

    /// Returns the same file system once more. It stays mounted until both are dropped.
    pub(crate) fn again(&self) -> Result<Self, Error> {
        self.0.try_clone().map(Self).map_err(|source| target_file("looking at", "", source))
    }

    /// Whether a path leads to a regular file.
    pub(crate) fn is_file(&self, path: &str) -> bool {
        let kind = |fd| fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
        self.open(path, OFlags::PATH).and_then(kind) == Ok(FileType::RegularFile)
    }

    /// Whether a path leads to a file or directory.
    pub(crate) fn exists(&self, path: &str) -> bool {
        self.open(path, OFlags::PATH).is_ok()
    }

    /// Whether the name exists, even if it is a dangling link.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.open(path, OFlags::PATH | OFlags::NOFOLLOW).is_ok()
    }

    /// Reads the text of a file; none if there is no such file.
    pub(crate) fn read(&self, path: &str) -> Result<Option<String>, Error> {
        self.read_up_to(path, MAX_FILE)
    }

    /// As [`Self::read`], for a file of at most `max` bytes. A larger one is an error.
    pub(crate) fn read_up_to(&self, path: &str, max: u64) -> Result<Option<String>, Error> {
        let read = || {
            let mut bytes = Vec::new();
            self.regular_file(path)?.take(max + 1).read_to_end(&mut bytes)?;
            // A truncated text could be written back later.
            if bytes.len() as u64 > max {
                let reason = format!("it is larger than {}, so it is left alone", text::size(max));
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
            }
            String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
        };
        if_there(path, read())
    }

    /// Opens a regular file for reading.
    pub(crate) fn open_file(&self, path: &str) -> Result<File, Error> {
        self.regular_file(path).map_err(|source| target_file("reading", path, source))
    }

    fn regular_file(&self, path: &str) -> io::Result<File> {
        // Non-blocking, because opening a pipe would block.
        let file = self.open(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
        let is_file = FileType::from_raw_mode(fstat(&file)?.st_mode) == FileType::RegularFile;
        if is_file { Ok(File::from(file)) } else { Err(io::Error::other("it is not a regular file")) }
    }

    /// Reads the first bytes of a regular file, at most `max`; none if there is no such file.
    pub(crate) fn head(&self, path: &str, max: u64) -> Result<Option<Vec<u8>>, Error> {
        let read = || {
            let mut bytes = Vec::new();
            self.regular_file(path)?.take(max).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        if_there(path, read())
    }

    /// Lists the entries of a directory but no hidden ones or directories, sorted; empty if it does not exist.
    pub(crate) fn list(&self, path: &str) -> Result<Vec<String>, Error> {
        self.names(path, |kind| kind != FileType::Directory)
    }

    /// Lists the directories in a directory but no hidden ones, sorted; empty if it does not exist.
    pub(crate) fn directories(&self, path: &str) -> Result<Vec<String>, Error> {
        self.names(path, |kind| kind == FileType::Directory)
    }

    fn names(&self, path: &str, is_wanted: fn(FileType) -> bool) -> Result<Vec<String>, Error> {
        let list = || -> io::Result<Vec<String>> {
            let dir = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
            let mut names = Vec::new();
            for entry in Dir::read_from(&dir)? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                if !name.starts_with('.') && is_wanted(kind_of(dir.as_fd(), &entry)?) {
                    if names.len() == MAX_NAMES {
                        return Err(io::Error::other(format!("it has more than {MAX_NAMES} entries")));
                    }
                    names.push(name);
                }
            }
            names.sort();
            Ok(names)
        };
        if_there(path, list()).map(Option::unwrap_or_default)
    }

    /// Writes a file with owner root and the given mode, and creates its parent directories. The file is written
    /// completely or not at all.
    pub(crate) fn write(&self, path: &str, content: &[u8], mode: u32) -> Result<(), Error> {
        let (parent, name) = split(path);
        self.create_dirs(parent, DIR_MODE)
            .and_then(|()| self.new_file(parent, name, content)?.finish(Some(Attributes { uid: 0, gid: 0, mode })))
            .map_err(|source| target_file("writing", path, source))
    }

    /// Replaces an existing file, completely or not at all. Owner, mode and extended attributes are kept. If the path
    /// is a link, the link stays.
    pub(crate) fn rewrite(&self, path: &str, content: &[u8]) -> Result<(), Error> {
        let rewrite = || {
            let path = self.followed(path)?;
            let old = self.regular_file(&path)?;
            let stat = fstat(&old)?;
            let (parent, name) = split(&path);
            let new = self.new_file(parent, name, content)?;
            new.set(Attributes { uid: stat.st_uid, gid: stat.st_gid, mode: stat.st_mode & 0o7777 })?;
            Xattrs::of(&old)?.give(new.file())?;
            new.finish(None)
        };
        rewrite().map_err(|source| target_file("writing", path, source))
    }

    /// Follows the links at the end of a path and returns where they lead. The target need not exist and is not a link.
    pub(crate) fn followed(&self, path: &str) -> io::Result<String> {
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            match self.link_at(&path)? {
                Some(target) => path = target,
                None => return Ok(path),
            }
        }
        Err(Errno::LOOP.into())
    }

    /// Returns the target of the symbolic link at a path; none if it is not a link. The link's folder comes before a
    /// relative target.
    pub(crate) fn link_at(&self, path: &str) -> io::Result<Option<String>> {
        let (parent, name) = split(path);
        let target = match readlinkat(self.open(parent, OFlags::RDONLY | OFlags::DIRECTORY)?, name, Vec::new()) {
            Err(Errno::INVAL | Errno::NOENT) => return Ok(None),
            other => other?.into_string().map_err(io::Error::other)?,
        };
        // The kernel resolves `..` when it opens that folder.
        Ok(Some(if target.starts_with('/') { target } else { format!("{parent}/{target}") }))
    }

    /// Creates a symbolic link, replacing whatever has its name, and creates its parent directories.
    pub(crate) fn link(&self, path: &str, to: &str) -> Result<(), Error> {
        self.remove(path)?;
        let (parent, name) = split(path);
        let link = || -> io::Result<()> {
            self.create_dirs(parent, DIR_MODE)?;
            let parent = self.open(parent, OFlags::RDONLY | OFlags::DIRECTORY)?;
            symlinkat(to, &parent, name)?;
            xattrs::inherit_label(parent.as_fd(), name, name)?;
            Ok(fsync(&parent)?)
        };
        link().map_err(|source| target_file("writing", path, source))
    }

    /// Sets the SELinux context of a file, a directory or a symbolic link.
    pub(crate) fn label(&self, path: &str, context: &str) -> Result<(), Error> {
        let (parent, name) = split(path);
        let label = || -> io::Result<()> {
            let parent = self.open(parent, OFlags::RDONLY | OFlags::DIRECTORY)?;
            xattrs::set_label(parent.as_fd(), name, format!("{context}\0").as_bytes())
        };
        label().map_err(|source| target_file("labelling", path, source))
    }

    /// Starts a file that only gets its name once it is complete, and creates its parent directories.
    pub(crate) fn begin(&self, path: &str, dir_mode: u32) -> Result<NewFile, Error> {
        let (parent, name) = split(path);
        self.create_dirs(parent, dir_mode)
            .and_then(|()| NewFile::begin(self.open(parent, OFlags::RDONLY | OFlags::DIRECTORY)?, name))
            .map_err(|source| target_file("writing", path, source))
    }

    /// Reads owner, group and mode of a file; none if there is no such file.
    pub(crate) fn attributes(&self, path: &str) -> Result<Option<Attributes>, Error> {
        let (parent, name) = split(path);
        let attributes = || -> io::Result<Attributes> {
            let parent = self.open(parent, OFlags::RDONLY | OFlags::DIRECTORY)?;
            let stat = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                return Err(io::ErrorKind::NotFound.into());
            }
            Ok(Attributes { uid: stat.st_uid, gid: stat.st_gid, mode: stat.st_mode & 0o7777 })
        };
        if_there(path, attributes())
    }

    /// Creates a directory that only root can access, and its parent directories.
    pub(crate) fn make_directory(&self, path: &str) -> Result<OwnedFd, Error> {
        let (parent, name) = split(path);
        let make = || {
            self.create_dirs(parent, DIR_MODE)?;
            let parent = self.open(parent, OFlags::RDONLY | OFlags::DIRECTORY)?;
            mkdirat(&parent, name, Mode::RWXU)?;
            xattrs::inherit_label(parent.as_fd(), name, name)?;
            Ok(self.open_directory(path.as_bytes())?)
        };
        make().map_err(|source| target_file("making", path, source))
    }

    /// Opens a directory.
    pub(crate) fn open_directory(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        self.open(OsStr::from_bytes(path), OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Removes a file, a symbolic link, or a directory with all contents. It is not an error if it does not exist.
    pub(crate) fn remove(&self, path: &str) -> Result<(), Error> {
        let (parent, name) = split(path);
        let remove = || -> io::Result<()> {
            let parent = self.open(parent, OFlags::RDONLY | OFlags::DIRECTORY)?;
            remove_at(parent.as_fd(), OsStr::new(name))?;
            Ok(fsync(parent)?)
        };
        match remove() {
            Err(error) if !is_missing(&error) => Err(target_file("removing", path, error)),
            _ => Ok(()),
        }
    }

    /// Returns once the file system has written everything to the disk.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        let sync = || syncfs(self.directory()?);
        sync().map_err(|errno| target_file("writing", "", errno.into()))
    }

    /// Opens the root as a directory. The descriptor of a mount is an O_PATH descriptor, which neither syncfs(2) nor
    /// ioctl(2) accepts.
    pub(crate) fn directory(&self) -> Result<OwnedFd, Errno> {
        self.open("", OFlags::RDONLY | OFlags::DIRECTORY)
    }

    fn open(&self, path: impl AsRef<OsStr>, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = Some(path.as_ref()).filter(|path| !path.is_empty()).unwrap_or(OsStr::new("."));
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let open = |_| openat2(&self.0, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve);
        (0..MAX_RACES).map(open).find(|opened| !matches!(opened, Err(Errno::AGAIN))).unwrap_or(Err(Errno::AGAIN))
    }

    fn create_dirs(&self, path: &str, mode: u32) -> io::Result<()> {
        if path.is_empty() || self.exists(path) {
            return Ok(());
        }
        let (parent, name) = split(path);
        self.create_dirs(parent, mode)?;
        let parent = self.open(parent, OFlags::RDONLY | OFlags::DIRECTORY)?;
        mkdirat(&parent, name, Mode::from_raw_mode(mode))?;
        xattrs::inherit_label(parent.as_fd(), name, name)?;
        Ok(fsync(parent)?)
    }

    fn new_file(&self, parent: &str, name: &str, content: &[u8]) -> io::Result<NewFile> {
        let new = NewFile::begin(self.open(parent, OFlags::RDONLY | OFlags::DIRECTORY)?, name)?;
        new.file().write_all(content)?;
        Ok(new)
    }
}

/// Owner, group and mode bits of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u32,
}

/// A file that does not have its final name yet. If it is dropped before that, it is removed.
#[derive(Debug)]
pub(crate) struct NewFile {
    parent: OwnedFd,
    temporary: String,
    name: String,
    file: File,
}

impl NewFile {
    fn begin(parent: OwnedFd, name: &str) -> io::Result<Self> {
        let temporary = format!(".{name}.slipway");
        _ = unlinkat(&parent, &*temporary, AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Only root can read it, because the content may be secret.
        let file = File::from(openat(&parent, &*temporary, flags, Mode::RUSR | Mode::WUSR)?);
        Ok(Self { parent, temporary, name: name.to_owned(), file })
    }

    /// The file, to write its content to.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Sets its attributes, if the file system has them.
    fn set(&self, Attributes { uid, gid, mode }: Attributes) -> io::Result<()> {
        let stat = fstat(&self.file)?;
        // FAT has no owners and modes, so only differing attributes are set.
        if (uid, gid) != (stat.st_uid, stat.st_gid) {
            fchown(&self.file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        if stat.st_mode & 0o7777 != mode {
            fchmod(&self.file, Mode::from_raw_mode(mode))?;
        }
        Ok(())
    }

    /// Sets its attributes and the SELinux label of the replaced file or of its folder. Gives it its final name once
    /// everything is on the disk.
    pub(crate) fn finish(self, attributes: Option<Attributes>) -> io::Result<()> {
        attributes.map_or(Ok(()), |attributes| self.set(attributes))?;
        xattrs::inherit_label(self.parent.as_fd(), &self.name, &self.temporary)?;
        self.file.sync_all()?;
        renameat(&self.parent, &*self.temporary, &self.parent, &*self.name)?;
        Ok(fsync(&self.parent)?)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // Once renamed, the temporary name is gone.
        _ = unlinkat(&self.parent, &*self.temporary, AtFlags::empty());
    }
}

/// Removes a name from a directory without following links.
fn remove_at(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Ok(unlinkat(parent, name, AtFlags::empty())?);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = openat(parent, name, flags, Mode::empty())?;
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            remove_at(dir.as_fd(), OsStr::from_bytes(entry.file_name().to_bytes()))?;
        }
    }
    Ok(unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

/// Returns what an entry of a directory is. Some file systems do not tell it with the name (readdir(3), `DT_UNKNOWN`):
/// XFS with `ftype=0`, ext4 without `filetype`.
fn kind_of(dir: BorrowedFd<'_>, entry: &DirEntry) -> Result<FileType, Errno> {
    match entry.file_type() {
        FileType::Unknown => {
            let stat = statat(dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
            Ok(FileType::from_raw_mode(stat.st_mode))
        }
        kind => Ok(kind),
    }
}

/// Splits a path without a leading slash into the parent directory and the last component.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Turns the error of a missing file into none.
fn if_there<T>(path: &str, read: io::Result<T>) -> Result<Option<T>, Error> {
    match read {
        Err(error) if is_missing(&error) => Ok(None),
        read => read.map(Some).map_err(|source| target_file("reading", path, source)),
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

pub(crate) fn target_file(operation: &'static str, path: &str, source: io::Error) -> Error {
    Error::Target(TargetError::File { operation, path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn root() -> (tempfile::TempDir, TargetRoot) {
        let dir = tempfile::tempdir().unwrap();
        let root = TargetRoot::new(File::open(dir.path()).unwrap().into());
        (dir, root)
    }

    #[test]
    fn a_link_of_the_image_never_leads_outside() {
        let (dir, root) = root();
        let outside = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("etc")).unwrap();
        symlink(outside.path(), dir.path().join("etc/absolute")).unwrap();
        symlink("../../../../../../../etc", dir.path().join("etc/relative")).unwrap();
        assert!(
            root.write("etc/absolute/x", b"x", 0o600).is_err(),
            "the target of the link does not exist in the root"
        );
        root.write("etc/relative/x", b"x", 0o600).unwrap();
        assert_eq!(fs::read(dir.path().join("etc/x")).unwrap(), b"x");
        root.remove("etc/absolute").unwrap();
        assert!(outside.path().exists() && !dir.path().join("etc/absolute").exists());
    }

    #[test]
    fn a_link_upwards_is_followed_while_files_are_renamed_elsewhere() {
        let (dir, root) = root();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        symlink("../../file", dir.path().join("a/b/link")).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| elsewhere.path().join(name));
        fs::write(&one, "").unwrap();
        std::thread::scope(|scope| {
            let renaming = scope.spawn(|| {
                for _ in 0..20_000 {
                    fs::rename(&one, &other).unwrap();
                    fs::rename(&other, &one).unwrap();
                }
            });
            while !renaming.is_finished() {
                assert!(root.exists("a/b/link"));
            }
        });
    }

    #[test]
    fn a_file_that_links_lead_to_is_written_anew_and_the_links_stay() {
        let (dir, root) = root();
        let [at, outside] = [dir.path().join("etc"), dir.path().join("efi")];
        fs::create_dir(&at).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("env"), "1").unwrap();
        symlink("../../../efi/env", at.join("relative")).unwrap();
        symlink("/etc/relative", at.join("absolute")).unwrap();
        symlink("loop", at.join("loop")).unwrap();
        symlink("/efi", at.join("folder")).unwrap();
        for (path, content) in [("etc/relative", "2"), ("etc/absolute", "3"), ("etc/folder/env", "4")] {
            root.rewrite(path, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(outside.join("env")).unwrap(), content, "{path}");
        }
        assert!(at.join("relative").is_symlink() && at.join("absolute").is_symlink());
        assert_eq!(fs::read_dir(&at).unwrap().count(), 4, "nothing else was made");
        for path in ["etc/loop", "etc/folder", "etc/none"] {
            assert!(root.rewrite(path, b"x").is_err(), "{path}");
        }
    }

    #[test]
    fn a_file_too_large_to_be_configuration_is_an_error_and_not_cut() {
        let (dir, root) = root();
        let file = File::create(dir.path().join("grub.cfg")).unwrap();
        file.set_len(MAX_FILE).unwrap();
        assert_eq!(root.read("grub.cfg").unwrap().map(|text| text.len() as u64), Some(MAX_FILE));
        file.set_len(MAX_FILE + 1).unwrap();
        let error = root.read("grub.cfg").unwrap_err();
        let expect = "reading /grub.cfg of the installed system: it is larger than 16 MiB, so it is left alone";
        assert_eq!(crate::text::chain(&error), expect);
    }
}
