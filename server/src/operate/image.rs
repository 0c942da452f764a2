//! Finds images by name or digest, and removes them.

use slipway_protocol::{Digest, ErrorCode};

use crate::base::error::Error;
use crate::image::named;
use crate::rules::state;
use crate::store;
use crate::store::images::{self, Image};
use crate::store::{Connection, Store, findings, nodes, runs, systems, to_json};

/// Removes the image with this digest, start of a digest or name, and its file, unless an operating system or a run
/// that is not over uses it.
pub async fn remove_image(store: &Store, reference: &str) -> Result<Image, Error> {
    let mut transaction = store.write().await?;
    let image = known_image(&mut transaction, reference).await?;
    check_unused(&mut transaction, &image.digest).await?;
    images::remove(&mut transaction, &image.digest).await?;
    findings::remove(&mut transaction, &image.digest).await?;
    // The file is removed before the commit: if the commit fails, the same command again completes the removal.
    store.objects().remove(&image.digest).await?;
    store::commit(transaction).await?;
    Ok(image)
}

/// Returns the image with this name, digest or start of a digest. Refuses if there are several, and lists them.
pub async fn known_image(connection: &mut Connection, reference: &str) -> Result<Image, Error> {
    let images = images::all(connection).await?;
    named::find(&images.iter().collect::<Vec<_>>(), reference).cloned()
}

async fn check_unused(connection: &mut Connection, digest: &Digest) -> Result<(), Error> {
    let used = |by: String| Err(Error::refused(ErrorCode::Conflict, format!("image {digest} is in use: {by}")));
    if let Some(system) = systems::all(connection).await?.iter().find(|system| system.image == *digest) {
        let name = &system.name;
        return used(format!(
            "operating system {name} uses it; remove the operating system first (`os remove {name}`)"
        ));
    }
    // Searches the whole workflow for the digest, which is most likely in the URL of a step.
    let uses = |run: &runs::Run| to_json(&run.workflow).to_ascii_lowercase().contains(digest.hex());
    let open = runs::newest(connection).await?.into_iter().filter(|run| state::is_open(run.progress.state));
    if let Some(run) = open.into_iter().find(uses) {
        let node = nodes::get_by_id(connection, &run.node).await?;
        let label = node.as_ref().map_or(&*run.node, |node| node.label());
        let advice = format!("wait until the run is over, or end it (`run cancel {label}`)");
        return used(format!("run {} of node {label} has a step that uses it; {advice}", run.id));
    }
    Ok(())
}
