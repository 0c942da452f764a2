//! The host: a Debian that lacks packages gets them installed, and is told which.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{command, run_quietly, stdout};

/// For a virtual environment of Python programs.
pub const PYTHON: &[&str] = &["python3-venv"];
/// For the static build where rustup has no musl target: Debian's newest compiler and the sources of its std.
pub const DEBIAN_RUST: &[&str] = &["rustc-web", "rust-web-src"];
/// For the boot image: depmod, zstd, and the stub that makes kernel and initramfs one EFI program.
pub const BOOT_IMAGE: &[&str] = &["kmod", "zstd", "systemd-boot-efi"];
/// For the programs of the boot image that make file systems: a C compiler, and the static libraries they are linked with.
pub const MKFS: &[&str] =
    &["build-essential", "libc6-dev", "libblkid-dev", "libinih-dev", "liburcu-dev", "pkg-config", "uuid-dev"];
/// For the target image.
pub const TARGET_IMAGE: &[&str] =
    &["mmdebstrap", "debian-archive-keyring", "uidmap", "e2fsprogs", "gdisk", "dosfstools", "mtools", "zstd"];
/// For machines in QEMU, with UEFI firmware and the network boot loader a rack would chain.
pub const QEMU: &[&str] = &["qemu-system-x86", "ovmf", "ipxe"];

/// For benchmarks: servers, and what people write images with.
pub const BENCH: &[&str] = &["nginx-light", "bmap-tools", "curl", "time", "gzip", "xz-utils", "zstd", "procps"];
/// For our own tests: other people's readers of what we write, and writers of what we read; a shell and the program of the device
/// mapper for a machine whose disks are to fail.
pub const TESTS: &[&str] = &[
    "cpio",
    "binutils",
    "fdisk",
    "xfsprogs",
    "btrfs-progs",
    "exfatprogs",
    "ntfs-3g",
    "f2fs-tools",
    "erofs-utils",
    "squashfs-tools",
    "genisoimage",
    "udftools",
    "cryptsetup-bin",
    "mdadm",
    "lvm2",
    "qemu-utils",
    "bmap-tools",
    "busybox-static",
    "dmsetup",
    "swtpm",
    "tpm2-tools",
];

/// For power cuts: what makes a block map, and what judges a file system.
pub const TORTURE: &[&str] = &["bmap-tools", "e2fsprogs"];

/// For fuzzing: the parser of cloud-init.
pub const FUZZ: &[&str] = &["python3-yaml"];

/// Installs those of the packages that are missing, without asking anything; as root, or through sudo.
pub fn ensure(packages: &[&str]) -> Result<()> {
    install(&missing(packages)?)?;
    // apt removes what is in the way of a new package, which can be one of these from another archive: tools of a newer QEMU.
    install(&missing(packages)?)
}

fn install(missing: &[&str]) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("installing on this host: {}", missing.join(" "));
    let arguments = ["install", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"];
    if run_quietly(apt_get()?.args(arguments).args(missing)).is_err() {
        // The package lists may be missing or old; only a second failure is one.
        refresh_lists()?;
        run_quietly(apt_get()?.args(arguments).args(missing))?;
    }
    Ok(())
}

/// `apt-get update`.
pub fn refresh_lists() -> Result<()> {
    run_quietly(apt_get()?.arg("update"))
}

/// The version of a package that apt would install.
pub fn candidate(package: &str) -> Result<String> {
    let policy = stdout(&mut command("apt-cache", ["policy", package]))?;
    let candidate = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate: "));
    let version = candidate.filter(|version| *version != "(none)");
    Ok(version.with_context(|| format!("looking for package {package}: apt has none"))?.to_owned())
}

/// Whether this is a Debian (or a derivative), where packages can be looked up and installed.
pub fn is_debian() -> bool {
    Command::new("dpkg-query").arg("--version").output().is_ok_and(|output| output.status.success())
}

fn missing<'a>(packages: &[&'a str]) -> Result<Vec<&'a str>> {
    if !is_debian() {
        bail!(
            "looking for {}: this host has no dpkg; install what they hold and a Debian's tools first",
            packages.join(", ")
        );
    }
    let mut missing = Vec::new();
    for package in packages {
        let query = ["--show", "--showformat", "${db:Status-Status}", package];
        let installed = command("dpkg-query", query).output()?.stdout == b"installed";
        if !installed {
            missing.push(*package);
        }
    }
    Ok(missing)
}

/// apt-get that asks nothing.
fn apt_get() -> Result<Command> {
    let is_root = stdout(&mut command("id", ["-u"]))?.trim() == "0";
    let mut apt_get = if is_root { Command::new("env") } else { command("sudo", ["env"]) };
    apt_get.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet"]);
    Ok(apt_get)
}
