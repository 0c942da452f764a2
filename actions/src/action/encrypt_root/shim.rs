//! The effect of shim on a key that is sealed to PCR 7. shim measures its revocations and the keys that machine owners
//! trust into that register, whether Secure Boot is on or not (shim, README.tpm). So slipway and the installed system
//! see the same value only if both are started by shim, or neither.

use std::path::Path;

use slipway_formats::boot_config::places::{BootFiles, VENDORS};

use crate::error::Error;
use crate::target::efi::variables::Variables;
use crate::target::volume::Volume;

/// The register that shim measures into.
pub(super) const PCR: u32 = 7;
/// Variable in which shim passes its revocations to the system that it starts, set again at every boot (shim, mok.c).
const SHOWN: &str = "SbatLevelRT-605dab50-e046-4300-abb6-3dd810dd8b23";

/// Whether shim is installed to start the installed system.
pub(super) fn is_installed(volumes: &[Volume]) -> Result<bool, Error> {
    for volume in volumes {
        for vendor in volume.vendors()? {
            if has_shim(&volume.files(&format!("{VENDORS}/{vendor}"), ".efi")?) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Whether a folder with these programs has a shim with something to start: GRUB, or, in the removable folder, where
/// shim is called `boot*.efi`, its key manager (`mm*.efi` or `mok*.efi`).
fn has_shim(programs: &[String]) -> bool {
    let has = |start: &str| programs.iter().any(|name| name.to_ascii_lowercase().starts_with(start));
    has("shim") && has("grub") || has("boot") && (has("mm") || has("mok"))
}

/// Returns why the register will have another value in the installed system; `None` if it will have the same value, or
/// if that cannot be determined. `efi` is the folder where Linux presents the firmware's data.
pub(super) fn contradiction(is_installed: bool, efi: &Path) -> Option<String> {
    let variables = Variables::open(&efi.join("efivars")).ok()?;
    let has_started_this = variables.read(SHOWN).ok()?.is_some();
    let (one, other) = match (is_installed, has_started_this) {
        (true, false) => ("the installed system is", "slipway was not"),
        (false, true) => ("slipway was", "the installed system is not"),
        _ => return None,
    };
    Some(format!(
        "{one} started by shim, which measures into PCR {PCR}, but {other}: the TPM would not release the key; leave \
         {PCR} out of pcrs, or start both in the same way"
    ))
}
