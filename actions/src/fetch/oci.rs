//! Artifacts in registries: logging in, and finding the blob that is wanted.
//!
//! OCI distribution specification, "Pull"; OCI image specification, manifest.md and image-index.md; the token dance is that of
//! the "Token Authentication Specification" of CNCF Distribution, the login RFC 7617.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::{StatusCode, Url};
use serde_json::Value;
use slipway_protocol::{Digest, OciReference, OciVersion, RegistryAuth, Secret};

use super::challenge::{self, Challenge};
use super::small::{self, Small};
use super::{FetchError, Request};
use crate::error::{Error, SourceError};
use crate::machine::Machine;
use crate::stream::digest;

/// Most bytes of a manifest or an index. Those of images have a few thousand; the four millions that the distribution specification
/// has could take hundreds of millions of memory once they are read.
const MAX_MANIFEST: usize = 256 << 10;
/// Most bytes of an answer with a token.
const MAX_TOKEN: usize = 64 << 10;
const ACCEPT: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
                      application/vnd.docker.distribution.manifest.v2+json, \
                      application/vnd.docker.distribution.manifest.list.v2+json";
/// Configurations of container images, whose layers are archives of files and no images of disks.
const CONTAINER: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
const TITLE: &str = "org.opencontainers.image.title";

/// An artifact, and what its registry wants to see before it is handed out.
pub(crate) struct Registry<'a> {
    /// What is looked for, in a word.
    what: &'static str,
    reference: OciReference,
    ca: Option<&'a str>,
    auth: Option<&'a RegistryAuth>,
    /// Value of the `Authorization` header, once the registry has asked for one.
    authorization: Option<Secret>,
}

/// The part of an artifact that is wanted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Blob {
    pub(crate) digest: Digest,
    /// Size in bytes.
    pub(crate) size: u64,
}

impl<'a> Registry<'a> {
    /// The registry of an artifact, before anything was asked.
    pub(crate) fn new(
        what: &'static str,
        reference: OciReference,
        ca: Option<&'a str>,
        auth: Option<&'a RegistryAuth>,
    ) -> Self {
        Self { what, reference, ca, auth, authorization: None }
    }

    /// What to send along with a request.
    pub(crate) fn authorization(&self) -> Option<&Secret> {
        self.authorization.as_ref()
    }

    /// Where a blob of the artifact is.
    pub(crate) fn url(&self, blob: &Blob) -> String {
        self.at(&format!("blobs/{}", blob.digest))
    }

    /// Finds the blob that is wanted, for this machine where the artifact has several. The registry may fail for as long as
    /// `patience`.
    pub(crate) fn find(&mut self, patience: Duration, machine: &dyn Machine) -> Result<Blob, Error> {
        let version = self.reference.version.clone();
        let expected = match &version {
            OciVersion::Digest(digest) => Some(digest.clone()),
            OciVersion::Tag(_) => None,
        };
        let mut manifest = self.manifest(&version.to_string(), expected, patience, machine)?;
        if let Some(index) = manifest.get("manifests").and_then(Value::as_array) {
            let digest = of_platform(index, architecture()).map_err(|reason| self.refused(reason))?;
            manifest = self.manifest(&digest.to_string(), Some(digest.clone()), patience, machine)?;
        }
        blob(&manifest, self.reference.title.as_deref()).map_err(|reason| self.refused(reason))
    }

    fn manifest(
        &mut self,
        version: &str,
        expected: Option<Digest>,
        patience: Duration,
        machine: &dyn Machine,
    ) -> Result<Value, Error> {
        let url = self.at(&format!("manifests/{version}"));
        let Small { bytes, content_digest } = self.get(&url, patience, machine)?;
        let told = content_digest.and_then(|digest| digest.parse().ok());
        for expected in expected.iter().chain(&told) {
            digest::verify("the manifest", expected, &bytes)?;
        }
        serde_json::from_slice(&bytes).map_err(|error| self.refused(format!("its manifest is no JSON: {error}")))
    }

    /// Fetches a manifest; logs in where the registry wants that.
    fn get(&mut self, url: &str, patience: Duration, machine: &dyn Machine) -> Result<Small, Error> {
        let once = |this: &Self| {
            let authorization = this.authorization.as_ref();
            let request = Request { accept: Some(ACCEPT), authorization, ..Request::new(url, this.ca) };
            small::fetch(&request, MAX_MANIFEST, patience, machine)
        };
        match once(self) {
            Err(Error::Source(SourceError::Fetch { source, .. })) if source.challenge().is_some() => {
                self.log_in(source.challenge().unwrap_or_default(), patience, machine)?;
                once(self)
            }
            other => other,
        }
    }

