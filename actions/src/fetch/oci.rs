//! Artifacts in registries: logging in and finding the blob.
//!
//! OCI distribution specification, "Pull"; OCI image specification, manifest.md and image-index.md. Tokens follow the
//! "Token Authentication Specification" of CNCF Distribution, logins RFC 7617.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::{StatusCode, Url};
use serde_json::Value;
use slipway_formats::http::challenge::Challenge;
use slipway_formats::oci::{Blob, blob, of_platform, token};
use slipway_protocol::{Digest, OciReference, OciVersion, RegistryAuth, Secret};

use super::small::{self, Small};
use super::{shown, verify};
use crate::error::{Error, FetchError, SourceError};
use crate::machine::{Machine, Request};

/// Maximum size of a manifest or an index in bytes. Those of images have a few thousand. The distribution specification
/// asks for support of four megabytes, but parsing so much could need hundreds of megabytes of memory.
const MAX_MANIFEST: usize = 256 << 10;
/// Maximum size of a token response in bytes.
const MAX_TOKEN: usize = 64 << 10;
const ACCEPT: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
                      application/vnd.docker.distribution.manifest.v2+json, \
                      application/vnd.docker.distribution.manifest.list.v2+json";
/// A function that takes a note for the operator.
type Note<'a> = &'a mut dyn FnMut(String);

/// An artifact, and the login that its registry requires.
pub(crate) struct Registry<'a> {
    /// What is fetched, in one word.
    what: &'static str,
    reference: OciReference,
    ca: Option<&'a str>,
    auth: Option<&'a RegistryAuth>,
    /// Value of the `Authorization` header, once the registry has required one.
    authorization: Option<Secret>,
}

impl<'a> Registry<'a> {
    /// The registry of an artifact, before any request.
    pub(crate) fn new(
        what: &'static str,
        reference: OciReference,
        ca: Option<&'a str>,
        auth: Option<&'a RegistryAuth>,
    ) -> Self {
        Self { what, reference, ca, auth, authorization: None }
    }

    /// The value of the `Authorization` header for requests.
    pub(crate) fn authorization(&self) -> Option<&Secret> {
        self.authorization.as_ref()
    }

    /// The URL of a blob of the artifact.
    pub(crate) fn url(&self, blob: &Blob) -> String {
        self.at(&format!("blobs/{}", blob.digest))
    }

    /// Finds the wanted blob; of an artifact for several platforms, the blob for this machine. Gives up if the registry
    /// fails for `patience`.
    pub(crate) fn find(&mut self, patience: Duration, machine: &dyn Machine, note: Note) -> Result<Blob, Error> {
        let version = self.reference.version.clone();
        let expected = match &version {
            OciVersion::Digest(digest) => Some(digest.clone()),
            OciVersion::Tag(_) => None,
        };
        let mut manifest = self.manifest(&version.to_string(), expected, patience, machine, note)?;
        if let Some(index) = manifest.get("manifests").and_then(Value::as_array) {
            let digest = of_platform(index, architecture()).map_err(|reason| self.refused(reason))?;
            manifest = self.manifest(&digest.to_string(), Some(digest.clone()), patience, machine, note)?;
        }
        blob(&manifest, self.reference.title.as_deref()).map_err(|reason| self.refused(reason))
    }

    fn manifest(
        &mut self,
        version: &str,
        expected: Option<Digest>,
        patience: Duration,
        machine: &dyn Machine,
        note: Note,
    ) -> Result<Value, Error> {
        let url = self.at(&format!("manifests/{version}"));
        let Small { bytes, content_digest } = self.get(&url, patience, machine, note)?;
        let told = content_digest.and_then(|digest| digest.parse().ok());
        for expected in expected.iter().chain(&told) {
            verify::verify("the manifest", expected, &bytes)?;
        }
        serde_json::from_slice(&bytes).map_err(|error| self.refused(format!("its manifest is not JSON: {error}")))
    }

    /// Fetches a manifest, and logs in if the registry requires it.
    fn get(&mut self, url: &str, patience: Duration, machine: &dyn Machine, note: Note) -> Result<Small, Error> {
        let once = |this: &Self, note: Note| {
            let authorization = this.authorization.as_ref();
            let request = Request { accept: Some(ACCEPT), authorization, ..Request::new(url, this.ca) };
            small::fetch(&request, MAX_MANIFEST, patience, machine, note)
        };
        match once(self, note) {
            Err(Error::Source(SourceError::Fetch { source, .. })) if !source.challenges().is_empty() => {
                self.log_in(source.challenges(), patience, machine, note)?;
                once(self, note)
            }
            other => other,
        }
    }

