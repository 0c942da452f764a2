//! Firmware interface, Secure Boot and TPM version of this boot.

use std::path::Path;

use ring::digest::{SHA256, digest};
use slipway_formats::efi::signature_list;
use slipway_protocol::Firmware;

use super::files::{Notes, attribute, bytes, note};
use super::smbios;

/// Folder of the firmware's variables.
const VARIABLES: &str = "firmware/efi/efivars";
/// Vendor GUID of the variables that the UEFI specification defines (2.10, 3.3).
const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";
/// Number of bytes of attributes that efivarfs puts before the value (Linux, Documentation/filesystems/efivarfs.rst).
const ATTRIBUTES: usize = 4;

/// Returns the firmware's vendor, version and interface, the state of Secure Boot, and the version of the TPM.
pub(super) fn firmware(sys: &Path, notes: &mut Notes) -> Firmware {
    let uefi = sys.join("firmware/efi").is_dir();
    let dmi = sys.join("class/dmi/id");
    let mut found = Firmware {
        vendor: smbios::value(&dmi.join("bios_vendor"), notes),
        version: smbios::value(&dmi.join("bios_version"), notes),
        uefi,
        tpm: tpm(&sys.join("class/tpm/tpm0/tpm_version_major"), notes),
        ..Firmware::default()
    };
    let variable = |name: &str| sys.join(VARIABLES).join(format!("{name}-{GLOBAL}"));
    if uefi {
        found.secure_boot = boolean(&variable("SecureBoot"), notes);
    }
    // If firmware lacks this variable, it lacks the others too.
    if found.secure_boot.is_some() {
        found.setup_mode = boolean(&variable("SetupMode"), notes);
    }
    // In Setup Mode there is no platform key.
    if found.setup_mode == Some(false) {
        found.platform_key = platform_key(&variable("PK"), notes);
    }
    found
}

/// Reads a variable whose value is one byte, 0 or 1.
fn boolean(path: &Path, notes: &mut Notes) -> Option<bool> {
    match bytes(path, notes)?.as_slice() {
        [_, _, _, _, 0] => Some(false),
        [_, _, _, _, 1] => Some(true),
        other => {
            note(path, &format!("not a boolean variable, but {} bytes", other.len()), notes);
            None
        }
    }
}

/// Returns the SHA-256 of the platform key's certificate, in hexadecimal.
fn platform_key(path: &Path, notes: &mut Notes) -> Option<String> {
    let content = bytes(path, notes)?;
    let list = content.get(ATTRIBUTES..).unwrap_or_default();
    let entries = signature_list::parse(list).map_err(|error| note(path, &error, notes)).ok()?;
    let certificate = entries.iter().find(|entry| entry.kind == signature_list::X509)?;
    Some(base16ct::lower::encode_string(digest(&SHA256, certificate.data).as_ref()))
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
