//! Debian's archive, on the mirror that the host's apt uses. Target images and single packages of later suites come
//! from this archive.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use slipway_parts::Arch;

use crate::host::cache::{self, Key};
use crate::host::command::{command, run_quietly, stdout};
use crate::host::{files, packages};

/// A Debian release and its package sources.
pub struct Sources {
    /// Codename of the release.
    pub suite: String,
    /// Lines as in sources.list(5).
    pub list: String,
}

/// Returns the host's apt sources for Debian's own archive, and its release.
pub fn sources() -> Result<Sources> {
    let query = || {
        let line = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(REPO_URI) $(RELEASE) $(COMPONENT)";
        stdout(&mut command("apt-get", ["indextargets", "--format", line, "Created-By: Packages", "Origin: Debian"]))
    };
    let mut list = query()?;
    if list.trim().is_empty() {
        packages::refresh_lists()?;
        list = query()?;
    }
    // The plain suite has the shortest name: bookworm, not bookworm-updates or bookworm-security.
    let suites = list.lines().filter_map(|line| line.split_whitespace().nth(3));
    let suite = suites
        .min_by_key(|suite| suite.len())
        .context("looking for Debian's archive: apt has no source for it")?
        .to_owned();
    Ok(Sources { suite, list })
}

/// A package of a suite, which may differ from the host's.
pub struct Package<'a> {
    /// Name of the package.
    pub name: &'a str,
    /// Codename of the release.
    pub suite: &'a str,
    /// Component of the archive, such as `main` or `non-free-firmware`. The host's sources need not have it.
    pub component: &'a str,
}

/// Configures systems from Ignition configs at first boot. In Debian since trixie.
pub const IGNITION: Package<'_> = Package { name: "ignition", suite: "trixie", component: "main" };
/// UEFI stub of the boot image. 258 is the first version whose stub records the URL that it was loaded from.
pub const STUB: Package<'_> = Package { name: "systemd-boot-efi", suite: "forky", component: "main" };
/// Boot loader and stub of unified kernel images that tests install. 254 is the first version whose stub reads addons.
pub const SYSTEMD_BOOT: Package<'_> =
    Package { name: "systemd-boot-efi", suite: "bookworm-backports", component: "main" };
/// The network boot loader, version 2.0. Bookworm's is from 2019 and has neither HTTPS nor an arm64 program. The
/// package is the same for all architectures.
pub const IPXE: Package<'_> = Package { name: "ipxe", suite: "forky", component: "main" };
/// UEFI firmware for machines in QEMU, with TLS that supports elliptic curves. Trixie's firmware does not.
pub const NEWER_FIRMWARE: Package<'_> = Package { name: "ovmf-generic", suite: "forky", component: "main" };
/// UEFI firmware for QEMU's arm64 machines. Bookworm's comes without a formatted variable store, so only the firmware
/// itself could write the first variable.
pub const ARM64_FIRMWARE: Package<'_> = Package { name: "qemu-efi-aarch64", suite: "trixie", component: "main" };
/// Debian's installer for network boot.
pub const INSTALLER: Package<'_> =
    Package { name: "debian-installer-12-netboot-amd64", suite: "bookworm", component: "main" };

/// The public list of PCI devices.
pub const PCI_IDS: Package<'_> = Package { name: "pci.ids", suite: "bookworm", component: "main" };

/// Prometheus, whose program promtool checks rules for alerts. Its package would start a service if it were installed.
pub const PROMETHEUS: Package<'_> = Package { name: "prometheus", suite: "bookworm", component: "main" };

/// Returns the root folder of an unpacked package. The package is not installed, and its dependencies are not fetched.
/// The folder stays in the cache: remove `debian-package` from the cache to get a new version.
pub fn unpacked(package: &Package<'_>) -> Result<PathBuf> {
    unpacked_for(package, Arch::X86_64)
}

