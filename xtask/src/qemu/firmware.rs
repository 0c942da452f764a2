//! UEFI firmware from Debian's `ovmf` package, and its initial variables.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::command::{command, run_quietly};
use crate::python;

use super::escape_commas;

/// The firmware's code, without Secure Boot.
const CODE: &str = "/usr/share/OVMF/OVMF_CODE_4M.fd";
/// Factory default variables.
const FACTORY: &str = "/usr/share/OVMF/OVMF_VARS_4M.fd";
/// The network boot loader from Debian's `ipxe` package. It only has HTTP, and asks DHCP what to boot next. This
/// variant uses the firmware's network driver. `ipxe.efi`, with its own driver, never returns to this firmware after
/// `exit 1` in its script, so the machine would not continue to its disk.
pub const IPXE: &str = "/usr/lib/ipxe/snponly.efi";

/// Makes a machine's own variables, unless they exist from an earlier start. With a URI the firmware boots from there
/// at its next start only, as if an operator had chosen it, and then from disk.
pub fn variables(path: &Path, boot_uri: Option<&str>) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    let fresh = path.with_extension("fresh");
    fs::copy(FACTORY, &fresh).with_context(|| format!("copying {FACTORY}"))?;
    if let Some(uri) = boot_uri {
        let tools = python::environment(python::FIRMWARE)?;
        run_quietly(command(tools.join("virt-fw-vars"), ["--set-boot-uri", uri, "--inplace"]).arg(&fresh))?;
    }
    fs::rename(&fresh, path).with_context(|| format!("creating {}", path.display()))
}

/// QEMU's arguments for the two flash chips: code and a machine's variables.
pub fn drives(variables: &Path) -> [String; 4] {
    let drive = "-drive".to_owned();
    let code = format!("if=pflash,unit=0,format=raw,readonly=on,file={CODE}");
    let variables = format!("if=pflash,unit=1,format=raw,file={}", escape_commas(variables));
    [drive.clone(), code, drive, variables]
}
