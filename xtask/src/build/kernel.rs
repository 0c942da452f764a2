//! The kernel of the boot image: a Debian package, downloaded and unpacked in the cache, never installed on the host.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use slipway_parts::Arch;

use crate::host::cache::{self, Key};
use crate::host::command::{command, run_quietly, stdout};
use crate::host::{debian, files, packages, workspace};

/// Name in `initramfs/kernels.txt` of the kernel for physical machines.
pub const GENERIC: &str = "generic";
/// Name in `initramfs/kernels.txt` of the kernel for virtual machines.
pub const CLOUD: &str = "cloud";

/// An unpacked kernel package.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Release, as shown by `uname -r`.
    pub release: String,
    /// Root folder of the unpacked package. Modules and depmod's index are in `lib/modules/RELEASE`.
    pub root: PathBuf,
}

impl Kernel {
    /// Path of the kernel image.
    pub fn vmlinuz(&self) -> PathBuf {
        self.root.join("boot").join(format!("vmlinuz-{}", self.release))
    }

    /// Path of the folder of modules.
    pub fn modules(&self) -> PathBuf {
        self.root.join("lib/modules").join(&self.release)
    }
}

/// Fetches a kernel by its name in `initramfs/kernels.txt`, or the first one in that file.
pub fn fetch(name: Option<&str>, arch: Arch) -> Result<Kernel> {
    let path = workspace::root().join("initramfs/kernels.txt");
    let text = files::read_text(&path)?;
    let kernels: Vec<[&str; 3]> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_whitespace().collect::<Vec<_>>().try_into().ok())
        .collect();
    let chosen = kernels.iter().find(|[known, ..]| name.is_none_or(|name| name == *known));
    let [_, of_x86_64, of_aarch64] = chosen.with_context(|| {
        let known: Vec<&str> = kernels.iter().map(|[name, ..]| *name).collect();
        format!(
            "choosing kernel {:?}: the kernels in {} are {}",
            name.unwrap_or_default(),
            path.display(),
            known.join(", ")
        )
    })?;
    // Debian builds the kernel of all architectures from one source, so the host's lists, which are for x86-64, also
    // show whether there is a newer one for arm64.
    let (package, version) = match newest(of_x86_64) {
        Ok(found) => found,
        // A new machine has no package lists yet.
        Err(_) => packages::refresh_lists().and_then(|()| newest(of_x86_64))?,
    };
    let key = Key::new("kernel-1").with("package", &package).with("version", &version);
    match arch {
        Arch::X86_64 => unpack(key, |folder| {
            eprintln!("fetching {package} {version}");
            let download = ["-o", "APT::Sandbox::User=root", "download", &format!("{package}={version}")];
            run_quietly(command("apt-get", download).current_dir(folder))?;
            debian::unpack_files(folder, folder)
        }),
        Arch::Aarch64 => unpack(key.with("for", of_aarch64), |folder| {
            eprintln!("fetching {of_aarch64}");
            let work = tempfile::tempdir_in(folder).context("creating a temporary folder")?;
            let archive = debian::Archive::open(work.path(), &debian::sources()?.list, arch)?;
            let depends = stdout(archive.apt("apt-cache").args(["depends", "--important", of_aarch64]))?;
            archive.unpack(&[image_of(&depends).unwrap_or(of_aarch64)], folder)
        }),
    }
}

/// Returns the kernel of `key` from the cache. If it is missing, `fetch` unpacks it, and depmod makes its index.
fn unpack(key: Key, fetch: impl FnOnce(&Path) -> Result<()>) -> Result<Kernel> {
    packages::ensure(packages::BOOT_IMAGE)?;
    let root = cache::keyed("kernel", key, |folder| {
        fetch(folder)?;
        run_quietly(command("depmod", ["--basedir"]).arg(folder).arg(release(folder)?))
    })?;
    Ok(Kernel { release: release(&root)?, root })
}

/// Returns name and version of the package that a metapackage currently depends on.
fn newest(package: &str) -> Result<(String, String)> {
    let depends = stdout(&mut command("apt-cache", ["depends", "--important", package]))?;
    let image = image_of(&depends).unwrap_or(package).to_owned();
    let version = packages::candidate(&image)?;
    Ok((image, version))
}

/// Finds the kernel package among the dependencies that apt-cache lists.
fn image_of(depends: &str) -> Option<&str> {
    let mut names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.find(|name| name.starts_with("linux-image-"))
}

/// Returns the only kernel release below a root folder.
fn release(root: &Path) -> Result<String> {
    let folder = root.join("lib/modules");
    let mut entries = fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
    let entry =
        entries.next().with_context(|| format!("looking for a kernel release: {} is empty", folder.display()))?;
    Ok(entry?.file_name().to_string_lossy().into_owned())
}
