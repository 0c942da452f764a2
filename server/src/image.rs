//! Adds images.

pub mod examine;
mod fetch;
mod inside;
pub mod named;
mod qcow2;
mod raw;
mod spool;
pub mod stored;
mod table;
pub mod turn;
pub mod upload;

pub use self::fetch::Remote;
use self::turn::Turn;

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use slipway_formats::image::made_for::MadeFor;
use slipway_protocol::{Algorithm, Digest, ErrorCode, SiteEventKind};

use crate::base::data::DataDir;
use crate::base::error::Error;
use crate::base::objects::{Seen, Stamp};
use crate::base::time::now;
use crate::store;
use crate::store::findings::{self, Content, Finding, Inside};
use crate::store::history::{self, NewEvent};
use crate::store::images::{self, Image};
use crate::store::{Store, Transaction};

const CHUNK_BYTES: usize = 1 << 20;

/// What the operator states about an image. It must be right.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// SHA-256 of the file.
    pub digest: Option<Digest>,
    /// Digest of the raw image, after decompression.
    pub raw_digest: Option<Digest>,
    /// Size of the raw image in bytes, after decompression.
    pub raw_size: Option<u64>,
    /// Whether the file is not an image but another file for actions, such as an archive or a block map. Its content is
    /// not checked.
    pub is_other: bool,
}

/// Progress of adding an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The current work: "fetching", "copying", "checking" or "storing".
    pub doing: &'static str,
    /// Number of the file's bytes for which it is done.
    pub done: u64,
    /// Size of the file in bytes. 0 if it is not known yet.
    pub total: u64,
}

/// An image that was added.
#[derive(Clone, Debug)]
pub struct Added {
    /// The image's record.
    pub image: Image,
    /// Remarks for the operator.
    pub warnings: Vec<String>,
}

/// What decoding a file shows about the raw image in it.
#[derive(Debug)]
struct Raw {
    /// Size in bytes.
    size: u64,
    /// SHA-256. `None` for qcow2, whose blocks are in another order.
    digest: Option<Digest>,
    /// What the operator should know about the partition table.
    warnings: Vec<String>,
    /// The kind of machine and disk that the image is made for.
    made_for: MadeFor,
    /// What is in the image's file systems.
    inside: Inside,
}

/// Copies a file into the data folder, decodes the copy once, and makes it an image under its SHA-256, in the data
/// folder or in the bucket. A file that cannot be decoded is refused. Size and digest of the raw image are recorded.
/// The image is published only when it is complete and would survive a power cut.
pub async fn add(
    store: &Store,
    data: &DataDir,
    file: &Path,
    known: Known,
    mut progress: impl FnMut(Progress) + Send + 'static,
) -> Result<Added, Error> {
    let (source, folder) = (file.to_owned(), data.clone());
    let (taken, progress) = blocking(move || {
        folder.remove_leftovers();
        let mut incoming = Incoming::create(&folder)?;
        let (digest, size) = copy(&source, &mut incoming, &mut progress)?;
        if let Some(said) = known.digest.as_ref().filter(|said| **said != digest) {
            let message = format!("the image {source:?} has the digest {digest}, not {said}; is it the right file?");
            return Err(Error::refused(ErrorCode::InvalidRequest, message));
        }
        let taken = take_in(&folder, &source, incoming, (digest, size), known, &mut progress)?;
        Ok((taken, progress))
    })
    .await?;
    store_image(store, taken, file, progress).await
}

/// Like [`add`], with a file on another server. If it is stopped, the same call goes on with what has arrived.
pub async fn add_remote(
    store: &Store,
    data: &DataDir,
    remote: &Remote,
    known: Known,
    mut progress: impl FnMut(Progress) + Send + 'static,
) -> Result<Added, Error> {
    data.remove_leftovers();
    let (incoming, size) = fetch::fetch(data, remote, &mut progress).await?;
    let (digest, name) = (remote.digest().clone(), PathBuf::from(remote.file_name()));
    take_and_store(store, data, name, incoming, (digest, size), known, progress).await
}

