//! Examines images that were added before: those that an earlier version of the server added, those added as other
//! files, captured ones, and those whose file has changed.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use sha2::{Digest as _, Sha256};
use slipway_formats::image::Format;
use slipway_formats::image::made_for::HEAD;
use slipway_protocol::Digest;
use tokio::io::AsyncWriteExt;

use super::{CHUNK_BYTES, raw, sha256};
use crate::base::data::Aside;
use crate::base::error::Error;
use crate::base::objects::{Bucket, Objects, Seen, Stamp, image_in};
use crate::store;
use crate::store::Store;
use crate::store::findings::{self, Content, Finding, Inside};
use crate::store::images::{self, Image};

/// The beginning of a compressed image that is fetched from a bucket to examine it, in bytes. Enough for [`HEAD`] bytes
/// of the raw image, even if they could not be compressed.
const BEGINNING: u64 = 2 * HEAD as u64;

/// Examines the files of these images, unless their current state is already known. Returns what is seen of the files
/// of those that this server should have. A file that changed since it was added is compared with its digest, which
/// takes as long as reading it. Callers that need an image that is being examined wait for the result.
pub async fn examine(store: &Store, digests: Vec<Digest>) -> Result<HashMap<Digest, Seen>, Error> {
    let mut all = HashMap::new();
    for digest in digests {
        let Some(image) = images::get_by_digest(&mut *store.read().await?, &digest).await? else { continue };
        let seen = store.objects().look(&digest).await?;
        all.insert(digest.clone(), seen);
        // What cannot be read is reported elsewhere.
        let Seen::There(stamp) = seen else { continue };
        if stamp.size != image.size {
            continue;
        }
        let turn = store.turn_to_examine(&digest).await;
        let before = findings::get(&mut *store.read().await?, &digest).await?;
        let store = store.clone();
        // Runs to its end and stores the result, even if the caller stops waiting.
        let examining = tokio::spawn(async move {
            let _turn = turn;
            if before.as_ref().is_some_and(|before| before.file == stamp && is_whole(before)) {
                return Ok(());
            }
            let is_as_added = match (&before, store.objects()) {
                (Some(before), _) => before.file == stamp,
                // An image that was never examined is as it was added, unless its file changed later. An object is
                // only ever stored under its digest.
                (None, Objects::Folder(_)) => stamp.changed / 1_000_000 <= image.added_at.cast_signed(),
                (None, Objects::Bucket(..)) => true,
            };
            let local = Local::of(store.objects(), &digest, stamp.size, !is_as_added).await?;
            let looking = tokio::task::spawn_blocking(move || {
                let found = find(&local.path, stamp, &image, before.as_ref(), is_as_added);
                drop(local);
                found
            });
            let found = looking.await.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))?;
            let mut transaction = store.write().await?;
            findings::save(&mut transaction, &digest, &found).await?;
            store::commit(transaction).await
        });
        examining.await.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))?;
    }
    Ok(all)
}

/// Whether a finding has everything. An earlier version did not look into the file systems.
fn is_whole(finding: &Finding) -> bool {
    finding.inside.is_some() || !matches!(finding.content, Content::MadeFor(_))
}

/// A file that can be examined.
struct Local {
    path: PathBuf,
    /// The copy of an object. It has no name elsewhere.
    _copy: Option<Aside>,
}

impl Local {
    /// The file of an image of `size` bytes. Of a compressed image in a bucket, only the beginning is copied unless all
    /// of it is wanted.
    async fn of(objects: &Objects, digest: &Digest, size: u64, whole: bool) -> Result<Self, Error> {
        match objects {
            Objects::Folder(root) => Ok(Self { path: image_in(root, digest), _copy: None }),
            Objects::Bucket(bucket, root) => {
                let mut copy = Aside::create(&root.join("images"), ".examined-")?;
                let file = copy.file();
                let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
                let failed = |source| Error::File { doing: "writing", path: path.clone(), source };
                let mut target = tokio::fs::File::from_std(file.try_clone().map_err(failed)?);
                let beginning = if whole { size } else { BEGINNING.min(size) };
                fetch(bucket, digest, 0..beginning, &mut target, &path).await?;
                if beginning < size && !is_compressed(&path).map_err(failed)? {
                    fetch(bucket, digest, beginning..size, &mut target, &path).await?;
                }
                Ok(Self { path, _copy: Some(copy) })
            }
        }
    }
}

/// Appends a range of an object to a file.
async fn fetch(
    bucket: &Bucket,
    digest: &Digest,
    bytes: std::ops::Range<u64>,
    file: &mut tokio::fs::File,
    path: &Path,
) -> Result<(), Error> {
    let failed = |source| Error::File { doing: "copying an image from the bucket to", path: path.to_owned(), source };
    let mut content = bucket.read(digest, bytes).await?.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    while let Some(bytes) = content.next().await {
        file.write_all(&bytes.map_err(failed)?).await.map_err(failed)?;
    }
    file.flush().await.map_err(failed)
}

fn is_compressed(path: &Path) -> io::Result<bool> {
    let mut head = Vec::new();
    File::open(path)?.take(CHUNK_BYTES as u64).read_to_end(&mut head)?;
    Ok(!matches!(Format::of(&head), Ok(Format::Raw | Format::Qcow2)))
}

/// Examines an image's file.
fn find(
    path: &Path,
    stamp: Stamp,
    image: &Image,
    before: Option<&Finding>,
    is_as_added: bool,
) -> Result<Finding, Error> {
    if !is_as_added && digest_of(path).map_err(reading(path))? != image.digest {
        return Ok(Finding { file: stamp, content: Content::Changed, inside: None });
    }
    let known = before.filter(|before| before.content != Content::Changed);
    if let Some(known) = known.filter(|known| is_whole(known)) {
        // These bytes were examined when they were added as an image.
        return Ok(Finding { file: stamp, ..known.clone() });
    }
    let (content, inside) = match raw::look(path, Path::new(&image.file_name)) {
        Ok((made_for, inside)) => (Content::MadeFor(made_for), inside),
        Err(Error::Refused { message, .. }) => (Content::Unusable(message), Inside::default()),
        Err(error) => return Err(error),
    };
    let content = known.map_or(content, |known| known.content.clone());
    Ok(Finding { file: stamp, content, inside: Some(inside) })
}

fn reading(path: &Path) -> impl Fn(io::Error) -> Error {
    move |source| Error::File { doing: "reading", path: path.to_owned(), source }
}

fn digest_of(path: &Path) -> io::Result<Digest> {
    let mut file = File::open(path)?;
    let (mut hash, mut chunk) = (Sha256::new(), vec![0; CHUNK_BYTES]);
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(sha256(hash)),
            Ok(read) => hash.update(chunk.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
