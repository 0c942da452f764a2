//! Determines in advance which initramfs images will be rebuilt.

use slipway_formats::fstab;

use crate::error::Error;
use crate::target;
use crate::target::os_release;
use crate::target::root::{Attributes, TargetRoot};
use crate::target::volume::Volume;

/// Debian's hook that updates the boot loader's copies after the initramfs is rebuilt (package systemd-boot).
pub(super) const HOOK: &str = "etc/kernel/postinst.d/zz-systemd-boot";
/// What the name of a rescue initramfs has in place of the kernel version (dracut, 51-dracut-rescue.install).
const RESCUE: &str = "0-rescue";
/// Names in /boot of images that are rebuilt, before and after the kernel version: Debian's, dracut's own and SUSE's.
const NAMES: &[(&str, &str)] = &[("initrd.img-", ""), ("initramfs-", ".img"), ("initrd-", "")];

/// The installed system, with its /boot as it is mounted when its initramfs images are rebuilt.
pub(super) struct System<'a> {
    home: &'a TargetRoot,
    boot: &'a Volume,
    /// Path of /boot on the file system `boot`, as a prefix: `boot/` or empty.
    folder: &'static str,
    /// Names of the images that are rebuilt.
    images: Vec<String>,
}

impl<'a> System<'a> {
    /// Finds the system whose root is to be encrypted; `None` if no file system is a root.
    pub(super) fn find(volumes: &'a [Volume]) -> Result<Option<Self>, Error> {
        let is_root = |volume: &&Volume| {
            volume.file_system.kind != "vfat" && os_release::PATHS.iter().any(|path| volume.root.exists(path))
        };
        let rank = |volume: &&Volume| target::roles::rank(&volume.partition, Some(&volume.file_system));
        let Some(home) = volumes.iter().filter(is_root).min_by_key(rank) else { return Ok(None) };
        let entries = boot_entries(&home.root)?;
        let meant = entries.iter().find(|entry| entry.place == "boot");
        let is_meant = |volume: &&Volume| meant.is_some_and(|entry| entry.means(&volume.tags()));
        let (boot, folder) = volumes.iter().find(is_meant).map_or((home, "boot/"), |boot| (boot, ""));
        let mut system = Self { home: &home.root, boot, folder, images: Vec::new() };
        let is_made = |image: &String| {
            version(image).is_some_and(|version| system.has_modules(version)) && system.has_in_boot(image)
        };
        system.images = boot.root.list(folder)?.into_iter().filter(is_made).collect();
        Ok(Some(system))
    }

    /// Whether any image is rebuilt.
    pub(super) fn has_images(&self) -> bool {
        !self.images.is_empty()
    }

    /// Whether the initramfs at a path of a file system is rebuilt.
    pub(super) fn makes(&self, volume: &Volume, path: &str) -> bool {
        // For a symbolic link, its target is rebuilt.
        let path = volume.root.followed(path).unwrap_or_else(|_| path.to_owned());
        let path = path.trim_start_matches('/');
        let name = path.strip_prefix("boot/").or_else(|| self.folder.is_empty().then_some(path));
        std::ptr::eq(self.boot, volume) && self.images.iter().any(|image| Some(image.as_str()) == name)
    }

    /// Whether a kernel is a copy for the boot loader (`TOKEN/VERSION/linux`, kernel-install(8)) that is made again
    /// after the initramfs of that version, as the script `INITRAMFS` does on systems with Debian's hook.
    pub(super) fn makes_copy(&self, kernel: &str) -> bool {
        let mut names = kernel.rsplit('/').skip(1);
        let (Some(copied), Some(_)) = (names.next(), names.next()) else { return false };
        self.home.attributes(HOOK).is_ok_and(is_program)
            && self.images.iter().any(|image| version(image) == Some(copied))
            && self.has_in_boot(&format!("vmlinuz-{copied}"))
    }

    /// Returns the missing file if the kernel of an initramfs is not installed, so that nothing rebuilds the initramfs.
    pub(super) fn missing_for(&self, initramfs: &str) -> Option<String> {
        let version = version(initramfs.rsplit('/').next()?)?;
        (!self.has_modules(version)).then(|| modules(version))
    }

    fn has_modules(&self, version: &str) -> bool {
        self.home.exists(&modules(version))
    }

    fn has_in_boot(&self, name: &str) -> bool {
        self.boot.root.exists(&format!("{}{name}", self.folder))
    }
}

/// Whether an initramfs is a rescue one, which dracut makes only once: `initramfs-0-rescue-ID.img` or
/// ID/0-rescue/initrd.
pub(super) fn is_for_rescue(path: &str) -> bool {
    let is_rescue = |name: &str| {
        let version = version(name).unwrap_or(name);
        version.strip_prefix(RESCUE).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    path.split('/').any(is_rescue)
}

fn is_program(attributes: Option<Attributes>) -> bool {
    attributes.is_some_and(|attributes| attributes.mode & 0o111 != 0)
}

/// Returns the entries of a root file system's fstab that are for booting.
pub(super) fn boot_entries(root: &TargetRoot) -> Result<Vec<fstab::Entry>, Error> {
    Ok(fstab::boot_entries(&root.read("etc/fstab")?.unwrap_or_default()))
}

/// Returns the kernel version of an image from its name in /boot.
fn version(image: &str) -> Option<&str> {
    let named = NAMES.iter().find_map(|(start, end)| image.strip_prefix(start)?.strip_suffix(end));
    // The pattern in the script `INITRAMFS` does not match folders whose names begin with a dot.
    named.filter(|version| !version.is_empty() && !version.starts_with('.'))
}

/// Returns the path of a file that exists if the modules of a kernel are installed (depmod(8)).
fn modules(version: &str) -> String {
    format!("lib/modules/{version}/modules.dep")
}

#[cfg(test)]
mod tests {
    use super::super::target_files::INITRAMFS;
    use super::*;

    #[test]
    fn images_for_rescue_are_told_by_their_name() {
        for (path, expect) in [
            ("initramfs-0-rescue-0123456789abcdef.img", true),
            ("boot/initramfs-0-rescue-0123456789abcdef.img", true),
            ("0123456789abcdef/0-rescue/initrd", true),
            ("initramfs-5.10-rescue.img", false),
            ("id/5.0-rescue/initrd", false),
            ("initramfs-0-rescued.img", false),
            ("initramfs-0.1.img", false),
        ] {
            assert_eq!(is_for_rescue(path), expect, "{path}");
        }
    }

    #[test]
    fn the_script_makes_images_of_these_names() {
        for (start, end) in NAMES {
            assert!(INITRAMFS.contains(&format!("\"/boot/{start}$version{end}\"")), "{start}VERSION{end}");
        }
    }
}
