//! Microsoft's certificates, which most machines trust from the factory. They verify the firmware of many network and
//! graphics cards: without them in db, such a card does not work, and a screen may stay dark.
//!
//! `certificates/README.md` says where they come from. Those of 2011 have expired, but firmware
//! ignores dates, so what they signed still starts.

use uuid::{Uuid, uuid};

use crate::certificate::Certificate;
use crate::certificate::CertificateError;
use crate::lists::Entry;
use crate::variable::Variable;

/// The owner GUID of Microsoft's entries, as published by Microsoft.
pub const OWNER: Uuid = uuid!("77fa9abd-0359-4d32-bd60-28f4e78f784b");

/// Certificates of Microsoft's keys for updates of db and dbx.
const KEK: [&[u8]; 2] =
    [include_bytes!("../certificates/ms-kek-2011.der"), include_bytes!("../certificates/ms-kek-2023.der")];
/// Certificates of Microsoft's keys for third-party programs, option ROMs and Windows.
const DB: [&[u8]; 5] = [
    include_bytes!("../certificates/ms-uefi-2011.der"),
    include_bytes!("../certificates/ms-uefi-2023.der"),
    include_bytes!("../certificates/ms-uefi-rom-2023.der"),
    include_bytes!("../certificates/windows-2011.der"),
    include_bytes!("../certificates/windows-2023.der"),
];

/// Microsoft's entries for a variable. None for PK, which has one owner, and for dbx.
///
/// # Errors
/// Never: a test parses all certificates.
pub fn entries(variable: Variable) -> Result<Vec<Entry>, CertificateError> {
    let list: &[&[u8]] = match variable {
        Variable::Kek => &KEK,
        Variable::Db => &DB,
        Variable::Pk | Variable::Dbx => &[],
    };
    list.iter().map(|der| Ok(Entry::certificate(OWNER, &Certificate::from_der(der)?))).collect()
}
