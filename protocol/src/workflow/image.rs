//! Where an image comes from, and what proves that it is the one meant.

use serde::{Deserialize, Serialize};

use super::url_problem;
use crate::{Digest, DiskHints, OciReference, Secret, oci};

pub(super) fn image_problems(image: &StreamImage) -> Vec<String> {
    let signature = image.signature.as_ref().map(|signature| &signature.url);
    let places = std::iter::once(&image.url).chain(&image.mirrors);
    let mut problems: Vec<String> = places.filter_map(|url| image_url_problem(url)).collect();
    let urls = [image.sums.as_ref(), image.bmap.as_ref(), signature];
    problems.extend(urls.into_iter().flatten().filter_map(|url| url_problem(url)));
    problems.extend(image.source_problems());
    problems.extend(image.disk.problems(false));
    problems
}

fn image_url_problem(url: &str) -> Option<String> {
    if !url.starts_with(oci::SCHEME) {
        return url_problem(url);
    }
    let error = url.parse::<OciReference>().err()?;
    Some(format!("fetches {url:?}: {error}"))
}

/// Inputs of `stream-image`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StreamImage {
    /// `https://`, `file://`, an absolute path, or an artifact in a registry, `oci://REGISTRY/REPOSITORY:TAG`; `http://` only with
    /// a digest.
    pub url: String,
    /// Login at the registry of an `oci://` artifact; without it, the artifact is pulled anonymously, as it is from mirrors in
    /// other registries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry_auth: Option<RegistryAuth>,
    /// Further places of the same bytes, asked in this order when `url` fails or gives something else; of an artifact, the same
    /// in other registries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<String>,
    /// Digest of the stream as delivered, compressed or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// In place of `digest`: where a list of sums is, as `sha256sum` and its kin write it, that has the digest beside the last
    /// part of `url`. `http://` only with a signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sums: Option<String>,
    /// Detached signature of the list of sums where there is one, else of the stream as delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<DetachedSignature>,
    /// Digest of the raw image, after decompression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_digest: Option<Digest>,
    /// `https://`, `file://` or absolute path of the block map of the raw image, as `bmaptool create` makes it. What it lists is checked
    /// against its digests; what it leaves out is not written, so that the disk keeps what it held there, but for the ends of the disk
    /// and of each partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bmap: Option<String>,
    /// Size of the raw image in bytes, for the progress display; the image may not be larger or smaller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_size: Option<u64>,
    /// What is checked beside what is written.
    #[serde(default, skip_serializing_if = "Verify::is_none")]
    pub verify: Verify,
    /// CA certificates in PEM to trust for this URL beside the server's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// Which disk.
    #[serde(default)]
    pub disk: DiskHints,
    /// Whether the last partition of the image and the file system in it grow to the end of the disk. Without it the disk
    /// has the image byte for byte, but for the place of the backup partition table.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    #[cfg_attr(feature = "openapi", schema(default = true))]
    pub grow: bool,
}

impl Default for StreamImage {
    fn default() -> Self {
        Self {
            url: String::new(),
            digest: None,
            raw_digest: None,
            bmap: None,
            raw_size: None,
            registry_auth: None,
            mirrors: Vec::new(),
            sums: None,
            signature: None,
            verify: Verify::None,
            ca: None,
            disk: DiskHints::default(),
            grow: true,
        }
    }
}

pub(super) fn yes() -> bool {
    true
}

pub(super) fn is_yes(value: &bool) -> bool {
    *value
}

/// How a written disk is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Verify {
    /// The disk is believed.
    #[default]
    None,
    /// Everything is read back from the disk, past the page cache, and compared.
    Readback,
}

impl Verify {
    fn is_none(&self) -> bool {
        *self == Verify::None
    }
}

impl StreamImage {
    /// Whether what arrives is checked against a digest or a signature; what is in a registry has its digest there. A block map is
    /// not counted: whether it has digests, and such that prove anything, is known only when it has been read.
    pub fn is_verified(&self) -> bool {
        let by_manifest = self.url.starts_with(oci::SCHEME);
        let by_digest = self.digest.is_some() || self.raw_digest.is_some() || self.sums.is_some();
        by_manifest || by_digest || self.signature.is_some()
    }

