//! The manifest of a build: its inputs, its files with their digests, and the software in them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use slipway_parts::{Arch, Parts};
use slipway_protocol::{MetadataSource, Proof};

use crate::measurements::Measurements;

/// Name of the manifest among the files.
pub const MANIFEST: &str = "manifest.json";
/// Name of the bill of materials among the files.
pub const SBOM: &str = "slipway.spdx.json";

/// The files and the inputs of a build. The manifest contains no secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = MediaManifest))]
pub struct Manifest {
    /// SHA-256 of the inputs, truncated to 16 hexadecimal digits. The same inputs give the same files.
    pub id: String,
    /// Version of slipway that made the files.
    pub version: String,
    /// HTTPS URL of the server. Absent if machines are told by their metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// SHA-256 of the CA's PEM text, in hexadecimal.
    pub ca_sha256: String,
    /// Whether the files contain a bootstrap token.
    pub has_token: bool,
    /// What machines must have before they contact the server.
    #[serde(default)]
    pub require: Proof,
    /// Where machines may be told their server.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub metadata: BTreeSet<MetadataSource>,
    /// The key that signed the unified kernel images for Secure Boot. Absent if they are not signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed_by: Option<Signer>,
    /// The prebuilt parts that the files were made from.
    pub parts: Vec<PartsUsed>,
    /// What the unified kernel images leave in the PCRs of a TPM. An architecture is missing if its stub is of an
    /// unknown version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measurements: Vec<Measurements>,
    /// The files.
    pub assets: Vec<AssetInfo>,
}

/// The certificate of a key for Secure Boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = MediaSigner))]
pub struct Signer {
    /// Subject of the certificate.
    pub subject: String,
    /// SHA-256 of the certificate in DER, in hexadecimal.
    pub certificate_sha256: String,
}

/// The parts of a build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PartsUsed {
    /// Architecture.
    pub arch: Arch,
    /// Name of the kernel.
    pub kernel: String,
    /// Release of the kernel.
    pub release: String,
    /// Version of slipway that built the parts.
    pub version: String,
    /// SHA-256 of the description of the parts, in hexadecimal.
    pub sha256: String,
    /// The command line of the kernel.
    pub cmdline: String,
}

/// A file of the build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AssetInfo {
    /// Path below the folder of the build.
    pub path: String,
    /// Size of the file in bytes.
    pub size: u64,
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: String,
    /// The place of one machine's settings, if the file reserves one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_settings: Option<Range>,
}

/// A range of bytes in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = MediaRange))]
pub struct Range {
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

impl Manifest {
    /// Returns the manifest in JSON.
    pub fn to_json(&self) -> Vec<u8> {
        pretty(&json!(self))
    }
}

/// Returns the bill of materials: the software that is part of the boot files.
pub fn sbom(id: &str, parts: &[Parts]) -> Vec<u8> {
    let components = parts.iter().flat_map(|parts| &parts.about.components);
    let date = parts.iter().map(|parts| parts.about.date).max().unwrap_or_default();
    slipway_parts::sbom(&format!("slipway-boot-files-{id}"), date, components)
}

fn pretty(value: &Value) -> Vec<u8> {
    // These types always serialise.
    let mut json = serde_json::to_vec_pretty(value).unwrap_or_default();
    json.push(b'\n');
    json
}
