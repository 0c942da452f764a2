//! URLs of this server's images in steps. A workflow may name an image by its name or the start of its digest:
//! `https://SERVER/images/debian-12.raw.zst`.

use slipway_protocol::{Action, Digest, ErrorCode, Step};

use crate::base::error::Error;
use crate::base::random;
use crate::image::named;
use crate::run::facts::Facts;
use crate::store::images::Image;

/// The URL of an image on this server.
pub fn image_url(server: &str, digest: &Digest) -> String {
    format!("{server}/images/{digest}")
}

/// The digest in a URL of this server's images, with or without a token. Whether the host is this server, or a cache in
/// front of it, does not matter.
pub fn image_at(url: &str) -> Option<Digest> {
    let (_, path) = url.strip_prefix("https://")?.split_once('/')?;
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    path.rsplit('/').next().filter(|last| path.ends_with(&format!("images/{last}")))?.parse().ok()
}

/// Puts the digest in the place of each name. What a step fetches by its name is then checked by its digest, unless the
/// step says what to check. A list of sums says nothing about the new URL, so the digest takes its place.
pub fn resolve(steps: &mut [Step], facts: &Facts) -> Result<(), Error> {
    for step in steps {
        if let Some((url, checks)) = origin(&mut step.action)
            && let Some(digest) = put_digest(url, facts)?
        {
            checks.put(digest, &step.name)?;
        }
        for url in step.action.urls_mut() {
            put_digest(url, facts)?;
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
                "the step {step:?} checks a file of this server with a signed list of sums, but machines fetch the \
                 file by its digest, a name that the list does not have; check the file once, and give `digest` in \
                 place of `sums` and `signature`"
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

/// Puts the digest in the place of the name of an image of this server in a URL, and returns it.
fn put_digest(url: &mut String, facts: &Facts) -> Result<Option<Digest>, Error> {
    let Some(server) = &facts.server else { return Ok(None) };
    let Some(reference) = url.strip_prefix(server).and_then(|path| path.strip_prefix("/images/")) else {
        return Ok(None);
    };
    // A full digest is left alone: the file may be added later, and other checks report if it is missing.
    if reference.is_empty() || reference.contains('?') || reference.parse::<Digest>().is_ok() {
        return Ok(None);
    }
    let images: Vec<&Image> = facts.images.iter().map(|stored| &stored.image).collect();
    let digest = named::find(&images, reference)?.digest.clone();
    *url = image_url(server, &digest);
    Ok(Some(digest))
}

/// Adds a token to the URL of each image that was captured. Such images are for nodes and operators alone. Returns the
/// hashes of the tokens. Refuses a URL with a query of its own, such as the token of an earlier run.
pub fn open_captured(steps: &mut [Step], facts: &Facts, token: &str) -> Result<Vec<String>, Error> {
    let mut hashes = Vec::new();
    for url in steps.iter_mut().flat_map(|step| step.action.urls_mut()) {
        let Some(digest) = image_at(url) else { continue };
        if facts.image(&digest).is_some_and(|stored| stored.image.captured) {
            if url.contains('?') {
                let message = format!(
                    "the server adds a token to the URL of the captured image {digest}, but the URL in the step has a \
                     query already; leave out the `?` and what follows"
                );
                return Err(Error::refused(ErrorCode::InvalidRequest, message));
            }
            url.push_str(&format!("?token={token}"));
            let hash = random::image_token_hash(token, &digest);
            if !hashes.contains(&hash) {
                hashes.push(hash);
            }
        }
    }
    Ok(hashes)
}