    /// What does not go together in where the image comes from and how it is verified, to be read after the name of the step.
    /// Has no URL in it, which may hold a secret.
    pub fn source_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let in_the_clear = std::iter::once(&self.url).chain(&self.mirrors).any(|url| url.starts_with("http://"));
        if in_the_clear && !self.is_verified() {
            problems.push("fetches over http:// without a digest: give one, or use https://".to_owned());
        }
        if self.digest.is_some() && self.sums.is_some() {
            problems.push("has a digest and a list of sums: give the one or the other".to_owned());
        }
        if self.sums.as_ref().is_some_and(|url| url.starts_with("http://")) && self.signature.is_none() {
            let remedy = "give its signature, or use https://";
            problems.push(format!("fetches the list of sums over http:// without a signature: {remedy}"));
        }
        if self.bmap.as_ref().is_some_and(|url| url.starts_with("http://")) {
            let danger = "where anybody can have it leave out what is to be written";
            problems.push(format!("fetches the block map over http://, {danger}: use https://"));
        }
        let is_artifact = self.url.starts_with(oci::SCHEME);
        if is_artifact && self.sums.is_some() {
            problems.push("has a list of sums for an OCI artifact, which has its digest in its manifest".to_owned());
        }
        if self.mirrors.iter().any(|mirror| mirror.starts_with(oci::SCHEME) != is_artifact) {
            problems.push("has an OCI artifact and something else for mirrors of each other".to_owned());
        }
        if !is_artifact && self.registry_auth.is_some() {
            problems.push("has a login at a registry, and its url is not oci://".to_owned());
        }
        problems
    }
}

/// A login at a registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RegistryAuth {
    /// Name of the user, without a colon.
    pub username: String,
    /// Password, or a token in its place.
    pub password: Secret,
}

