//! A source: its mirrors, and what its data is verified with.

use std::time::Instant;

use slipway_formats::http::{Coded, coded};
use slipway_formats::oci::Blob;
use slipway_formats::signature::{MAX_SIGNATURE, Verifier};
use slipway_formats::sums;
use slipway_protocol::{Digest, OciReference, OciReferenceError, Origin, RegistryAuth};

use super::download::From;
use super::file::STDIN;
use super::mirrors::Mirrors;
use super::oci::Registry;
use super::{retry, shown, small};
use crate::error::{Error, FetchError, ImageError, SourceError, is_transient};
use crate::fetch::verify::Check;
use crate::machine::{Machine, Request};
use crate::report::{Report, Tell};
use crate::text;

/// What is known about a source before its first byte.
pub(crate) struct Source<'a> {
    /// What is fetched, in one word: "image".
    what: &'static str,
    pub(crate) mirrors: Mirrors,
    ca: Option<&'a str>,
    /// For artifacts, the registry of each mirror, to log in when it requires that, and again when its token has
    /// expired.
    registries: Vec<Registry<'a>>,
    /// Digests of the stream as delivered, from the step, a list of checksums or the manifest of an artifact.
    digests: Vec<Digest>,
    /// Signature of the stream as delivered.
    signature: Option<Signature<'a>>,
}

/// A signature that has been fetched.
struct Signature<'a> {
    url: &'a str,
    public_key: &'a str,
    bytes: Vec<u8>,
}

impl Signature<'_> {
    /// Starts to verify `what`. Fails if signature or key are malformed.
    fn verifier(&self, what: &'static str) -> Result<Verifier, Error> {
        Verifier::new(self.public_key, &self.bytes).map_err(|source| self.refused(what, source))
    }

    fn refused(&self, what: &'static str, source: slipway_formats::signature::Error) -> Error {
        Error::Source(SourceError::Signature { what, url: shown(self.url), source })
    }
}

impl<'a> Source<'a> {
    /// Fetches everything that the source will be verified with.
    pub(crate) fn prepare(
        origin: &Origin<'a>,
        machine: &dyn Machine,
        report: &mut dyn FnMut(Report),
    ) -> Result<Self, Error> {
        let what = origin.what;
        let signature = origin.signature.map(|signature| {
            let bytes = small::read(&Request::new(&signature.url, origin.ca), MAX_SIGNATURE, machine, report)?;
            Ok::<_, Error>(Signature { url: &signature.url, public_key: &signature.public_key, bytes })
        });
        let mut source = Self {
            what,
            mirrors: Mirrors::new(origin.url, origin.mirrors),
            ca: origin.ca,
            registries: Vec::new(),
            digests: origin.digest.into_iter().cloned().collect(),
            signature: signature.transpose()?,
        };
        if let Some(list) = origin.sums {
            let digest = digest_in(list, origin, source.signature.take().as_ref(), machine, report)?;
            report(Report::Note(format!("the {what} must have the digest {digest}, according to {}", shown(list))));
            source.digests.push(digest);
        }
        if origin.is_artifact() {
            source.find_blob(origin, machine, report)?;
        }
        source.checks()?;
        Ok(source)
    }

    /// Finds the wanted blob in an artifact.
    fn find_blob(
        &mut self,
        origin: &Origin<'a>,
        machine: &dyn Machine,
        report: &mut dyn FnMut(Report),
    ) -> Result<(), Error> {
        let urls: Vec<&str> = origin.places().collect();
        let mut registries = self.registries_of(&urls, origin.registry_auth)?;
        let (found, url, blob) = self.find_in(&mut registries, &urls, machine, report)?;
        let other = |given: &&Digest| given.algorithm() == blob.digest.algorithm() && **given != blob.digest;
        if let Some(given) = self.digests.iter().find(other) {
            let reason = format!("the step has the digest {given}, but the artifact has {}", blob.digest);
            return Err(SourceError::Artifact { what: self.what, url, reason }.into());
        }
        let size = text::size(blob.size);
        report(Report::Note(format!(
            "the {} must have the digest {} and {size}, according to {url}",
            self.what, blob.digest
        )));
        // The registry that answered is used first. The others only need the blob, not the manifest.
        registries.rotate_left(found);
        let mut urls = registries.iter().map(|registry| registry.url(&blob));
        self.mirrors = Mirrors::new(&urls.next().unwrap_or_default(), &urls.collect::<Vec<String>>());
        self.registries = registries;
        self.digests.retain(|given| *given != blob.digest);
        self.digests.push(blob.digest);
        Ok(())
    }

