//! Images that nodes capture from disks. Received data is stored separately. It becomes an image when it is complete
//! and its digest is right.
//!
//! This file is about images in the data folder, `parts` about those in a bucket. A file in use is locked, because a
//! node that lost its connection may reconnect while the server still processes the data sent before.

mod parts;

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use sha2::{Digest as _, Sha256};
use slipway_protocol::{Action, Algorithm, CapturedImage, Digest, ErrorCode, SiteEventKind};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::base::data::DataDir;
use crate::base::error::Error;
use crate::base::objects::Objects;
use crate::base::time::now;
use crate::image::turn::Turn;
use crate::rules::state;
use crate::store;
use crate::store::history::{self, NewEvent};
use crate::store::images::{self, Image};
use crate::store::runs::{self, Run};
use crate::store::{Connection, Store, capture_parts};

/// Number of bytes of disk space that captures must leave free.
const KEPT_FREE: u64 = 512 << 20;
/// How long a request waits while an image is verified. After that the node repeats it.
const PATIENCE: Duration = Duration::from_secs(20);
/// Interval at which unfinished captures of ended runs are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
const CHUNK_BYTES: usize = 1 << 20;

/// An image being captured, with its node and run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Capture {
    /// Id of the node.
    pub node: String,
    /// Id of the run.
    pub run: String,
    /// Name of the image.
    pub name: String,
}

/// Result of storing a piece of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The piece was stored. The image now has this number of bytes.
    Stored(u64),
    /// The piece was not stored, because its offset differs from this number of bytes stored so far.
    Misplaced(u64),
}

/// Stores captured disks.
#[derive(Debug)]
pub struct Captures {
    store: Store,
    data: DataDir,
    /// Maximum size of an image in bytes.
    max: u64,
    /// Becomes true when the server stops.
    stopping: watch::Receiver<bool>,
    /// Images being verified.
    verifications: Mutex<HashMap<(Capture, Digest), Verification>>,
}

type Verification = JoinHandle<Result<Image, Error>>;

impl Captures {
    /// Creates a store for captured images of up to `max` bytes each.
    pub fn new(store: Store, data: DataDir, max: u64, stopping: watch::Receiver<bool>) -> Self {
        Self { store, data, max, stopping, verifications: Mutex::default() }
    }

    fn verifications(&self) -> MutexGuard<'_, HashMap<(Capture, Digest), Verification>> {
        self.verifications.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an image. An image that was begun before starts again from empty.
    pub async fn begin(&self, capture: &Capture) -> Result<(), Error> {
        if let Objects::Bucket(bucket, _) = self.store.objects() {
            return parts::begin(&self.store, bucket, capture).await;
        }
        let mut transaction = self.store.write().await?;
        let run = check_allowed(&mut transaction, capture).await?;
        check_name_is_free(&mut transaction, &capture.name).await?;
        tell_begun(&mut transaction, &run, &capture.name).await?;
        store::commit(transaction).await?;
        let place = self.data.capture(&capture.run, &capture.name);
        blocking(move || {
            let failed = |source| Error::File { doing: "creating", path: place.clone(), source };
            place.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
            OpenOptions::new().write(true).create(true).truncate(false).open(&place).map_err(failed)?;
            open_locked(&place)?.set_len(0).map_err(failed)
        })
        .await
    }

    /// Appends a piece to an image, if its offset is the end of the stored data.
    pub async fn append(&self, capture: &Capture, offset: u64, piece: Bytes) -> Result<Appended, Error> {
        if let Objects::Bucket(bucket, _) = self.store.objects() {
            return parts::append(&self.store, bucket, capture, offset, piece, self.max).await;
        }
        check_allowed(&mut *self.store.read().await?, capture).await?;
        let (place, largest) = (self.data.capture(&capture.run, &capture.name), self.max);
        blocking(move || write(&place, offset, &piece, largest)).await
    }

