//! What is written to a disk, and how.

use serde::{Deserialize, Serialize};

use super::origin::{DetachedSignature, Origin, RegistryAuth, url_problem};
use crate::{Digest, DiskHints};

/// Inputs of `stream-image`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StreamImage {
    /// `https://`, `file://`, an absolute path, or an artifact in a registry, `oci://REGISTRY/REPOSITORY:TAG`. `http://` only
    /// if another option proves what arrives.
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
    /// Where the stream comes from.
    pub fn origin(&self) -> Origin<'_> {
        Origin {
            what: "image",
            url: &self.url,
            mirrors: &self.mirrors,
            registry_auth: self.registry_auth.as_ref(),
            digest: self.digest.as_ref(),
            sums: self.sums.as_deref(),
            signature: self.signature.as_ref(),
            ca: self.ca.as_deref(),
        }
    }

    /// Whether what arrives is checked against a digest or a signature. A block map is not counted: whether it has digests, and such
    /// that prove anything, is known only when it has been read.
    pub fn is_verified(&self) -> bool {
        self.origin().is_verified() || self.raw_digest.is_some()
    }

    /// What is wrong with these inputs, to be read after the name of the step.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = self.origin().validate(self.is_verified());
        problems.extend(self.bmap.as_deref().and_then(url_problem));
        if self.bmap.as_ref().is_some_and(|url| url.starts_with("http://")) {
            let danger = "where anybody can have it leave out what is to be written";
            problems.push(format!("fetches the block map over http://, {danger}: use https://"));
        }
        problems.extend(self.disk.validate(false));
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Action;
    use crate::workflow::tests::check;

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
}