/// Takes in a file that has arrived, and stores it and its record. `name` is its name, without a folder.
async fn take_and_store(
    store: &Store,
    data: &DataDir,
    name: PathBuf,
    incoming: Incoming,
    (digest, size): (Digest, u64),
    known: Known,
    mut progress: impl FnMut(Progress) + Send + 'static,
) -> Result<Added, Error> {
    let (folder, source) = (data.clone(), name.clone());
    let (taken, progress) = blocking(move || {
        let taken = take_in(&folder, &source, incoming, (digest, size), known, &mut progress)?;
        Ok((taken, progress))
    })
    .await?;
    store_image(store, taken, &name, progress).await
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))
}

/// Publishes a file that was taken in, and stores its record. `file` has its name.
async fn store_image(
    store: &Store,
    taken: Taken,
    file: &Path,
    mut progress: impl FnMut(Progress) + Send,
) -> Result<Added, Error> {
    let Taken { copy, digest, size, raw } = taken;
    let mut sent = |done| progress(Progress { doing: "storing", done, total: size });
    let stamp = store.objects().publish(&copy.path, &digest, &mut sent).await?;
    drop(copy);
    let file_name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (raw_size, raw_digest) = raw.as_ref().map_or((None, None), |raw| (Some(raw.size), raw.digest.clone()));
    let image = Image { digest, file_name, size, raw_size, raw_digest, added_at: now(), captured: false };
    let turn = Turn::of(store, &image.digest);
    turn.during(async {
        // Who had the turn before may have removed the file.
        if store.objects().look(&image.digest).await? != Seen::There(stamp) {
            let message = "the image was removed, or added again, while it was added; add it again";
            return Err(Error::refused(ErrorCode::Conflict, message));
        }
        let mut transaction = store.write().await?;
        turn.check(&mut transaction).await?;
        let warnings = save(&mut transaction, &image, raw, stamp).await?;
        store::commit(transaction).await?;
        Ok(Added { image: image.clone(), warnings })
    })
    .await
}

/// Stores the record of an image, and what was found in its file. Returns remarks for the operator.
async fn save(
    transaction: &mut Transaction,
    image: &Image,
    raw: Option<Raw>,
    stamp: Stamp,
) -> Result<Vec<String>, Error> {
    let before = images::get_by_digest(transaction, &image.digest).await?;
    images::save(transaction, image).await?;
    let mut warnings = Vec::new();
    if let Some(before) = before.filter(|before| before.file_name != image.file_name) {
        warnings.push(format!(
            "the image already existed as {:?}; its name is now {:?}",
            before.file_name, image.file_name
        ));
    }
    if let Some(raw) = raw {
        warnings.extend(raw.warnings);
        let content = Content::MadeFor(raw.made_for);
        let finding = Finding { file: stamp, content, inside: Some(raw.inside) };
        findings::save(transaction, &image.digest, &finding).await?;
    }
    let message = format!("the image {} ({}) was added", image.file_name, image.digest);
    history::did(transaction, SiteEventKind::Operator, NewEvent::new(message), image.added_at).await?;
    Ok(warnings)
}

/// A file that was copied into the data folder.
struct Taken {
    copy: Incoming,
    digest: Digest,
    /// Size in bytes.
    size: u64,
    /// `None` for a file that is not an image.
    raw: Option<Raw>,
}

/// Decodes a file that is in the data folder, with this digest and size in bytes. `file` is its name for messages.
fn take_in(
    data: &DataDir,
    file: &Path,
    incoming: Incoming,
    (digest, size): (Digest, u64),
    known: Known,
    progress: &mut dyn FnMut(Progress),
) -> Result<Taken, Error> {
    let mut checked = |done| progress(Progress { doing: "checking", done, total: size });
    let raw = match known.is_other {
        true => None,
        false => Some(compare(raw::decode(&incoming.path, file, &mut checked)?, known, file)?),
    };
    data.give_to_owner(&incoming.path)?;
    Ok(Taken { copy: incoming, digest, size, raw })
}

