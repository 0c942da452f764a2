//! File systems of the installed system, and the places of boot loader configuration in them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{Mode, OFlags, fstat, openat};
use slipway_formats::fstab::Tags;

use crate::disk::partitions::Partition;
use crate::disk::probe::FileSystem;
use crate::error::Error;
use crate::target::roles;
use crate::target::root::{TargetRoot, target_file};

/// Folder of unified kernel images (Boot Loader Specification, Type #2).
pub(crate) const IMAGES: &str = "EFI/Linux";
/// Folder in which firmware looks for a program without a boot entry (UEFI specification, 3.5.1.1).
pub(crate) const REMOVABLE: &str = "EFI/BOOT";
/// Addons for all images on the same partition, including later ones (systemd-stub(7)).
pub(crate) const ADDONS: &str = "loader/addons";
/// The command line that kernel-install(8) puts into the entries of new kernels.
pub(crate) const KERNEL_CMDLINE: &str = "etc/kernel/cmdline";
/// Boot Loader Specification, Type #1 entries: on an ESP or XBOOTLDR partition, or in /boot.
const ENTRIES: &str = "loader/entries";
/// Menus of EXTLINUX, SYSLINUX and U-Boot.
const MENUS: &[&str] = &[
    "extlinux/extlinux.conf",
    "extlinux.conf",
    "syslinux/syslinux.cfg",
    "syslinux.cfg",
    "EFI/syslinux/syslinux.cfg",
    "EFI/BOOT/syslinux.cfg",
];
/// Files of other loaders with arguments of the kernel, and the loaders.
const OTHERS: &[(&str, &str)] = &[
    ("grub/menu.lst", "GRUB Legacy"),
    ("grub/grub.conf", "GRUB Legacy"),
    ("refind_linux.conf", "rEFInd"),
    ("EFI/refind/refind.conf", "rEFInd"),
    ("limine.conf", "Limine"),
    ("limine.cfg", "Limine"),
    ("limine/limine.conf", "Limine"),
    ("EFI/BOOT/limine.conf", "Limine"),
    ("cmdline.txt", "the Raspberry Pi's firmware"),
    ("firmware/cmdline.txt", "the Raspberry Pi's firmware"),
    ("uEnv.txt", "U-Boot"),
    ("armbianEnv.txt", "U-Boot"),
    ("boot.scr", "U-Boot"),
    ("boot.cmd", "U-Boot"),
    ("etc/lilo.conf", "LILO"),
    ("etc/elilo.conf", "ELILO"),
    ("etc/zipl.conf", "zipl"),
    ("etc/yaboot.conf", "yaboot"),
    ("isolinux/isolinux.cfg", "ISOLINUX"),
];
/// What shows that a file of these has arguments of the kernel.
const ARGUMENTS: &[&str] = &["root=", "append", "options", "bootargs", "cmdline", "console="];
const GRUB: &[&str] = &["grub", "grub2"];
/// Parent of the vendor folders on an ESP; some systems have GRUB's menu in theirs.
pub(crate) const VENDORS: &str = "EFI";

/// Maximum size in bytes of an entry, which has a dozen lines, and of a menu, which has all entries.
pub(crate) const MAX_ENTRY: u64 = 64 << 10;
pub(crate) const MAX_MENU: u64 = 4 << 20;
/// Maximum number of entries, images or folders of one kind. A file system with more is malicious.
const MAX_FILES: usize = 256;

/// A mounted file system.
#[derive(Debug)]
pub(crate) struct Volume {
    /// Its partition in words.
    pub(crate) name: String,
    pub(crate) partition: Partition,
    pub(crate) file_system: FileSystem,
    pub(crate) root: TargetRoot,
    /// Possible prefixes of the paths of boot files: /boot may be this file system or a folder in it.
    prefixes: &'static [&'static str],
}

impl Volume {
    pub(crate) fn new(name: String, partition: Partition, file_system: FileSystem, root: TargetRoot) -> Self {
        // The inode number is not enough: the root of a subvolume has the same number in every btrfs.
        let inode = |path: &[u8]| root.open_directory(path).and_then(fstat).map(|stat| (stat.st_dev, stat.st_ino)).ok();
        // Some systems have a link from /boot/boot to /boot, for loaders that look in either place.
        let is_same = inode(b"boot").is_some() && inode(b"boot") == inode(b".");
        let prefixes = if is_same { &[""][..] } else { &["", "boot/"] };
        Self { name, partition, file_system, root, prefixes }
    }

