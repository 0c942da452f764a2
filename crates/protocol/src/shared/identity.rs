//! The identity of a machine: the keys by which an operator registered it.

mod placeholder;

use serde::{Deserialize, Serialize};

/// The keys that a node is known by. An absent key means that the machine has no meaningful value. It does not mean
/// that reading the value failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The SMBIOS system UUID, in lower case with hyphens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(pattern = r"^(?![{0-]+[0}]+$)\{?[0-9A-Fa-f]{8}-?([0-9A-Fa-f]{4}-?){3}[0-9A-Fa-f]{12}\}?$")
    )]
    pub uuid: Option<String>,
    /// The SMBIOS system serial number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// The permanent MAC addresses, in lower case with colons, sorted.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(schema_with = mac_addresses, required = false))]
    pub macs: Vec<String>,
}

/// Returns the schema of MAC addresses, as [`mac_address`] reads them.
#[cfg(feature = "openapi")]
fn mac_addresses() -> utoipa::openapi::schema::Schema {
    use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, Type};
    let address = ObjectBuilder::new().schema_type(Type::String);
    let address = address.pattern(Some("^[0-9A-Fa-f]{2}([:-]?[0-9A-Fa-f]{2}){5}$"));
    ArrayBuilder::new().items(address).build().into()
}

/// A kind of identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum IdentifierKind {
    /// The SMBIOS system UUID.
    Uuid,
    /// The SMBIOS system serial number.
    Serial,
    /// The MAC addresses.
    Macs,
}

/// Why a text identifies no machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// The text is not an identifier of this kind.
    Malformed,
    /// Many machines have this value, for example because a vendor left it in place of a real value.
    Shared,
}

impl Identity {
    /// Returns the identifiers that tell machines apart, each in its canonical spelling. Leaves out placeholders.
    pub fn usable(&self) -> Self {
        let mut macs: Vec<String> = self.macs.iter().filter_map(|mac| mac_address(mac).ok()).collect();
        macs.sort();
        macs.dedup();
        Self {
            uuid: self.uuid.as_deref().and_then(|uuid| system_uuid(uuid).ok()),
            serial: self.serial.as_deref().and_then(|serial| serial_number(serial).ok()),
            macs,
        }
    }

    /// Lists the identifiers for people: `uuid …, serial …, mac …`.
    pub fn in_words(&self) -> String {
        self.values().map(|(kind, value)| format!("{kind} {value}")).collect::<Vec<_>>().join(", ")
    }

    /// Removes the identifiers of a kind.
    pub fn forget(&mut self, kind: IdentifierKind) {
        match kind {
            IdentifierKind::Uuid => self.uuid = None,
            IdentifierKind::Serial => self.serial = None,
            IdentifierKind::Macs => self.macs.clear(),
        }
    }

    /// Returns pairs of a kind (`uuid`, `serial` or `mac`) and an identifier, strongest first.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let uuid = self.uuid.iter().map(|value| ("uuid", value.as_str()));
        let serial = self.serial.iter().map(|value| ("serial", value.as_str()));
        let macs = self.macs.iter().map(|value| ("mac", value.as_str()));
        uuid.chain(serial).chain(macs)
    }

    /// Returns the identifiers that identify no machine, with their kinds: shared or malformed values.
    pub fn placeholders(&self) -> Vec<(&'static str, &str)> {
        let is_usable = |(kind, value): &(&str, &str)| match *kind {
            "uuid" => system_uuid(value).is_ok(),
            "serial" => serial_number(value).is_ok(),
            _ => mac_address(value).is_ok(),
        };
        self.values().filter(|found| !is_usable(found)).collect()
    }
}

/// Returns the text without surrounding white space. Returns nothing if the text is empty or is a placeholder ("Default
/// string", all zeros, all F, "To be filled by O.E.M.").
pub fn meaningful(text: &str) -> Option<&str> {
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    (!placeholder::is_text(text)).then_some(text)
}

/// Returns the serial number without surrounding white space, if it can be that of a single machine.
pub fn serial_number(text: &str) -> Result<String, Unusable> {
    let text = meaningful(text).ok_or(Unusable::Shared)?;
    let is_shared = placeholder::is_serial(text) || system_uuid(text) == Err(Unusable::Shared);
    if is_shared { Err(Unusable::Shared) } else { Ok(text.to_owned()) }
}

