//! Takes images into the data folder.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use sha2::{Digest as _, Sha256};
use slipway_protocol::{Algorithm, Digest, ErrorCode};

use crate::data::DataDir;
use crate::store::images::{self, Image};
use crate::store::{self, Store};
use crate::time::now;
use crate::{Error, random};

const CHUNK_BYTES: usize = 1 << 20;

/// What is known of an image besides its file.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Digest after decompression.
    pub raw_digest: Option<Digest>,
    /// Size after decompression in bytes.
    pub raw_size: Option<u64>,
}

/// Copies a file into the folder under its SHA-256. It is there complete, and safe from a power cut, or not at all.
pub async fn add(store: &Store, data: &DataDir, file: &Path, known: Known) -> Result<Image, Error> {
    let (source, folder) = (file.to_owned(), data.clone());
    let copied = tokio::task::spawn_blocking(move || copy_in(&folder, &source)).await;
    let (digest, size) = copied.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))?;
    let file_name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Known { raw_digest, raw_size } = known;
    let image = Image { digest, file_name, size, raw_size, raw_digest, added_at: now() };
    let mut transaction = store.write().await?;
    images::save(&mut transaction, &image).await?;
    store::commit(transaction).await?;
    Ok(image)
}

fn copy_in(data: &DataDir, file: &Path) -> Result<(Digest, u64), Error> {
    let incoming = data.incoming_image();
    let result = copy(file, &incoming).and_then(|(digest, size)| {
        let place = data.image(&digest);
        publish(&incoming, &place)?;
        Ok((digest, size))
    });
    if result.is_err() {
        // It may not have been made at all; what matters is the first error.
        let _ = std::fs::remove_file(&incoming);
    }
    result
}

fn copy(from: &Path, to: &Path) -> Result<(Digest, u64), Error> {
    let failed = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { doing, path, source }
    };
    let mut source = File::open(from).map_err(failed("opening", from))?;
    let mut target = File::create_new(to).map_err(failed("making", to))?;
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
    }
    if size == 0 {
        let message = format!("the image {from:?} is empty; nothing could be installed from it");
        return Err(Error::refused(ErrorCode::InvalidRequest, message));
    }
    target.sync_all().map_err(failed("writing", to))?;
    let digest = Digest::new(Algorithm::Sha256, &random::hex(&hash.finalize()));
    Ok((digest.expect("a SHA-256 in hexadecimal is a digest"), size))
}

pub(crate) fn publish(incoming: &Path, place: &Path) -> Result<(), Error> {
    let failed = |source| Error::File { doing: "publishing", path: place.to_owned(), source };
    std::fs::rename(incoming, place).map_err(failed)?;
    match place.parent() {
        Some(folder) => File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed),
        None => Ok(()),
    }
}