    /// Returns the registry of each artifact. The login is only sent to the first artifact's registry.
    fn registries_of(&self, urls: &[&str], auth: Option<&'a RegistryAuth>) -> Result<Vec<Registry<'a>>, Error> {
        let what = self.what;
        let refused = |url: &str, error: OciReferenceError| {
            Error::Source(SourceError::Artifact { what, url: shown(url), reason: error.to_string() })
        };
        let references = urls.iter().map(|url| url.parse::<OciReference>().map_err(|error| refused(url, error)));
        let references = references.collect::<Result<Vec<OciReference>, Error>>()?;
        let first = references.first().map(|reference| reference.registry.clone());
        let registry = |reference: OciReference| {
            let auth = auth.filter(|_| Some(&reference.registry) == first.as_ref());
            Registry::new(what, reference, self.ca, auth)
        };
        Ok(references.into_iter().map(registry).collect())
    }

    /// Finds the blob with the first registry that has a manifest of the artifact, and returns the registry's index,
    /// its URL for messages, and the blob. Tries all in turn until each has failed permanently or patience ends.
    fn find_in(
        &self,
        registries: &mut [Registry<'_>],
        urls: &[&str],
        machine: &dyn Machine,
        report: &mut dyn FnMut(Report),
    ) -> Result<(usize, String, Blob), Error> {
        let began = Instant::now();
        let is_only = registries.len() == 1;
        let patience = retry::patience_with(machine, is_only);
        loop {
            let (mut failed, mut may_answer) = (Vec::new(), false);
            for (index, (registry, url)) in registries.iter_mut().zip(urls).enumerate() {
                machine.cancel().check()?;
                let error = match registry.find(patience, machine, &mut |text| report(Report::Note(text))) {
                    Ok(blob) => return Ok((index, shown(url), blob)),
                    Err(error) if is_only => return Err(error),
                    Err(error) => error,
                };
                let why = format!("{}: {}", shown(url), text::chain(&error));
                report(Report::Note(format!("did not find the {} in {why}", self.what)));
                failed.push(why);
                may_answer |= is_transient(&error);
            }
            if !may_answer || began.elapsed() >= machine.setup().patience {
                return Err(SourceError::NoMirror { failed, is_transient: may_answer }.into());
            }
        }
    }

    /// Runs `work` on the source. If it fails and `is_another` says that wrong data may be the cause, runs it again
    /// with another mirror.
    pub(crate) fn at_each_place<T>(
        &mut self,
        report: &mut dyn FnMut(Report),
        is_another: impl Fn(&Error) -> bool,
        mut work: impl FnMut(&mut Self, &mut dyn FnMut(Report)) -> Result<T, Error>,
    ) -> Result<T, Error> {
        loop {
            let error = match work(self, report) {
                Err(error) if is_another(&error) => self.explained(error),
                other => return other,
            };
            let why = text::chain(&error);
            let (gave, can_begin_again) = self.mirrors.gave_wrong(&why);
            let gave: Vec<String> = gave.into_iter().map(shown).collect();
            if !can_begin_again {
                let failed = self.mirrors.told();
                return Err(if self.mirrors.failed_alike() {
                    error
                } else {
                    Error::Source(SourceError::NoMirror { failed, is_transient: false })
                });
            }
            let (next, gave) = (shown(self.mirrors.url()), gave.join(" and "));
            report(Report::Note(format!(
                "starting over with {next}, because {gave} did not deliver a valid {}: {why}",
                self.what
            )));
        }
    }

    /// Adds to an error its possible cause: that the server compressed the source on the way. A coding that fits the
    /// file name is the file's own, unless the decoded data has the same format again.
    fn explained(&self, error: Error) -> Error {
        let Some(coding) = self.mirrors.coding() else { return error };
        let name = coding.to_ascii_lowercase();
        let name = name.trim_start_matches("x-");
        let is_twice = matches!(&error, Error::Image(ImageError::NotRaw { format }) if *format == name);
        if coded(coding, self.mirrors.url()) == Coded::InFile && !is_twice {
            return error;
        }
        let (url, cause) = (shown(self.mirrors.url()), FetchError::Coded { coding: coding.to_owned() });
        SourceError::Coded { url, coded: cause, source: Box::new(error) }.into()
    }

    /// Returns the parameters for a download of the source; see [`From`].
    pub(crate) fn from(&mut self, verified: bool, plain: bool, whole: bool) -> From<'_, 'a> {
        From { mirrors: &mut self.mirrors, registries: &mut self.registries, ca: self.ca, verified, plain, whole }
    }

    /// Whether the stream as delivered is checked. Then every byte of it is needed once and in order.
    pub(crate) fn is_checked(&self) -> bool {
        !self.digests.is_empty() || self.signature.is_some()
    }

    /// Returns the checks of the stream as delivered, from its first byte on.
    pub(crate) fn checks(&self) -> Result<Vec<Check<'static>>, Error> {
        let mut checks: Vec<Check> = self.digests.iter().map(|digest| Check::digest(STREAM, digest)).collect();
        if let Some(signature) = &self.signature {
            let verifier = Box::new(signature.verifier(STREAM)?);
            checks.push(Check::Signature { what: STREAM, url: shown(signature.url), verifier });
        }
        Ok(checks)
    }
}

/// The stream as delivered, as errors call it.
const STREAM: &str = "the stream";

/// Looks up the digest of the source in a list of checksums. If the list has a signature, verifies it first.
fn digest_in(
    list: &str,
    origin: &Origin<'_>,
    signature: Option<&Signature<'_>>,
    machine: &dyn Machine,
    report: Tell,
) -> Result<Digest, Error> {
    const LIST: &str = "the list of sums";
    let what = origin.what;
    // The name that programs such as sha256sum give standard input.
    let name = if origin.url == STDIN { Some("-".to_owned()) } else { sums::file_name(origin.url) };
    let Some(name) = name else {
        let problem = format!("has a list of sums, but the URL of the {what} does not end in a file name");
        return Err(SourceError::Contradiction { what, problem }.into());
    };
    let text = small::read(&Request::new(list, origin.ca), sums::MAX_TEXT, machine, report)?;
    if let Some(signature) = signature {
        let mut verifier = signature.verifier(LIST)?;
        verifier.update(&text);
        verifier.finish().map_err(|source| signature.refused(LIST, source))?;
    }
    // By the paths that `sha256sum --check`, run in the folder of the list, would open.
    let by_path = || sums::paths(list, origin.url).find_map(|path| sums::find(&text, &path).ok());
    let found = sums::find(&text, &name).or_else(|source| by_path().ok_or(source));
    found.map_err(|source| Error::Source(SourceError::Sums { what, url: shown(list), source }))
}
