//! Where an image comes from, and what proves that it is the one meant.

use std::sync::Arc;

use slipway_protocol::{Digest, OciReference, OciReferenceError, RegistryAuth, StreamImage, oci};

use super::mirrors::Mirrors;
use super::oci::{Blob, Registry};
use super::{Request, shown, small};
use crate::Report;
use crate::error::{Error, SourceError, is_retryable};
use crate::machine::Machine;
use crate::signature::{MAX_SIGNATURE, Verifier};
use crate::stream::bmap::{self, Bmap};
use crate::stream::digest::Check;
use crate::{sums, text};

/// All that is known of an image before its first byte.
pub(crate) struct Source<'a> {
    pub(crate) mirrors: Mirrors,
    pub(crate) ca: Option<&'a str>,
    /// Where the image is an artifact, that of each place: to be logged in at when it wants that, and again when its token has run
    /// out.
    pub(crate) registries: Vec<Registry<'a>>,
    /// What of the raw image holds data, where that is known.
    pub(crate) map: Option<Arc<Bmap>>,
    /// Size of the raw image in bytes: given, or that of the map.
    pub(crate) raw_size: Option<u64>,
    /// Of the stream as delivered: given, found in a list of sums or in the manifest of an artifact.
    digests: Vec<Digest>,
    /// Of the stream as delivered.
    signature: Option<Signature<'a>>,
}

/// A signature that has been fetched.
struct Signature<'a> {
    url: &'a str,
    public_key: &'a str,
    bytes: Vec<u8>,
}

impl Signature<'_> {
    /// Begins to verify `what`, or says why these cannot be a signature and its key.
    fn verifier(&self, what: &'static str) -> Result<Verifier, Error> {
        Verifier::new(self.public_key, &self.bytes).map_err(|source| self.refused(what, source))
    }

    fn refused(&self, what: &'static str, source: crate::signature::Error) -> Error {
        Error::Source(SourceError::Signature { what, url: shown(self.url), source })
    }
}

impl<'a> Source<'a> {
    /// Fetches what verifies the image. Whatever can be found wrong without the image, is.
    pub(crate) fn find(
        image: &'a StreamImage,
        machine: &dyn Machine,
        report: &mut dyn FnMut(Report),
    ) -> Result<Self, Error> {
        if let Some(problem) = image.source_problems().into_iter().next() {
            return Err(SourceError::Contradiction { problem }.into());
        }
        let ca = image.ca.as_deref();
        let signature = image.signature.as_ref().map(|signature| {
            let bytes = small::read(&Request::new(&signature.url, ca), MAX_SIGNATURE, machine)?;
            Ok::<_, Error>(Signature { url: &signature.url, public_key: &signature.public_key, bytes })
        });
        let signature = signature.transpose()?;
        let mirrors = Mirrors::new(&image.url, &image.mirrors);
        let digests = image.digest.iter().cloned().collect();
        let map = image.bmap.as_ref().map(|url| read_map(url, image, machine, report)).transpose()?;
        let raw_size = image.raw_size.or(map.as_ref().map(|map| map.image_size));
        let map = map.map(Arc::new);
        let mut source = Self { mirrors, ca, registries: Vec::new(), map, raw_size, digests, signature };
        if let Some(list) = &image.sums {
            let digest = digest_in(list, image, source.signature.take().as_ref(), machine)?;
            report(Report::Note(format!("the image must be {digest}, says {}", shown(list))));
            source.digests.push(digest);
        }
        if image.url.starts_with(oci::SCHEME) {
            source.find_blob(image, machine, report)?;
        }
        source.checks()?;
        Ok(source)
    }

    /// Finds the image in an artifact.
    fn find_blob(
        &mut self,
        image: &'a StreamImage,
        machine: &dyn Machine,
        report: &mut dyn FnMut(Report),
    ) -> Result<(), Error> {
        let urls: Vec<&String> = std::iter::once(&image.url).chain(&image.mirrors).collect();
        let mut registries = self.registries_of(&urls, image.registry_auth.as_ref())?;
        let (found, blob) = find_in(&mut registries, &urls, machine, report)?;
        let url = shown(urls[found]);
        let other = |given: &&Digest| given.algorithm() == blob.digest.algorithm() && **given != blob.digest;
        if let Some(given) = self.digests.iter().find(other) {
            let reason = format!("the step has the digest {given}, the artifact {}", blob.digest);
            return Err(SourceError::Artifact { url, reason }.into());
        }
        report(Report::Note(format!("the image must be {} with {}, says {url}", blob.digest, text::size(blob.size))));
        // The one that answered is asked first. The others need not have the manifest, only the blob.
        registries.rotate_left(found);
        let mut urls = registries.iter().map(|registry| registry.url(&blob));
        self.mirrors = Mirrors::new(&urls.next().unwrap_or_default(), &urls.collect::<Vec<String>>());
        self.registries = registries;
        self.digests.retain(|given| *given != blob.digest);
        self.digests.push(blob.digest);
        Ok(())
    }

