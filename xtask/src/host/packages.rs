//! Installs missing packages on a Debian host. apt's plan is printed first, and no package of the user is removed.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::host::command::{command, run_quietly, stdout};

/// For Python virtual environments.
pub const PYTHON: &[&str] = &["python3-venv"];
/// For the static build if rustup has no musl target: Debian's newest compiler and the sources of its std.
pub const DEBIAN_RUST: &[&str] = &["rustc-web", "rust-web-src"];
/// For the boot image: depmod and zstd.
pub const BOOT_IMAGE: &[&str] = &["kmod", "zstd"];
/// For the boot image's mkfs programs: a C compiler, and the static libraries they are linked with.
pub const MKFS: &[&str] =
    &["build-essential", "libc6-dev", "libblkid-dev", "libinih-dev", "liburcu-dev", "pkg-config", "uuid-dev"];
/// For arm64, in addition to [`MKFS`]: a cross compiler and its C library.
pub const MKFS_ARM64: &[&str] = &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"];
/// For crates with C code: the C compiler, which also links Rust programs, and the headers of the C library.
pub const C_COMPILER: &[&str] = &["gcc", "libc6-dev"];
/// For Debian packages: programs that find libraries, strip and compress.
pub const PACKAGES: &[&str] = &["binutils", "dpkg-dev", "gzip"];
/// For the target image.
pub const TARGET_IMAGE: &[&str] =
    &["mmdebstrap", "debian-archive-keyring", "uidmap", "e2fsprogs", "gdisk", "dosfstools", "mtools", "zstd"];
/// For arm64 target images, in addition to [`TARGET_IMAGE`]: the emulator for their programs, and a tool that tests it.
pub const TRANSLATION: &[&str] = &["qemu-user-static", "arch-test"];
/// For machines in QEMU, with UEFI firmware and a network boot loader.
pub const QEMU: &[&str] = &["qemu-system-x86", "ovmf", "ipxe"];
/// For arm64 machines in QEMU.
pub const QEMU_ARM64: &[&str] = &["qemu-system-arm"];

/// For benchmarks: servers, and other tools that write images.
pub const BENCH: &[&str] = &["nginx-light", "bmap-tools", "curl", "time", "gzip", "xz-utils", "zstd", "procps"];
/// For the tests: programs that read what we write, or write what we read; TFTP clients; a shell and dmsetup for a
/// machine with failing disks; the program that sends reports of installed systems; systemd to verify our unit; a UEFI
/// stub and a signing token; a database server; an object store; a clock that is wrong; a balancer; a browser;
/// a BMC and the programs that switch machines.
pub const TESTS: &[&str] = &[
    "curl",
    "wget",
    "systemd",
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
    "xorriso",
    "udftools",
    "cryptsetup-bin",
    "mdadm",
    "lvm2",
    "procps",
    "qemu-utils",
    "bmap-tools",
    "busybox-static",
    "dmsetup",
    "swtpm",
    "swtpm-tools",
    "tpm2-tools",
    "openssl",
    "zsh",
    "fish",
    "sbsigntool",
    "softhsm2",
    "opensc",
    "gnutls-bin",
    "systemd-boot-efi",
    "tftp-hpa",
    "atftp",
    "postgresql",
    "ceph-mon",
    "ceph-osd",
    "ceph-common",
    "radosgw",
    "faketime",
    "nginx-light",
    "libnginx-mod-stream",
    "chromium",
    "chromium-driver",
    "openipmi",
    "ipmitool",
    "wakeonlan",
];

/// For power cut tests: the programs that make a block map and check a file system.
pub const TORTURE: &[&str] = &["bmap-tools", "e2fsprogs"];

/// For fuzzing: the YAML parser of cloud-init, and the C++ compiler for libFuzzer.
pub const FUZZ: &[&str] = &["python3-yaml", "g++"];