    /// Makes an image from the stored data, if size and digest are right. Returns `None` if the check is not finished
    /// within `PATIENCE`; the caller then repeats the request. Repeating a finished commit changes nothing.
    pub async fn commit(&self, capture: Capture, image: CapturedImage) -> Result<Option<Image>, Error> {
        let mut connection = self.store.read().await?;
        check_allowed(&mut connection, &capture).await?;
        // The image exists already, from this capture or from another disk with the same bytes.
        if let Some(known) =
            images::get_by_digest(&mut connection, &image.digest).await?.filter(|i| i.size == image.size)
        {
            return Ok(Some(known));
        }
        drop(connection);
        let key = (capture.clone(), image.digest.clone());
        let begun = self.verifications().remove(&key);
        let mut verification = begun.unwrap_or_else(|| {
            let (store, data, stopping) = (self.store.clone(), self.data.clone(), self.stopping.clone());
            // The task continues even if the node loses its connection.
            tokio::spawn(async move { verify(&store, &data, stopping, &capture, image).await })
        });
        match tokio::time::timeout(PATIENCE, &mut verification).await {
            Ok(verified) => verified.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic())).map(Some),
            Err(_) => {
                self.verifications().insert(key, verification);
                Ok(None)
            }
        }
    }

    /// Removes captures of runs that have ended. Returns the ids of the runs with captures that have not.
    pub async fn sweep(&self) -> Result<Vec<String>, Error> {
        if let Objects::Bucket(bucket, _) = self.store.objects() {
            return parts::sweep(&self.store, bucket).await;
        }
        let folder = self.data.captures();
        let failed = |source| Error::File { doing: "reading the folder", path: folder.clone(), source };
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut connection = self.store.read().await?;
        let mut open = Vec::new();
        for entry in entries {
            let path = entry.map_err(failed)?.path();
            let run = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let known = runs::get_by_id(&mut connection, &run).await?;
            if known.is_some_and(|known| state::is_open(known.progress.state)) {
                open.push(run);
                continue;
            }
            match fs::remove_dir_all(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(Error::File { doing: "removing", path, source: error });
                }
                _ => tracing::info!(run, "removed unfinished disk captures of a run that has ended"),
            }
        }
        Ok(open)
    }

    /// Calls [`Self::sweep`] when the server starts. A bucket that does not answer is swept later.
    pub async fn sweep_at_start(&self) -> Result<(), Error> {
        match self.sweep().await {
            Err(Error::Objects { source, .. }) if source.is_transient() => Ok(()),
            swept => swept.map(drop),
        }
    }

    /// Calls [`Self::sweep`] periodically, as long as the server runs.
    pub async fn keep_swept(&self) {
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            match self.sweep().await {
                Ok(open) => self.verifications().retain(|(capture, _), _| open.contains(&capture.run)),
                Err(error) => {
                    tracing::warn!(
                        error = crate::base::error::chain(&error),
                        "could not remove unfinished disk captures of ended runs"
                    )
                }
            }
        }
    }
}

fn write(place: &Path, offset: u64, piece: &[u8], largest: u64) -> Result<Appended, Error> {
    let failed = |doing| move |source| Error::File { doing, path: place.to_owned(), source };
    let too_large = |message| Error::refused(ErrorCode::TooLarge, message);
    let file = open_locked(place)?;
    let length = file.metadata().map_err(failed("reading the size of"))?.len();
    if length != offset {
        return Ok(Appended::Misplaced(length));
    }
    let end = offset.saturating_add(piece.len() as u64);
    if end > largest {
        let message = format!("the image has more than {largest} bytes, the maximum on this server (--max-capture)");
        return Err(too_large(message));
    }
    let no_room = || {
        let message =
            format!("the server's disk has no room for more of the image than the {offset} bytes stored so far");
        too_large(message)
    };
    let room = rustix::fs::fstatvfs(&file).map_err(|errno| failed("reading the free space at")(errno.into()))?;
    if room.f_bavail.saturating_mul(room.f_frsize) < (piece.len() as u64).saturating_add(KEPT_FREE) {
        return Err(no_room());
    }
    // If the write fails, the part that was written is still valid.
    match file.write_all_at(piece, offset) {
        Ok(()) => Ok(Appended::Stored(end)),
        Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => Err(no_room()),
        Err(source) => Err(failed("writing")(source)),
    }
}

async fn verify(
    store: &Store,
    data: &DataDir,
    stopping: watch::Receiver<bool>,
    capture: &Capture,
    image: CapturedImage,
) -> Result<Image, Error> {
    if image.digest.algorithm() != Algorithm::Sha256 {
        let message = "the digest of a captured image must be SHA-256";
        return Err(Error::refused(ErrorCode::InvalidRequest, message));
    }
    // The machine may have asked several servers, because it did not hear of the answer of the first.
    let turn = Turn::of(store, &image.digest);
    turn.during(make_image(store, data, stopping, capture, image, &turn)).await
}

/// Makes an image of what was stored, during a turn for its file.
async fn make_image(
    store: &Store,
    data: &DataDir,
    stopping: watch::Receiver<bool>,
    capture: &Capture,
    image: CapturedImage,
    turn: &Turn,
) -> Result<Image, Error> {
    let known = images::get_by_digest(&mut *store.read().await?, &image.digest).await?;
    if let Some(known) = known.filter(|known| known.size == image.size) {
        return Ok(known);
    }
    let place = data.capture(&capture.run, &capture.name);
    let (incoming, expected) = (place.clone(), image.clone());
    let locked = match store.objects() {
        Objects::Folder(_) => Some(blocking(move || check(&incoming, &expected, &stopping)).await?),
        Objects::Bucket(bucket, _) => {
            parts::assemble(store, bucket, &stopping, capture, &image).await?;
            None
        }
    };
    let mut transaction = store.write().await?;
    turn.check(&mut transaction).await?;
    // The run and the images may have changed during the check.
    let run = check_allowed(&mut transaction, capture).await?;
    if let Some(known) = images::get_by_digest(&mut transaction, &image.digest).await? {
        // A node must not change what an operator recorded about an image.
        return Ok(known);
    }
    check_name_is_free(&mut transaction, &capture.name).await?;
    if let Objects::Folder(_) = store.objects() {
        store.objects().publish(&place, &image.digest, &mut |_| ()).await?;
    }
    let CapturedImage { name, size, digest, raw_size, raw_digest } = image;
    let (raw_size, raw_digest) = (Some(raw_size), Some(raw_digest));
    let image = Image { digest, file_name: name, size, raw_size, raw_digest, added_at: now(), captured: true };
    images::save(&mut transaction, &image).await?;
    let event = NewEvent::new(format!("the image {} ({}) was captured", image.file_name, image.digest)).of_run(&run);
    history::record(&mut transaction, SiteEventKind::Capture, event, now()).await?;
    let parts = capture_parts::all(&mut transaction, &capture.run, &capture.name).await?;
    capture_parts::forget(&mut transaction, &capture.run, &capture.name).await?;
    store::commit(transaction).await?;
    drop(locked);
    if let Objects::Bucket(bucket, _) = store.objects() {
        parts::remove(bucket, &capture.run, &parts).await;
    }
    let (name, digest) = (&image.file_name, &image.digest);
    tracing::info!(node = capture.node, run = capture.run, name, %digest, "disk captured");
    Ok(image)
}

