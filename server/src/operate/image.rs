//! Finds images by name or digest, removes them, and removes files that belong to none.

use slipway_protocol::{Digest, ErrorCode, SiteEventKind};

use super::did;
use crate::base::data::DataDir;
use crate::base::error::Error;
use crate::base::objects::{Objects, Seen, Stamp};
use crate::base::time::{Millis, now};
use crate::boot_files::published;
use crate::image::named;
use crate::image::turn::Turn;
use crate::store;
use crate::store::history::NewEvent;
use crate::store::images::{self, Image};
use crate::store::{Connection, Store, findings, nodes, runs, settings, systems, to_json};

/// Refuses to go on if the server keeps its images elsewhere than this command would look for them.
pub async fn check_objects(store: &Store) -> Result<(), Error> {
    let Some(served) = settings::read(&mut *store.read().await?, settings::OBJECTS).await? else { return Ok(()) };
    let here = match store.objects() {
        Objects::Bucket(bucket, _) if bucket.name() == served => return Ok(()),
        Objects::Bucket(bucket, _) => bucket.name(),
        Objects::Folder(_) => "the data folder",
    };
    let message = format!(
        "the server keeps its images in {served}, not in {here}: give --objects, or set SLIPWAY_OBJECTS, as for `serve`"
    );
    Err(Error::refused(ErrorCode::Conflict, message))
}

/// Removes the image with this digest, start of a digest or name, and its file, unless an operating system or a run
/// that is not over uses it. If the file cannot be removed, the image stays.
pub async fn remove_image(store: &Store, reference: &str) -> Result<Image, Error> {
    let digest = known_image(&mut *store.read().await?, reference).await?.digest;
    let store = store.clone();
    // Goes on to its end, even if the caller stops waiting.
    let removing = tokio::spawn(async move {
        let turn = Turn::of(&store, &digest);
        turn.during(remove_in_turn(&store, &digest, &turn)).await
    });
    removing.await.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))
}

async fn remove_in_turn(store: &Store, digest: &Digest, turn: &Turn) -> Result<Image, Error> {
    let mut transaction = store.write().await?;
    turn.check(&mut transaction).await?;
    let image = known_image(&mut transaction, &digest.to_string()).await?;
    check_unused(&mut transaction, digest).await?;
    let finding = findings::get(&mut transaction, digest).await?;
    images::remove(&mut transaction, digest).await?;
    findings::remove(&mut transaction, digest).await?;
    let event = NewEvent::new(format!("the image {} ({digest}) was removed", image.file_name));
    did(&mut transaction, SiteEventKind::Operator, event).await?;
    store::commit(transaction).await?;
    // From here on, nobody can begin to use the image.
    let removed = store.objects().remove(digest).await;
    if removed.is_err() {
        // So that the command can be repeated.
        let mut transaction = store.write().await?;
        turn.check(&mut transaction).await?;
        images::save(&mut transaction, &image).await?;
        if let Some(finding) = finding {
            findings::save(&mut transaction, digest, &finding).await?;
        }
        let event = NewEvent::new(format!("the image {} ({digest}) stays: its file was not removed", image.file_name));
        did(&mut transaction, SiteEventKind::Operator, event).await?;
        store::commit(transaction).await?;
    }
    removed.map(|()| image)
}

/// Returns the image with this name, digest or start of a digest. Refuses if there are several, and lists them.
pub async fn known_image(connection: &mut Connection, reference: &str) -> Result<Image, Error> {
    let images = images::all(connection).await?;
    named::find(&images.iter().collect::<Vec<_>>(), reference).cloned()
}

/// Age in milliseconds from which a file may be removed that no image names. A younger one may be of an image that is
/// being added.
const OLD: Millis = 24 * 60 * 60 * 1000;

/// A file or an object that belonged to no image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cleaned {
    /// Name of the file in the data folder, or digest of the object, after the words "boot file" if it was one.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
}