/// Installs the missing packages, as root or through sudo, without asking. Fails before any change if apt would remove
/// a package for which the archive has no other version.
pub fn ensure(packages: &[&str]) -> Result<()> {
    let missing = missing(packages)?;
    if missing.is_empty() {
        return Ok(());
    }
    let plan = match plan(&missing) {
        Ok(plan) => plan,
        // A new machine has no package lists yet, and old lists may name packages that no longer exist.
        Err(_) => refresh_lists().and_then(|()| self::plan(&missing))?,
    };
    plan.describe(&missing).iter().for_each(|line| eprintln!("{line}"));
    if plan.install().is_err() {
        refresh_lists()?;
        // The newer lists may need another plan.
        self::plan(&missing)?.install()?;
    }
    Ok(())
}

/// Returns how many megabytes must be downloaded to install those of the packages that are missing.
pub fn megabytes_to_download(packages: &[&str]) -> Result<u64> {
    let missing = missing(packages)?;
    if missing.is_empty() {
        return Ok(0);
    }
    let query = || {
        let arguments = ["--yes", "--no-install-recommends", "--allow-downgrades", "--print-uris", "install"];
        stdout(command("apt-get", arguments).args(&missing))
    };
    let uris = match query() {
        Ok(uris) => uris,
        Err(_) => refresh_lists().and_then(|()| query())?,
    };
    // Format of a line: 'URI' FILE SIZE HASH
    let lines = uris.lines().filter(|line| line.starts_with('\''));
    let sizes = lines.filter_map(|line| line.split(' ').nth(2)?.parse::<u64>().ok());
    Ok(sizes.sum::<u64>().div_ceil(1_000_000))
}

/// An apt request and its effect.
struct Plan {
    /// Arguments of `apt-get install`.
    wanted: Vec<String>,
    changes: Changes,
}

/// The changes that `apt-get --simulate` reports.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    /// New or changed packages: name, current version, version afterwards.
    installed: Vec<(String, Option<String>, String)>,
    /// Packages that would be removed: name, version.
    removed: Vec<(String, String)>,
}

/// Finds a way to install the packages without removing any. If a user's package conflicts, such as tools of a newer
/// QEMU, it is replaced by the newest version in Debian's archive.
fn plan(missing: &[&str]) -> Result<Plan> {
    let mut wanted: Vec<String> = missing.iter().map(|package| (*package).to_owned()).collect();
    let changes = simulate(&wanted)?;
    if changes.removed.is_empty() {
        return Ok(Plan { wanted, changes });
    }
    let why = || {
        let in_the_way: Vec<_> = changes.removed.iter().map(|(name, version)| format!("{name} {version}")).collect();
        format!(
            "installing {}: apt would remove {}, because Debian's archive has no compatible version of it; \
             nothing was changed. Remove it yourself if you do not need it, then try again",
            missing.join(" "),
            in_the_way.join(", ")
        )
    };
    for (name, _) in &changes.removed {
        let versions = stdout(&mut command("apt-cache", ["madison", name]))?;
        // Format of a line: PACKAGE | VERSION | SOURCE, newest version first. Only versions in the archive are listed.
        let version = versions.lines().find_map(|line| Some(line.split('|').nth(1)?.trim().to_owned()));
        wanted.push(format!("{name}={}", version.with_context(why)?));
    }
    let second = simulate(&wanted).with_context(why)?;
    ensure!(second.removed.is_empty(), why());
    Ok(Plan { wanted, changes: second })
}

impl Plan {
    fn describe(&self, missing: &[&str]) -> Vec<String> {
        let more = self.changes.installed.len().saturating_sub(missing.len());
        let more = if more == 0 { String::new() } else { format!(" and {more} packages they depend on") };
        let mut lines = vec![format!("installing on this host: {}{more}", missing.join(" "))];
        for (name, before, after) in &self.changes.installed {
            let Some(before) = before else { continue };
            let is_older = command("dpkg", ["--compare-versions", after, "lt", before]).status();
            if is_older.is_ok_and(|status| status.success()) {
                lines.push(format!(
                    "  {name} {before} is not compatible with them: version {after} replaces it \
                     (to get it back later: apt-get install {name}={before})"
                ));
            } else {
                lines.push(format!("  {name} {before} is upgraded to {after}"));
            }
        }
        lines
    }