    /// Obtains the authorization that one of the challenges of a 401 response asks for. Prefers a token, which needs no
    /// login or keeps the password from the registry. Sends the password only to a registry that offers nothing else.
    pub(crate) fn log_in(
        &mut self,
        challenges: &[Challenge],
        patience: Duration,
        machine: &dyn Machine,
        note: Note,
    ) -> Result<(), Error> {
        let login = self.auth.map(|auth| {
            let login = STANDARD.encode(format!("{}:{}", auth.username, auth.password.reveal()));
            Secret::from(format!("Basic {login}"))
        });
        let mut failed = None;
        for challenge in challenges {
            let Challenge::Bearer { realm, service, scopes } = challenge else { continue };
            match self.token(self.token_url(realm, service.as_deref(), scopes), login.as_ref(), patience, machine, note)
            {
                Ok(token) => {
                    self.authorization = Some(token);
                    return Ok(());
                }
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                Err(error) => _ = failed.get_or_insert(error),
            }
        }
        match (challenges.contains(&Challenge::Basic), login, failed) {
            (true, Some(login), _) => {
                self.authorization = Some(login);
                Ok(())
            }
            (_, _, Some(error)) => Err(error),
            (true, None, None) => Err(self.refused("the registry requires a login: give registry_auth")),
            (false, _, None) => Err(self.refused(format!(
                "the registry asks for an unsupported kind of login ({}); Basic and Bearer are supported",
                names(challenges)
            ))),
        }
    }

    /// Requests a token from a token server.
    fn token(
        &self,
        url: Result<Url, Error>,
        login: Option<&Secret>,
        patience: Duration,
        machine: &dyn Machine,
        note: Note,
    ) -> Result<Secret, Error> {
        let url = url?;
        let request = Request { authorization: login, ..Request::new(url.as_str(), self.ca) };
        let answer = small::fetch(&request, MAX_TOKEN, patience, machine, note)?.bytes;
        let token = token(&answer).ok_or_else(|| self.refused("the registry's token server returned no token"))?;
        Ok(Secret::from(format!("Bearer {token}")))
    }

    /// Returns the URL to request a token from. Each scope is a parameter of its own (CNCF Distribution, "Token
    /// Authentication Specification", "Requesting a Token").
    fn token_url(&self, realm: &str, service: Option<&str>, scopes: &[String]) -> Result<Url, Error> {
        let url = Url::parse(realm).ok().filter(|url| url.scheme() == "https");
        let mut url = url.ok_or_else(|| {
            let realm = shown(realm);
            self.refused(format!("the URL of the registry's token server, {realm:?}, does not start with https://"))
        })?;
        let pull = [format!("repository:{}:pull", self.reference.repository)];
        {
            let mut query = url.query_pairs_mut();
            service.into_iter().for_each(|service| _ = query.append_pair("service", service));
            let scopes = if scopes.is_empty() { &pull } else { scopes };
            scopes.iter().for_each(|scope| _ = query.append_pair("scope", scope));
        }
        Ok(url)
    }

    fn at(&self, path: &str) -> String {
        format!("https://{}/v2/{}/{path}", self.reference.registry, self.reference.repository)
    }

    fn refused(&self, reason: impl Into<String>) -> Error {
        let OciReference { registry, repository, version, .. } = &self.reference;
        let mark = if matches!(version, OciVersion::Tag(_)) { ':' } else { '@' };
        Error::Source(SourceError::Artifact {
            what: self.what,
            url: format!("oci://{registry}/{repository}{mark}{version}"),
            reason: reason.into(),
        })
    }
}

impl FetchError {
    /// The challenges in a 401 response.
    pub(crate) fn challenges(&self) -> &[Challenge] {
        match self {
            FetchError::Status { status: StatusCode::UNAUTHORIZED, refusal } => &refusal.challenges,
            _ => &[],
        }
    }
}

/// Returns the names of the first few authentication schemes that are not supported.
fn names(challenges: &[Challenge]) -> String {
    const SHOWN: usize = 5;
    let names = challenges.iter().filter_map(|challenge| match challenge {
        Challenge::Other(name) => Some(name.as_str()),
        Challenge::Basic | Challenge::Bearer { .. } => None,
    });
    names.take(SHOWN).collect::<Vec<&str>>().join(", ")
}

/// Returns this machine's architecture as image indexes spell it, with Go's names (image-index.md, "platform").
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
