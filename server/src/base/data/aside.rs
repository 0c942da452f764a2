//! Files that are written completely before they get their name.
//!
//! If the file system supports it, such a file has no name until then (O_TMPFILE, open(2)), so nothing remains after a
//! kill. Otherwise it has a temporary name and is locked. An unlocked file with such a name is of a killed process.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, OFlags, linkat};

use crate::base::error::Error;
use crate::base::random;

/// Number of random characters in a temporary name.
const RANDOM: usize = 16;

/// A file that is not published yet. It is removed on drop.
pub struct Aside {
    file: File,
    folder: PathBuf,
    prefix: String,
    /// Temporary path of the file. `None` if the file has no name.
    path: Option<PathBuf>,
}

impl Aside {
    /// Creates an empty file in the folder, with mode 600. If it needs a temporary name, the name begins with `prefix`.
    pub fn create(folder: &Path, prefix: &str) -> Result<Self, Error> {
        let new = |file, path| Self { file, folder: folder.to_owned(), prefix: prefix.to_owned(), path };
        let failed = |source| Error::File { doing: "creating a file in", path: folder.to_owned(), source };
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        let flags = OFlags::TMPFILE.bits().cast_signed();
        match options.clone().custom_flags(flags).open(folder) {
            Ok(file) => {
                // The file is locked now, before it may get a temporary name.
                file.lock().map_err(failed)?;
                return Ok(new(file, None));
            }
            Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::IsADirectory) => {}
            Err(error) => return Err(failed(error)),
        }
        loop {
            let path = folder.join(format!("{prefix}{}", random::id()));
            let file = options.clone().create_new(true).open(&path).map_err(failed)?;
            file.lock().map_err(failed)?;
            // Before the file was locked, another process may have removed it like one of a killed process.
            if file.metadata().map_err(failed)?.nlink() > 0 {
                return Ok(new(file, Some(path)));
            }
        }
    }

    /// The open file.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Writes all bytes, and waits until they are on the disk.
    pub fn write(&mut self, content: &[u8]) -> Result<(), Error> {
        let done = self.file.write_all(content).and_then(|()| self.file.sync_all());
        done.map_err(|source| Error::File { doing: "writing a file in", path: self.folder.clone(), source })
    }

    /// Makes the folder's owner the owner of the file, because the server runs as that user.
    pub fn give_to_owner_of(&self, folder: &Path) -> Result<(), Error> {
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let give = || {
            let (folder, file) = (fs::metadata(folder)?, self.file.metadata()?);
            if (folder.uid(), folder.gid()) == (file.uid(), file.gid()) {
                return Ok(());
            }
            fchown(&self.file, Some(folder.uid()), Some(folder.gid()))
        };
        give().map_err(|source| Error::File {
            doing: "setting the owner of the data folder as the owner of a file in",
            path: folder.to_owned(),
            source,
        })
    }

    /// Publishes the file, unless one with this name exists. Returns whether it was published.
    pub fn publish_new(self, to: &Path) -> Result<bool, Error> {
        match self.link(to) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(source) => Err(Error::File { doing: "writing", path: to.to_owned(), source }),
        }
    }

    /// Publishes the file, replacing any file with this name.
    pub fn publish_over(mut self, to: &Path) -> Result<(), Error> {
        let failed = |source| Error::File { doing: "writing", path: to.to_owned(), source };
        let path = match self.path.take() {
            Some(path) => path,
            None => {
                let path = self.folder.join(format!("{}{}", self.prefix, random::id()));
                self.link(&path).map_err(failed)?;
                path
            }
        };
        fs::rename(&path, to).map_err(|source| {
            // The content may be secret, so it must not be left behind.
            let _ = fs::remove_file(&path);
            failed(source)
        })
    }

    fn link(&self, to: &Path) -> std::io::Result<()> {
        match &self.path {
            Some(path) => fs::hard_link(path, to),
            // linkat(2) takes a file without a name through its descriptor in /proc.
            None => {
                let open = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                Ok(linkat(CWD, open, CWD, to, AtFlags::SYMLINK_FOLLOW)?)
            }
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether a name is a temporary one: `.NAME-RANDOM`.
pub fn is_temporary(name: &str) -> bool {
    let random = name.strip_prefix('.').and_then(|name| name.rsplit_once('-')).map_or("", |(_, random)| random);
    random.len() == RANDOM && random.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Removes a file unless a process has locked it.
pub fn remove_unless_locked(path: &Path) {
    if File::open(path).is_ok_and(|open| open.try_lock().is_ok()) {
        let _ = fs::remove_file(path);
    }
}