    /// The registry of each of these artifacts. The login is for that of the first, and for nobody else to see.
    fn registries_of(&self, urls: &[&String], auth: Option<&'a RegistryAuth>) -> Result<Vec<Registry<'a>>, Error> {
        let refused = |url: &str, error: OciReferenceError| {
            Error::Source(SourceError::Artifact { url: shown(url), reason: error.to_string() })
        };
        let references = urls.iter().map(|url| url.parse::<OciReference>().map_err(|error| refused(url, error)));
        let references = references.collect::<Result<Vec<OciReference>, Error>>()?;
        let first = references.first().map(|reference| reference.registry.clone());
        let registry = |reference: OciReference| {
            let auth = auth.filter(|_| Some(&reference.registry) == first.as_ref());
            Registry::new(reference, self.ca, auth)
        };
        Ok(references.into_iter().map(registry).collect())
    }

    /// Whether it may be read here and there: nothing is to be proven of the stream as delivered, and it is no artifact.
    pub(crate) fn can_be_read_by_ranges(&self) -> bool {
        self.digests.is_empty() && self.signature.is_none()
    }

    /// What the stream as delivered must prove to be, from its first byte on.
    pub(crate) fn checks(&self) -> Result<Vec<Check<'static>>, Error> {
        let mut checks: Vec<Check> = self.digests.iter().map(|digest| Check::digest(STREAM, digest)).collect();
        if let Some(signature) = &self.signature {
            let verifier = Box::new(signature.verifier(STREAM)?);
            checks.push(Check::Signature { what: STREAM, url: shown(signature.url), verifier });
        }
        Ok(checks)
    }
}

/// The blob that is the image, by the first of some registries that has a manifest of it, and the index of that one.
fn find_in(
    registries: &mut [Registry<'_>],
    urls: &[&String],
    machine: &dyn Machine,
    report: &mut dyn FnMut(Report),
) -> Result<(usize, Blob), Error> {
    let (places, mut failed, mut may_pass) = (registries.len(), Vec::new(), false);
    for (index, registry) in registries.iter_mut().enumerate() {
        machine.cancel().check()?;
        let error = match registry.find(machine) {
            Ok(blob) => return Ok((index, blob)),
            Err(error) if places == 1 => return Err(error),
            Err(error) => error,
        };
        let why = format!("{}: {}", shown(urls[index]), text::chain(&error));
        report(Report::Note(format!("did not find the image in {why}")));
        failed.push(why);
        may_pass |= is_retryable(&error);
    }
    Err(SourceError::NoMirror { failed, may_pass }.into())
}

/// What errors call the bytes that were delivered.
const STREAM: &str = "the stream";

/// The digest a list of sums gives for the image, once the list's own signature holds, if it has one.
fn digest_in(
    list: &str,
    image: &StreamImage,
    signature: Option<&Signature<'_>>,
    machine: &dyn Machine,
) -> Result<Digest, Error> {
    const LIST: &str = "the list of sums";
    let Some(name) = sums::file_name(&image.url) else {
        let problem = "has a list of sums, and a URL of the image that does not end in a file name".to_owned();
        return Err(SourceError::Contradiction { problem }.into());
    };
    let text = small::read(&Request::new(list, image.ca.as_deref()), sums::MAX_TEXT, machine)?;
    if let Some(signature) = signature {
        let mut verifier = signature.verifier(LIST)?;
        verifier.update(&text);
        verifier.finish().map_err(|source| signature.refused(LIST, source))?;
    }
    sums::find(&text, &name).map_err(|source| Error::Source(SourceError::Sums { url: shown(list), source }))
}

/// Reads the block map of an image of which the rest is not to be written.
fn read_map(
    url: &str,
    image: &StreamImage,
    machine: &dyn Machine,
    report: &mut dyn FnMut(Report),
) -> Result<Bmap, Error> {
    let text = small::read(&Request::new(url, image.ca.as_deref()), bmap::MAX_TEXT, machine)?;
    let map = bmap::parse(&text).map_err(|source| SourceError::Bmap { url: shown(url), source })?;
    if let Some(raw_size) = image.raw_size.filter(|raw_size| *raw_size != map.image_size) {
        let (found, remedy) = (map.image_size, "give the map of this image, or leave raw_size out");
        let problem = format!("has a raw_size of {raw_size} bytes, and the block map of an image of {found}: {remedy}");
        return Err(SourceError::Contradiction { problem }.into());
    }
    let (mapped, size) = (text::size(map.mapped_size()), text::size(map.image_size));
    report(Report::Note(format!("the image has data in {mapped} of its {size}, says {}", shown(url))));
    Ok(map)
}
