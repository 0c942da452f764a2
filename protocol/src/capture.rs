//! A disk that becomes an image on the server.

use serde::{Deserialize, Serialize};

use crate::{Digest, DiskHints};

/// Longest name of an image that is captured, in bytes.
const LONGEST_NAME: usize = 128;

/// Header that says how many bytes of an upload the server has
/// (draft-ietf-httpbis-resumable-upload, "Upload-Offset").
pub const UPLOAD_OFFSET: &str = "upload-offset";

/// Inputs of `capture-disk`: the whole of a disk, which is only read, as an image `stream-image` can write again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CaptureDisk {
    /// Which disk.
    #[serde(default)]
    pub disk: DiskHints,
    /// Name of the image: letters, digits, dots, hyphens and underscores, such as `web1.raw.zst`. No image of that name is
    /// replaced.
    pub name: String,
}

impl CaptureDisk {
    /// What is wrong with these inputs, to be read after the name of the step.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = self.disk.validate(false);
        if let Some(problem) = image_name_problem(&self.name) {
            problems.push(format!("cannot name an image {:?}: {problem}", self.name));
        }
        problems
    }
}

/// Why this cannot be the name of an image that is captured; nothing if it can. It is a file name and a part of a URL.
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

/// What a disk was captured as; body of `POST /v1/node/runs/{run}/captures`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CapturedImage {
    /// Name of the image.
    pub name: String,
    /// Size of the image, compressed, in bytes.
    pub size: u64,
    /// SHA-256 of the image as it is delivered, compressed: `digest` of `stream-image`.
    pub digest: Digest,
    /// Size of the disk in bytes.
    pub raw_size: u64,
    /// SHA-256 of the disk: `raw_digest` of `stream-image`.
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
