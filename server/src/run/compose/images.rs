//! URLs of this server's images in steps. In place of the digest, a workflow may use the name of an image or the start
//! of its digest: `https://SERVER/images/debian-12.raw.zst`.

use slipway_protocol::{Action, Digest, ErrorCode, Step};

use crate::base::error::Error;
use crate::base::random;
use crate::image::named;
use crate::run::facts::Facts;
use crate::store::images::Image;

/// Returns the URL of an image on this server.
pub fn image_url(server: &str, digest: &Digest) -> String {
    format!("{server}/images/{digest}")
}

/// Returns the digest in a URL of this server's images, with or without a token. The host may also be a cache in front
/// of this server, so it is not compared.
pub fn image_at(url: &str) -> Option<Digest> {
    let (_, path) = url.strip_prefix("https://")?.split_once('/')?;
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    path.rsplit('/').next().filter(|last| path.ends_with(&format!("images/{last}")))?.parse().ok()
}

/// Replaces each image name in a URL with the image's digest. A step that fetches an image by name then checks the
/// digest, unless it has a check of its own. A list of sums lacks the new name, so the digest replaces the list.
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
    /// Whether another field of the step, `raw_digest`, checks the content.
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

/// Returns the URL that a step fetches first, and how the step checks the content.
fn origin(action: &mut Action) -> Option<(&mut String, Checks<'_>)> {
    let (url, digest, sums, signature, is_checked) = match action {
        Action::StreamImage(of) => (&mut of.url, &mut of.digest, &mut of.sums, &of.signature, of.raw_digest.is_some()),
        Action::UnpackArchive(of) => (&mut of.url, &mut of.digest, &mut of.sums, &of.signature, false),
        Action::WriteFile(of) => (of.url.as_mut()?, &mut of.digest, &mut of.sums, &of.signature, false),
        _ => return None,
    };
    Some((url, Checks { digest, sums, is_signed: signature.is_some(), is_checked }))
}

/// Replaces the name in a URL of this server's images with the digest of the image, and returns the digest.
fn put_digest(url: &mut String, facts: &Facts) -> Result<Option<Digest>, Error> {
    let Some(server) = &facts.server else { return Ok(None) };
    let Some(reference) = url.strip_prefix(server).and_then(|path| path.strip_prefix("/images/")) else {
        return Ok(None);
    };
    // A full digest is left alone: the file may be added later, and other checks report a missing file.
    if reference.is_empty() || reference.contains('?') || reference.parse::<Digest>().is_ok() {
        return Ok(None);
    }
    let images: Vec<&Image> = facts.images.iter().map(|stored| &stored.image).collect();
    let digest = named::find(&images, reference)?.digest.clone();
    *url = image_url(server, &digest);
    Ok(Some(digest))
}

/// What is added to the URL of an image whose machine verifies the object store: only such a machine is redirected
/// there. One that got its run before the server redirects, and other clients, get the image from the server.
const REDIRECT: &str = "redirect=yes";

/// Lets each step that fetches an image of this server trust the object store that machines are redirected to, and
/// says so in the URL.
pub fn welcome_redirects(steps: &mut [Step], facts: &Facts) {
    let Some(trusted) = &facts.images_ca else { return };
    for step in steps {
        let mut is_here = false;
        let is_image = |url: &str| image_at(url).is_some_and(|digest| facts.image(&digest).is_some());
        for url in step.action.urls_mut().into_iter().filter(|url| is_image(url)) {
            // A query other than a token is somebody else's.
            match url.split_once('?') {
                None => url.push_str(&format!("?{REDIRECT}")),
                Some((_, query)) if query.starts_with("token=") => url.push_str(&format!("&{REDIRECT}")),
                Some(_) => continue,
            }
            is_here = true;
        }
        let ca = match &mut step.action {
            Action::StreamImage(of) if is_here => &mut of.ca,
            Action::UnpackArchive(of) if is_here => &mut of.ca,
            Action::WriteFile(of) if is_here => &mut of.ca,
            _ => continue,
        };
        *ca = Some(match ca.take() {
            Some(own) => format!("{}\n{trusted}", own.trim_end()),
            None => trusted.clone(),
        });
    }
}

/// Adds a token to the URL of each captured image, because only nodes and operators may read these images. Returns the
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
