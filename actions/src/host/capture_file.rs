//! Stores a captured disk in a file instead of on the server, when a capture is run by hand.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use slipway_protocol::CapturedImage;

use crate::machine::{Upload, UploadError};

/// Suffix of the file's name until it is complete.
const PART: &str = ".part";

/// A file that is written under a temporary name and renamed when it is complete.
pub(crate) struct CaptureFile {
    place: PathBuf,
    part: PathBuf,
    file: File,
    is_complete: bool,
}

/// The operation on a file that failed, and why.
#[derive(Debug, thiserror::Error)]
#[error("{doing} {}", path.display())]
struct FileError {
    doing: &'static str,
    path: PathBuf,
    source: io::Error,
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> UploadError {
    let path = path.to_owned();
    move |source| UploadError { source: Box::new(FileError { doing, path, source }), is_transient: false }
}

impl CaptureFile {
    /// Creates the file. Fails if it exists already.
    pub(crate) fn begin(place: &Path) -> Result<Self, UploadError> {
        if fs::symlink_metadata(place).is_ok() {
            let reason = "a file with that name exists; give another name, or remove it";
            return Err(failed("making", place)(io::Error::new(io::ErrorKind::AlreadyExists, reason)));
        }
        let mut part = place.as_os_str().to_owned();
        part.push(PART);
        let part = PathBuf::from(part);
        let file = File::create_new(&part).map_err(|error| {
            let error = match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    let reason =
                        "a capture is writing it, or was interrupted and left it; remove it if no capture is running";
                    io::Error::new(error.kind(), reason)
                }
                _ => error,
            };
            failed("making", &part)(error)
        })?;
        Ok(Self { place: place.to_owned(), part, file, is_complete: false })
    }
}

impl Upload for CaptureFile {
    fn put(&mut self, offset: u64, piece: &[u8]) -> Result<u64, UploadError> {
        self.file.write_all_at(piece, offset).map_err(failed("writing", &self.part))?;
        Ok(offset + piece.len() as u64)
    }

    fn commit(&mut self, image: &CapturedImage) -> Result<(), UploadError> {
        let size = self.file.metadata().map_err(failed("looking at", &self.part))?.len();
        if size != image.size {
            let source = io::Error::other(format!("it has {size} bytes instead of {}", image.size));
            return Err(failed("checking", &self.part)(source));
        }
        self.file.sync_all().map_err(failed("writing", &self.part))?;
        fs::rename(&self.part, &self.place).map_err(failed("renaming", &self.part))?;
        self.is_complete = true;
        let folder = match self.place.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("writing", &self.place))
    }
}

impl Drop for CaptureFile {
    fn drop(&mut self) {
        if !self.is_complete {
            // If the file cannot be removed, its name shows that it is incomplete.
            let _ = fs::remove_file(&self.part);
        }
    }
}
