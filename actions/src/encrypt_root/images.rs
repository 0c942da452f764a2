//! Which initramfs images are made anew, known before they are.

use crate::error::Error;
use crate::os_release;
use crate::run_in_target::fstab;
use crate::target;
use crate::target_root::TargetRoot;
use crate::volume::Volume;

/// Names in /boot of what is made anew, before and after the version of its kernel: Debian's, dracut's own and SUSE's.
const NAMES: &[(&str, &str)] = &[("initrd.img-", ""), ("initramfs-", ".img"), ("initrd-", "")];

/// The installed system, and its /boot as it is mounted when its initramfs images are made anew.
pub(super) struct System<'a> {
    boot: &'a Volume,
    /// Names of the images that are made anew.
    images: Vec<String>,
}

impl<'a> System<'a> {
    /// The one whose root is to be encrypted; none where no file system is a root.
    pub(super) fn find(volumes: &'a [Volume]) -> Result<Option<Self>, Error> {
        let is_root = |volume: &&Volume| {
            volume.file_system.kind != "vfat" && os_release::PATHS.iter().any(|path| volume.root.exists(path))
        };
        let rank = |volume: &&Volume| target::rank(&volume.partition, Some(&volume.file_system));
        let Some(home) = volumes.iter().filter(is_root).min_by_key(rank) else { return Ok(None) };
        let entries = boot_entries(&home.root)?;
        let meant = entries.iter().find(|entry| entry.place == "boot");
        let is_meant =
            |volume: &&Volume| meant.is_some_and(|entry| entry.means(&volume.partition, &volume.file_system));
        let (boot, folder) = volumes.iter().find(is_meant).map_or((home, "boot/"), |boot| (boot, ""));
        let mut images = boot.root.list(folder)?;
        images.retain(|image| {
            let has_modules = version(image).is_some_and(|version| home.root.exists(&modules(version)));
            has_modules && boot.root.exists(&format!("{folder}{image}"))
        });
        Ok(Some(Self { boot, images }))
    }

    /// Whether a file system is or has its /boot.
    pub(super) fn has_at_boot(&self, volume: &Volume) -> bool {
        std::ptr::eq(self.boot, volume)
    }

    /// Whether any image is made anew.
    pub(super) fn has_images(&self) -> bool {
        !self.images.is_empty()
    }
}

/// What the fstab of a root file system mounts for booting.
pub(super) fn boot_entries(root: &TargetRoot) -> Result<Vec<fstab::Entry>, Error> {
    Ok(fstab::boot_entries(&root.read("etc/fstab")?.unwrap_or_default()))
}

/// The version of the kernel that an image is for, by its name in /boot.
fn version(image: &str) -> Option<&str> {
    let named = NAMES.iter().find_map(|(start, end)| image.strip_prefix(start)?.strip_suffix(end));
    // No pattern of the shell means a folder whose name begins with a dot.
    named.filter(|version| !version.is_empty() && !version.starts_with('.'))
}

/// What says that the modules of a kernel are there (depmod(8)).
fn modules(version: &str) -> String {
    format!("lib/modules/{version}/modules.dep")
}

#[cfg(test)]
mod tests {
    use super::super::target_files::INITRAMFS;
    use super::*;

    #[test]
    fn images_are_for_the_kernel_in_their_name() {
        for (image, expect) in [
            ("initrd.img-6.1.0-18-amd64", Some("6.1.0-18-amd64")),
            ("initramfs-5.14.0-427.el9.x86_64.img", Some("5.14.0-427.el9.x86_64")),
            ("initrd-5.3.18-150300.38-default", Some("5.3.18-150300.38-default")),
            ("initramfs-linux.img", Some("linux")),
            ("initramfs-6.1", None),
            ("initrd.img", None),
            ("initrd.img-", None),
            ("initrd.img-..", None),
            ("vmlinuz-6.1", None),
        ] {
            assert_eq!(version(image), expect, "{image}");
        }
    }

    #[test]
    fn the_script_makes_images_of_these_names() {
        for (start, end) in NAMES {
            assert!(INITRAMFS.contains(&format!("\"/boot/{start}$version{end}\"")), "{start}VERSION{end}");
        }
    }
}
