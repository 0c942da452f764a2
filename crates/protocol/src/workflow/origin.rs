//! The source of a download, and the proof that it is the right one.

use std::net::Ipv6Addr;
use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};

use crate::shared::digest::Digest;
use crate::shared::oci::OciReference;
use crate::shared::secret::Secret;

/// The keys of an action that downloads something. Images, archives and files have the same keys.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// The kind of the download, in one word: "image".
    pub what: &'static str,
    /// The URL that is asked first.
    pub url: &'a str,
    /// Further URLs of the same bytes, in the order in which they are asked.
    pub mirrors: &'a [String],
    /// The login at the registry of `url`.
    pub registry_auth: Option<&'a RegistryAuth>,
    /// The digest of the stream as delivered.
    pub digest: Option<&'a Digest>,
    /// The URL of a list of sums that has the digest.
    pub sums: Option<&'a str>,
    /// The signature of the list of sums if there is one, otherwise of the stream as delivered.
    pub signature: Option<&'a DetachedSignature>,
    /// CA certificates in PEM to trust in addition to the server's own.
    pub ca: Option<&'a str>,
}

impl<'a> Origin<'a> {
    /// Returns whether a digest or a signature checks the stream. An artifact has its digest in the registry.
    pub fn is_verified(&self) -> bool {
        self.is_artifact() || self.digest.is_some() || self.sums.is_some() || self.signature.is_some()
    }

    /// Returns whether this is an OCI artifact.
    pub fn is_artifact(&self) -> bool {
        Location::of(self.url) == Some(Location::Artifact)
    }

    /// Returns all URLs, in the order in which they are asked.
    pub fn places(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        std::iter::once(self.url).chain(self.mirrors.iter().map(String::as_str))
    }

    /// Returns the problems of these keys. Each completes a sentence that begins with the name of the step.
    /// `is_verified` says whether the download is proved to be the right one, by these keys or by further ones.
    pub(super) fn validate(&self, is_verified: bool) -> Vec<String> {
        let is_open = |url: &str| Location::of(url) == Some(Location::Http);
        let mut problems: Vec<String> = self.places().filter_map(place_problem).collect();
        let lists = [self.sums, self.signature.map(|signature| signature.url.as_str())];
        problems.extend(lists.into_iter().flatten().filter_map(url_problem));
        if self.places().any(is_open) && !is_verified {
            problems.push("fetches over http:// without a digest: give one, or use https://".to_owned());
        }
        if self.digest.is_some() && self.sums.is_some() {
            problems.push("has a digest and a list of sums: give only one of them".to_owned());
        }
        if self.sums.is_some_and(is_open) && self.signature.is_none() {
            let remedy = "give its signature, or use https://";
            problems.push(format!("fetches the list of sums over http:// without a signature: {remedy}"));
        }
        if self.is_artifact() && self.sums.is_some() {
            problems.push("has a list of sums for an OCI artifact, which has its digest in its manifest".to_owned());
        }
        if self.mirrors.iter().any(|mirror| (Location::of(mirror) == Some(Location::Artifact)) != self.is_artifact()) {
            problems.push("has an OCI artifact and another kind of URL as mirrors of each other".to_owned());
        }
        if !self.is_artifact() && self.registry_auth.is_some() {
            problems.push("has a login at a registry, but its url is not oci://".to_owned());
        }
        problems
    }
}

fn place_problem(url: &str) -> Option<String> {
    if Location::of(url) != Some(Location::Artifact) {
        return url_problem(url);
    }
    let error = url.parse::<OciReference>().err()?;
    Some(format!("fetches {:?}: {error}", shown_url(url)))
}

/// Returns the problem of the URL of a single file.
pub(super) fn url_problem(url: &str) -> Option<String> {
    let unknown = "which is neither https://, http:// nor file://, nor an absolute path";
    let wrong = if Location::is_plain(url) { server_problem(url)? } else { unknown };
    Some(format!("fetches {:?}, {wrong}", shown_url(url)))
}

