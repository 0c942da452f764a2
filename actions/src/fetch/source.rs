//! Where an image comes from, and what proves that it is the one meant.

use slipway_protocol::{Digest, OciReferenceError, StreamImage, oci};

use super::mirrors::Mirrors;
use super::oci::Registry;
use super::{Request, shown, small};
use crate::Report;
use crate::error::Error;
use crate::machine::Machine;
use crate::signature::{MAX_SIGNATURE, Verifier};
use crate::stream::digest::Check;
use crate::{sums, text};

/// All that is known of an image before its first byte.
pub(crate) struct Source<'a> {
    pub(crate) mirrors: Mirrors,
    pub(crate) ca: Option<&'a str>,
    /// Where the image is an artifact: to be logged in at again when its token has run out.
    pub(crate) registry: Option<Registry<'a>>,
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
        Error::Signature { what, url: shown(self.url), source }
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
            return Err(Error::Source { problem });
        }
        let ca = image.ca.as_deref();
        let signature = image.signature.as_ref().map(|signature| {
            let bytes = small::read(&Request::new(&signature.url, ca), MAX_SIGNATURE, machine)?;
            Ok(Signature { url: &signature.url, public_key: &signature.public_key, bytes })
        });
        let signature = signature.transpose()?;
        let mirrors = Mirrors::new(&image.url, &image.mirrors);
        let digests = image.digest.iter().cloned().collect();
        let mut source = Self { mirrors, ca, registry: None, digests, signature };
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
        let refused = |reason| Error::Artifact { url: shown(&image.url), reason };
        let reference = image.url.parse().map_err(|error: OciReferenceError| refused(error.to_string()))?;
        let mut registry = Registry::new(reference, self.ca, image.registry_auth.as_ref());
        let blob = registry.find(machine)?;
        let other = |given: &&Digest| given.algorithm() == blob.digest.algorithm() && **given != blob.digest;
        if let Some(given) = self.digests.iter().find(other) {
            return Err(refused(format!("the step has the digest {given}, the artifact {}", blob.digest)));
        }
        let (url, size) = (shown(&image.url), text::size(blob.size));
        report(Report::Note(format!("the image must be {} with {size}, says {url}", blob.digest)));
        self.mirrors = Mirrors::new(&registry.url(&blob), &[]);
        self.registry = Some(registry);
        self.digests.retain(|given| *given != blob.digest);
        self.digests.push(blob.digest);
        Ok(())
    }

    /// Whether it may be read here and there: nothing is to be proven of the stream as delivered, and it is no artifact.
    pub(crate) fn can_be_read_by_ranges(&self) -> bool {
        self.digests.is_empty() && self.signature.is_none()
    }

    /// What the stream as delivered must prove to be, from its first byte on.
    pub(crate) fn checks(&self) -> Result<Vec<Check>, Error> {
        let mut checks: Vec<Check> = self.digests.iter().map(|digest| Check::digest(STREAM, digest)).collect();
        if let Some(signature) = &self.signature {
            let verifier = Box::new(signature.verifier(STREAM)?);
            checks.push(Check::Signature { what: STREAM, url: shown(signature.url), verifier });
        }
        Ok(checks)
    }
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
        return Err(Error::Source { problem });
    };
    let text = small::read(&Request::new(list, image.ca.as_deref()), sums::MAX_TEXT, machine)?;
    if let Some(signature) = signature {
        let mut verifier = signature.verifier(LIST)?;
        verifier.update(&text);
        verifier.finish().map_err(|source| signature.refused(LIST, source))?;
    }
    sums::find(&text, &name).map_err(|source| Error::Sums { url: shown(list), source })
}
