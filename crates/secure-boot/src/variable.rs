//! Signed updates of the variables of Secure Boot (UEFI 2.10, section 8.2.2, EFI_VARIABLE_AUTHENTICATION_2).

use std::fmt;

use thiserror::Error;
use time::{OffsetDateTime, UtcOffset};
use uuid::{Uuid, uuid};

use crate::key_error::KeyError;
use crate::keys::SigningKey;
use crate::pkcs7::{Message, signed_data};

/// EFI_GLOBAL_VARIABLE and EFI_IMAGE_SECURITY_DATABASE_GUID (sections 3.3 and 32.6.1).
pub(crate) const GLOBAL: Uuid = uuid!("8be4df61-93ca-11d2-aa0d-00e098032b8c");
const IMAGE_SECURITY: Uuid = uuid!("d719b2cb-3d3a-4596-a3bc-dad00e67656f");
/// EFI_CERT_TYPE_PKCS7_GUID (section 8.2.2).
const PKCS7: Uuid = uuid!("4aafd29d-68df-49ee-8aa9-347d375665a7");
/// The header of WIN_CERTIFICATE_UEFI_GUID (section 32.2.4): its size, the revision 2.0, and WIN_CERT_TYPE_EFI_GUID.
const HEADER: usize = 4 + 2 + 2 + 16;
const REVISION: u16 = 0x0200;
const EFI_GUID: u16 = 0x0EF1;

/// A variable of Secure Boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variable {
    /// The platform key of the machine's owner. It signs changes of itself and of KEK. Without it, the firmware is in
    /// Setup Mode.
    Pk,
    /// Keys that sign changes of db and dbx.
    Kek,
    /// Allowed programs.
    Db,
    /// Forbidden programs, even if db allows them.
    Dbx,
}

/// How an update changes the entries of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Replaces the entries. Firmware accepts only an update with a later time than that of the last update.
    Replace,
    /// Keeps the entries, and adds those that are missing. Firmware accepts any time.
    Append,
}

/// Why an update cannot be made.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum UpdateError {
    /// The time cannot be represented.
    #[error("signing an update of the variable {variable}: firmware cannot represent the year {year}; check the clock")]
    Year { variable: Variable, year: i32 },
    /// The signature cannot be made.
    #[error("signing an update of the variable {variable}")]
    Sign { variable: Variable, source: KeyError },
}

impl Variable {
    /// The order of updates in Setup Mode: PK is last, because it ends Setup Mode.
    pub const ENROLMENT: [Self; 4] = [Self::Dbx, Self::Db, Self::Kek, Self::Pk];

    /// Name of the variable in the firmware and in efivarfs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pk => "PK",
            Self::Kek => "KEK",
            Self::Db => "db",
            Self::Dbx => "dbx",
        }
    }

    /// GUID of the namespace of the variable.
    pub fn vendor(self) -> Uuid {
        match self {
            Self::Pk | Self::Kek => GLOBAL,
            Self::Db | Self::Dbx => IMAGE_SECURITY,
        }
    }
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Write {
    /// The attributes of an update, which precede it in efivarfs as 4 little-endian bytes: non-volatile, boot access,
    /// run-time access, time-based authentication, and perhaps append (section 8.2.1).
    pub fn attributes(self) -> u32 {
        match self {
            Self::Replace => 0x27,
            Self::Append => 0x67,
        }
    }
}

/// Makes a signed update of a variable to these lists ([`crate::lists::build`]): the bytes that follow the attributes
/// in efivarfs. Empty lists with [`Write::Replace`] delete the variable, which for PK means Setup Mode. The same inputs
/// give the same bytes.
///
/// The required signer depends on the machine. With a PK, that key signs PK and KEK, and a key of KEK signs db and dbx.
/// In Setup Mode, firmware requires a signature on db, dbx and KEK but does not verify it; a new PK must be signed with
/// its own key (section 32.3.1). So updates that are signed as if the keys were enrolled are valid in both states.
///
/// # Errors
/// If the year does not have four digits, or the key cannot sign.
pub fn update(
    variable: Variable,
    write: Write,
    lists: &[u8],
    time: OffsetDateTime,
    key: &SigningKey,
) -> Result<Vec<u8>, UpdateError> {
    let time = efi_time(time).map_err(|year| UpdateError::Year { variable, year })?;
    let mut message: Vec<u8> = variable.name().encode_utf16().flat_map(u16::to_le_bytes).collect();
    message.extend(variable.vendor().to_bytes_le());
    message.extend(write.attributes().to_le_bytes());
    message.extend(time);
    message.extend(lists);
    let signed = signed_data(key, &Message::Elsewhere(&message));
    let signed = signed.map_err(|source| UpdateError::Sign { variable, source })?;
    let mut update = time.to_vec();
    update.extend(((HEADER + signed.len()) as u32).to_le_bytes());
    update.extend(REVISION.to_le_bytes());
    update.extend(EFI_GUID.to_le_bytes());
    update.extend(PKCS7.to_bytes_le());
    update.extend(signed);
    update.extend(lists);
    Ok(update)
}

/// EFI_TIME in UTC, without parts of a second, which must be zero here (sections 8.2.2 and 8.3).
fn efi_time(time: OffsetDateTime) -> Result<[u8; 16], i32> {
    let time = time.to_offset(UtcOffset::UTC);
    let year = u16::try_from(time.year()).ok().filter(|year| (1900..=9999).contains(year)).ok_or(time.year())?;
    let [low, high] = year.to_le_bytes();
    let (month, day) = (u8::from(time.month()), time.day());
    Ok([low, high, month, day, time.hour(), time.minute(), time.second(), 0, 0, 0, 0, 0, 0, 0, 0, 0])
}
