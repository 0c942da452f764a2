//! What the command lines of kernels to come are made from.

use slipway_protocol::KernelArgs;

use super::{Plan, refused, resolved};
use crate::boot_config;
use crate::error::Error;
use crate::volume::{KERNEL_CMDLINE, MAX_ENTRY, MAX_MENU, Volume};

/// What kernel-install(8) takes where the system has no command line of its own.
const VENDOR_CMDLINE: &str = "usr/lib/kernel/cmdline";
const KERNEL_INSTALL: &[&str] = &["usr/bin/kernel-install", "bin/kernel-install"];
/// What grub-mkconfig puts into a grub.cfg to come; files in the folder come after it and may set the same variables.
const GRUB_DEFAULT: &str = "etc/default/grub";
const GRUB_DEFAULT_DIR: &str = "etc/default/grub.d";
/// Programs that make a menu, the files they read, the variable for arguments there, and what it is by itself: of U-Boot's menu
/// and of extlinux in Debian, and in Alpine.
const MENU_MAKERS: &[(&str, &str, &str, &str)] = &[
    ("usr/sbin/u-boot-update", U_BOOT_DEFAULT, "U_BOOT_PARAMETERS", "ro quiet"),
    ("usr/sbin/extlinux-update", "etc/default/extlinux", "EXTLINUX_PARAMETERS", "ro quiet"),
    ("sbin/update-extlinux", "etc/update-extlinux.conf", "default_kernel_opts", ""),
];

const U_BOOT_DEFAULT: &str = "etc/default/u-boot";
/// What reads the arguments for U-Boot's menu: the one, and in later versions the other.
const U_BOOT_PROGRAMS: &[&str] = &["usr/sbin/u-boot-update", "usr/share/u-boot-menu/read-config"];
/// What the maker of an image, and then its owner, sets for U-Boot's menu.
const U_BOOT_DIRS: &[&str] = &["usr/share/u-boot-menu/conf.d", "etc/u-boot-menu/conf.d"];

impl Plan {
    pub(super) fn templates(&mut self, index: usize, volume: &Volume, wanted: &KernelArgs) -> Result<(), Error> {
        self.kernel_cmdline(index, volume, wanted)?;
        self.grub_defaults(index, volume, wanted)?;
        for (program, path, variable, default) in MENU_MAKERS {
            let old = volume.root.read_up_to(path, MAX_MENU)?;
            if self.menus.entries == 0 || old.is_none() && !volume.root.exists(program) {
                continue;
            }
            let text = old.clone().unwrap_or_default();
            let others = set_elsewhere(volume, path, &text, variable)?;
            // What takes the arguments from there has them from there.
            if others.as_ref().unwrap_or(&text).contains(&format!("/{KERNEL_CMDLINE}")) {
                self.menus.templates += 1;
            } else if others.is_none() {
                let (edited, _) = resolved(path, &text, boot_config::shell_default(&text, wanted, variable, default))?;
                self.note(index, (*path).to_owned(), old, edited, false)?;
                self.menus.templates += 1;
            }
        }
        Ok(())
    }

    fn kernel_cmdline(&mut self, index: usize, volume: &Volume, wanted: &KernelArgs) -> Result<(), Error> {
        let old = volume.root.read_up_to(KERNEL_CMDLINE, MAX_ENTRY)?;
        let text = match &old {
            Some(text) => text.clone(),
            // A link to another file system, where it is not this step's to say what is right.
            None if volume.root.has(KERNEL_CMDLINE) => return Ok(()),
            // Without it a later kernel would get the vendor's, or what the kernel that runs then was given.
            None if has_kernel_install(volume) && self.systems == 1 && self.specified.entries + self.images > 0 => {
                match (volume.root.read_up_to(VENDOR_CMDLINE, MAX_ENTRY)?, &self.newest) {
                    (Some(vendor), _) => vendor,
                    (None, Some(options)) => boot_config::new_kernel_cmdline(options),
                    (None, None) => return Ok(()),
                }
            }
            None => return Ok(()),
        };
        let (edited, _) = resolved(KERNEL_CMDLINE, &text, boot_config::kernel_cmdline(&text, wanted))?;
        self.specified.templates += 1;
        self.note(index, KERNEL_CMDLINE.to_owned(), old, edited, false)?;
        Ok(())
    }

    fn grub_defaults(&mut self, index: usize, volume: &Volume, wanted: &KernelArgs) -> Result<(), Error> {
        let Some(first) = volume.root.read_up_to(GRUB_DEFAULT, MAX_MENU)? else { return Ok(()) };
        let (mut paths, mut texts) = (vec![GRUB_DEFAULT.to_owned()], vec![first]);
        for name in volume.files(GRUB_DEFAULT_DIR, ".cfg")? {
            let path = format!("{GRUB_DEFAULT_DIR}/{name}");
            if let Some(text) = volume.root.read_up_to(&path, MAX_ENTRY)? {
                texts.push(text);
                paths.push(path);
            }
        }
        let files: Vec<&str> = texts.iter().map(String::as_str).collect();
        let edited = boot_config::grub_defaults(&files, wanted, self.to)
            .map_err(|(file, reason)| refused(paths.get(file).map_or(GRUB_DEFAULT, String::as_str), reason))?;
        self.grub.templates += 1;
        for ((path, text), edited) in paths.into_iter().zip(texts).zip(edited) {
            self.note(index, path, Some(text), edited, false)?;
        }
        Ok(())
    }
}

/// Whether the installed system makes entries for its kernels by kernel-install(8).
pub(super) fn has_kernel_install(volume: &Volume) -> bool {
    KERNEL_INSTALL.iter().any(|program| volume.root.exists(program))
}

/// Where U-Boot's menu has its arguments from, if not from the file at `path`: the text that sets or takes them. Of the folders every
/// file is read, behind that one, and the last that sets a variable wins; where none does, the program takes what entries are made with,
/// in versions that know of it (u-boot-menu, u-boot-update).
fn set_elsewhere(volume: &Volume, path: &str, text: &str, variable: &str) -> Result<Option<String>, Error> {
    let sets = |text: &str| text.lines().any(|line| line.trim_start().starts_with(variable));
    if path != U_BOOT_DEFAULT {
        return Ok(None);
    }
    let mut last = None;
    for dir in U_BOOT_DIRS {
        for name in volume.files(dir, ".conf")? {
            last = volume.root.read_up_to(&format!("{dir}/{name}"), MAX_ENTRY)?.filter(|text| sets(text)).or(last);
        }
    }
    if last.is_some() || sets(text) || !volume.root.exists(KERNEL_CMDLINE) {
        return Ok(last);
    }
    for program in U_BOOT_PROGRAMS {
        let takes = |text: &String| text.contains(KERNEL_CMDLINE);
        last = volume.root.read_up_to(program, MAX_MENU)?.filter(takes).or(last);
    }
    Ok(last)
}
