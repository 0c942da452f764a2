//! The kernel of the boot image: a Debian package, downloaded and unpacked in the cache, never installed on the host.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cache::{self, Key};
use crate::command::{command, run_quietly, stdout};
use crate::{host, workspace};

/// The kernel for real machines, by its name in `initramfs/kernels.txt`.
pub const GENERIC: &str = "generic";
/// The kernel for virtual machines, by its name in `initramfs/kernels.txt`.
pub const CLOUD: &str = "cloud";

/// An unpacked kernel package.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Release, as shown by `uname -r`.
    pub release: String,
    /// The root of the unpacked package. Its modules and depmod's index are in `lib/modules/RELEASE`.
    pub root: PathBuf,
}

impl Kernel {
    /// The kernel image.
    pub fn vmlinuz(&self) -> PathBuf {
        self.root.join("boot").join(format!("vmlinuz-{}", self.release))
    }

    /// The folder of its modules.
    pub fn modules(&self) -> PathBuf {
        self.root.join("lib/modules").join(&self.release)
    }
}

/// Fetches a kernel by its name in `initramfs/kernels.txt`; without a name, the first.
pub fn fetch(name: Option<&str>) -> Result<Kernel> {
    let path = workspace::root().join("initramfs/kernels.txt");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let kernels: Vec<(&str, &str)> =
        text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(' ')).collect();
    let chosen = kernels.iter().find(|(known, _)| name.is_none_or(|name| name == *known));
    let (_, package) = chosen.with_context(|| {
        let known: Vec<&str> = kernels.iter().map(|(name, _)| *name).collect();
        format!(
            "choosing kernel {:?}: the kernels in {} are {}",
            name.unwrap_or_default(),
            path.display(),
            known.join(", ")
        )
    })?;
    unpack(package.trim())
}

fn unpack(package: &str) -> Result<Kernel> {
    host::ensure(host::BOOT_IMAGE)?;
    let (package, version) = match newest(package) {
        Ok(found) => found,
        // A new machine has no package lists yet.
        Err(_) => host::refresh_lists().and_then(|()| newest(package))?,
    };
    let key = Key::new("kernel-1").with("package", &package).with("version", &version);
    let root = cache::keyed("kernel", key, |folder| {
        eprintln!("fetching {package} {version}");
        let download = ["-o", "APT::Sandbox::User=root", "download", &format!("{package}={version}")];
        run_quietly(command("apt-get", download).current_dir(folder))?;
        for file in cache::files_below(folder)? {
            run_quietly(command("dpkg-deb", ["--extract"]).arg(&file).arg(folder))?;
            fs::remove_file(&file).with_context(|| format!("removing {}", file.display()))?;
        }
        run_quietly(command("depmod", ["--basedir"]).arg(folder).arg(release(folder)?))
    })?;
    Ok(Kernel { release: release(&root)?, root })
}

/// Name and version of the package that a metapackage currently depends on.
fn newest(package: &str) -> Result<(String, String)> {
    let depends = stdout(&mut command("apt-cache", ["depends", "--important", package]))?;
    let images = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let image = images.into_iter().find(|name| name.starts_with("linux-image-")).unwrap_or(package).to_owned();
    let version = host::candidate(&image)?;
    Ok((image, version))
}

/// The only kernel release below a root folder.
fn release(root: &Path) -> Result<String> {
    let folder = root.join("lib/modules");
    let mut entries = fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
    let entry =
        entries.next().with_context(|| format!("looking for a kernel release: {} is empty", folder.display()))?;
    Ok(entry?.file_name().to_string_lossy().into_owned())
}
