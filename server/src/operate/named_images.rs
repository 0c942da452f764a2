//! Images of this server that a workflow names by name, or by the start of a digest, in their URL:
//! `https://SERVER/images/debian-12.raw.zst`.

use slipway_protocol::{Action, Digest, Step};

use super::image::known_image;
use crate::compose::image_url;
use crate::error::Error;
use crate::store::{Connection, settings};

/// Puts the digest in the place of each name. An image that is written by its name is then checked by its digest,
/// unless the step says what to check.
pub(super) async fn resolve(connection: &mut Connection, steps: &mut [Step]) -> Result<(), Error> {
    let Some(server) = settings::read(connection, settings::SERVER_URL).await? else { return Ok(()) };
    for step in steps {
        let own = match &mut step.action {
            Action::StreamImage(image) => named(connection, &server, &mut image.url).await?,
            _ => None,
        };
        if let Action::StreamImage(image) = &mut step.action
            && !image.is_verified()
        {
            image.digest = own;
        }
        for url in urls(&mut step.action) {
            named(connection, &server, url).await?;
        }
    }
    Ok(())
}

/// The digest of an image of this server that a URL names. It is put into the URL.
async fn named(connection: &mut Connection, server: &str, url: &mut String) -> Result<Option<Digest>, Error> {
    let Some(reference) = url.strip_prefix(server).and_then(|path| path.strip_prefix("/images/")) else {
        return Ok(None);
    };
    // With a full digest, the file may be added later, or be judged in other words.
    if reference.is_empty() || reference.contains('?') || reference.parse::<Digest>().is_ok() {
        return Ok(None);
    }
    let digest = known_image(connection, reference).await?.digest;
    *url = image_url(server, &digest);
    Ok(Some(digest))
}

/// The URLs of what an action fetches.
pub(super) fn urls(action: &mut Action) -> Vec<&mut String> {
    match action {
        Action::StreamImage(image) => {
            std::iter::once(&mut image.url).chain(&mut image.mirrors).chain(&mut image.bmap).collect()
        }
        Action::WriteFile(file) => file.url.iter_mut().chain(&mut file.mirrors).collect(),
        Action::UnpackArchive(archive) => std::iter::once(&mut archive.url).chain(&mut archive.mirrors).collect(),
        _ => Vec::new(),
    }
}