/// Like [`unpacked`], for an architecture that may differ from the host's.
pub fn unpacked_for(Package { name, suite, component }: &Package<'_>, arch: Arch) -> Result<PathBuf> {
    let sources = sources()?;
    let own = format!(" {} main", sources.suite);
    let line =
        sources.list.lines().find_map(|line| Some(format!("{} {suite} {component}\n", line.strip_suffix(&own)?)));
    let line =
        line.with_context(|| format!("looking for the mirror of {}: apt has no source for it", sources.suite))?;
    let mut key = Key::new("debian-package-1").with("source", &line).with("name", name);
    if arch != Arch::X86_64 {
        key = key.with("architecture", arch.debian());
    }
    cache::keyed("debian-package", key, |folder| {
        eprintln!("fetching {name} from {suite}");
        let fetch = || Archive::open(&folder.join("apt"), &line, arch)?.unpack(&[*name], folder);
        fetch().with_context(|| {
            format!("fetching {name} of {suite} from the mirror that apt uses for {}", sources.suite)
        })?;
        let apt = folder.join("apt");
        fs::remove_dir_all(&apt).with_context(|| format!("removing {}", apt.display()))
    })
}

/// Debian's archive through apt, with one list of sources and one architecture. Package lists and downloads are in a
/// separate folder. The host's packages, preferences and architectures are not used.
pub(crate) struct Archive {
    folder: PathBuf,
    arch: Arch,
}

impl Archive {
    /// Fetches the package lists into a folder.
    pub(crate) fn open(folder: &Path, sources: &str, arch: Arch) -> Result<Self> {
        packages::ensure(&["debian-archive-keyring"])?;
        for needed in ["lists/partial", "cache/archives/partial"].map(|needed| folder.join(needed)) {
            files::create_dir(&needed)?;
        }
        let archive = Self { folder: folder.to_owned(), arch };
        let list = archive.list();
        files::write(&list, sources)?;
        run_quietly(archive.apt("apt-get").arg("update"))?;
        Ok(archive)
    }

    fn list(&self) -> PathBuf {
        self.folder.join("sources.list")
    }

    /// Makes a command of an apt program, such as `apt-get`, that uses this archive's folder.
    pub(crate) fn apt(&self, program: &str) -> Command {
        let mut apt = command(program, ["--quiet"]);
        let (list, nothing) = (self.list(), Path::new("/dev/null"));
        for (option, path) in [
            ("Dir::Etc::sourcelist", list.as_path()),
            ("Dir::Etc::sourceparts", nothing),
            ("Dir::State::lists", &self.folder.join("lists")),
            ("Dir::Cache", &self.folder.join("cache")),
            ("Dir::State::status", nothing),
            ("Dir::Etc::preferences", nothing),
            ("Dir::Etc::preferencesparts", nothing),
        ] {
            apt.arg("--option").arg(format!("{option}={}", path.display()));
        }
        for (option, value) in [
            ("APT::Architecture", self.arch.debian()),
            ("APT::Architectures", self.arch.debian()),
            // A list that cannot be fetched is an error.
            ("APT::Update::Error-Mode", "any"),
            // The folder is private, so apt's sandbox user could not use it.
            ("APT::Sandbox::User", "root"),
        ] {
            apt.arg("--option").arg(format!("{option}={value}"));
        }
        apt.current_dir(&self.folder);
        apt
    }

    /// Downloads packages without their dependencies, and unpacks them below a root folder.
    pub(crate) fn unpack(&self, packages: &[&str], root: &Path) -> Result<()> {
        run_quietly(self.apt("apt-get").arg("download").args(packages))?;
        unpack_files(&self.folder, root)
    }
}

/// Unpacks the package files of `folder` below `root`, and removes the package files.
pub(crate) fn unpack_files(folder: &Path, root: &Path) -> Result<()> {
    for file in files::children(folder)? {
        if file.extension().is_some_and(|end| end == "deb") {
            run_quietly(command("dpkg-deb", ["--extract"]).arg(&file).arg(root))?;
            fs::remove_file(&file).with_context(|| format!("removing {}", file.display()))?;
        }
    }
    Ok(())
}
