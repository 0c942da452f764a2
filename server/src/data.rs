//! The data folder: everything a server has to keep.
//!
//! ```text
//! slipway.db            SQLite database
//! slipway.lock          held while the database is opened and brought up to date
//! ca.pem  ca.key        certificate authority of this installation
//! server.pem server.key the server's own certificate chain and key
//! jwt.key               key of the nodes' JWTs and of the tokens for metadata
//! operator-token        token of the operators' HTTPS API
//! images/sha256/HEX     images by the digest of the file as delivered
//! images/captures/RUN   what has arrived of disks that a run captures
//! ```
//!
//! Operator commands and any number of servers may open the folder at once: files that are made on first use are published
//! complete or not at all, and the first to publish wins.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use slipway_protocol::Digest;

use crate::{Error, random};

/// A data folder that exists.
#[derive(Clone, Debug)]
pub struct DataDir {
    root: PathBuf,
}

impl DataDir {
    /// Opens the folder, making it, for its owner alone, if it is not there.
    pub fn open(root: &Path) -> Result<Self, Error> {
        let make = |path: PathBuf| {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
            made.map_err(|source| Error::File { doing: "making the folder", path, source })
        };
        make(root.to_owned())?;
        make(root.join("images/sha256"))?;
        Ok(Self { root: root.to_owned() })
    }

    /// The database file.
    pub fn database(&self) -> PathBuf {
        self.root.join("slipway.db")
    }

    /// Where the image with this digest is, or would be.
    pub fn image(&self, digest: &Digest) -> PathBuf {
        self.root.join("images").join(digest.algorithm().name()).join(digest.hex())
    }

    /// A name for an image that is still being copied, on the same file system as its final place.
    pub fn incoming_image(&self) -> PathBuf {
        self.root.join("images").join(format!("incoming-{}", random::id()))
    }

    /// What has arrived of captured disks, a folder for each run, on the same file system as the images. Made when there is any.
    pub fn captures(&self) -> PathBuf {
        self.root.join("images/captures")
    }

    /// What has arrived of a disk that a run captures under a name.
    pub fn capture(&self, run: &str, name: &str) -> PathBuf {
        self.captures().join(run).join(name)
    }

    /// The operators' token, made on first use.
    pub fn operator_token(&self) -> Result<String, Error> {
        self.read_or_create("operator-token", || Ok(random::token()))
    }

    /// The content of a file of the folder, if there is such a file.
    pub fn read(&self, name: &str) -> Result<Option<String>, Error> {
        let path = self.root.join(name);
        match fs::read_to_string(&path) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::File { doing: "reading", path, source }),
        }
    }

    /// The content of a file of the folder, which is made if there is none. Nobody ever sees a part of it, and of several
    /// who make it at once all get the content of the first.
    pub fn read_or_create(&self, name: &str, make: impl FnOnce() -> Result<String, Error>) -> Result<String, Error> {
        if let Some(content) = self.read(name)? {
            return Ok(content);
        }
        let made = make()?;
        let complete = self.write_aside(name, &made)?;
        let path = self.root.join(name);
        let published = fs::hard_link(&complete, &path);
        fs::remove_file(&complete).map_err(|source| Error::File { doing: "removing", path: complete, source })?;
        match published {
            Ok(()) => Ok(made),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(self.read(name)?.unwrap_or(made)),
            Err(source) => Err(Error::File { doing: "writing", path, source }),
        }
    }

    /// Replaces a file of the folder in one go.
    pub fn replace(&self, name: &str, content: &str) -> Result<(), Error> {
        let complete = self.write_aside(name, content)?;
        let path = self.root.join(name);
        fs::rename(complete, &path).map_err(|source| Error::File { doing: "writing", path, source })
    }

    /// A complete copy, readable by its owner alone, under another name.
    fn write_aside(&self, name: &str, content: &str) -> Result<PathBuf, Error> {
        let path = self.root.join(format!(".{name}-{}", random::id()));
        let write = || {
            let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(content.as_bytes())?;
            file.sync_all()
        };
        match write() {
            Ok(()) => Ok(path),
            Err(source) => Err(Error::File { doing: "writing", path, source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_secret_is_made_once_and_is_its_owners_alone() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let data = DataDir::open(&folder.path().join("new"))?;
        let first = data.operator_token()?;
        assert_eq!(data.operator_token()?, first);
        let mode = fs::metadata(folder.path().join("new/operator-token"))?.permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let files = fs::read_dir(folder.path().join("new"))?.count();
        assert_eq!(files, 2, "the token and images/, no leftovers");
        Ok(())
    }
}