/// A signature in a file of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DetachedSignature {
    /// Where it is: of minisign where the key is, else 64 bytes of Ed25519, raw or in base64. `http://` will do.
    pub url: String,
    /// Key to verify it with: a public key of minisign, or one of Ed25519 as PEM, base64 or hexadecimal digits.
    pub public_key: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Action;
    use crate::workflow::tests::check;

    #[test]
    fn an_image_comes_from_where_it_can_be_fetched_and_checked() {
        let digest = || Digest::new(crate::Algorithm::Sha256, &"a".repeat(64)).ok();
        let stream = |url: &str, digest, raw_digest| {
            Action::StreamImage(StreamImage { url: url.to_owned(), digest, raw_digest, ..StreamImage::default() })
        };
        for url in ["https://s/x", "file:///x", "/x"] {
            check(stream(url, None, None), &[]);
        }
        check(stream("http://s/x", digest(), None), &[]);
        check(stream("http://s/x", None, digest()), &[]);
        let clear = "fetches over http:// without a digest: give one, or use https://";
        check(stream("http://s/x", None, None), &[clear]);
        let mirrored = |mirror: &str, digest| {
            let mirrors = vec!["https://m/x".to_owned(), mirror.to_owned()];
            Action::StreamImage(StreamImage { url: "/x".to_owned(), mirrors, digest, ..StreamImage::default() })
        };
        check(mirrored("http://s/x", digest()), &[]);
        check(mirrored("http://s/x", None), &[clear]);
        let unknown = "fetches \"s/x\", which is neither https://, http:// nor file://, nor an absolute path";
        check(mirrored("s/x", None), &[unknown]);
        check(mirrored("oci://r/a:b", None), &["has an OCI artifact and something else for mirrors of each other"]);
        for url in ["", "x", "ftp://s/x", "s/x", "HTTP://s/x", " https://s/x"] {
            let problem =
                format!("fetches {url:?}, which is neither https://, http:// nor file://, nor an absolute path");
            check(stream(url, digest(), None), &[&problem]);
        }
    }

    #[test]
    fn an_image_grows_unless_it_is_told_not_to() {
        let check = |text: &str, expect: bool| {
            let read: StreamImage = serde_json::from_str(text).expect("inputs");
            assert_eq!(read.grow, expect, "{text}");
            let back = serde_json::to_string(&read).expect("JSON");
            assert_eq!(serde_json::from_str::<StreamImage>(&back).expect("the same"), read, "{back}");
        };
        check(r#"{"url": "/x"}"#, true);
        check(r#"{"url": "/x", "grow": true}"#, true);
        check(r#"{"url": "/x", "grow": false}"#, false);
        assert!(StreamImage::default().grow);
    }

    #[test]
    fn an_image_is_verified_by_what_can_be_believed() {
        let image = |url: &str, sums: Option<&str>, signed: bool| StreamImage {
            url: url.to_owned(),
            sums: sums.map(str::to_owned),
            signature: signed
                .then(|| DetachedSignature { url: "http://s/sig".to_owned(), ..DetachedSignature::default() }),
            ..StreamImage::default()
        };
        for sums in ["https://s/SUMS", "file:///SUMS", "/SUMS"] {
            check(Action::StreamImage(image("http://s/x", Some(sums), false)), &[]);
        }
        check(Action::StreamImage(image("http://s/x", Some("http://s/SUMS"), true)), &[]);
        check(Action::StreamImage(image("http://s/x", None, true)), &[]);
        let unsigned = "fetches the list of sums over http:// without a signature: give its signature, or use https://";
        check(Action::StreamImage(image("https://s/x", Some("http://s/SUMS"), false)), &[unsigned]);
        let digest = Digest::new(crate::Algorithm::Sha256, &"a".repeat(64)).ok();
        let both = StreamImage { digest, ..image("https://s/x", Some("https://s/SUMS"), false) };
        check(Action::StreamImage(both), &["has a digest and a list of sums: give the one or the other"]);
        let unknown = "fetches \"SUMS\", which is neither https://, http:// nor file://, nor an absolute path";
        check(Action::StreamImage(image("https://s/x", Some("SUMS"), false)), &[unknown]);
    }

    #[test]
    fn a_block_map_comes_from_where_it_can_be_believed() {
        let image = |url: &str, bmap: &str| {
            let (url, bmap) = (url.to_owned(), Some(bmap.to_owned()));
            StreamImage { url, bmap, ..StreamImage::default() }
        };
        for bmap in ["https://s/x.bmap", "file:///x.bmap", "/x.bmap"] {
            check(Action::StreamImage(image("/x", bmap)), &[]);
        }
        let clear = "fetches the block map over http://, where anybody can have it leave out what is to be written: use \
                     https://";
        let digest = Digest::new(crate::Algorithm::Sha256, &"a".repeat(64)).ok();
        check(Action::StreamImage(StreamImage { digest, ..image("https://s/x", "http://s/x.bmap") }), &[clear]);
        let unverified = "fetches over http:// without a digest: give one, or use https://";
        check(Action::StreamImage(image("http://s/x", "https://s/x.bmap")), &[unverified]);
        let unknown = "fetches \"x.bmap\", which is neither https://, http:// nor file://, nor an absolute path";
        check(Action::StreamImage(image("/x", "x.bmap")), &[unknown]);
    }

    #[test]
    fn an_artifact_in_a_registry_is_named_by_tag_or_digest() {
        let image = |url: &str| StreamImage { url: url.to_owned(), ..StreamImage::default() };
        check(Action::StreamImage(image("oci://r.example/a:b")), &[]);
        let problem = "fetches \"oci://r.example/a\": it has neither tag nor digest; an artifact is \
                       oci://REGISTRY/REPOSITORY:TAG or oci://REGISTRY/REPOSITORY@sha256:HEX";
        check(Action::StreamImage(image("oci://r.example/a")), &[problem]);
        let login = || Some(RegistryAuth { username: "u".to_owned(), password: Secret::from("hidden".to_owned()) });
        let with_login = StreamImage { registry_auth: login(), ..image("oci://r.example/a:b") };
        assert!(!format!("{with_login:?}").contains("hidden"));
        check(Action::StreamImage(with_login), &[]);
        let elsewhere = StreamImage { registry_auth: login(), ..image("https://r.example/a:b") };
        check(Action::StreamImage(elsewhere), &["has a login at a registry, and its url is not oci://"]);
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
                "has an OCI artifact and something else for mirrors of each other",
            ],
        );
    }
}