    /// Gets what an answer of 401 asks for in its `WWW-Authenticate` header.
    pub(crate) fn log_in(&mut self, header: &str, patience: Duration, machine: &dyn Machine) -> Result<(), Error> {
        let basic = self.auth.map(|auth| {
            let login = STANDARD.encode(format!("{}:{}", auth.username, auth.password.reveal()));
            Secret::from(format!("Basic {login}"))
        });
        self.authorization = match challenge::parse(header) {
            Some(Challenge::Basic) if basic.is_some() => basic,
            Some(Challenge::Basic) => return Err(self.refused("the registry wants a login: give registry_auth")),
            Some(Challenge::Bearer { realm, service, scope }) => {
                let url = self.token_url(&realm, service.as_deref(), scope.as_deref())?;
                let request = Request { authorization: basic.as_ref(), ..Request::new(url.as_str(), self.ca) };
                let answer = small::fetch(&request, MAX_TOKEN, patience, machine)?.bytes;
                let token = token(&answer).ok_or_else(|| self.refused("the registry's token server gave no token"))?;
                Some(Secret::from(format!("Bearer {token}")))
            }
            None => {
                return Err(
                    self.refused("the registry asks for a login in neither of the ways known, Basic and Bearer")
                );
            }
        };
        Ok(())
    }

