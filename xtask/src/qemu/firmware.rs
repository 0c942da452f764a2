//! UEFI firmware from Debian's `ovmf` and `qemu-efi-aarch64` packages, and its initial variables.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::binary::Arch;
use crate::command::{command, run_quietly};
use crate::{debian, host, python};

use super::escape_commas;

/// A firmware, without Secure Boot.
struct Firmware {
    code: PathBuf,
    /// Factory default variables.
    factory: PathBuf,
}

fn of(arch: Arch) -> Result<Firmware> {
    let (folder, [code, factory]) = match arch {
        Arch::X86_64 => ("/usr/share/OVMF".into(), ["OVMF_CODE_4M.fd", "OVMF_VARS_4M.fd"]),
        Arch::Aarch64 => {
            let root = debian::unpacked(&debian::ARM64_FIRMWARE)?;
            (root.join("usr/share/AAVMF"), ["AAVMF_CODE.no-secboot.fd", "AAVMF_VARS.fd"])
        }
    };
    Ok(Firmware { code: folder.join(code), factory: folder.join(factory) })
}

/// The network boot loader from Debian's `ipxe` package. It only has HTTP, and asks DHCP what to boot next. This
/// variant uses the firmware's network driver. `ipxe.efi`, with its own driver, never returns to this firmware after
/// `exit 1` in its script, so the machine would not continue to its disk.
pub const IPXE: &str = "/usr/lib/ipxe/snponly.efi";

/// The network boot loader for an architecture.
pub fn network_boot_loader(arch: Arch) -> Result<PathBuf> {
    match arch {
        Arch::X86_64 => host::ensure(host::QEMU).map(|()| PathBuf::from(IPXE)),
        Arch::Aarch64 => Ok(debian::unpacked(&debian::IPXE)?.join("usr/lib/ipxe/ipxe-arm64.efi")),
    }
}

/// Makes a machine's own variables, unless they exist from an earlier start. With a URI the firmware boots from there
/// at its next start only, as if an operator had chosen it, and then from disk.
pub fn variables(path: &Path, arch: Arch, boot_uri: Option<&str>) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    let fresh = path.with_extension("fresh");
    let factory = of(arch)?.factory;
    fs::copy(&factory, &fresh).with_context(|| format!("copying {}", factory.display()))?;
    if let Some(uri) = boot_uri {
        let tools = python::environment(python::FIRMWARE)?;
        run_quietly(command(tools.join("virt-fw-vars"), ["--set-boot-uri", uri, "--inplace"]).arg(&fresh))?;
    }
    fs::rename(&fresh, path).with_context(|| format!("creating {}", path.display()))
}

/// QEMU's arguments for the two flash chips: code and a machine's variables.
pub fn drives(variables: &Path, arch: Arch) -> Result<[String; 4]> {
    let drive = "-drive".to_owned();
    let code = format!("if=pflash,unit=0,format=raw,readonly=on,file={}", escape_commas(&of(arch)?.code));
    let variables = format!("if=pflash,unit=1,format=raw,file={}", escape_commas(variables));
    Ok([drive.clone(), code, drive, variables])
}