/// Compares the image with what the operator stated.
fn compare(raw: Raw, known: Known, file: &Path) -> Result<Raw, Error> {
    let differs = |what: &str, found: &str, said: &str| {
        let message = format!("the {what} of the raw image of {file:?} is {found}, not {said}; is it the right file?");
        Err(Error::refused(ErrorCode::InvalidRequest, message))
    };
    if let Some(size) = known.raw_size.filter(|size| *size != raw.size) {
        return differs("size", &format!("{} bytes", raw.size), &size.to_string());
    }
    match (&raw.digest, known.raw_digest) {
        (Some(found), Some(said)) if said.algorithm() == Algorithm::Sha256 && *found != said => {
            differs("digest", &found.to_string(), &said.to_string())
        }
        (Some(found), Some(said)) if *found != said => {
            let message = format!(
                "the digest {said} of the raw image of {file:?} cannot be checked here: `image add` computes SHA-256; \
                 give it to `os add --raw-digest`, and each machine checks it"
            );
            Err(Error::refused(ErrorCode::InvalidRequest, message))
        }
        (None, Some(said)) => {
            let message = format!(
                "the digest {said} of the raw image of {file:?} cannot be checked: `image add` computes no digest of \
                 the raw image of a qcow2 image; leave out --raw-digest, or convert the image with \
                 `qemu-img convert -O raw` and add the result"
            );
            Err(Error::refused(ErrorCode::InvalidRequest, message))
        }
        _ => Ok(raw),
    }
}

/// A file for an image. It is locked until it is published or the process ends. So an unlocked file remains from a
/// process that was stopped. A file that was not published is removed on drop, unless it is kept.
struct Incoming {
    path: PathBuf,
    file: File,
    is_kept: bool,
}

impl Incoming {
    fn create(data: &DataDir) -> Result<Self, Error> {
        loop {
            let path = data.incoming_image();
            let failed = |doing| {
                let path = path.clone();
                move |source| Error::File { doing, path, source }
            };
            let file = File::create_new(&path).map_err(failed("creating"))?;
            file.lock().map_err(failed("locking"))?;
            // Before the file was locked, another process may have removed it like one of a stopped process.
            if file.metadata().map_err(failed("examining"))?.nlink() > 0 {
                return Ok(Self { path, file, is_kept: false });
            }
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.is_kept {
            // After publishing, it has another name.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Copies a file. Returns the copy's digest and size in bytes.
fn copy(from: &Path, to: &mut Incoming, progress: &mut dyn FnMut(Progress)) -> Result<(Digest, u64), Error> {
    let Incoming { path: to, file: target, .. } = to;
    let failed = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { doing, path, source }
    };
    let mut source = File::open(from).map_err(failed("opening", from))?;
    let before = source.metadata().map_err(failed("reading the size of", from))?;
    let total = before.len();
    let mut hash = Sha256::new();
    let mut size = 0;
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let read = match source.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed("reading", from)(error)),
        };
        let bytes = chunk.get(..read).unwrap_or_default();
        hash.update(bytes);
        target.write_all(bytes).map_err(failed("writing", to))?;
        size += bytes.len() as u64;
        progress(Progress { doing: "copying", done: size, total });
    }
    if size == 0 {
        return Err(empty(from));
    }
    let after = source.metadata().map_err(failed("reading the size of", from))?;
    if (before.len(), before.modified().ok()) != (after.len(), after.modified().ok()) {
        let message = format!("the image {from:?} changed while it was read; add it when it is complete");
        return Err(Error::refused(ErrorCode::InvalidRequest, message));
    }
    target.sync_all().map_err(failed("writing", to))?;
    Ok((sha256(hash), size))
}

fn empty(file: &Path) -> Error {
    let message = format!("the image {file:?} is empty, so nothing can be installed from it");
    Error::refused(ErrorCode::InvalidRequest, message)
}

fn sha256(hash: Sha256) -> Digest {
    let digest = Digest::new(Algorithm::Sha256, &base16ct::lower::encode_string(&hash.finalize()));
    digest.expect("a SHA-256 in hexadecimal is a digest")
}

fn refused(name: &Path, reason: &str) -> Error {
    Error::refused(ErrorCode::InvalidRequest, format!("the image {name:?} cannot be installed: {reason}"))
}
