//! Capturing a disk: it becomes an image on the server.

use serde::{Deserialize, Serialize};

use crate::shared::digest::Digest;
use crate::workflow::disk::DiskHints;

/// The greatest length of the name of a captured image, in bytes.
const LONGEST_NAME: usize = 128;

/// The header that says how many bytes of an upload the server has (draft-ietf-httpbis-resumable-upload,
/// "Upload-Offset").
pub const UPLOAD_OFFSET: &str = "upload-offset";

/// The options of `capture-disk`. The action reads a whole disk and stores it as an image that `stream-image` can write
/// again. It writes nothing to the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CaptureDisk {
    /// Selects the disk.
    #[serde(default, skip_serializing_if = "DiskHints::is_empty")]
    pub disk: DiskHints,
    /// The name of the image, such as `web1.raw.zst`. It has letters, digits, dots, hyphens and underscores. An
    /// existing image of that name is never replaced.
    pub name: String,
}

impl CaptureDisk {
    /// Returns the problems of these options. Each completes a sentence that begins with the name of the step.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = self.disk.validate(false);
        if let Some(problem) = image_name_problem(&self.name) {
            problems.push(format!("cannot name an image {:?}: {problem}", self.name));
        }
        problems
    }
}

/// Returns why this cannot be the name of a captured image, or nothing if it can. The name is a file name and a part of
/// a URL.
pub fn image_name_problem(name: &str) -> Option<&'static str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    match name {
        "" => Some("it is empty"),
        _ if !name.bytes().all(is_plain) => Some("use letters, digits, dots, hyphens and underscores"),
        _ if name.starts_with(['.', '-']) => Some("it begins with a dot or a hyphen"),
        _ if name.len() > LONGEST_NAME => Some("it has more than 128 characters"),
        _ => None,
    }
}

/// The image that a disk was captured as. It is the body of `POST /v1/node/runs/{run}/captures`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CapturedImage {
    /// The name of the image.
    pub name: String,
    /// The size of the compressed image, in bytes.
    pub size: u64,
    /// The SHA-256 digest of the image as delivered, compressed. Use it as `digest` of `stream-image`.
    pub digest: Digest,
    /// The size of the disk, in bytes.
    pub raw_size: u64,
    /// The SHA-256 digest of the disk. Use it as `raw_digest` of `stream-image`.
    pub raw_digest: Digest,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_file_name_that_needs_no_quotes_anywhere() {
        for good in ["web1.raw.zst", "a", "_a", "0", &"a".repeat(128)] {
            assert_eq!(image_name_problem(good), None, "{good:?}");
        }
        for bad in ["", ".", "..", ".a", "-a", "a/b", "a b", "a%2e", "ä", "a\0", "a\n", &"a".repeat(129)] {
            assert!(image_name_problem(bad).is_some(), "{bad:?}");
        }
    }
}
