//! The files of images: in the data folder, or as objects in a bucket of S3-compatible storage. An image has the same
//! name in both: `images/sha256/HEX`, by the digest of its file.

mod bucket;
mod fault;
mod settings;

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use slipway_protocol::{Algorithm, Digest};

pub use self::bucket::{Bucket, Content};
pub use self::settings::{Defaults, Keys};
use crate::base::error::Error;

/// Returns the path of the image with this digest in a data folder. The file need not exist.
pub fn image_in(root: &Path, digest: &Digest) -> PathBuf {
    root.join("images").join(digest.algorithm().name()).join(digest.hex())
}

/// Where the files of images are.
#[derive(Clone, Debug)]
pub enum Objects {
    /// In this data folder.
    Folder(PathBuf),
    /// In a bucket. This data folder has files while they are added and examined.
    Bucket(Bucket, PathBuf),
}

/// Size and modification time of a file or an object. If either differs, the content may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Size in bytes.
    pub size: u64,
    /// Time of the last modification, in nanoseconds since 1970.
    pub changed: i64,
}

impl Stamp {
    /// Returns the size and modification time of a file.
    pub fn of(file: &Metadata) -> Self {
        let changed = file.mtime().saturating_mul(1_000_000_000).saturating_add(file.mtime_nsec());
        Self { size: file.len(), changed }
    }
}

/// What is seen of an image's file without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The file exists.
    There(Stamp),
    /// There is no file.
    Missing,
    /// There is something that cannot be opened, or is not a regular file.
    Unreadable,
}

impl Objects {
    /// Looks at the file of an image. Fails only if a bucket does not answer.
    pub async fn look(&self, digest: &Digest) -> Result<Seen, Error> {
        match self {
            Self::Folder(root) => Ok(look(&image_in(root, digest))),
            Self::Bucket(bucket, _) => Ok(bucket.stamp(digest).await?.map_or(Seen::Missing, Seen::There)),
        }
    }

    /// Looks at the files of several images. Fails only if a bucket does not answer.
    pub async fn look_at(&self, digests: Vec<Digest>) -> Result<HashMap<Digest, Seen>, Error> {
        let found = match self {
            Self::Bucket(bucket, _) if digests.len() > 1 => bucket.list().await?,
            _ => {
                let mut seen = HashMap::new();
                for digest in digests {
                    let found = self.look(&digest).await?;
                    seen.insert(digest, found);
                }
                return Ok(seen);
            }
        };
        let seen = |digest: &Digest| found.get(digest).map_or(Seen::Missing, |stamp| Seen::There(*stamp));
        Ok(digests.into_iter().map(|digest| (digest.clone(), seen(&digest))).collect())
    }

    /// The data folder.
    pub fn folder(&self) -> &Path {
        match self {
            Self::Folder(folder) | Self::Bucket(_, folder) => folder,
        }
    }

    /// Looks at all files of images by SHA-256. What is in the folder under another name is not one of them.
    pub async fn list(&self) -> Result<HashMap<Digest, Stamp>, Error> {
        let root = match self {
            Self::Bucket(bucket, _) => return bucket.list().await,
            Self::Folder(root) => root,
        };
        let folder = root.join("images").join(Algorithm::Sha256.name());
        let failed = |source| Error::File { doing: "reading the folder", path: folder.clone(), source };
        let mut found = HashMap::new();
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if let (Ok(digest), Seen::There(stamp)) = (Digest::new(Algorithm::Sha256, &name), look(&path)) {
                found.insert(digest, stamp);
            }
        }
        Ok(found)
    }

    /// Makes a complete file, which is on the same file system as the data folder, the file of the image with this
    /// digest. It replaces an earlier one. When this returns, it would survive a power cut. `sent` is called with the
    /// number of bytes that a bucket has.
    pub async fn publish(
        &self,
        incoming: &Path,
        digest: &Digest,
        sent: &mut (dyn FnMut(u64) + Send),
    ) -> Result<Stamp, Error> {
        let failed = |source| Error::File { doing: "publishing", path: incoming.to_owned(), source };
        match self {
            Self::Folder(root) => {
                let stamp = Stamp::of(&fs::metadata(incoming).map_err(failed)?);
                publish(incoming, &image_in(root, digest))?;
                Ok(stamp)
            }
            Self::Bucket(bucket, _) => {
                bucket.put(File::open(incoming).map_err(failed)?, digest, sent).await?;
                // The file has served its purpose. If it stays, it is removed as a leftover.
                let _ = fs::remove_file(incoming);
                let missing = || bucket.error("finding what was stored in", "it is not there; try again");
                bucket.stamp(digest).await?.ok_or_else(missing)
            }
        }
    }

    /// Removes the file of an image, if it exists.
    pub async fn remove(&self, digest: &Digest) -> Result<(), Error> {
        match self {
            Self::Bucket(bucket, _) => bucket.remove(digest).await,
            Self::Folder(root) => {
                let path = image_in(root, digest);
                match fs::remove_file(&path) {
                    Err(source) if source.kind() != ErrorKind::NotFound => {
                        Err(Error::File { doing: "removing the image", path, source })
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

fn look(path: &Path) -> Seen {
    match File::open(path).and_then(|file| file.metadata()) {
        Ok(found) if found.is_file() => Seen::There(Stamp::of(&found)),
        Ok(_) => Seen::Unreadable,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Seen::Missing,
        Err(_) => Seen::Unreadable,
    }
}

/// Gives a complete file its name. When this returns, it would survive a power cut.
fn publish(incoming: &Path, place: &Path) -> Result<(), Error> {
    let failed = |source| Error::File { doing: "publishing", path: place.to_owned(), source };
    fs::rename(incoming, place).map_err(failed)?;
    match place.parent() {
        Some(folder) => File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed),
        None => Ok(()),
    }
}
