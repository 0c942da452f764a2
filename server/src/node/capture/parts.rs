//! Images that are captured into a bucket. What a machine sends becomes an object each, and the database knows their
//! order, so that any server of the site can go on. The image is put together from them when all have arrived.

use std::collections::BTreeSet;

use axum::body::Bytes;
use slipway_protocol::{CapturedImage, ErrorCode};
use tokio::sync::watch;

use super::{Appended, Capture, check_allowed, check_name_is_free, not_begun, tell_begun};
use crate::base::error::{Error, chain};
use crate::base::objects::Bucket;
use crate::base::random;
use crate::base::time::now;
use crate::rules::state;
use crate::store;
use crate::store::capture_parts::{self, Part};
use crate::store::{Store, runs};

/// Begins an image. An image that was begun before starts again from empty.
pub(super) async fn begin(store: &Store, bucket: &Bucket, capture: &Capture) -> Result<(), Error> {
    let mut transaction = store.write().await?;
    let run = check_allowed(&mut transaction, capture).await?;
    check_name_is_free(&mut transaction, &capture.name).await?;
    tell_begun(&mut transaction, &run, &capture.name).await?;
    let before = capture_parts::begin(&mut transaction, &capture.run, &capture.name, now()).await?;
    store::commit(transaction).await?;
    remove(bucket, &capture.run, &before).await;
    Ok(())
}

/// Appends a piece to an image, if its offset is the end of the stored data.
pub(super) async fn append(
    store: &Store,
    bucket: &Bucket,
    capture: &Capture,
    offset: u64,
    piece: Bytes,
    largest: u64,
) -> Result<Appended, Error> {
    let Capture { run, name, .. } = capture;
    let mut connection = store.read().await?;
    check_allowed(&mut connection, capture).await?;
    let stored = capture_parts::stored(&mut connection, run, name).await?.ok_or_else(not_begun)?;
    drop(connection);
    if stored != offset {
        return Ok(Appended::Misplaced(stored));
    }
    let until = offset.saturating_add(piece.len() as u64);
    if until > largest {
        let message = format!("the image has more than {largest} bytes, the maximum on this server (--max-capture)");
        return Err(Error::refused(ErrorCode::TooLarge, message));
    }
    if piece.is_empty() {
        return Ok(Appended::Stored(stored));
    }
    let part = Part { until, object: random::id() };
    bucket.put_part(run, &part.object, piece).await?;
    let mut transaction = store.write().await?;
    // The run may have ended meanwhile, and the machine may have sent the piece to another server too.
    check_allowed(&mut transaction, capture).await?;
    let stored = capture_parts::stored(&mut transaction, run, name).await?.ok_or_else(not_begun)?;
    if stored != offset {
        drop(transaction);
        remove(bucket, run, &[part]).await;
        return Ok(Appended::Misplaced(stored));
    }
    capture_parts::add(&mut transaction, run, name, &part, now()).await?;
    store::commit(transaction).await?;
    Ok(Appended::Stored(until))
}

/// Makes the parts of an image an object with its digest. If the digest is wrong, the parts are forgotten.
pub(super) async fn assemble(
    store: &Store,
    bucket: &Bucket,
    stopping: &watch::Receiver<bool>,
    capture: &Capture,
    image: &CapturedImage,
) -> Result<(), Error> {
    let Capture { run, name, .. } = capture;
    let mut connection = store.read().await?;
    check_allowed(&mut connection, capture).await?;
    check_name_is_free(&mut connection, name).await?;
    let parts = capture_parts::all(&mut connection, run, name).await?;
    drop(connection);
    let stored = parts.last().ok_or_else(not_begun)?.until;
    if stored != image.size || stored == 0 {
        let message = format!("{stored} bytes of the image are stored, but it must have {}", image.size);
        return Err(Error::refused(ErrorCode::InvalidRequest, message));
    }
    let names = parts.iter().map(|part| part.object.clone()).filter(|object| !object.is_empty()).collect();
    let done = bucket.assemble(run, names, image.size, &image.digest, stopping).await;
    if let Err(Error::Refused { code: ErrorCode::InvalidRequest, .. }) = &done {
        let mut transaction = store.write().await?;
        capture_parts::forget(&mut transaction, run, name).await?;
        store::commit(transaction).await?;
        remove(bucket, run, &parts).await;
    }
    done
}

/// Removes the parts of runs that have ended. Returns the ids of the runs with parts that have not.
pub(super) async fn sweep(store: &Store, bucket: &Bucket) -> Result<Vec<String>, Error> {
    let mut open = Vec::new();
    let mut found: BTreeSet<String> = bucket.runs_with_parts().await?.into_iter().collect();
    found.extend(capture_parts::runs(&mut *store.read().await?).await?);
    for run in found {
        let known = runs::get_by_id(&mut *store.read().await?, &run).await?;
        if known.is_some_and(|known| state::is_open(known.progress.state)) {
            open.push(run);
            continue;
        }
        bucket.remove_parts_of(&run).await?;
        let mut transaction = store.write().await?;
        capture_parts::forget_run(&mut transaction, &run).await?;
        store::commit(transaction).await?;
        tracing::info!(run, "removed unfinished disk captures of a run that has ended");
    }
    Ok(open)
}

/// Removes the objects of parts. Those that stay are removed when the run has ended.
pub(super) async fn remove(bucket: &Bucket, run: &str, parts: &[Part]) {
    for part in parts.iter().filter(|part| !part.object.is_empty()) {
        if let Err(error) = bucket.remove_part(run, &part.object).await {
            tracing::debug!(error = chain(&error), "a part of a captured image stays until its run has ended");
            return;
        }
    }
}
