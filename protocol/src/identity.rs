//! The identity of a machine: the keys by which an operator registered it.

use serde::{Deserialize, Serialize};

/// The keys that a node is known by. An absent key means that the machine has no meaningful value. It does not mean
/// that reading the value failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The SMBIOS system UUID, in lower case with hyphens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The SMBIOS system serial number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// The permanent MAC addresses, in lower case with colons, sorted.
    #[serde(default)]
    pub macs: Vec<String>,
}

/// The values that firmware vendors leave in place of a real value, in lower case.
const FILLERS: &[&str] = &[
    "default string",
    "to be filled by o.e.m.",
    "to be filled by o.e.m",
    "system serial number",
    "system product name",
    "system manufacturer",
    "chassis serial number",
    "base board serial number",
    "not specified",
    "not applicable",
    "not available",
    "no asset tag",
    "oem",
    "o.e.m.",
    "none",
    "null",
    "n/a",
    "na",
    "unknown",
    "invalid",
    "empty",
    "serial",
    "serialnumber",
    "123456789",
    "0123456789",
    "1234567890",
    "type1 - serial number",
    "03000200-0400-0500-0006-000700080009",
    "12345678-1234-5678-90ab-cddeefaabbcc",
];

/// Returns the text without surrounding white space. Returns nothing if the text is empty or a filler ("Default
/// string", all zeros, all F, "To be filled by O.E.M.").
pub fn meaningful(text: &str) -> Option<&str> {
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    let lower = text.to_ascii_lowercase();
    let mut marks = lower.chars().filter(|c| c.is_alphanumeric()).peekable();
    let first = marks.peek().copied()?;
    let repeated = matches!(first, '0' | 'f' | 'x') && marks.all(|c| c == first);
    (!repeated && !FILLERS.contains(&lower.as_str())).then_some(text)
}

/// Returns the UUID in lower case with hyphens. Returns nothing if the text is not a UUID or is a filler. The text may
/// have 32 digits without hyphens, braces and upper case.
pub fn normalise_uuid(text: &str) -> Option<String> {
    let text = text.trim().trim_start_matches('{').trim_end_matches('}');
    let digits: String = text.chars().filter(|c| *c != '-').collect::<String>().to_ascii_lowercase();
    if digits.len() != 32 || !digits.chars().all(|c| c.is_ascii_hexdigit()) {
        return None;
    }
    let groups = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| digits[range].to_owned());
    meaningful(&groups.join("-")).map(str::to_owned)
}

/// Returns the MAC address in lower case with colons. Returns nothing if the text is not a MAC address, or if it is all
/// zeros or all ones.
pub fn normalise_mac(text: &str) -> Option<String> {
    let digits: String =
        text.trim().chars().filter(|c| !matches!(c, ':' | '-' | '.')).collect::<String>().to_ascii_lowercase();
    let usable = digits.len() == 12
        && digits.chars().all(|c| c.is_ascii_hexdigit())
        && digits != "000000000000"
        && digits != "ffffffffffff";
    usable.then(|| {
        let pairs: Vec<&str> = (0..6).map(|i| &digits[2 * i..2 * i + 2]).collect();
        pairs.join(":")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filler_values_count_as_missing() {
        for filler in
            ["", "  ", "Default string", "To Be Filled By O.E.M.", "0", "0000-0000", "N/A", "...", "FFFFFFFF", "\0"]
        {
            assert_eq!(meaningful(filler), None, "{filler:?}");
        }
        for real in ["7CZ1234", " 00A1 ", "VMware-56 4d", "F0"] {
            assert_eq!(meaningful(real), Some(real.trim()));
        }
    }

    #[test]
    fn a_uuid_has_one_spelling() {
        let expect = Some("4c4c4544-0042-3010-8058-b7c04f503432".to_owned());
        assert_eq!(normalise_uuid("4C4C4544-0042-3010-8058-B7C04F503432"), expect);
        assert_eq!(normalise_uuid("{4c4c4544004230108058b7c04f503432}"), expect);
        for bad in ["", "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", "4c4c", "é"] {
            assert_eq!(normalise_uuid(bad), None, "{bad:?}");
        }
        assert_eq!(normalise_uuid("03000200-0400-0500-0006-000700080009"), None);
    }

    #[test]
    fn a_mac_has_one_spelling() {
        assert_eq!(normalise_mac("52-54-00-AB-cd-01").as_deref(), Some("52:54:00:ab:cd:01"));
        for bad in ["00:00:00:00:00:00", "52:54", "zz:54:00:ab:cd:01", "ff:ff:ff:ff:ff:ff"] {
            assert_eq!(normalise_mac(bad), None, "{bad:?}");
        }
    }
}
