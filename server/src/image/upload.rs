//! Receives an image piece by piece, for example from a browser, before it is added.

use std::path::PathBuf;

use rustix::fs::fstatvfs;
use sha2::{Digest as _, Sha256};
use slipway_protocol::{Digest, ErrorCode};
use tokio::io::AsyncWriteExt;

use super::{Added, Incoming, Known, Progress, empty, sha256, take_and_store};
use crate::base::data::DataDir;
use crate::base::error::Error;
use crate::store::Store;

/// Number of bytes of disk space that an upload must leave free, for the database among others.
const KEPT_FREE: u64 = 512 << 20;
/// Number of bytes received between two checks of the free space.
const STRIDE: u64 = 64 << 20;
/// Most bytes of the name of a file, which is what file systems allow.
const MOST_NAME: usize = 255;

/// An image that is being received. If it is dropped, what has arrived is removed.
pub struct Upload {
    incoming: Incoming,
    file: tokio::fs::File,
    file_name: String,
    hash: Sha256,
    size: u64,
    checked: u64,
}

impl Upload {
    /// Begins an upload. `path` is how its sender names the file, which may have folders before the name.
    pub fn begin(data: &DataDir, path: &str) -> Result<Self, Error> {
        let file_name = path.rsplit(['/', '\\']).next().unwrap_or_default();
        if file_name.is_empty() || file_name.len() > MOST_NAME || file_name.chars().any(char::is_control) {
            let message = "the file has no name that an image can have; rename it, and send it again";
            return Err(Error::refused(ErrorCode::InvalidRequest, message));
        }
        data.remove_leftovers();
        let incoming = Incoming::create(data)?;
        let file = incoming.file.try_clone();
        let file = file.map_err(|source| Error::File { doing: "opening", path: incoming.path.clone(), source })?;
        let file = tokio::fs::File::from_std(file);
        Ok(Self { incoming, file, file_name: file_name.to_owned(), hash: Sha256::new(), size: 0, checked: 0 })
    }

    /// Name of the file, without folders.
    pub fn file_name(&self) -> &str {
        &self.file_name
    }

    /// Number of bytes received.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Takes the next bytes. Refuses them if the disk has no room for them.
    pub async fn push(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if self.size >= self.checked {
            self.check_room()?;
            self.checked = self.size + STRIDE;
        }
        self.file.write_all(bytes).await.map_err(|source| self.failed("writing", source))?;
        self.hash.update(bytes);
        self.size += bytes.len() as u64;
        Ok(())
    }

    fn check_room(&self) -> Result<(), Error> {
        let room = fstatvfs(&self.incoming.file);
        let room = room.map_err(|errno| self.failed("reading the free space at", errno.into()))?;
        if room.f_bavail.saturating_mul(room.f_frsize) >= KEPT_FREE + STRIDE {
            return Ok(());
        }
        let message = format!(
            "the server's disk has no room for more of the image than the first {} bytes; remove images that nobody \
             needs, or free space, and send it again",
            self.size
        );
        Err(Error::refused(ErrorCode::TooLarge, message))
    }

    fn failed(&self, doing: &'static str, source: std::io::Error) -> Error {
        Error::File { doing, path: self.incoming.path.clone(), source }
    }

    /// Waits until all of the file is on the disk, and compares it with its SHA-256, if the sender said one.
    pub async fn complete(mut self, said: Option<&Digest>) -> Result<Received, Error> {
        self.file.flush().await.map_err(|source| self.failed("writing", source))?;
        self.file.sync_all().await.map_err(|source| self.failed("writing", source))?;
        let Self { incoming, file_name, hash, size, .. } = self;
        if size == 0 {
            return Err(empty(&PathBuf::from(file_name)));
        }
        let digest = sha256(hash);
        if let Some(said) = said.filter(|said| **said != digest) {
            let message = format!("the file {file_name:?} has the digest {digest}, not {said}; is it the right file?");
            return Err(Error::refused(ErrorCode::InvalidRequest, message));
        }
        Ok(Received { incoming, file_name, digest, size })
    }
}

/// An image that was received, and is not added yet.
pub struct Received {
    incoming: Incoming,
    file_name: String,
    digest: Digest,
    size: u64,
}

impl Received {
    /// Adds the image, as [`super::add`] does.
    pub async fn add(
        self,
        store: &Store,
        data: &DataDir,
        known: Known,
        progress: impl FnMut(Progress) + Send + 'static,
    ) -> Result<Added, Error> {
        let Self { incoming, file_name, digest, size } = self;
        take_and_store(store, data, PathBuf::from(file_name), incoming, (digest, size), known, progress).await
    }
}
