//! Finds images by what operators call them.

use slipway_protocol::ErrorCode;

use crate::base::error::Error;
use crate::store::images::Image;

/// The least number of digits that name an image by the start of its digest.
const MIN_DIGITS: usize = 4;

/// Returns the image with this name, digest or start of a digest. If several match, the refusal lists them.
pub fn find<'a>(images: &[&'a Image], reference: &str) -> Result<&'a Image, Error> {
    let digits = reference.split_once(':').map_or(reference, |(_, digits)| digits);
    let starts = |image: &&Image| {
        let digest = image.digest.to_string();
        let is_start =
            |whole: &str| whole.get(..reference.len()).is_some_and(|start| start.eq_ignore_ascii_case(reference));
        digits.len() >= MIN_DIGITS && (is_start(&digest) || is_start(image.digest.hex()))
    };
    // A name takes precedence over the start of a digest, because somebody chose it.
    let mut meant: Vec<&Image> = images.iter().copied().filter(|image| image.file_name == reference).collect();
    if meant.is_empty() {
        meant = images.iter().copied().filter(starts).collect();
    }
    match meant.as_slice() {
        [image] => Ok(image),
        [] if images.is_empty() => {
            let message = format!("there is no image {reference:?}, and no other image; add it with `image add`");
            Err(Error::refused(ErrorCode::NotFound, message))
        }
        [] => {
            let message = format!(
                "there is no image {reference:?}: no image has this name or digest, or a digest that starts with it \
                 (at least {MIN_DIGITS} digits); `image list` shows them all, `image add` adds one"
            );
            Err(Error::refused(ErrorCode::NotFound, message))
        }
        several => {
            let found: Vec<String> =
                several.iter().map(|image| format!("{} ({})", image.digest, image.file_name)).collect();
            let message = format!(
                "{reference:?} may be {} images: {}; give the digest of one, or more of its start",
                found.len(),
                found.join(", ")
            );
            Err(Error::refused(ErrorCode::Conflict, message))
        }
    }
}
