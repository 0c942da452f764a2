//! How the machine booted.

use std::path::Path;

use slipway_protocol::Firmware;

use super::files::{Notes, attribute, bytes, note};

/// Secure Boot state: a global variable of the UEFI specification (2.10, 3.3), with the vendor GUID of global
/// variables.
const SECURE_BOOT: &str = "firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// Firmware interface, Secure Boot and TPM.
pub(super) fn firmware(sys: &Path, notes: &mut Notes) -> Firmware {
    let uefi = sys.join("firmware/efi").is_dir();
    Firmware {
        uefi,
        secure_boot: if uefi { secure_boot(&sys.join(SECURE_BOOT), notes) } else { None },
        tpm: tpm(&sys.join("class/tpm/tpm0/tpm_version_major"), notes),
    }
}

/// efivarfs puts four bytes of attributes before the value (Linux, Documentation/filesystems/efivarfs.rst). The value
/// is one byte, 0 or 1.
fn secure_boot(path: &Path, notes: &mut Notes) -> Option<bool> {
    match bytes(path, notes)?.as_slice() {
        [_, _, _, _, 0] => Some(false),
        [_, _, _, _, 1] => Some(true),
        other => {
            note(path, &format!("{} bytes that are not a boolean variable", other.len()), notes);
            None
        }
    }
}

fn tpm(path: &Path, notes: &mut Notes) -> Option<u8> {
    let text = attribute(path, notes)?;
    match text.as_str() {
        "1" => Some(1),
        "2" => Some(2),
        _ => {
            note(path, &"neither 1 nor 2", notes);
            None
        }
    }
}
