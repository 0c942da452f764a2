//! Files that are written aside and published complete.
//!
//! Where the file system can, such a file has no name until then (O_TMPFILE, open(2)), so a kill leaves nothing behind.
//! Elsewhere it has a name of its own and is locked. What nobody has locked is left over.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, OFlags, linkat};

use crate::base::error::Error;
use crate::base::random;

/// Length of the random part of a name.
const RANDOM: usize = 16;

/// A file that is not published yet. It goes away on drop.
pub struct Aside {
    file: File,
    folder: PathBuf,
    prefix: String,
    /// Its name, if it has one.
    path: Option<PathBuf>,
}

impl Aside {
    /// An empty file in the folder, for its owner alone. If it needs a name, the name begins like this.
    pub fn create(folder: &Path, prefix: &str) -> Result<Self, Error> {
        let new = |file, path| Self { file, folder: folder.to_owned(), prefix: prefix.to_owned(), path };
        let failed = |source| Error::File { doing: "creating a file in", path: folder.to_owned(), source };
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        let flags = OFlags::TMPFILE.bits().cast_signed();
        match options.clone().custom_flags(flags).open(folder) {
            Ok(file) => {
                // It is locked before it may get a temporary name.
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
            // Before it was locked, it looked left over.
            if file.metadata().map_err(failed)?.nlink() > 0 {
                return Ok(new(file, Some(path)));
            }
        }
    }

    /// The open file.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Writes all of it, and waits until it is on the disk.
    pub fn write(&mut self, content: &[u8]) -> Result<(), Error> {
        let done = self.file.write_all(content).and_then(|()| self.file.sync_all());
        done.map_err(|source| Error::File { doing: "writing a file in", path: self.folder.clone(), source })
    }

    /// Gives it to the folder's owner, because the server runs as that user.
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

    /// Publishes it, unless there is a file of this name. Returns whether it did.
    pub fn publish_new(self, to: &Path) -> Result<bool, Error> {
        match self.link(to) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(source) => Err(Error::File { doing: "writing", path: to.to_owned(), source }),
        }
    }

    /// Publishes it in the place of any file of this name.
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
            // Its content may be secret.
            let _ = fs::remove_file(&path);
            failed(source)
        })
    }

    fn link(&self, to: &Path) -> std::io::Result<()> {
        match &self.path {
            Some(path) => fs::hard_link(path, to),
            // linkat(2) names a file without a name by its descriptor in /proc.
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

/// Whether a name is that of a file of the data folder that is written aside: `.NAME-RANDOM`.
pub fn is_temporary(name: &str) -> bool {
    let random = name.strip_prefix('.').and_then(|name| name.rsplit_once('-')).map_or("", |(_, random)| random);
    random.len() == RANDOM && random.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Removes a file that nobody is writing.
pub fn remove_unless_locked(path: &Path) {
    if File::open(path).is_ok_and(|open| open.try_lock().is_ok()) {
        let _ = fs::remove_file(path);
    }
}
