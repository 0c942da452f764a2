//! Microsoft's certificates, which firmware of most machines trusts from the factory. The firmware of many network and graphics
//! cards is signed under them: with a db that lacks them, such a card does not work, and a screen may stay dark.
//!
//! `certificates/README.md` says where they come from. Those of 2011 are past their dates, which firmware does not look at, and
//! what they have signed still starts.

use uuid::{Uuid, uuid};

use crate::certificate::Certificate;
use crate::certificate::CertificateError;
use crate::lists::Entry;
use crate::variable::Variable;

/// The owner of entries that Microsoft would add, as Microsoft has published it.
pub const OWNER: Uuid = uuid!("77fa9abd-0359-4d32-bd60-28f4e78f784b");

/// Certificates of keys by which Microsoft signs updates of db and dbx.
const KEK: [&[u8]; 2] =
    [include_bytes!("../certificates/ms-kek-2011.der"), include_bytes!("../certificates/ms-kek-2023.der")];
/// Certificates of keys by which Microsoft signs programs of others, option ROMs and Windows.
const DB: [&[u8]; 5] = [
    include_bytes!("../certificates/ms-uefi-2011.der"),
    include_bytes!("../certificates/ms-uefi-2023.der"),
    include_bytes!("../certificates/ms-uefi-rom-2023.der"),
    include_bytes!("../certificates/windows-2011.der"),
    include_bytes!("../certificates/windows-2023.der"),
];

/// The entries with Microsoft's certificates for a variable. There are none for PK, which has one owner, nor for dbx.
///
/// # Errors
/// Never, as a test proves.
pub fn entries(variable: Variable) -> Result<Vec<Entry>, CertificateError> {
    let list: &[&[u8]] = match variable {
        Variable::Kek => &KEK,
        Variable::Db => &DB,
        Variable::Pk | Variable::Dbx => &[],
    };
    list.iter().map(|der| Ok(Entry::certificate(OWNER, &Certificate::from_der(der)?))).collect()
}