    /// What names it in an fstab.
    pub(crate) fn tags(&self) -> Tags<'_> {
        roles::tags(&self.partition, Some(&self.file_system))
    }

    fn in_boot<'a>(&self, paths: &'a [&'a str]) -> impl Iterator<Item = String> + use<'a> {
        self.prefixes.iter().flat_map(move |prefix| paths.iter().map(move |path| format!("{prefix}{path}")))
    }

    /// Folders of entries of the Boot Loader Specification, whether they exist or not.
    pub(crate) fn entry_folders(&self) -> impl Iterator<Item = String> + use<> {
        self.in_boot(&[ENTRIES])
    }

    /// Paths of the menus of EXTLINUX and similar loaders, whether they exist or not.
    pub(crate) fn menus(&self) -> impl Iterator<Item = String> + use<> {
        self.in_boot(MENUS)
    }

    /// Files of loaders that have arguments of the kernel in a form that is not edited, each with its loader.
    pub(crate) fn other_loaders(&self) -> Result<Vec<(String, &'static str)>, Error> {
        let mut found = Vec::new();
        for (path, loader) in OTHERS {
            for path in self.in_boot(&[path]) {
                let (folder, name) = path.rsplit_once('/').unwrap_or((".", &path));
                let bytes = if self.root.is_file(&path) { self.bytes(folder, name, 0, MAX_ENTRY)? } else { Vec::new() };
                let text = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
                if ARGUMENTS.iter().any(|mark| text.contains(mark)) {
                    found.push((path, *loader));
                }
            }
        }
        Ok(found)
    }

    /// Folders that grub-install(8) and grub-mkconfig(8) write to, whether they exist or not: in /boot, and vendor
    /// folders on an ESP.
    pub(crate) fn grub_folders(&self) -> Result<Vec<String>, Error> {
        Ok(self.in_boot(GRUB).chain(self.vendors()?.iter().map(|vendor| format!("{VENDORS}/{vendor}"))).collect())
    }

    /// Paths of the configurations of Xen's EFI program, which stand beside it.
    pub(crate) fn xen_configs(&self) -> Result<Vec<String>, Error> {
        let mut paths = Vec::new();
        for vendor in self.vendors()? {
            let folder = format!("{VENDORS}/{vendor}");
            let names = self.files(&folder, ".cfg")?.into_iter().filter(|name| name.starts_with("xen"));
            paths.extend(names.map(|name| format!("{folder}/{name}")));
        }
        Ok(paths)
    }

    /// Names of the vendor folders on an ESP, sorted.
    pub(crate) fn vendors(&self) -> Result<Vec<String>, Error> {
        bounded(VENDORS, self.root.directories(VENDORS)?)
    }

    /// Whether GRUB is installed here: its modules, or its EFI program.
    pub(crate) fn has_grub(&self) -> Result<bool, Error> {
        let is_program = |name: &String| name.starts_with("grub") && name.ends_with(".efi");
        let has = |folder: &String| {
            let folders = self.root.directories(folder).unwrap_or_default();
            let modules = folders.iter().any(|name| name.contains("-efi") || name.ends_with("-pc"));
            modules || self.root.list(folder).is_ok_and(|names| names.iter().any(is_program))
        };
        Ok(self.grub_folders()?.iter().any(has))
    }

    /// Names of the files in a folder with this ending in either case, sorted; none if there is no such folder.
    pub(crate) fn files(&self, folder: &str, ending: &str) -> Result<Vec<String>, Error> {
        let mut names = self.root.list(folder)?;
        names.retain(|name| name.to_ascii_lowercase().ends_with(ending));
        bounded(folder, names)
    }

    /// Up to `len` bytes of a file from an offset on; none if there is no such file.
    pub(crate) fn bytes(&self, folder: &str, name: &str, offset: u64, len: u64) -> Result<Vec<u8>, Error> {
        let read = || -> io::Result<Vec<u8>> {
            let folder = self.root.open_directory(folder.as_bytes())?;
            // Non-blocking, because it may not be a regular file, and reading could block for ever.
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

fn bounded(folder: &str, names: Vec<String>) -> Result<Vec<String>, Error> {
    if names.len() <= MAX_FILES {
        return Ok(names);
    }
    let reason = format!("it has {} entries, more than {MAX_FILES}: remove those that nothing starts", names.len());
    Err(target_file("reading", folder, io::Error::other(reason)))
}
