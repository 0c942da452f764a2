//! Where boot loaders, and the programs that write for them, keep arguments of the kernel in a file system.

use slipway_protocol::KernelArgs;

use super::{Edit, EntryScope, bls_entry, extlinux, grub_config, xen_config};
use crate::boot_entry::grub;
use crate::pe::{self, Sections};

/// Folder of unified kernel images (Boot Loader Specification, Type #2).
pub const IMAGES: &str = "EFI/Linux";
/// Folder in which firmware looks for a program without a boot entry (UEFI specification, 3.5.1.1).
pub const REMOVABLE: &str = "EFI/BOOT";
/// Addons for all images on the same partition, including later ones (systemd-stub(7)).
pub const ADDONS: &str = "loader/addons";
/// The command line that kernel-install(8) puts into the entries of new kernels.
pub const KERNEL_CMDLINE: &str = "etc/kernel/cmdline";
/// Parent of the vendor folders on an ESP; some systems have GRUB's menu in their vendor folder.
pub const VENDORS: &str = "EFI";
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
/// Files of other loaders with arguments of the kernel, each with the name of its loader.
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
/// Words that show that one of [`OTHERS`] has arguments of the kernel.
const ARGUMENTS: &[&str] = &["root=", "append", "options", "bootargs", "cmdline", "console="];
const GRUB: &[&str] = &["grub", "grub2"];
/// GRUB's menu, and the file that it includes (GRUB, util/grub.d/41_custom.in).
const GRUB_MENUS: &[&str] = &["grub.cfg", "custom.cfg"];
/// The programs of the installed system that make GRUB's menu, and the folder of that menu.
const GENERATORS: &[(&str, &str)] = &[("grub-mkconfig", "/boot/grub"), ("grub2-mkconfig", "/boot/grub2")];
const PROGRAM_DIRS: &[&str] = &["usr/sbin", "usr/bin", "sbin"];

/// Maximum size of an entry in bytes. An entry has a dozen lines.
pub const MAX_ENTRY: u64 = 64 << 10;
/// Maximum size of a menu in bytes. A menu has all entries.
pub const MAX_MENU: u64 = 4 << 20;
/// Maximum number of entries, images or folders of one kind. A file system with more is malicious.
const MAX_FILES: usize = 256;

/// A file system that may have such files. Paths begin at its root, without a slash. Links are followed inside it.
pub trait BootFiles {
    /// Why something is not known.
    type Error;

    /// Names of everything in a folder except folders, sorted; none if there is no such folder.
    fn names(&self, folder: &str) -> Result<Vec<String>, Self::Error>;

    /// Names of the folders in a folder, sorted; none if there is no such folder.
    fn folders(&self, folder: &str) -> Result<Vec<String>, Self::Error>;

    /// Whether a path leads to a regular file.
    fn is_file(&self, path: &str) -> Result<bool, Self::Error>;

    /// The text of a file of at most `max` bytes; none if there is no such file. A larger file is an error.
    fn text(&self, path: &str, max: u64) -> Result<Option<String>, Self::Error>;

    /// Up to `len` bytes of a file from an offset on; empty if there is no such file.
    fn bytes(&self, folder: &str, name: &str, offset: u64, len: u64) -> Result<Vec<u8>, Self::Error>;

    /// Whether the folder `boot` is the root itself: some systems have a link from /boot/boot to /boot, for loaders
    /// that look in either place.
    fn is_boot_of_itself(&self) -> bool;

    /// The error for a folder with too much in it.
    fn refused(&self, folder: &str, reason: String) -> Self::Error;

    /// Possible paths of boot files: /boot may be this file system or a folder in it.
    fn in_boot(&self, paths: &[&str]) -> Vec<String> {
        let prefixes: &[&str] = if self.is_boot_of_itself() { &[""] } else { &["", "boot/"] };
        prefixes.iter().flat_map(|prefix| paths.iter().map(move |path| format!("{prefix}{path}"))).collect()
    }

    /// Folders of entries of the Boot Loader Specification, whether they exist or not.
    fn entry_folders(&self) -> Vec<String> {
        self.in_boot(&[ENTRIES])
    }

