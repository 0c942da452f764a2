//! File systems of the installed system.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{Dir, FileType, Mode, OFlags, fstat, openat};

use crate::error::Error;
use crate::target_root::{TargetRoot, target_file};

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

    /// Whether GRUB is installed here: its modules, or the program that the firmware starts.
    pub(super) fn has_grub(&self) -> bool {
        let is_program = |name: &String| name.starts_with("grub") && name.ends_with(".efi");
        let has = |folder: &String| {
            let modules = self.folders(folder).iter().any(|name| name.contains("-efi") || name.ends_with("-pc"));
            modules || self.root.list(folder).is_ok_and(|names| names.iter().any(is_program))
        };
        self.grub_folders().iter().any(has)
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

    /// Up to `len` bytes of a file from an offset on; none where there is no such file.
    pub(super) fn bytes(&self, folder: &str, name: &str, offset: u64, len: u64) -> Result<Vec<u8>, Error> {
        let read = || -> io::Result<Vec<u8>> {
            let folder = self.root.open_directory(folder.as_bytes())?;
            // What only looks like a file may never have anything to read.
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = File::from(openat(folder, name, flags, Mode::empty())?);
            let mut bytes = vec![0; len as usize];
            let mut filled = 0;
            while filled < bytes.len() {
                match file.read_at(&mut bytes[filled..], offset + filled as u64)? {
                    0 => break,
                    n => filled += n,
                }
            }
            bytes.truncate(filled);
            Ok(bytes)
        };
        match read() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(target_file("reading", &format!("{folder}/{name}"), error))
            }
            read => Ok(read.unwrap_or_default()),
        }
    }
}
