//! Examines images that are already in the data folder: those that an earlier version of the server added, those added
//! as other files, and those whose file has changed.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest as _, Sha256};
use slipway_protocol::Digest;

use super::{CHUNK_BYTES, raw, sha256};
use crate::base::error::Error;
use crate::store;
use crate::store::Store;
use crate::store::findings::{self, Content, Finding, Inside, Stamp};
use crate::store::images::{self, Image};

/// Examines the files of these images, unless their current state is already known. A file that changed since it was
/// added is compared with its digest, which takes as long as reading it. Callers that need an image that is being
/// examined wait for the result.
pub async fn examine(store: &Store, digests: Vec<Digest>) -> Result<(), Error> {
    for digest in digests {
        let Some(image) = images::get_by_digest(&mut *store.read().await?, &digest).await? else { continue };
        let turn = store.turn_to_examine(&digest).await;
        let before = findings::get(&mut *store.read().await?, &digest).await?;
        let store = store.clone();
        // Runs to its end and stores the result, even if the caller stops waiting.
        let examining = tokio::spawn(async move {
            let _turn = turn;
            let path = store.image(&digest);
            let looking = tokio::task::spawn_blocking(move || find(&path, &image, before.as_ref()));
            let found = looking.await.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))?;
            let Some(found) = found else { return Ok(()) };
            let mut transaction = store.write().await?;
            findings::save(&mut transaction, &digest, &found).await?;
            store::commit(transaction).await
        });
        examining.await.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))?;
    }
    Ok(())
}

/// Examines an image's file. `None` if its current state is known, or if it cannot be read, which is reported
/// elsewhere.
fn find(path: &Path, image: &Image, before: Option<&Finding>) -> Result<Option<Finding>, Error> {
    let Some(file) = File::open(path).ok().and_then(|file| file.metadata().ok()).filter(std::fs::Metadata::is_file)
    else {
        return Ok(None);
    };
    let stamp = Stamp::of(&file);
    // An earlier version did not look into the file systems.
    let is_whole = |before: &Finding| before.inside.is_some() || !matches!(before.content, Content::MadeFor(_));
    if before.is_some_and(|before| before.file == stamp && is_whole(before)) || stamp.size != image.size {
        return Ok(None);
    }
    // An image that was never examined is as it was added, unless its file changed later.
    let is_as_added = match before {
        None => stamp.changed / 1_000_000 <= image.added_at.cast_signed(),
        Some(before) => before.file == stamp,
    };
    if !is_as_added && digest_of(path).map_err(reading(path))? != image.digest {
        return Ok(Some(Finding { file: stamp, content: Content::Changed, inside: None }));
    }
    let known = before.filter(|before| before.content != Content::Changed);
    if let Some(known) = known.filter(|known| is_whole(known)) {
        // These bytes were examined when they were added as an image.
        return Ok(Some(Finding { file: stamp, ..known.clone() }));
    }
    let (content, inside) = match raw::look(path, Path::new(&image.file_name)) {
        Ok((made_for, inside)) => (Content::MadeFor(made_for), inside),
        Err(Error::Refused { message, .. }) => (Content::Unusable(message), Inside::default()),
        Err(error) => return Err(error),
    };
    let content = known.map_or(content, |known| known.content.clone());
    Ok(Some(Finding { file: stamp, content, inside: Some(inside) }))
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
