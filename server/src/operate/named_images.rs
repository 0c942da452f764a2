//! Images of this server that a workflow names by name, or by the start of a digest, in their URL:
//! `https://SERVER/images/debian-12.raw.zst`.

use slipway_protocol::{Action, Digest, ErrorCode, Step};

use super::image::known_image;
use crate::base::error::Error;
use crate::run::compose::image_url;
use crate::store::{Connection, settings};

/// Puts the digest in the place of each name. What a step fetches by its name is then checked by its digest, unless the
/// step says what to check. A list of sums says nothing of the new URL, so the digest takes its place.
pub(super) async fn resolve(connection: &mut Connection, steps: &mut [Step]) -> Result<(), Error> {
    let Some(server) = settings::read(connection, settings::SERVER_URL).await? else { return Ok(()) };
    for step in steps {
        if let Some((url, checks)) = origin(&mut step.action)
            && let Some(digest) = named(connection, &server, url).await?
        {
            checks.put(digest, &step.name)?;
        }
        for url in step.action.urls_mut() {
            named(connection, &server, url).await?;
        }
    }
    Ok(())
}

/// How a step checks what it fetches.
struct Checks<'a> {
    digest: &'a mut Option<Digest>,
    sums: &'a mut Option<String>,
    is_signed: bool,
    /// Whether something else checks it.
    is_checked: bool,
}

impl Checks<'_> {
    fn put(self, digest: Digest, step: &str) -> Result<(), Error> {
        if self.digest.is_some() {
            return Ok(());
        }
        if self.sums.is_some() && self.is_signed {
            let message = format!(
                "the step {step:?} names a file of this server, and checks it by a signed list of sums; the list does \
                 not have the name that machines ask for: check it once, and give `digest` in place of `sums` and \
                 `signature`"
            );
            return Err(Error::refused(ErrorCode::InvalidRequest, message));
        }
        if self.sums.take().is_some() || !(self.is_signed || self.is_checked) {
            *self.digest = Some(digest);
        }
        Ok(())
    }
}

/// What a step fetches first, and how it checks that.
fn origin(action: &mut Action) -> Option<(&mut String, Checks<'_>)> {
    let (url, digest, sums, signature, is_checked) = match action {
        Action::StreamImage(of) => (&mut of.url, &mut of.digest, &mut of.sums, &of.signature, of.raw_digest.is_some()),
        Action::UnpackArchive(of) => (&mut of.url, &mut of.digest, &mut of.sums, &of.signature, false),
        Action::WriteFile(of) => (of.url.as_mut()?, &mut of.digest, &mut of.sums, &of.signature, false),
        _ => return None,
    };
    Some((url, Checks { digest, sums, is_signed: signature.is_some(), is_checked }))
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