/// Returns the UUID in lower case with hyphens, if it can be that of a single machine. The text may lack the hyphens,
/// be in braces, and have upper-case digits.
pub fn system_uuid(text: &str) -> Result<String, Unusable> {
    let text = text.trim().trim_start_matches('{').trim_end_matches('}');
    let digits: String = text.chars().filter(|c| *c != '-').collect::<String>().to_ascii_lowercase();
    if digits.len() != 32 || !digits.chars().all(|c| c.is_ascii_hexdigit()) {
        return Err(Unusable::Malformed);
    }
    if placeholder::is_uuid(&digits) {
        return Err(Unusable::Shared);
    }
    Ok([0..8, 8..12, 12..16, 16..20, 20..32].map(|range| digits[range].to_owned()).join("-"))
}

/// Returns the MAC address in lower case with colons, if it can be that of a single network card.
pub fn mac_address(text: &str) -> Result<String, Unusable> {
    match normalise_mac(text) {
        Some(mac) if !placeholder::is_mac(&mac) => Ok(mac),
        Some(_) => Err(Unusable::Shared),
        None if mac_digits(text).is_some() => Err(Unusable::Shared),
        None => Err(Unusable::Malformed),
    }
}

/// Returns the MAC address in lower case with colons, even if many cards have it. Returns nothing if the text is not a
/// MAC address, or if it is all zeros or all ones.
pub fn normalise_mac(text: &str) -> Option<String> {
    let digits = mac_digits(text).filter(|digits| digits != "000000000000" && digits != "ffffffffffff")?;
    let pairs: Vec<&str> = (0..6).map(|i| &digits[2 * i..2 * i + 2]).collect();
    Some(pairs.join(":"))
}

fn mac_digits(text: &str) -> Option<String> {
    let digits: String =
        text.trim().chars().filter(|c| !matches!(c, ':' | '-' | '.')).collect::<String>().to_ascii_lowercase();
    (digits.len() == 12 && digits.chars().all(|c| c.is_ascii_hexdigit())).then_some(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_for_a_value_counts_as_missing() {
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
        let expect = Ok("4c4c4544-0042-3010-8058-b7c04f503432".to_owned());
        assert_eq!(system_uuid("4C4C4544-0042-3010-8058-B7C04F503432"), expect);
        assert_eq!(system_uuid("{4c4c4544004230108058b7c04f503432}"), expect);
        for bad in ["", "4c4c", "é", "none"] {
            assert_eq!(system_uuid(bad), Err(Unusable::Malformed), "{bad:?}");
        }
    }

    #[test]
    fn a_mac_has_one_spelling() {
        assert_eq!(mac_address("52-54-00-AB-cd-01").as_deref(), Ok("52:54:00:ab:cd:01"));
        for bad in ["52:54", "zz:54:00:ab:cd:01", ""] {
            assert_eq!(mac_address(bad), Err(Unusable::Malformed), "{bad:?}");
        }
        assert_eq!(normalise_mac("01:00:5e:00:00:01").as_deref(), Some("01:00:5e:00:00:01"));
    }

    #[test]
    fn an_identity_keeps_what_tells_machines_apart() {
        let identity = |uuid: &str, serial: &str, macs: &[&str]| Identity {
            uuid: Some(uuid.to_owned()),
            serial: Some(serial.to_owned()),
            macs: macs.iter().map(|mac| (*mac).to_owned()).collect(),
        };
        let found = identity("00020003-0004-0005-0006-000700080009", "Enter Serial", &["00:00:00:00:00:00"]);
        assert_eq!(found.usable(), Identity::default());
        assert_eq!(found.placeholders().iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), ["uuid", "serial", "mac"]);
        let found = identity("4C4C4544004230108058B7C04F503432", " 7CZ1 ", &["52-54-00-AB-CD-01", "52:54:00:ab:cd:01"]);
        let expect = identity("4c4c4544-0042-3010-8058-b7c04f503432", "7CZ1", &["52:54:00:ab:cd:01"]);
        assert_eq!((found.usable(), found.placeholders()), (expect, Vec::new()));
    }
}