/// Returns the problem of the server and port of a URL (RFC 3986, section 3.2). An address with a zone, such as
/// `[fe80::1%25eth0]`, is not accepted by HTTP clients (WHATWG URL, section 3.5), and each machine names its interfaces
/// in its own way.
fn server_problem(url: &str) -> Option<&'static str> {
    if !matches!(Location::of(url), Some(Location::Https | Location::Http)) {
        return None;
    }
    // HTTP clients drop such characters silently (WHATWG URL, section 4.4), and would fetch another file.
    if url.contains(char::is_control) || url.trim() != url {
        return Some("which has a line break or another control character, or blanks at its end");
    }
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
    let (host, port) = match place.strip_prefix('[').map(|place| place.split_once(']')) {
        Some(None) => return Some("whose IPv6 address has no closing bracket"),
        Some(Some((address, _))) if address.contains('%') => {
            return Some("whose IPv6 address has a zone: give an address that needs none, or a name");
        }
        Some(Some((address, _))) if address.parse::<Ipv6Addr>().is_err() => {
            return Some("whose address in brackets is not an IPv6 address");
        }
        Some(Some((address, port))) => (address, port.strip_prefix(':').unwrap_or(port)),
        None => place.split_once(':').unwrap_or((place, "")),
    };
    if host.is_empty() {
        return Some("which names no server");
    }
    (!port.is_empty() && port.parse::<NonZeroU16>().is_err())
        .then_some("whose port is not a number from 1 to 65535; an IPv6 address stands in brackets")
}

/// Where a URL leads. Every decision that depends on the scheme of a URL is made with this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location<'a> {
    /// `https://`
    Https,
    /// `http://`
    Http,
    /// The path of a `file://` URL, or an absolute path. It is taken as written, without percent-decoding.
    File(&'a str),
    /// An OCI artifact in a registry, `oci://REGISTRY/REPOSITORY`.
    Artifact,
}

impl<'a> Location<'a> {
    /// Returns where a URL leads, or None for a URL that slipway cannot download.
    pub fn of(url: &'a str) -> Option<Self> {
        match url.split_once("://") {
            Some(("https", _)) => Some(Self::Https),
            Some(("http", _)) => Some(Self::Http),
            Some(("file", path)) => Some(Self::File(path)),
            Some(("oci", _)) => Some(Self::Artifact),
            _ => url.starts_with('/').then_some(Self::File(url)),
        }
    }

    /// Returns whether slipway can download a URL, and the URL is not an artifact in a registry.
    pub fn is_plain(url: &'a str) -> bool {
        Self::of(url).is_some_and(|location| location != Self::Artifact)
    }

    /// Returns the path of a local file, or nothing if the URL leads elsewhere.
    pub fn local_path(url: &'a str) -> Option<&'a str> {
        match Self::of(url) {
            Some(Self::File(path)) => Some(path),
            _ => None,
        }
    }
}

/// Returns a refused URL or a reference to an artifact in a form for messages. It leaves out user, password, query and
/// fragment, because they may hold secrets.
pub fn shown_url(url: &str) -> String {
    let is_scheme = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let scheme =
        url.split_once("://").filter(|(scheme, _)| is_scheme(scheme)).map_or(0, |(scheme, _)| scheme.len() + 3);
    let (scheme, rest) = url.split_at(scheme);
    let (bare, behind) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    if behind.contains('@') {
        // The `?` or `#` may be part of a password.
        return format!("{scheme}...");
    }
    // The digest of an artifact also follows an @.
    let is_digest = |text: &str| text.parse::<Digest>().is_ok();
    let at = bare.rfind('@').filter(|at| is_digest(&bare[at + 1..])).unwrap_or(bare.len());
    let (place, digest) = bare.split_at(at);
    format!("{scheme}{}{digest}", place.rsplit('@').next().unwrap_or_default())
}

/// A login at a registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RegistryAuth {
    /// The name of the user, without a colon.
    pub username: String,
    /// The password, or a token in its place.
    pub password: Secret,
}

