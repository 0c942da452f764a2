//! UEFI firmware from Debian's `ovmf` and `qemu-efi-aarch64` packages, and its initial variables.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::json;
use slipway_parts::Arch;
use slipway_qemu::firmware::Firmware;

use crate::host::command::{command, run_quietly};
use crate::host::{debian, files, python};

/// A release of the firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The host's release. Its TLS supports only RSA, also for the key exchange.
    Host,
    /// The host's release with Secure Boot. It has no keys, so it starts in Setup Mode.
    HostWithSecureBoot,
    /// A newer release, whose TLS also supports elliptic curves.
    Newer,
}

impl Release {
    /// The host's release, with or without Secure Boot.
    pub fn of_host(secure_boot: bool) -> Self {
        if secure_boot { Self::HostWithSecureBoot } else { Self::Host }
    }
}

/// Returns the files of a firmware. What the host does not have is fetched.
pub fn of(arch: Arch, release: Release) -> Result<Firmware> {
    let (folder, [code, factory]) = match (arch, release) {
        (Arch::X86_64, Release::Host) => ("/usr/share/OVMF".into(), ["OVMF_CODE_4M.fd", "OVMF_VARS_4M.fd"]),
        (Arch::X86_64, Release::HostWithSecureBoot) => {
            ("/usr/share/OVMF".into(), ["OVMF_CODE_4M.secboot.fd", "OVMF_VARS_4M.fd"])
        }
        (Arch::X86_64, Release::Newer) => {
            let root = debian::unpacked(&debian::NEWER_FIRMWARE)?;
            (root.join("usr/share/OVMF"), ["OVMF_CODE_4M.fd", "OVMF_VARS_4M.fd"])
        }
        (Arch::Aarch64, Release::HostWithSecureBoot) => {
            bail!("this host has no Secure Boot firmware for arm64 machines")
        }
        (Arch::Aarch64, _) => {
            let root = debian::unpacked(&debian::ARM64_FIRMWARE)?;
            (root.join("usr/share/AAVMF"), ["AAVMF_CODE.no-secboot.fd", "AAVMF_VARS.fd"])
        }
    };
    Ok(Firmware { code: folder.join(code), factory: folder.join(factory) })
}

/// A small EFI program: the host's network boot loader. Without a network it prints its greeting and gives up.
pub const IPXE: &str = "/usr/lib/ipxe/snponly.efi";

/// Returns the network boot loader for an architecture. For x64 it is the variant that uses the firmware's network
/// driver: `ipxe.efi` of Debian 12, with its own driver, never returned to this firmware after `exit 1` in its script,
/// so the machine did not continue to its disk. For arm64 there is only one variant.
pub fn network_boot_loader(arch: Arch) -> Result<PathBuf> {
    let name = match arch {
        Arch::X86_64 => "snponly.efi",
        Arch::Aarch64 => "ipxe-arm64.efi",
    };
    Ok(debian::unpacked(&debian::IPXE)?.join("usr/lib/ipxe").join(name))
}

/// Makes a machine's own variables, unless they exist from an earlier start. With a URI, the firmware boots from that
/// URI at its next start only (as with a one-time boot choice), and then from disk.
pub fn variables(path: &Path, arch: Arch, release: Release, boot_uri: Option<&str>) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    let with_uri = path.with_extension("with-uri");
    if with_uri.exists() {
        fs::remove_file(&with_uri).with_context(|| format!("removing {}", with_uri.display()))?;
    }
    of(arch, release)?.variables(&with_uri)?;
    if let Some(uri) = boot_uri {
        let tools = python::environment(python::FIRMWARE)?;
        run_quietly(command(tools.join("virt-fw-vars"), ["--set-boot-uri", uri, "--inplace"]).arg(&with_uri))?;
    }
    fs::rename(&with_uri, path).with_context(|| format!("creating {}", path.display()))
}

/// A firmware variable.
pub struct Variable {
    /// Name, such as `Boot0001`.
    pub name: &'static str,
    /// GUID of its namespace.
    pub vendor: &'static str,
    /// Attributes (UEFI specification 2.10, 8.2.1).
    pub attributes: u32,
    /// Value of the variable.
    pub content: Vec<u8>,
}

/// Namespace of the variables in the UEFI specification (3.3).
pub const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";
/// Namespace of db and dbx (32.6.1).
const IMAGE_SECURITY: &str = "d719b2cb-3d3a-4596-a3bc-dad00e67656f";
/// Attributes of a variable whose updates must be signed.
const AUTHENTICATED: u32 = 0x27;

/// Reads the Secure Boot keys that `slipway-server keys export` wrote into a folder, as firmware variables.
pub fn exported_keys(folder: &Path) -> Result<Vec<Variable>> {
    let mut variables = Vec::new();
    for (name, vendor) in [("dbx", IMAGE_SECURITY), ("db", IMAGE_SECURITY), ("KEK", GLOBAL), ("PK", GLOBAL)] {
        let lists = folder.join(name).with_extension("esl");
        // If nothing was retired, there is no dbx.
        if lists.exists() {
            let content = files::read(&lists)?;
            variables.push(Variable { name, vendor, attributes: AUTHENTICATED, content });
        }
    }
    Ok(variables)
}

/// Sets a machine's variables. If keys are among them, Secure Boot is on.
pub fn set(path: &Path, variables: &[Variable]) -> Result<()> {
    let json = |variable: &Variable| {
        let hex = base16ct::lower::encode_string(&variable.content);
        json!({ "name": variable.name, "guid": variable.vendor, "attr": variable.attributes, "data": hex })
    };
    let text = json!({ "version": 2, "variables": variables.iter().map(json).collect::<Vec<_>>() }).to_string();
    let file = path.with_extension("json");
    files::write(&file, text)?;
    let tools = python::environment(python::FIRMWARE)?;
    run_quietly(command(tools.join("virt-fw-vars"), ["--sb", "--inplace"]).arg(path).arg("--set-json").arg(&file))
}