/// Checks size and digest of the stored data, and returns the locked file. Removes the file if the digest is wrong.
fn check(place: &Path, image: &CapturedImage, stopping: &watch::Receiver<bool>) -> Result<File, Error> {
    let failed = |doing| move |source| Error::File { doing, path: place.to_owned(), source };
    let invalid = |message| Error::refused(ErrorCode::InvalidRequest, message);
    let file = open_locked(place)?;
    let size = file.metadata().map_err(failed("reading the size of"))?.len();
    if size != image.size || size == 0 {
        return Err(invalid(format!("{size} bytes of the image are stored, but it must have {}", image.size)));
    }
    let mut hash = Sha256::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        if *stopping.borrow() {
            return Err(Error::refused(ErrorCode::Unavailable, "the server is stopping; try again"));
        }
        match (&file).read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => hash.update(chunk.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(failed("reading")(error)),
        }
    }
    let found = base16ct::lower::encode_string(&hash.finalize());
    if found != image.digest.hex() {
        fs::remove_file(place).map_err(failed("removing"))?;
        let message = format!("the stored image has the digest sha256:{found}, but must have {}", image.digest);
        return Err(invalid(message));
    }
    file.sync_all().map_err(failed("writing"))?;
    Ok(file)
}

/// Opens and locks a capture's file.
fn open_locked(place: &Path) -> Result<File, Error> {
    let failed = |doing| move |source| Error::File { doing, path: place.to_owned(), source };
    let file = match OpenOptions::new().read(true).write(true).open(place) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(not_begun()),
        Err(error) => return Err(failed("opening")(error)),
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let message = "the server is still busy with this image; try again";
            return Err(Error::refused(ErrorCode::Unavailable, message));
        }
        Err(TryLockError::Error(error)) => return Err(failed("locking")(error)),
    }
    // Before it was locked, the file may have become an image or been removed.
    let own = file.metadata().map_err(failed("examining"))?;
    match fs::metadata(place) {
        Ok(there) if (there.dev(), there.ino()) == (own.dev(), own.ino()) => Ok(file),
        _ => Err(not_begun()),
    }
}

fn not_begun() -> Error {
    Error::refused(ErrorCode::Conflict, "no part of this image is stored; begin the upload")
}

/// Records that a disk is being captured. A machine that begins again, as after its connection was lost, is told once.
async fn tell_begun(connection: &mut Connection, run: &Run, name: &str) -> Result<(), Error> {
    let event = NewEvent::new(format!("a disk is being captured as {name}")).of_run(run);
    history::record_once(connection, SiteEventKind::Capture, event, run.created_at, now()).await
}

/// Permits only a node whose run captures this image, and only until the run ends. Returns the run.
async fn check_allowed(connection: &mut Connection, capture: &Capture) -> Result<Run, Error> {
    let Capture { node, run, name } = capture;
    let Some(known) = runs::get_by_id(connection, run).await?.filter(|known| known.node == *node) else {
        return Err(Error::refused(ErrorCode::NotFound, "this node has no run with this id"));
    };
    let captures = |action: &Action| matches!(action, Action::CaptureDisk(capture) if capture.name == *name);
    if !known.workflow.iter().any(|step| captures(&step.action)) {
        let message = format!("no step of run {run} captures a disk under this name");
        return Err(Error::refused(ErrorCode::Forbidden, message));
    }
    if !state::is_open(known.progress.state) {
        return Err(Error::refused(ErrorCode::Conflict, format!("run {run} is over")));
    }
    Ok(known)
}

async fn check_name_is_free(connection: &mut Connection, name: &str) -> Result<(), Error> {
    match images::get_by_name(connection, name).await? {
        None => Ok(()),
        Some(image) => {
            let message =
                format!("an image {name} ({}) already exists; capture the disk under another name", image.digest);
            Err(Error::refused(ErrorCode::Conflict, message))
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))
}
