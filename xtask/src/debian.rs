//! Debian's archive on the mirror of the host's apt: the source of target images and of single packages of later
//! suites.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cache::{self, Key};
use crate::command::{command, run_quietly, stdout};
use crate::host;

/// Where packages come from.
pub struct Sources {
    /// Codename of the release.
    pub suite: String,
    /// Lines as in sources.list(5).
    pub list: String,
}

/// The entries for Debian's own archive in the host's sources.
pub fn sources() -> Result<Sources> {
    let query = || {
        let line = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(REPO_URI) $(RELEASE) $(COMPONENT)";
        stdout(&mut command("apt-get", ["indextargets", "--format", line, "Created-By: Packages", "Origin: Debian"]))
    };
    let mut list = query()?;
    if list.trim().is_empty() {
        host::refresh_lists()?;
        list = query()?;
    }
    // The plain suite is the shortest: bookworm, not bookworm-updates or bookworm-security.
    let suites = list.lines().filter_map(|line| line.split_whitespace().nth(3));
    let suite = suites
        .min_by_key(|suite| suite.len())
        .context("looking for Debian's archive: apt has no source for it")?
        .to_owned();
    Ok(Sources { suite, list })
}

/// A package of a suite, which may differ from the host's.
pub struct Package<'a> {
    /// Its name.
    pub name: &'a str,
    /// The codename of its release.
    pub suite: &'a str,
    /// The component of the archive, which the host's sources need not have: `main`, `non-free-firmware`.
    pub component: &'a str,
}

/// Configures systems with Ignition configs at first boot. Debian has it since trixie.
pub const IGNITION: Package<'_> = Package { name: "ignition", suite: "trixie", component: "main" };
/// Boot loader and stub for unified kernel images. 254 is the first version whose stub reads addons.
pub const SYSTEMD_BOOT: Package<'_> =
    Package { name: "systemd-boot-efi", suite: "bookworm-backports", component: "main" };
/// Debian's installer for network boot.
pub const INSTALLER: Package<'_> =
    Package { name: "debian-installer-12-netboot-amd64", suite: "bookworm", component: "main" };

/// The public list of PCI devices.
pub const PCI_IDS: Package<'_> = Package { name: "pci.ids", suite: "bookworm", component: "main" };

/// The root of an unpacked package. Neither it nor its dependencies are installed. It stays in the cache: remove the
/// folder `debian-package` there to get a new version.
pub fn unpacked(Package { name, suite, component }: &Package<'_>) -> Result<PathBuf> {
    let sources = sources()?;
    let own = format!(" {} main", sources.suite);
    let line =
        sources.list.lines().find_map(|line| Some(format!("{} {suite} {component}\n", line.strip_suffix(&own)?)));
    let line =
        line.with_context(|| format!("looking for the mirror of {}: apt has no source for it", sources.suite))?;
    let key = Key::new("debian-package-1").with("source", &line).with("name", name);
    cache::keyed("debian-package", key, |folder| {
        host::ensure(&["debian-archive-keyring"])?;
        eprintln!("fetching {name} from {suite}");
        let apt = folder.join("apt");
        let list = apt.join("sources.list");
        fs::create_dir_all(&apt).with_context(|| format!("creating {}", apt.display()))?;
        fs::write(&list, &line).with_context(|| format!("writing {}", list.display()))?;
        run_quietly(apt_get(&apt, &list)?.arg("update"))
            .and_then(|()| run_quietly(apt_get(&apt, &list)?.args(["download", name])))
            .with_context(|| {
                format!("fetching {name} of {suite} from the mirror that apt uses for {}", sources.suite)
            })?;
        for file in cache::files_below(&apt)?.iter().filter(|file| file.extension().is_some_and(|end| end == "deb")) {
            run_quietly(command("dpkg-deb", ["--extract"]).arg(file).arg(folder))?;
        }
        fs::remove_dir_all(&apt).with_context(|| format!("removing {}", apt.display()))
    })
}

/// apt-get with one list of sources, and with its own package lists and downloads in a folder, where it runs. It
/// ignores the host's installed packages and preferences.
pub(crate) fn apt_get(folder: &Path, sources: &Path) -> Result<Command> {
    let (lists, cache) = (folder.join("lists"), folder.join("cache"));
    for needed in [lists.join("partial"), cache.join("archives/partial")] {
        fs::create_dir_all(&needed).with_context(|| format!("creating {}", needed.display()))?;
    }
    let mut apt_get = command("apt-get", ["--quiet"]);
    for (option, path) in [
        ("Dir::Etc::sourcelist", sources),
        ("Dir::Etc::sourceparts", Path::new("/dev/null")),
        ("Dir::State::lists", &lists),
        ("Dir::Cache", &cache),
        ("Dir::State::status", Path::new("/dev/null")),
        ("Dir::Etc::preferences", Path::new("/dev/null")),
        ("Dir::Etc::preferencesparts", Path::new("/dev/null")),
        // A list that cannot be fetched is an error.
        ("APT::Update::Error-Mode", Path::new("any")),
        // The folder is private: apt's sandbox user could not use it.
        ("APT::Sandbox::User", Path::new("root")),
    ] {
        apt_get.arg("--option").arg(format!("{option}={}", path.display()));
    }
    apt_get.current_dir(folder);
    Ok(apt_get)
}
