//! New partitions: size, type and name.

use serde::{Deserialize, Serialize};

use crate::workflow::partition_types as types;

/// The greatest length of a partition's name, in UTF-16 units (UEFI specification, table 5-6).
const MAX_NAME: usize = 36;
/// The text for the rest of the disk, in place of a size.
const REST: &str = "rest";
/// The names of partition types. `root` is the type for the machine that the step runs on.
const TYPES: &[(&str, &str)] = &[
    ("esp", types::ESP),
    ("xbootldr", types::XBOOTLDR),
    ("bios-boot", types::BIOS_BOOT),
    ("linux", types::LINUX),
    ("root", types::ROOT),
    ("root-x86-64", types::ROOT_X86_64),
    ("root-arm64", types::ROOT_ARM64),
    ("home", types::HOME),
    ("srv", types::SRV),
    ("var", types::VAR),
    ("tmp", types::TMP),
    ("swap", types::SWAP),
    ("lvm", types::LVM),
    ("raid", types::RAID),
];

/// A new partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewPartition {
    /// The size, rounded up to whole MiB. Give bytes, a number with `KiB`, `MiB`, `GiB` or `TiB`, or `rest`.
    pub size: PartitionSize,
    /// The type: `esp`, `xbootldr`, `bios-boot`, `linux`, `root`, `root-x86-64`, `root-arm64`, `home`, `srv`, `var`,
    /// `tmp`, `swap`, `lvm`, `raid`, or a GUID.
    pub r#type: String,
    /// The partition's name in the table. It has at most 36 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The GUID of the partition itself. Without it, the GUID is random.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

/// A size: bytes as a number, or a text such as `512MiB`, `2GiB` or `1TiB`. `rest` is the space that the other
/// partitions or volumes leave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged, expecting = "a size is a whole number of bytes in decimal digits, or a text such as 512MiB or rest")]
pub enum PartitionSize {
    /// Bytes.
    Bytes(u64),
    /// A number with its unit, or `rest`.
    Text(String),
}

impl PartitionSize {
    /// Returns the size in bytes, or None for `rest`. The error says what is wrong with the size.
    pub fn bytes(&self) -> Result<Option<u64>, String> {
        let bytes = match self {
            Self::Text(text) if text.trim() == REST => return Ok(None),
            Self::Text(text) => in_bytes(text.trim()),
            Self::Bytes(bytes) => Some(*bytes),
        };
        let given = || match self {
            Self::Text(text) => format!("{text:?}"),
            Self::Bytes(bytes) => bytes.to_string(),
        };
        let wrong = || format!("the size {}: give bytes, a number with KiB, MiB, GiB or TiB, or \"rest\"", given());
        bytes.filter(|bytes| *bytes > 0).map(Some).ok_or_else(wrong)
    }
}

fn in_bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit: u64 = match unit.trim() {
        "" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

/// Returns the GUID of a partition type in lower case. `given` is the type's name or GUID. None for any other text.
pub fn type_guid(given: &str) -> Option<String> {
    let named = TYPES.iter().find(|(name, _)| *name == given).map(|(_, guid)| (*guid).to_owned());
    named.or_else(|| is_guid(given).then(|| given.to_ascii_lowercase()))
}

/// Returns whether this is a GUID as in RFC 9562, section 4, and not the one of all zeros.
pub(crate) fn is_guid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && groups.iter().all(|group| group.bytes().all(|byte| byte.is_ascii_hexdigit()))
        && text.bytes().any(|byte| !matches!(byte, b'0' | b'-'))
}

impl NewPartition {
    /// Returns the problems of the partition. `earlier` are the partitions before it in the same table.
    pub(crate) fn validate(&self, earlier: &[NewPartition]) -> Vec<String> {
        let mut problems: Vec<String> = self.size.bytes().err().into_iter().collect();
        if type_guid(&self.r#type).is_none() {
            let names: Vec<&str> = TYPES.iter().map(|(name, _)| *name).collect();
            problems.push(format!("the type {:?} is neither a GUID nor one of {}", self.r#type, names.join(", ")));
        }
        if let Some(label) = self.label.as_ref().filter(|label| label.encode_utf16().count() > MAX_NAME) {
            problems.push(format!("the label {label:?} is longer than {MAX_NAME} characters"));
        }
        if self.label.as_ref().is_some_and(|label| label.chars().any(char::is_control)) {
            problems.push("the label has a control character".to_owned());
        }
        if let Some(uuid) = &self.uuid {
            let is_same =
                |other: &NewPartition| other.uuid.as_ref().is_some_and(|other| other.eq_ignore_ascii_case(uuid));
            if !is_guid(uuid) {
                problems.push(format!("the uuid {uuid:?} is not a GUID"));
            } else if earlier.iter().any(is_same) {
                problems.push("an earlier partition has the same uuid".to_owned());
            }
        }
        problems
    }
}

/// A partition, by its number or by its label in the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged, expecting = "a partition is its number in decimal digits, or its label")]
pub enum PartitionChoice {
    /// The number, from 1.
    Number(u32),
    /// The label. Only one partition may have it.
    Label(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_neither_a_number_nor_a_text_is_told_what_it_must_be() {
        for wrong in ["true", "1.5", "-1", "[1]", "4294967296"] {
            let error = serde_json::from_str::<PartitionChoice>(wrong).expect_err(wrong).to_string();
            assert_eq!(error, "a partition is its number in decimal digits, or its label", "{wrong}");
        }
        let error = serde_json::from_str::<PartitionSize>("true").expect_err("a truth value").to_string();
        assert!(error.starts_with("a size is a whole number of bytes"), "{error}");
    }

    #[test]
    fn a_size_is_bytes_or_a_number_with_a_unit_or_the_rest() {
        let check = |json: &str, expect: Option<Option<u64>>| {
            let size: PartitionSize = serde_json::from_str(json).expect("a size");
            assert_eq!(size.bytes().ok(), expect, "{json}");
        };
        check("1048576", Some(Some(1 << 20)));
        check("\"512MiB\"", Some(Some(512 << 20)));
        check("\"2 GiB\"", Some(Some(2 << 30)));
        check("\"4096\"", Some(Some(4096)));
        check("\"rest\"", Some(None));
        for wrong in ["0", "\"\"", "\"MiB\"", "\"1.5GiB\"", "\"512MB\"", "\"-1MiB\"", "\"99999999TiB\"", "\"0MiB\""] {
            check(wrong, None);
        }
    }
}