    fn token_url(&self, realm: &str, service: Option<&str>, scope: Option<&str>) -> Result<Url, Error> {
        let url = Url::parse(realm).ok().filter(|url| url.scheme() == "https");
        let mut url = url.ok_or_else(|| self.refused("the registry's token server is not at https://"))?;
        let pull = format!("repository:{}:pull", self.reference.repository);
        {
            let mut query = url.query_pairs_mut();
            service.into_iter().for_each(|service| _ = query.append_pair("service", service));
            query.append_pair("scope", scope.unwrap_or(&pull));
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
    /// What a server that answers 401 wants to see.
    pub(crate) fn challenge(&self) -> Option<&str> {
        match self {
            FetchError::Status { status: StatusCode::UNAUTHORIZED, refusal } => refusal.challenge.as_deref(),
            _ => None,
        }
    }
}

/// This machine's architecture as image indexes name it: by Go's names (image-index.md, "platform").
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The token in the answer of a token server, which has it under either name.
pub(crate) fn token(answer: &[u8]) -> Option<String> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let token = answer.get("token").or_else(|| answer.get("access_token"))?;
    Some(token.as_str().filter(|token| !token.is_empty())?.to_owned())
}

/// The one manifest of an index that is for Linux on this architecture, or the only one if it is for any.
pub(crate) fn of_platform(index: &[Value], architecture: &str) -> Result<Digest, String> {
    let field = |entry: &Value, name: &str| {
        entry.get("platform").and_then(|platform| platform.get(name)).and_then(Value::as_str).map(str::to_owned)
    };
    let wanted = format!("linux/{architecture}");
    let platforms: Vec<String> = index
        .iter()
        .map(|entry| match (field(entry, "os"), field(entry, "architecture")) {
            (Some(os), Some(architecture)) => format!("{os}/{architecture}"),
            _ => "any".to_owned(),
        })
        .collect();
    let mut matching = index.iter().zip(&platforms).filter(|(_, platform)| **platform == wanted);
    let only = index.first().filter(|_| platforms == ["any"]);
    match (matching.next(), matching.next(), only) {
        (Some((entry, _)), None, _) | (None, None, Some(entry)) => digest_of(entry),
        (None, ..) => Err(format!("it has nothing for {wanted}, but for {}", listed(&platforms))),
        (Some(_), Some(_), _) => Err(format!("it has several for {wanted}: name one by its digest")),
    }
}

/// The layer of a manifest that is wanted: the one of this title, or the only one.
pub(crate) fn blob(manifest: &Value, title: Option<&str>) -> Result<Blob, String> {
    let config = manifest.get("config").and_then(|config| config.get("mediaType")).and_then(Value::as_str);
    if config.is_some_and(|config| CONTAINER.contains(&config)) {
        return Err(
            "it is a container image, not a file; push the file as an artifact, such as by oras push".to_owned()
        );
    }
    let layers = manifest.get("layers").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let title_of = |layer: &Value| {
        let title = layer.get("annotations").and_then(|annotations| annotations.get(TITLE)).and_then(Value::as_str);
        title.unwrap_or("without a title").to_owned()
    };
    let mut matching = layers.iter().filter(|layer| title.is_none_or(|title| title_of(layer) == title));
    match (matching.next(), matching.next()) {
        (Some(layer), None) => {
            let size = layer.get("size").and_then(Value::as_u64).ok_or("its manifest does not say how large it is")?;
            Ok(Blob { digest: digest_of(layer)?, size })
        }
        (None, _) if layers.is_empty() => Err("it has no files".to_owned()),
        (found, _) => {
            let titles: Vec<String> = layers.iter().map(title_of).collect();
            let which = if found.is_some() { "several files" } else { "no file of that title" };
            Err(format!("it has {which}, of {}: name one with #TITLE at the end of the URL", listed(&titles)))
        }
    }
}

fn digest_of(descriptor: &Value) -> Result<Digest, String> {
    let text = descriptor.get("digest").and_then(Value::as_str).ok_or("its manifest has an entry without a digest")?;
    text.parse().map_err(|error| format!("its manifest has an entry with a wrong digest: {error}"))
}

/// The first of some texts from a registry, which may be many and long.
fn listed(texts: &[String]) -> String {
    const SHOWN: usize = 5;
    const LONGEST: usize = 64;
    let shown = texts.iter().take(SHOWN).map(|text| format!("{:?}", text.chars().take(LONGEST).collect::<String>()));
    shown.collect::<Vec<String>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn hex(digit: char) -> String {
        format!("sha256:{}", digit.to_string().repeat(64))
    }

    #[test]
    fn the_manifest_of_an_index_is_that_of_this_architecture() {
        let check = |index: Value, expect: Result<char, &str>| {
            let found = of_platform(index.as_array().unwrap(), "arm64").map(|digest| digest.to_string());
            match expect {
                Ok(digit) => assert_eq!(found, Ok(hex(digit))),
                Err(part) => assert!(found.as_ref().is_err_and(|reason| reason.contains(part)), "{found:?}"),
            }
        };
        let entry = |digit, os: &str, architecture: &str| json!({"digest": hex(digit), "platform": {"os": os, "architecture": architecture}});
        let (amd, arm, other) =
            (entry('a', "linux", "amd64"), entry('b', "linux", "arm64"), entry('c', "unknown", "unknown"));
        check(json!([amd, arm, other]), Ok('b'));
        check(json!([{"digest": hex('d')}]), Ok('d'));
        check(json!([amd, other]), Err("it has nothing for linux/arm64, but for \"linux/amd64\", \"unknown/unknown\""));
        check(json!([amd]), Err("it has nothing for linux/arm64"));
        check(json!([arm, arm]), Err("it has several for linux/arm64"));
        check(json!([]), Err("it has nothing for linux/arm64"));
        check(json!([{"digest": 7}]), Err("an entry without a digest"));
    }

    #[test]
    fn the_image_is_the_only_layer_or_the_one_of_the_title() {
        let check = |layers: Value, title: Option<&str>, expect: Result<char, &str>| {
            let manifest = json!({"config": {"mediaType": "application/vnd.oci.empty.v1+json"}, "layers": layers});
            let found = blob(&manifest, title).map(|blob| (blob.digest.to_string(), blob.size));
            match expect {
                Ok(digit) => assert_eq!(found, Ok((hex(digit), 7))),
                Err(part) => assert!(found.as_ref().is_err_and(|reason| reason.contains(part)), "{found:?}"),
            }
        };
        let layer = |digit, title: &str| json!({"digest": hex(digit), "size": 7, "annotations": {TITLE: title}});
        let (image, notes) = (layer('a', "image.raw"), layer('b', "notes.txt"));
        check(json!([image]), None, Ok('a'));
        check(json!([image, notes]), Some("notes.txt"), Ok('b'));
        check(json!([image, notes]), None, Err("several files, of \"image.raw\", \"notes.txt\""));
        check(json!([image]), Some("image"), Err("no file of that title, of \"image.raw\""));
        check(json!([image, image]), Some("image.raw"), Err("several files"));
        check(json!([]), None, Err("it has no files"));
        check(json!(7), None, Err("it has no files"));
        check(json!([{"digest": hex('a')}]), None, Err("does not say how large"));
        check(json!([{"digest": "sha256:../x", "size": 7}]), None, Err("an entry with a wrong digest"));
        let container = json!({"config": {"mediaType": CONTAINER[0]}, "layers": [image]});
        assert!(blob(&container, None).unwrap_err().contains("it is a container image"));
    }
}
