//! Images that were captured from disks are for nodes and operators alone. The machine that a run gives such an image
//! gets a token for it in the image's URL, which leaves its messages out.

use slipway_protocol::{ErrorCode, Step};

use crate::base::error::Error;
use crate::base::random;
use crate::run::compose::image_at;
use crate::store::{Connection, images};

/// Adds a token to the URL of each image that was captured. Returns the hashes of the tokens. Refuses a URL with a
/// query of its own, such as the token of an earlier run.
pub(super) async fn open_images(connection: &mut Connection, steps: &mut [Step]) -> Result<Vec<String>, Error> {
    let (token, mut hashes) = (random::token(), Vec::new());
    for url in steps.iter_mut().flat_map(|step| step.action.urls_mut()) {
        let Some(digest) = image_at(url) else { continue };
        if images::get_by_digest(connection, &digest).await?.is_some_and(|image| image.captured) {
            if url.contains('?') {
                let message = format!(
                    "the image {digest} was captured, so that its URL gets a token, but the URL in the step has a \
                     query already; leave out the `?` and what follows"
                );
                return Err(Error::refused(ErrorCode::InvalidRequest, message));
            }
            url.push_str(&format!("?token={token}"));
            let hash = random::image_token_hash(&token, &digest);
            if !hashes.contains(&hash) {
                hashes.push(hash);
            }
        }
    }
    Ok(hashes)
}