/// Removes the files or objects that no image has and no unfinished run may fetch, downloads that were given up, and
/// boot files in the bucket of builds that are not published any more, if they are older than a day. With `dry_run`,
/// removes nothing. Returns what was removed or would be.
pub async fn clean_images(store: &Store, data: &DataDir, dry_run: bool) -> Result<Vec<Cleaned>, Error> {
    let mut cleaned = data.clean_fetched(OLD, dry_run)?;
    let mut found: Vec<(Digest, Stamp)> = store.objects().list().await?.into_iter().collect();
    found.sort_by_key(|(digest, _)| digest.to_string());
    for (digest, seen) in found {
        if !is_old(seen) || is_needed(&mut *store.read().await?, &digest).await? {
            continue;
        }
        if dry_run || remove_unneeded(store, &digest, seen).await? {
            cleaned.push((digest.to_string(), seen.size));
        }
    }
    let boot_files = published::clean(store, is_old, dry_run).await?;
    cleaned.extend(boot_files.into_iter().map(|(digest, size)| (format!("boot file {digest}"), size)));
    if !dry_run && !cleaned.is_empty() {
        let mut transaction = store.write().await?;
        let event = NewEvent::new(format!("files that belong to no image were removed: {}", cleaned.len()));
        did(&mut transaction, SiteEventKind::Operator, event).await?;
        store::commit(transaction).await?;
    }
    Ok(cleaned.into_iter().map(|(name, size)| Cleaned { name, size }).collect())
}

/// Removes a file or an object if it is still as it was seen and nobody needs it. Returns whether it did.
async fn remove_unneeded(store: &Store, digest: &Digest, seen: Stamp) -> Result<bool, Error> {
    let (turn, objects) = (Turn::of(store, digest), store.objects());
    // Otherwise the image is just added.
    let Some(held) = turn.take().await? else { return Ok(false) };
    let removing = held.during(async {
        // In this order: what is added later waits for the turn, and a run that is started later is refused.
        if is_needed(&mut *store.read().await?, digest).await? || objects.look(digest).await? != Seen::There(seen) {
            return Ok(false);
        }
        objects.remove(digest).await?;
        Ok(true)
    });
    removing.await.unwrap_or_else(|| Err(turn.lost()))
}

fn is_old(seen: Stamp) -> bool {
    now().cast_signed().saturating_sub(seen.changed / 1_000_000) >= OLD.cast_signed()
}

/// Whether an image has this digest, or an unfinished run has a step that may fetch it.
async fn is_needed(connection: &mut Connection, digest: &Digest) -> Result<bool, Error> {
    let is_image = images::get_by_digest(connection, digest).await?.is_some();
    Ok(is_image || open_run_with(connection, digest).await?.is_some())
}

/// Returns an unfinished run that may fetch the file with this digest.
async fn open_run_with(connection: &mut Connection, digest: &Digest) -> Result<Option<runs::Run>, Error> {
    // Searches the whole workflow for the digest, which is most likely in the URL of a step.
    let uses = |run: &runs::Run| to_json(&run.workflow).to_ascii_lowercase().contains(digest.hex());
    Ok(runs::open(connection).await?.into_iter().find(uses))
}

async fn check_unused(connection: &mut Connection, digest: &Digest) -> Result<(), Error> {
    let used = |by: String| Err(Error::refused(ErrorCode::Conflict, format!("image {digest} is in use: {by}")));
    if let Some(system) = systems::all(connection).await?.iter().find(|system| system.image == *digest) {
        let name = &system.name;
        return used(format!(
            "operating system {name} uses it; remove the operating system first (`os remove {name}`)"
        ));
    }
    if let Some(run) = open_run_with(connection, digest).await? {
        let node = nodes::get_by_id(connection, &run.node).await?;
        let label = node.as_ref().map_or(&*run.node, |node| node.label());
        let advice = format!("wait until the run is over, or end it (`run cancel {label}`)");
        return used(format!("run {} of node {label} has a step that uses it; {advice}", run.id));
    }
    Ok(())
}