    /// Paths of the menus of EXTLINUX and similar loaders, whether they exist or not.
    fn menus(&self) -> Vec<String> {
        self.in_boot(MENUS)
    }

    /// Files of loaders that have arguments of the kernel in a form that is not edited, each with its loader.
    fn other_loaders(&self) -> Result<Vec<(String, &'static str)>, Self::Error> {
        let mut found = Vec::new();
        for (path, loader) in OTHERS {
            for path in self.in_boot(&[path]) {
                let (folder, name) = path.rsplit_once('/').unwrap_or((".", &path));
                let bytes = if self.is_file(&path)? { self.bytes(folder, name, 0, MAX_ENTRY)? } else { Vec::new() };
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
    fn grub_folders(&self) -> Result<Vec<String>, Self::Error> {
        let vendors = self.vendors()?;
        Ok(self.in_boot(GRUB).into_iter().chain(vendors.iter().map(|vendor| format!("{VENDORS}/{vendor}"))).collect())
    }

    /// Paths of the configurations of Xen's EFI program, which are in the folder of the program.
    fn xen_configs(&self) -> Result<Vec<String>, Self::Error> {
        let mut paths = Vec::new();
        for vendor in self.vendors()? {
            let folder = format!("{VENDORS}/{vendor}");
            let names = self.files(&folder, ".cfg")?.into_iter().filter(|name| name.starts_with("xen"));
            paths.extend(names.map(|name| format!("{folder}/{name}")));
        }
        Ok(paths)
    }

    /// Names of the vendor folders on an ESP, sorted.
    fn vendors(&self) -> Result<Vec<String>, Self::Error> {
        self.bounded(VENDORS, self.folders(VENDORS)?)
    }

    /// Whether GRUB is installed in this file system: its modules, or its EFI program.
    fn has_grub(&self) -> Result<bool, Self::Error> {
        let is_program = |name: &String| name.starts_with("grub") && name.ends_with(".efi");
        let has = |folder: &String| {
            let folders = self.folders(folder).unwrap_or_default();
            let modules = folders.iter().any(|name| name.contains("-efi") || name.ends_with("-pc"));
            modules || self.names(folder).is_ok_and(|names| names.iter().any(is_program))
        };
        Ok(self.grub_folders()?.iter().any(has))
    }

    /// Names of the files in a folder with this ending in either case, sorted; none if there is no such folder.
    fn files(&self, folder: &str, ending: &str) -> Result<Vec<String>, Self::Error> {
        let mut names = self.names(folder)?;
        names.retain(|name| name.to_ascii_lowercase().ends_with(ending));
        self.bounded(folder, names)
    }

    /// Refuses more names than any sound file system has.
    fn bounded(&self, folder: &str, names: Vec<String>) -> Result<Vec<String>, Self::Error> {
        if names.len() <= MAX_FILES {
            return Ok(names);
        }
        let reason = format!("it has {} entries, more than {MAX_FILES}: remove those that nothing starts", names.len());
        Err(self.refused(folder, reason))
    }
}

/// What reads a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// A loader that reads entries of the Boot Loader Specification.
    Specified,
    Grub,
    /// EXTLINUX and similar loaders.
    Menu,
    Xen,
    /// A program whose files `kernel-args` does not edit as entries.
    Other,
}

/// A text with arguments of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootText {
    /// Path of the file with the text.
    pub path: String,
    /// The text. Of an environment block, its values; of an image, one command line.
    pub text: String,
    reader: Reader,
}

impl BootText {
    /// Whether the text starts Linux, so that `kernel-args` edits it, or refuses the edit and says why.
    fn is_entry(&self) -> bool {
        let (wanted, to) = (KernelArgs::default(), EntryScope::Default);
        let edit = match self.reader {
            Reader::Specified => bls_entry(&self.text, &wanted, false),
            Reader::Grub => grub_config(&self.text, &wanted, to),
            Reader::Menu => extlinux(&self.text, &wanted, to),
            Reader::Xen => xen_config(&self.text, &wanted, to),
            Reader::Other => Edit::NoCommandLine,
        };
        edit != Edit::NoCommandLine
    }
}

/// Reads the texts of boot entries and menus, of Xen's configurations, of environment blocks, and the command lines in
/// unified kernel images and their addons.
pub fn texts<F: BootFiles>(files: &F) -> Result<Vec<BootText>, F::Error> {
    let mut texts = Vec::new();
    let read = |reader, path: String, max| {
        let text = files.text(&path, max)?;
        Ok(text.map(|text| BootText { path, text, reader }))
    };
    for folder in files.entry_folders() {
        for name in files.files(&folder, ".conf")? {
            texts.extend(read(Reader::Specified, format!("{folder}/{name}"), MAX_ENTRY)?);
        }
    }
    for folder in files.grub_folders()? {
        for name in GRUB_MENUS {
            texts.extend(read(Reader::Grub, format!("{folder}/{name}"), MAX_MENU)?);
        }
        let mut block = read(Reader::Other, format!("{folder}/grubenv"), MAX_ENTRY)?;
        if let Some(block) = &mut block {
            block.text = grub::environment(&block.text).into_values().collect::<Vec<_>>().join("\n");
        }
        texts.extend(block);
    }
    for path in files.menus() {
        texts.extend(read(Reader::Menu, path, MAX_MENU)?);
    }
    for path in files.xen_configs()? {
        texts.extend(read(Reader::Xen, path, MAX_MENU)?);
    }
    for folder in [IMAGES, REMOVABLE, ADDONS] {
        for name in files.files(folder, ".efi")? {
            let sections = Sections::read(&files.bytes(folder, &name, 0, pe::HEAD)?);
            for section in sections.iter().flat_map(|sections| sections.of(".cmdline")) {
                let line = pe::line(&files.bytes(folder, &name, section.offset, section.len.min(MAX_ENTRY))?);
                texts.push(BootText { path: format!("{folder}/{name}"), text: line, reader: Reader::Other });
            }
        }
    }
    Ok(texts)
}

/// Whether there is an entry that `kernel-args` edits: one of these texts of a file system, or a unified kernel image.
pub fn has_entry<F: BootFiles>(files: &F, texts: &[BootText]) -> Result<bool, F::Error> {
    let mut found = texts.iter().any(BootText::is_entry);
    for name in files.files(IMAGES, ".efi")? {
        let sections = Sections::read(&files.bytes(IMAGES, &name, 0, pe::HEAD)?);
        found |= sections.is_some_and(|sections| sections.has_kernel());
    }
    Ok(found)
}

/// Finds the program in these file systems that makes GRUB's menu. Returns its name and the folder of the menu; none if
/// GRUB or the program is not installed.
pub fn menu_maker<F: BootFiles>(all: &[F]) -> Result<Option<(&'static str, &'static str)>, F::Error> {
    let mut has_grub = false;
    for files in all {
        has_grub |= files.has_grub()?;
    }
    for (program, folder) in GENERATORS.iter().filter(|_| has_grub) {
        for (files, parent) in all.iter().flat_map(|files| PROGRAM_DIRS.iter().map(move |parent| (files, parent))) {
            if files.is_file(&format!("{parent}/{program}"))? {
                return Ok(Some((*program, *folder)));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Files by their paths.
    struct Tree(Vec<(&'static str, &'static str)>);

    impl Tree {
        fn below(&self, folder: &str, is_folder: bool) -> Vec<String> {
            let rest = |(path, _): &(&'static str, _)| path.strip_prefix(folder)?.strip_prefix('/');
            let parts = self
                .0
                .iter()
                .filter_map(rest)
                .map(|rest| rest.split_once('/').map_or((rest, false), |at| (at.0, true)));
            let names: BTreeSet<&str> = parts.filter(|part| part.1 == is_folder).map(|part| part.0).collect();
            names.into_iter().map(str::to_owned).collect()
        }
    }

    impl BootFiles for Tree {
        type Error = String;

        fn names(&self, folder: &str) -> Result<Vec<String>, String> {
            Ok(self.below(folder, false))
        }

        fn folders(&self, folder: &str) -> Result<Vec<String>, String> {
            Ok(self.below(folder, true))
        }

        fn is_file(&self, path: &str) -> Result<bool, String> {
            Ok(self.0.iter().any(|(found, _)| *found == path))
        }

        fn text(&self, path: &str, _max: u64) -> Result<Option<String>, String> {
            Ok(self.0.iter().find(|(found, _)| *found == path).map(|(_, text)| (*text).to_owned()))
        }

        fn bytes(&self, folder: &str, name: &str, offset: u64, _len: u64) -> Result<Vec<u8>, String> {
            let path = format!("{folder}/{name}");
            let text = self.text(path.trim_start_matches("./"), 0)?.unwrap_or_default();
            Ok(text.into_bytes().split_off(offset as usize))
        }

        fn is_boot_of_itself(&self) -> bool {
            false
        }

        fn refused(&self, folder: &str, reason: String) -> String {
            format!("{folder}: {reason}")
        }
    }

    #[test]
    fn what_starts_linux_is_an_entry_wherever_it_is() {
        let bls = "title x\nlinux /vmlinuz\noptions root=/dev/vda1\n";
        let grub = "menuentry x {\n  linux /vmlinuz root=/dev/vda1\n}\n";
        let menu = "label x\n  kernel /vmlinuz\n  append root=/dev/vda1\n";
        for (path, text, expect) in [
            ("loader/entries/x.conf", bls, true),
            ("boot/loader/entries/x.CONF", bls, true),
            ("boot/loader/entries/x.conf~", bls, false),
            ("loader/entries/memtest.conf", "title m\nefi /memtest.efi\n", false),
            ("boot/grub/grub.cfg", grub, true),
            ("grub2/custom.cfg", grub, true),
            ("EFI/fedora/grub.cfg", grub, true),
            ("boot/grub/grub.cfg", "set timeout=5\n", false),
            ("boot/grub/other.cfg", grub, false),
            ("boot/extlinux/extlinux.conf", menu, true),
            ("EFI/BOOT/syslinux.cfg", menu, true),
            ("EFI/xen/xen.cfg", "[x]\nkernel=vmlinuz root=/dev/vda1\n", true),
            ("EFI/xen/other.cfg", "[x]\nkernel=vmlinuz root=/dev/vda1\n", false),
            ("EFI/Linux/x.efi", "MZ", false),
            ("boot/grub/menu.lst", "kernel /vmlinuz root=/dev/vda1\n", false),
        ] {
            let tree = Tree(vec![(path, text)]);
            let texts = texts(&tree).unwrap();
            assert_eq!(has_entry(&tree, &texts), Ok(expect), "{path}");
            let others = tree.other_loaders().unwrap();
            assert_eq!(!others.is_empty(), path.ends_with("menu.lst"), "{path}: {others:?}");
        }
    }

    #[test]
    fn a_menu_is_made_where_grub_and_its_program_are() {
        let (modules, program) = ("boot/grub/x86_64-efi/x.mod", "usr/sbin/grub-mkconfig");
        let check = |all: &[&[&'static str]], expect| {
            let tree = |paths: &&[&'static str]| Tree(paths.iter().map(|path| (*path, "")).collect());
            let trees: Vec<Tree> = all.iter().map(tree).collect();
            assert_eq!(menu_maker(&trees), Ok(expect), "{all:?}");
        };
        check(&[&[modules, program]], Some(("grub-mkconfig", "/boot/grub")));
        check(&[&["grub2/i386-pc/x.mod"], &["usr/bin/grub2-mkconfig"]], Some(("grub2-mkconfig", "/boot/grub2")));
        check(&[&["EFI/debian/grubx64.efi"], &[program]], Some(("grub-mkconfig", "/boot/grub")));
        check(&[&[modules]], None);
        check(&[&["EFI/debian/shimx64.efi"], &[program]], None);
    }

    #[test]
    fn a_folder_with_too_many_files_is_refused() {
        let paths = (0..=MAX_FILES).map(|number| (&*format!("loader/entries/{number}.conf").leak(), ""));
        let refused = texts(&Tree(paths.collect())).unwrap_err();
        assert!(refused.starts_with("loader/entries: it has 257 entries, more than 256"), "{refused}");
    }
}
