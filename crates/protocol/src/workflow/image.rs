//! Writing an image to a disk.

use serde::{Deserialize, Serialize};

use super::origin::{DetachedSignature, Location, Origin, RegistryAuth, url_problem};
use crate::shared::digest::Digest;
use crate::workflow::disk::DiskHints;

/// The options of `stream-image`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StreamImage {
    /// The URL of the image: `https://`, `file://`, an absolute path, or an artifact in a registry,
    /// `oci://REGISTRY/REPOSITORY:TAG`. `http://` is allowed only if another option proves what arrives.
    pub url: String,
    /// The login at the registry of an `oci://` artifact. Without it, the artifact is pulled anonymously. Mirrors in
    /// other registries are always pulled anonymously.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry_auth: Option<RegistryAuth>,
    /// Further URLs of the same bytes. slipway tries them in this order if `url` fails or delivers something else. For
    /// an artifact, the mirrors are the same artifact in other registries. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<String>,
    /// The digest of the stream as delivered, compressed or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// The URL of a list of sums as `sha256sum` and similar tools write it, in place of `digest`. The list has the
    /// digest next to the file name at the end of `url`. `http://` is allowed only with a signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sums: Option<String>,
    /// The detached signature. It signs the list of sums if there is one, otherwise the stream as delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<DetachedSignature>,
    /// The digest of the raw image, after decompression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_digest: Option<Digest>,
    /// The block map of the raw image, as `bmaptool create` makes it: `https://`, `file://` or an absolute path.
    /// slipway checks the listed blocks against the map's digests. It does not write other blocks, so the disk keeps
    /// its old content there. The ends of the disk and of each partition are an exception.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bmap: Option<String>,
    /// The size of the raw image in bytes, for the progress display. The image must have exactly this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_size: Option<u64>,
    /// Further checks of the written disk. Default: `none`.
    #[serde(default, skip_serializing_if = "Verify::is_none")]
    pub verify: Verify,
    /// CA certificates in PEM to trust for this URL, in addition to the server's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// Selects the disk.
    #[serde(default, skip_serializing_if = "DiskHints::is_empty")]
    pub disk: DiskHints,
    /// Whether the last partition of the image and its file system grow to the end of the disk. With `false`, the disk
    /// has the image byte for byte, except for the place of the backup partition table.
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

/// The check of a written disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Verify {
    /// The disk is trusted, and nothing is read back.
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
    /// Returns the source of the stream.
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

    /// Returns whether a digest or a signature checks the stream. A block map does not count: whether its digests prove
    /// anything is known only after the map has been read.
    pub fn is_verified(&self) -> bool {
        self.origin().is_verified() || self.raw_digest.is_some()
    }

    /// Returns the problems of these options. Each completes a sentence that begins with the name of the step.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = self.origin().validate(self.is_verified());
        problems.extend(self.bmap.as_deref().and_then(url_problem));
        if self.bmap.as_deref().and_then(Location::of) == Some(Location::Http) {
            let danger = "where anybody can change it so that data is not written";
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
        let clear = "fetches the block map over http://, where anybody can change it so that data is not written: use \
                     https://";
        let digest = Digest::new(crate::Algorithm::Sha256, &"a".repeat(64)).ok();
        check(Action::StreamImage(StreamImage { digest, ..image("https://s/x", "http://s/x.bmap") }), &[clear]);
        let unverified = "fetches over http:// without a digest: give one, or use https://";
        check(Action::StreamImage(image("http://s/x", "https://s/x.bmap")), &[unverified]);
        let unknown = "fetches \"x.bmap\", which is neither https://, http:// nor file://, nor an absolute path";
        check(Action::StreamImage(image("/x", "x.bmap")), &[unknown]);
    }
}
