//! References to OCI artifacts: `oci://REGISTRY/REPOSITORY:TAG` or `oci://REGISTRY/REPOSITORY@ALGORITHM:HEX`. Either
//! may end with `#TITLE`, which selects one of several files.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::shared::digest::Digest;

/// The beginning of a reference.
pub const SCHEME: &str = "oci://";
/// The length of the longest tag (OCI distribution specification, "Pulling manifests").
const MAX_TAG: usize = 128;

/// An artifact in a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OciReference {
    /// The host, with a port if it is not 443.
    pub registry: String,
    /// The name of the repository.
    pub repository: String,
    /// Selects an artifact of the repository.
    pub version: OciVersion,
    /// Selects a file of the artifact, by the annotation `org.opencontainers.image.title` of its layer.
    pub title: Option<String>,
}

/// Selects an artifact of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OciVersion {
    /// The artifact that a tag points to.
    Tag(String),
    /// The artifact whose manifest or index has this digest.
    Digest(Digest),
}

impl fmt::Display for OciVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OciVersion::Tag(tag) => f.write_str(tag),
            OciVersion::Digest(digest) => digest.fmt(f),
        }
    }
}

/// The reason why a text is not a reference to an artifact.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}; an artifact is oci://REGISTRY/REPOSITORY:TAG or oci://REGISTRY/REPOSITORY@sha256:HEX")]
pub struct OciReferenceError {
    /// The problem of the text.
    pub reason: String,
}

impl FromStr for OciReference {
    type Err = OciReferenceError;

    fn from_str(text: &str) -> Result<Self, OciReferenceError> {
        let refused = |reason: &str| OciReferenceError { reason: reason.to_owned() };
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| refused("it does not begin with oci://"))?;
        let (rest, title) = match rest.split_once('#') {
            Some((rest, title)) => (rest, Some(title.to_owned())),
            None => (rest, None),
        };
        let (registry, path) = rest.split_once('/').ok_or_else(|| refused("it has no repository"))?;
        let (repository, version) = match path.split_once('@') {
            Some((repository, digest)) => {
                // If another @ follows, the text before that @ is probably the end of a password.
                let is_secret = digest.contains('@') || title.as_ref().is_some_and(|title| title.contains('@'));
                let digest = digest.parse().map_err(|error: crate::shared::digest::DigestError| match is_secret {
                    true => refused("the text after its @ is not a digest"),
                    false => refused(&error.to_string()),
                })?;
                (repository, OciVersion::Digest(digest))
            }
            None => {
                let (repository, tag) =
                    path.rsplit_once(':').ok_or_else(|| refused("it has neither tag nor digest"))?;
                (repository, OciVersion::Tag(tag.to_owned()))
            }
        };
        match &version {
            _ if !is_host(registry) => Err(refused("its registry is not a host name")),
            _ if !is_repository(repository) => Err(refused("its repository is not a valid name in lower case")),
            OciVersion::Tag(tag) if !is_tag(tag) => Err(refused("its tag is not valid")),
            _ if title.as_ref().is_some_and(String::is_empty) => Err(refused("its title is empty")),
            _ => Ok(Self { registry: registry.to_owned(), repository: repository.to_owned(), version, title }),
        }
    }
}

fn is_host(host: &str) -> bool {
    let is_port =
        |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
    // An IPv6 address has colons of its own.
    let (host, port) = match host.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (host, None),
    };
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_label =
        |label: &str| !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let is_known = match address {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => host.split('.').all(is_label),
    };
    is_known && port.is_none_or(is_port)
}

fn is_repository(name: &str) -> bool {
    let is_part = |part: &str| {
        let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        part.bytes().all(|byte| is_alphanumeric(byte) || matches!(byte, b'.' | b'_' | b'-'))
            && part.bytes().next().is_some_and(is_alphanumeric)
            && part.bytes().next_back().is_some_and(is_alphanumeric)
    };
    name.split('/').all(is_part)
}

fn is_tag(tag: &str) -> bool {
    tag.len() <= MAX_TAG
        && tag.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
        && !tag.is_empty()
        && !tag.starts_with(['.', '-'])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks registry, repository, version and title, or a part of the message.
    fn check(text: &str, expect: Result<[&str; 4], &str>) {
        let found = text.parse::<OciReference>();
        match expect {
            Ok([registry, repository, version, title]) => {
                let found = found.expect(text);
                assert_eq!((found.registry.as_str(), found.repository.as_str()), (registry, repository));
                assert_eq!(
                    (found.version.to_string().as_str(), found.title.as_deref().unwrap_or("")),
                    (version, title)
                );
            }
            Err(part) => {
                let message = found.expect_err(text).to_string();
                assert!(message.contains(part), "{text}: {message}");
            }
        }
    }

    #[test]
    fn a_reference_has_registry_repository_and_a_tag_or_a_digest() {
        let digest = format!("sha256:{}", "a".repeat(64));
        check("oci://ghcr.io/org/os_images/debian:12.9", Ok(["ghcr.io", "org/os_images/debian", "12.9", ""]));
        check("oci://localhost:5000/debian:12#image.raw.zst", Ok(["localhost:5000", "debian", "12", "image.raw.zst"]));
        check("oci://[::1]:5000/a:b", Ok(["[::1]:5000", "a", "b", ""]));
        check("oci://[::1]/a:b", Ok(["[::1]", "a", "b", ""]));
        check(&format!("oci://r.example/a/b@{digest}"), Ok(["r.example", "a/b", &digest, ""]));
        check("https://r.example/a:b", Err("does not begin with oci://"));
        check("oci://r.example", Err("no repository"));
        check("oci://r.example/a", Err("neither tag nor digest"));
        check("oci://r.example/a@sha256:00", Err("has 2 digits after the colon"));
        check(&format!("oci://r.example/a:b@{digest}"), Err("repository is not a valid name"));
        for name in ["", "A", "a//b", "/a", "a/", "../a", "a/..", "a b", "a?b", "a%2f"] {
            check(&format!("oci://r.example/{name}:b"), Err("repository is not a valid name"));
        }
        for tag in ["", ".a", "a/b", "a b", "a?b", &"a".repeat(129)] {
            check(&format!("oci://r.example/a:{tag}"), Err("tag is not valid"));
        }
        let ports = ["r.example:", "r.example:0", "r.example:99999", "r.example:+443"];
        for host in
            ["", "user:secret@r.example", ".", "..", "r..example", "[::1", "[.]", "a b"].into_iter().chain(ports)
        {
            check(&format!("oci://{host}/a:b"), Err("registry is not a host name"));
        }
        check("oci://r.example/a:b#", Err("title is empty"));
    }
}
