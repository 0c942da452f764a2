//! Bills of materials, which list the software in released files.

use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::parts::Component;

/// Returns a bill of materials in SPDX 2.3 (<https://spdx.github.io/spdx-spec/v2.3/>) that lists each component once.
/// `date` is in seconds since 1970; `name` is the document's name and ends its namespace. Documents that differ must
/// have different names, so `name` must include a version.
pub fn sbom<'a>(name: &str, date: u64, components: impl IntoIterator<Item = &'a Component>) -> Vec<u8> {
    let mut components: Vec<&Component> = components.into_iter().collect();
    components.sort();
    components.dedup();
    let packages: Vec<Value> =
        components.iter().enumerate().map(|(index, component)| package(index, component)).collect();
    let describes = (0..components.len()).map(|index| {
        json!({
            "spdxElementId": "SPDXRef-DOCUMENT",
            "relationshipType": "DESCRIBES",
            "relatedSpdxElement": format!("SPDXRef-Package-{index}"),
        })
    });
    let document = json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": format!("https://spdx.org/spdxdocs/{name}"),
        "creationInfo": {
            "created": utc(date),
            "creators": [format!("Tool: slipway-{}", env!("CARGO_PKG_VERSION"))],
        },
        "packages": packages,
        "relationships": describes.collect::<Vec<_>>(),
    });
    // A JSON value always becomes text.
    let mut json = serde_json::to_vec_pretty(&document).unwrap_or_default();
    json.push(b'\n');
    json
}

fn package(index: usize, component: &Component) -> Value {
    json!({
        "SPDXID": format!("SPDXRef-Package-{index}"),
        "name": component.name,
        "versionInfo": component.version,
        "supplier": format!("Organization: {}", component.supplier),
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": false,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": component.license.as_deref().unwrap_or("NOASSERTION"),
        "copyrightText": "NOASSERTION",
    })
}

/// Returns a date as `YYYY-MM-DDThh:mm:ssZ`, from seconds since 1970.
fn utc(seconds: u64) -> String {
    let date = OffsetDateTime::from_unix_timestamp(i64::try_from(seconds).unwrap_or_default());
    let date = date.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let ((year, month, day), (hour, minute, second)) = (date.to_calendar_date(), date.to_hms());
    format!("{year:04}-{:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z", u8::from(month))
}
