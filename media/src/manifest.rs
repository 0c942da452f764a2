//! What a build gave: its inputs, its files with their digests, and the software in them.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use slipway_parts::{Arch, Component, Parts};
use time::OffsetDateTime;

/// Name of the manifest among the files.
pub const MANIFEST: &str = "manifest.json";
/// Name of the bill of materials among the files.
pub const SBOM: &str = "slipway.spdx.json";

/// The files of a build, and what they were made of. It has no secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The digest of the inputs: SHA-256, cut to 16 hexadecimal digits. The same inputs give the same files.
    pub id: String,
    /// Version of slipway that made them.
    pub version: String,
    /// HTTPS URL of the server.
    pub server: String,
    /// SHA-256 of the CA's PEM text, in hexadecimal.
    pub ca_sha256: String,
    /// Whether there is a bootstrap token inside.
    pub has_token: bool,
    /// What signed the unified kernel images for Secure Boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed_by: Option<Signer>,
    /// The parts.
    pub parts: Vec<PartsUsed>,
    /// The files.
    pub assets: Vec<AssetInfo>,
}

/// A key for Secure Boot, by its certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signer {
    /// Subject of the certificate.
    pub subject: String,
    /// SHA-256 of the certificate in DER, in hexadecimal.
    pub certificate_sha256: String,
}

/// The parts of a build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartsUsed {
    /// Architecture.
    pub arch: Arch,
    /// Name of the kernel.
    pub kernel: String,
    /// Release of the kernel.
    pub release: String,
    /// Version of slipway that they belong to.
    pub version: String,
    /// SHA-256 of their description, in hexadecimal.
    pub sha256: String,
    /// The command line of the kernel.
    pub cmdline: String,
}

/// A file that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssetInfo {
    /// Path below the folder of the build.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// SHA-256, in hexadecimal.
    pub sha256: String,
    /// Where the settings of one machine belong, if the file has a place for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_settings: Option<Range>,
}

/// Bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub length: u64,
}

impl Manifest {
    /// The manifest as text.
    pub fn to_json(&self) -> Vec<u8> {
        pretty(&json!(self))
    }
}

/// The bill of materials (SPDX 2.3, <https://spdx.github.io/spdx-spec/v2.3/>): the software that is part of the boot files.
pub fn sbom(id: &str, parts: &[Parts]) -> Vec<u8> {
    let mut components: Vec<&Component> = parts.iter().flat_map(|parts| &parts.about.components).collect();
    components.sort();
    components.dedup();
    let date = parts.iter().map(|parts| parts.about.date).max().unwrap_or_default();
    let packages = components.iter().enumerate().map(|(index, component)| {
        let license = component.license.as_deref().unwrap_or("NOASSERTION");
        json!({
            "SPDXID": format!("SPDXRef-Package-{index}"),
            "name": component.name,
            "versionInfo": component.version,
            "supplier": format!("Organization: {}", component.supplier),
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": false,
            "licenseConcluded": "NOASSERTION",
            "licenseDeclared": license,
            "copyrightText": "NOASSERTION",
        })
    });
    let describes = (0..components.len()).map(|index| {
        json!({
            "spdxElementId": "SPDXRef-DOCUMENT",
            "relationshipType": "DESCRIBES",
            "relatedSpdxElement": format!("SPDXRef-Package-{index}"),
        })
    });
    pretty(&json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("slipway-boot-files-{id}"),
        "documentNamespace": format!("https://spdx.org/spdxdocs/slipway-boot-files-{id}"),
        "creationInfo": {
            "created": utc(date),
            "creators": [format!("Tool: slipway-{}", env!("CARGO_PKG_VERSION"))],
        },
        "packages": packages.collect::<Vec<_>>(),
        "relationships": describes.collect::<Vec<_>>(),
    }))
}

fn pretty(value: &Value) -> Vec<u8> {
    // Values of this crate's types always become JSON.
    let mut json = serde_json::to_vec_pretty(value).unwrap_or_default();
    json.push(b'\n');
    json
}

/// A date as `YYYY-MM-DDThh:mm:ssZ`, from seconds since 1970.
fn utc(seconds: u64) -> String {
    let date = OffsetDateTime::from_unix_timestamp(i64::try_from(seconds).unwrap_or_default());
    let date = date.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let ((year, month, day), (hour, minute, second)) = (date.to_calendar_date(), date.to_hms());
    format!("{year:04}-{:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z", u8::from(month))
}