/// A signature in a file of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DetachedSignature {
    /// The URL of the signature. It is a minisign signature if the key is a minisign key, otherwise 64 bytes of
    /// Ed25519, raw or in base64. `http://` is allowed.
    pub url: String,
    /// The key that verifies the signature: a minisign public key, or an Ed25519 public key as PEM, base64 or
    /// hexadecimal digits.
    pub public_key: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workflow::tests::check;
    use crate::{Action, Algorithm, StreamImage, UnpackArchive, WriteFile};

    fn digest() -> Option<Digest> {
        Digest::new(Algorithm::Sha256, &"a".repeat(64)).ok()
    }

    fn image(url: &str) -> StreamImage {
        StreamImage { url: url.to_owned(), ..StreamImage::default() }
    }

    const CLEAR: &str = "fetches over http:// without a digest: give one, or use https://";

    #[test]
    fn what_is_fetched_comes_from_where_that_can_be_done_and_checked() {
        for url in ["https://s/x", "file:///x", "/x"] {
            check(Action::StreamImage(image(url)), &[]);
        }
        check(Action::StreamImage(StreamImage { digest: digest(), ..image("http://s/x") }), &[]);
        check(Action::StreamImage(StreamImage { raw_digest: digest(), ..image("http://s/x") }), &[]);
        check(Action::StreamImage(image("http://s/x")), &[CLEAR]);
        let mirrored = |mirror: &str, digest| {
            let mirrors = vec!["https://m/x".to_owned(), mirror.to_owned()];
            Action::StreamImage(StreamImage { mirrors, digest, ..image("/x") })
        };
        check(mirrored("http://s/x", digest()), &[]);
        check(mirrored("http://s/x", None), &[CLEAR]);
        let unknown = "fetches \"s/x\", which is neither https://, http:// nor file://, nor an absolute path";
        check(mirrored("s/x", None), &[unknown]);
        check(mirrored("oci://r/a:b", None), &["has an OCI artifact and another kind of URL as mirrors of each other"]);
        for url in ["", "x", "ftp://s/x", "s/x", "HTTP://s/x", " https://s/x"] {
            let problem =
                format!("fetches {url:?}, which is neither https://, http:// nor file://, nor an absolute path");
            check(Action::StreamImage(StreamImage { digest: digest(), ..image(url) }), &[&problem]);
        }
    }

    #[test]
    fn a_url_names_a_server_that_can_be_asked() {
        for url in [
            "https://s:8443/x",
            "https://s:/x",
            "https://[2001:db8::5]/x",
            "https://[fe80::1]:8443?x=a:b",
            "https://u:p:q@s/[fe80::1%25eth0]",
            "https://bücher.example/x",
        ] {
            check(Action::StreamImage(image(url)), &[]);
        }
        let zone = "whose IPv6 address has a zone: give an address that needs none, or a name";
        let port = "whose port is not a number from 1 to 65535; an IPv6 address stands in brackets";
        let control = "which has a line break or another control character, or blanks at its end";
        for (url, problem) in [
            ("https://[fe80::1%25eth0]:8443/x", zone),
            ("https://[fe80::1%eth0]/x", zone),
            ("https://[fe80::1/x", "whose IPv6 address has no closing bracket"),
            ("https://[s]/x", "whose address in brackets is not an IPv6 address"),
            ("https://2001:db8::5/x", port),
            ("https://s:65536/x", port),
            ("https://s:0/x", port),
            ("https://s/x\n", control),
            ("https://s/a\tb", control),
            ("https://s/x ", control),
            ("https://s:https/x", port),
            ("https:///x", "which names no server"),
            ("https://:8443/x", "which names no server"),
            ("https://", "which names no server"),
        ] {
            check(Action::StreamImage(image(url)), &[&format!("fetches {url:?}, {problem}")]);
        }
    }

    #[test]
    fn archives_and_files_come_from_where_images_do() {
        let url = || "http://s/x".to_owned();
        let (mirrors, sums) = (vec!["https://m/x".to_owned()], Some("https://s/SUMS".to_owned()));
        let archive = UnpackArchive { url: url(), ..UnpackArchive::default() };
        let file = WriteFile { path: "/x".to_owned(), url: Some(url()), ..WriteFile::default() };
        check(Action::UnpackArchive(archive.clone()), &[CLEAR]);
        check(Action::WriteFile(file.clone()), &[CLEAR]);
        check(
            Action::UnpackArchive(UnpackArchive { mirrors: mirrors.clone(), sums: sums.clone(), ..archive.clone() }),
            &[],
        );
        check(Action::WriteFile(WriteFile { mirrors: mirrors.clone(), sums: sums.clone(), ..file.clone() }), &[]);
        let both = "has a digest and a list of sums: give only one of them";
        check(Action::UnpackArchive(UnpackArchive { sums: sums.clone(), digest: digest(), ..archive }), &[both]);
        check(Action::WriteFile(WriteFile { sums: sums.clone(), digest: digest(), ..file }), &[both]);
        let content = || WriteFile { path: "/x".to_owned(), content: Some(String::new()), ..WriteFile::default() };
        let lost = "has mirrors, a registry_auth, a digest, sums, a signature or a ca without a url that they apply to";
        check(Action::WriteFile(WriteFile { mirrors, ..content() }), &[lost]);
        check(Action::WriteFile(WriteFile { sums, ..content() }), &[lost]);
        check(Action::WriteFile(WriteFile { ca: Some(String::new()), ..content() }), &[lost]);
    }

    #[test]
    fn lists_of_sums_and_signatures_are_such_that_can_be_believed() {
        let with = |url: &str, sums: Option<&str>, signed: bool| StreamImage {
            sums: sums.map(str::to_owned),
            signature: signed
                .then(|| DetachedSignature { url: "http://s/sig".to_owned(), ..DetachedSignature::default() }),
            ..image(url)
        };
        for sums in ["https://s/SUMS", "file:///SUMS", "/SUMS"] {
            check(Action::StreamImage(with("http://s/x", Some(sums), false)), &[]);
        }
        check(Action::StreamImage(with("http://s/x", Some("http://s/SUMS"), true)), &[]);
        check(Action::StreamImage(with("http://s/x", None, true)), &[]);
        let unsigned = "fetches the list of sums over http:// without a signature: give its signature, or use https://";
        check(Action::StreamImage(with("https://s/x", Some("http://s/SUMS"), false)), &[unsigned]);
        let both = StreamImage { digest: digest(), ..with("https://s/x", Some("https://s/SUMS"), false) };
        check(Action::StreamImage(both), &["has a digest and a list of sums: give only one of them"]);
        let unknown = "fetches \"SUMS\", which is neither https://, http:// nor file://, nor an absolute path";
        check(Action::StreamImage(with("https://s/x", Some("SUMS"), false)), &[unknown]);
    }

    #[test]
    fn an_artifact_in_a_registry_is_named_by_tag_or_digest() {
        check(Action::StreamImage(image("oci://r.example/a:b")), &[]);
        let problem = "fetches \"oci://r.example/a\": it has neither tag nor digest; an artifact is \
                       oci://REGISTRY/REPOSITORY:TAG or oci://REGISTRY/REPOSITORY@sha256:HEX";
        check(Action::StreamImage(image("oci://r.example/a")), &[problem]);
        let login = || Some(RegistryAuth { username: "u".to_owned(), password: Secret::from("hidden".to_owned()) });
        let with_login = StreamImage { registry_auth: login(), ..image("oci://r.example/a:b") };
        assert!(!format!("{with_login:?}").contains("hidden"));
        check(Action::StreamImage(with_login), &[]);
        let elsewhere = StreamImage { registry_auth: login(), ..image("https://r.example/a:b") };
        check(Action::StreamImage(elsewhere), &["has a login at a registry, but its url is not oci://"]);
        let mirrored = |mirror: &str| StreamImage { mirrors: vec![mirror.to_owned()], ..image("oci://r.example/a:b") };
        check(Action::StreamImage(mirrored("oci://m.example/a:b")), &[]);
        let problem = problem.replace("r.example/a\"", "m.example/a\"");
        check(Action::StreamImage(mirrored("oci://m.example/a")), &[&problem]);
        let more = StreamImage {
            mirrors: vec!["https://m/x".to_owned()],
            sums: Some("https://m/SUMS".to_owned()),
            ..image("oci://r.example/a:b")
        };
        check(
            Action::StreamImage(more),
            &[
                "has a list of sums for an OCI artifact, which has its digest in its manifest",
                "has an OCI artifact and another kind of URL as mirrors of each other",
            ],
        );
    }

    #[test]
    fn what_is_refused_is_shown_without_secrets() {
        let sha256 = format!("sha256:{}", "a".repeat(64));
        for (url, expect) in [
            ("ftp://user:secret@s/x?secret#secret", "ftp://s/x".to_owned()),
            ("user:sec/ret@s/x", "s/x".to_owned()),
            ("HTTPS://user:sec@ret@s/x", "HTTPS://s/x".to_owned()),
            ("oci://user:secret@r/a:b", "oci://r/a:b".to_owned()),
            (&format!("oci://user:sec/ret@r/A@{sha256}#title"), format!("oci://r/A@{sha256}")),
            ("ftp://user:sec#ret@s/x", "ftp://...".to_owned()),
            ("user:sec?ret@s/x", "...".to_owned()),
            ("user:se://cret@s/x", "s/x".to_owned()),
            ("s/x", "s/x".to_owned()),
            ("", String::new()),
        ] {
            assert_eq!(shown_url(url), expect);
        }
        let problem = "fetches \"ftp://s/x\", which is neither https://, http:// nor file://, nor an absolute path";
        check(Action::StreamImage(image("ftp://user:secret@s/x?secret")), &[problem]);
        let problem = "fetches \"oci://r/A:b\": its registry is not a host name; an artifact is \
                       oci://REGISTRY/REPOSITORY:TAG or oci://REGISTRY/REPOSITORY@sha256:HEX";
        check(Action::StreamImage(image("oci://user:secret@r/A:b")), &[problem]);
        let problem = "fetches \"oci://r/a:b\": the text after its @ is not a digest; an artifact is \
                       oci://REGISTRY/REPOSITORY:TAG or oci://REGISTRY/REPOSITORY@sha256:HEX";
        check(Action::StreamImage(image("oci://user:se/cr@et@r/a:b")), &[problem]);
        let problem = problem.replace("oci://r/a:b", "oci://...");
        check(Action::StreamImage(image("oci://user:a/b@cret#x@r/a:b")), &[&problem]);
    }
}
