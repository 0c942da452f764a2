//! UEFI firmware: its two files, and a machine's own variables.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use slipway_parts::Arch;

use crate::escape;

/// The files of a firmware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Firmware {
    /// The program.
    pub code: PathBuf,
    /// The variables as they are at first.
    pub factory: PathBuf,
}

/// Where Debian and Fedora put firmware for x86-64 without Secure Boot.
const X86_64: [(&str, &str); 3] = [
    ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"),
    ("/usr/share/edk2/ovmf/OVMF_CODE.fd", "/usr/share/edk2/ovmf/OVMF_VARS.fd"),
    ("/usr/share/OVMF/OVMF_CODE.fd", "/usr/share/OVMF/OVMF_VARS.fd"),
];
/// The same for arm64. Debian 12 has the variables in a form that only the firmware itself can change.
const AARCH64: [(&str, &str); 2] = [
    ("/usr/share/AAVMF/AAVMF_CODE.no-secboot.fd", "/usr/share/AAVMF/AAVMF_VARS.fd"),
    ("/usr/share/AAVMF/AAVMF_CODE.fd", "/usr/share/AAVMF/AAVMF_VARS.fd"),
];

impl Firmware {
    /// Finds the firmware of this host, without Secure Boot.
    pub fn of_host(arch: Arch) -> Result<Self> {
        let (places, package): (&[_], _) = match arch {
            Arch::X86_64 => (&X86_64, "ovmf (Fedora: edk2-ovmf)"),
            Arch::Aarch64 => (&AARCH64, "qemu-efi-aarch64 (Fedora: edk2-aarch64)"),
        };
        let found = places.iter().map(|(code, factory)| Self { code: code.into(), factory: factory.into() });
        let Some(found) = found.into_iter().find(|firmware| firmware.code.exists() && firmware.factory.exists()) else {
            let looked: Vec<&str> = places.iter().map(|(code, _)| *code).collect();
            bail!("looking for UEFI firmware in {}: it is not there; install the package {package}", looked.join(", "));
        };
        Ok(found)
    }

    /// Makes a machine's own variables, unless they exist from an earlier start.
    pub fn variables(&self, path: &Path) -> Result<()> {
        if path.exists() {
            return Ok(());
        }
        let fresh = path.with_extension("fresh");
        fs::copy(&self.factory, &fresh).with_context(|| format!("copying {}", self.factory.display()))?;
        fs::rename(&fresh, path).with_context(|| format!("creating {}", path.display()))
    }

    /// QEMU's arguments for the two flash chips: code and a machine's variables.
    pub fn drives(&self, variables: &Path) -> [String; 4] {
        let drive = "-drive".to_owned();
        let code = format!("if=pflash,unit=0,format=raw,readonly=on,file={}", escape::commas(&self.code));
        let variables = format!("if=pflash,unit=1,format=raw,file={}", escape::commas(variables));
        [drive.clone(), code, drive, variables]
    }
}
