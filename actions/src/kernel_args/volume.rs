//! File systems of the installed system.

use rustix::fs::{Dir, FileType, fstat};

use crate::target_root::TargetRoot;

const GRUB: &[&str] = &["grub", "grub2"];
/// On an ESP, folders of vendors are in this one; some systems have GRUB's menu there.
const VENDORS: &str = "EFI";

/// A mounted file system.
#[derive(Debug)]
pub(super) struct Volume {
    pub(super) root: TargetRoot,
    /// What may stand before the path of a boot file: /boot may be this file system or a folder of it.
    pub(super) prefixes: &'static [&'static str],
}

impl Volume {
    pub(super) fn new(root: TargetRoot) -> Self {
        let inode = |path: &[u8]| root.open_directory(path).and_then(fstat).map(|stat| stat.st_ino).ok();
        // A link from /boot/boot to /boot is there for loaders that look in either place.
        let is_same = inode(b"boot").is_some() && inode(b"boot") == inode(b".");
        let prefixes = if is_same { &[""][..] } else { &["", "boot/"] };
        Self { root, prefixes }
    }

    /// Folders that grub-install(8) and grub-mkconfig(8) write to, be they there or not: in /boot, and of vendors on an ESP.
    pub(super) fn grub_folders(&self) -> Vec<String> {
        let of_boot = self.prefixes.iter().flat_map(|prefix| GRUB.iter().map(move |name| format!("{prefix}{name}")));
        of_boot.chain(self.folders(VENDORS).iter().map(|vendor| format!("{VENDORS}/{vendor}"))).collect()
    }

    /// Names of the folders in a folder, sorted; none where there is no such folder.
    pub(super) fn folders(&self, path: &str) -> Vec<String> {
        let Some(dir) = self.root.open_directory(path.as_bytes()).and_then(Dir::new).ok() else { return Vec::new() };
        let entries = dir.flatten().filter(|entry| entry.file_type() == FileType::Directory);
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.retain(|name| !name.starts_with('.'));
        names.sort();
        names
    }
}
