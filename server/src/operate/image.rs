//! Removes images.

use std::io::ErrorKind;

use slipway_protocol::{Digest, ErrorCode};

use crate::data::DataDir;
use crate::error::Error;
use crate::state;
use crate::store::images::{self, Image};
use crate::store::{self, Connection, Store, nodes, runs, systems, to_json};

/// Removes the image with this digest or name, and its file, unless an operating system or a run that is not over uses
/// it.
pub async fn remove_image(store: &Store, data: &DataDir, reference: &str) -> Result<Image, Error> {
    let mut transaction = store.write().await?;
    let image = known_image(&mut transaction, reference).await?;
    check_unused(&mut transaction, &image.digest).await?;
    images::remove(&mut transaction, &image.digest).await?;
    // Before the commit: if that fails, the same command again does the rest.
    let path = data.image(&image.digest);
    match std::fs::remove_file(&path) {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            return Err(Error::File { doing: "removing the image", path, source });
        }
        _ => {}
    }
    store::commit(transaction).await?;
    Ok(image)
}

async fn known_image(connection: &mut Connection, reference: &str) -> Result<Image, Error> {
    let is_meant = |image: &Image| image.file_name == reference || image.digest.to_string() == reference;
    let mut meant: Vec<Image> = images::all(connection).await?.into_iter().filter(is_meant).collect();
    match (meant.pop(), meant.as_slice()) {
        (Some(image), []) => Ok(image),
        (Some(_), _) => {
            let message =
                format!("several images have the name {reference:?}; give the digest of one, as shown by `image list`");
            Err(Error::refused(ErrorCode::Conflict, message))
        }
        (None, _) => {
            let message = format!("no image has the digest or name {reference:?}; `image list` shows them all");
            Err(Error::refused(ErrorCode::NotFound, message))
        }
    }
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