    fn install(&self) -> Result<()> {
        let arguments = ["install", "--yes", "--no-remove", "--allow-downgrades", "--no-install-recommends"];
        let wait = ["-o", "DPkg::Lock::Timeout=300"];
        run_quietly(apt_get()?.args(arguments).args(wait).args(&self.wanted))
    }
}

fn simulate(wanted: &[String]) -> Result<Changes> {
    let arguments = ["--simulate", "--yes", "--allow-downgrades", "--no-install-recommends", "install"];
    Ok(changes(&stdout(command("apt-get", arguments).args(wanted))?))
}

/// Reads lines such as `Inst NAME [OLD] (NEW ARCHIVE [ARCHITECTURE])` and `Remv NAME [OLD]`.
fn changes(said: &str) -> Changes {
    let mut changes = Changes::default();
    for line in said.lines() {
        let mut words = line.split(' ');
        let (verb, name) = (words.next(), words.next().unwrap_or_default());
        let mut next = words.next().unwrap_or_default();
        let before = next.strip_prefix('[').map(|version| version.trim_end_matches(']').to_owned());
        match (verb, before) {
            (Some("Remv"), Some(version)) => changes.removed.push((name.to_owned(), version)),
            (Some("Inst"), before) => {
                if before.is_some() {
                    next = words.next().unwrap_or_default();
                }
                changes.installed.push((name.to_owned(), before, next.trim_matches(['(', ')']).to_owned()));
            }
            _ => {}
        }
    }
    changes
}

/// Runs `apt-get update`.
pub fn refresh_lists() -> Result<()> {
    run_quietly(apt_get()?.arg("update"))
}

/// Returns the version of a package that apt would install. Fails if apt does not know the package.
pub fn candidate(package: &str) -> Result<String> {
    let policy = stdout(&mut command("apt-cache", ["policy", package]))?;
    let candidate = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate: "));
    let version = candidate.filter(|version| *version != "(none)");
    Ok(version.with_context(|| format!("looking for package {package}: apt does not know it"))?.to_owned())
}

/// Whether this host is Debian or a derivative, so that packages can be looked up and installed.
pub fn is_debian() -> bool {
    Command::new("dpkg-query").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Whether this process runs as root.
pub fn is_root() -> Result<bool> {
    Ok(stdout(&mut command("id", ["-u"]))?.trim() == "0")
}

fn missing<'a>(packages: &[&'a str]) -> Result<Vec<&'a str>> {
    if !is_debian() {
        bail!(
            "looking for {}: this host has no dpkg; install the programs in these packages and Debian's tools first",
            packages.join(", ")
        );
    }
    let mut missing = Vec::new();
    for package in packages {
        let query = ["--show", "--showformat", "${db:Status-Status}", package];
        let installed = command("dpkg-query", query).output()?.stdout == b"installed";
        if !installed && !missing.contains(package) {
            missing.push(*package);
        }
    }
    Ok(missing)
}

/// Makes an apt-get command that runs as root and asks no questions.
fn apt_get() -> Result<Command> {
    let mut apt_get = if is_root()? { Command::new("env") } else { command("sudo", ["env"]) };
    apt_get.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet"]);
    Ok(apt_get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_apt_would_install_replace_and_remove_is_read() {
        let said = "NOTE: This is only a simulation!\nReading package lists...\n\
                    Remv qemu-utils [1:10.0.2+ds-2~bpo12+1] [libvirt-daemon:amd64 ]\n\
                    Inst libslirp0 (4.7.0-1 Debian:12.15/oldstable [amd64])\n\
                    Inst zstd [1.5.2] (1.5.4+dfsg2-5 Debian:12.15/oldstable [amd64]) []\n\
                    Conf libslirp0 (4.7.0-1 Debian:12.15/oldstable [amd64])\n";
        let expect = Changes {
            installed: vec![
                ("libslirp0".to_owned(), None, "4.7.0-1".to_owned()),
                ("zstd".to_owned(), Some("1.5.2".to_owned()), "1.5.4+dfsg2-5".to_owned()),
            ],
            removed: vec![("qemu-utils".to_owned(), "1:10.0.2+ds-2~bpo12+1".to_owned())],
        };
        assert_eq!(changes(said), expect);
    }
}
