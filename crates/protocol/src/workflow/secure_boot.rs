//! The action that gives the firmware the site's keys for Secure Boot.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// The most bytes of an update. Firmware takes about half of that.
const MAX_UPDATE: usize = 64 << 10;
/// The size of EFI_TIME in bytes. An update begins with this time (UEFI 2.10, section 8.2.2). The signature follows,
/// and begins with its own length.
const TIME: usize = 16;

/// The options of `enrol-secure-boot`. The action gives the firmware keys for Secure Boot, or replaces them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EnrolSecureBoot {
    /// The signed updates of the firmware's variables, in the order `dbx`, `db`, `KEK`, `PK`, each at most once.
    /// Without any, the server fills in the updates for its own keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub updates: Vec<SecureBootUpdate>,
}

/// A signed update of a variable of the firmware.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SecureBootUpdate {
    /// The variable.
    pub variable: SecureBootVariable,
    /// Whether the update adds entries to the variable instead of replacing the present entries. Default: `false`.
    #[serde(default)]
    pub append: bool,
    /// The time, the signature and the signature lists (EFI_VARIABLE_AUTHENTICATION_2 and what it signs), in base64.
    pub data: String,
}

/// A variable of Secure Boot. The variants are in the order of updates for a machine in Setup Mode: `PK` is last,
/// because it ends Setup Mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum SecureBootVariable {
    /// Certificates and hashes of programs that must not start.
    #[serde(rename = "dbx")]
    Dbx,
    /// Certificates and hashes of programs that may start.
    #[serde(rename = "db")]
    Db,
    /// The keys that sign changes of `db` and `dbx`.
    #[serde(rename = "KEK")]
    Kek,
    /// The platform key. It belongs to the owner of the machine.
    #[serde(rename = "PK")]
    Pk,
}

/// Writes the name of the variable in the firmware.
impl fmt::Display for SecureBootVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dbx => "dbx",
            Self::Db => "db",
            Self::Kek => "KEK",
            Self::Pk => "PK",
        })
    }
}

impl EnrolSecureBoot {
    /// Returns the problems of these options. Each completes a sentence that begins with the name of the step.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.updates.is_empty() {
            problems.push("has no updates, and the server added none".to_owned());
        }
        for pair in self.updates.windows(2) {
            if let [before, after] = pair
                && before.variable >= after.variable
            {
                let (before, after) = (before.variable, after.variable);
                problems.push(format!(
                    "updates {after} after {before}: give dbx, db, KEK and PK in this order, each at most once"
                ));
            }
        }
        for update in &self.updates {
            let problem = match update.decode() {
                _ if update.data.len() > MAX_UPDATE / 3 * 4 => {
                    Some(format!("it has more than {MAX_UPDATE} bytes, which no firmware takes"))
                }
                None => Some("it is not base64".to_owned()),
                Some(bytes) if signed_lists(&bytes).is_none() => {
                    Some("it is not a time, a signature and lists".to_owned())
                }
                Some(_) => None,
            };
            problems.extend(problem.map(|problem| format!("has an update of {}: {problem}", update.variable)));
        }
        problems
    }
}

impl SecureBootUpdate {
    /// Makes an update of `bytes`: time, signature and signature lists.
    pub fn new(variable: SecureBootVariable, append: bool, bytes: &[u8]) -> Self {
        Self { variable, append, data: STANDARD.encode(bytes) }
    }

    /// Returns time, signature and signature lists. None if the data is not base64.
    pub fn decode(&self) -> Option<Vec<u8>> {
        STANDARD.decode(&self.data).ok()
    }
}

/// Returns the signature lists of an update, which follow its time and signature. None if the update ends before them.
pub fn signed_lists(update: &[u8]) -> Option<&[u8]> {
    let signature = update.get(TIME..)?;
    let length = usize::try_from(u32::from_le_bytes(*signature.first_chunk()?)).ok()?;
    signature.get(length.max(size_of::<u32>())..)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Action;
    use crate::workflow::tests::check;

    fn update(variable: SecureBootVariable) -> SecureBootUpdate {
        let bytes = [&[0; TIME][..], &8_u32.to_le_bytes(), b"sig.", b"lists"].concat();
        assert_eq!(signed_lists(&bytes), Some(&b"lists"[..]));
        SecureBootUpdate::new(variable, false, &bytes)
    }

    fn enrol(updates: &[SecureBootUpdate]) -> Action {
        Action::EnrolSecureBoot(EnrolSecureBoot { updates: updates.to_vec() })
    }

    #[test]
    fn updates_have_an_order_and_can_be_read() {
        use SecureBootVariable::{Db, Dbx, Kek, Pk};
        check(enrol(&[Dbx, Db, Kek, Pk].map(update)), &[]);
        check(enrol(&[update(Db)]), &[]);
        check(enrol(&[]), &["has no updates, and the server added none"]);
        let order = "give dbx, db, KEK and PK in this order, each at most once";
        check(enrol(&[Pk, Db].map(update)), &[&format!("updates db after PK: {order}")]);
        check(enrol(&[Db, Db].map(update)), &[&format!("updates db after db: {order}")]);
        let with = |data: &str| enrol(&[SecureBootUpdate { data: data.to_owned(), ..update(Kek) }]);
        check(with("%"), &["has an update of KEK: it is not base64"]);
        check(with("AAAA"), &["has an update of KEK: it is not a time, a signature and lists"]);
        let large = "A".repeat(MAX_UPDATE * 2);
        check(with(&large), &["has an update of KEK: it has more than 65536 bytes, which no firmware takes"]);
    }

    #[test]
    fn an_operator_writes_a_step_without_updates() {
        let read: Action = serde_json::from_str(r#"{"enrol-secure-boot": {}}"#).expect("an action");
        assert_eq!(read, enrol(&[]));
        let text = serde_json::to_string(&update(SecureBootVariable::Kek)).expect("JSON");
        assert!(text.starts_with(r#"{"variable":"KEK","append":false,"data":"AAAA"#), "{text}");
    }

    #[test]
    fn a_length_that_leads_beyond_the_update_is_no_lists() {
        let with = |length: u32| [&[0; TIME][..], &length.to_le_bytes(), b"abcd"].concat();
        for (length, expect) in [(0, Some(&b"abcd"[..])), (6, Some(b"cd")), (8, Some(b"")), (9, None), (u32::MAX, None)]
        {
            assert_eq!(signed_lists(&with(length)), expect, "{length}");
        }
        assert_eq!(signed_lists(&[0; 19]), None);
    }
}
