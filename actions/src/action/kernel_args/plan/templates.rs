//! The templates for the command lines of later kernels.

use slipway_formats::boot_config;
use slipway_protocol::KernelArgs;

use super::{Plan, refused, resolved};
use crate::error::Error;
use crate::target::volume::{KERNEL_CMDLINE, MAX_ENTRY, MAX_MENU, Volume};

/// Used by kernel-install(8) if the system has no command line of its own.
const VENDOR_CMDLINE: &str = "usr/lib/kernel/cmdline";
const KERNEL_INSTALL: &[&str] = &["usr/bin/kernel-install", "bin/kernel-install"];
/// Used by grub-mkconfig for the next grub.cfg. The files in the folder are read afterwards and may set the same
/// variables.
const GRUB_DEFAULT: &str = "etc/default/grub";
const GRUB_DEFAULT_DIR: &str = "etc/default/grub.d";
/// A program that makes a menu, and where it reads the arguments from.
struct MenuMaker {
    program: &'static str,
    /// Files that a shell reads: this file, then those ending in `.conf` in the folders, folder by folder.
    file: &'static str,
    folders: &'static [&'static str],
    /// The variable they set, and its value if it is empty.
    variable: &'static str,
    default: &'static str,
    /// Programs that prefer the arguments of boot entries to the default, in versions that know them.
    takers: &'static [&'static str],
}

/// The menus of U-Boot and of extlinux in Debian, and of extlinux in Alpine.
const MENU_MAKERS: &[MenuMaker] = &[
    // u-boot-update(8). The second taker exists in later versions.
    MenuMaker {
        program: "usr/sbin/u-boot-update",
        file: "etc/default/u-boot",
        folders: &["usr/share/u-boot-menu/conf.d", "etc/u-boot-menu/conf.d"],
        variable: "U_BOOT_PARAMETERS",
        default: "ro quiet",
        takers: &["usr/sbin/u-boot-update", "usr/share/u-boot-menu/read-config"],
    },
    MenuMaker {
        program: "usr/sbin/extlinux-update",
        file: "etc/default/extlinux",
        folders: &[],
        variable: "EXTLINUX_PARAMETERS",
        default: "ro quiet",
        takers: &[],
    },
    MenuMaker {
        program: "sbin/update-extlinux",
        file: "etc/update-extlinux.conf",
        folders: &[],
        variable: "default_kernel_opts",
        default: "",
        takers: &[],
    },
];

impl Plan {
    pub(super) fn templates(&mut self, index: usize, volume: &Volume, wanted: &KernelArgs) -> Result<(), Error> {
        self.kernel_cmdline(index, volume, wanted)?;
        self.grub_defaults(index, volume, wanted)?;
        for maker in MENU_MAKERS {
            self.menu_maker(maker, index, volume, wanted)?;
        }
        Ok(())
    }

    fn menu_maker(
        &mut self,
        maker: &MenuMaker,
        index: usize,
        volume: &Volume,
        wanted: &KernelArgs,
    ) -> Result<(), Error> {
        let old = volume.root.read_up_to(maker.file, MAX_MENU)?;
        if self.menus.entries == 0 || old.is_none() && !volume.root.exists(maker.program) {
            return Ok(());
        }
        let first = (maker.file, old.clone().unwrap_or_default());
        let (paths, texts) = with_folders(volume, first, maker.folders, ".conf")?;
        let files: Vec<&str> = texts.iter().map(String::as_str).collect();
        let said = boot_config::effective_value(&files, maker.variable, KERNEL_CMDLINE)
            .map_err(|(file, reason)| refused(paths.get(file).map_or(maker.file, String::as_str), reason))?;
        match said {
            Some(said) if said.is_taken => self.menus.templates += 1,
            Some(said) if said.file > 0 => self.overruled_by = paths.into_iter().nth(said.file),
            None if takes_kernel_cmdline(maker, volume)? => self.menus.templates += 1,
            _ => {
                let text = files.first().copied().unwrap_or_default();
                let edit = boot_config::shell_default(text, wanted, maker.variable, maker.default);
                let (edited, _) = resolved(maker.file, text, edit)?;
                self.note(index, maker.file.to_owned(), old, edited, false)?;
                self.menus.templates += 1;
            }
        }
        Ok(())
    }

    fn kernel_cmdline(&mut self, index: usize, volume: &Volume, wanted: &KernelArgs) -> Result<(), Error> {
        let old = volume.root.read_up_to(KERNEL_CMDLINE, MAX_ENTRY)?;
        let text = match &old {
            Some(text) => text.clone(),
            // A link to another file system. This step cannot know what belongs there.
            None if volume.root.has(KERNEL_CMDLINE) => return Ok(()),
            // Without this file, a later kernel would get the vendor's command line, or that of the kernel running
            // then.
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
        let (paths, texts) = with_folders(volume, (GRUB_DEFAULT, first), &[GRUB_DEFAULT_DIR], ".cfg")?;
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

/// Whether the installed system makes boot entries with kernel-install(8).
pub(super) fn has_kernel_install(volume: &Volume) -> bool {
    KERNEL_INSTALL.iter().any(|program| volume.root.exists(program))
}

/// Paths and texts of a file and of those with this suffix in the folders, in the order in which a shell reads them.
fn with_folders(
    volume: &Volume,
    (path, text): (&str, String),
    folders: &[&str],
    ending: &str,
) -> Result<(Vec<String>, Vec<String>), Error> {
    let (mut paths, mut texts) = (vec![path.to_owned()], vec![text]);
    for folder in folders {
        for name in volume.files(folder, ending)? {
            let path = format!("{folder}/{name}");
            if let Some(text) = volume.root.read_up_to(&path, MAX_ENTRY)? {
                texts.push(text);
                paths.push(path);
            }
        }
    }
    Ok((paths, texts))
}

/// Whether a menu uses the arguments of boot entries if its own variable is not set.
fn takes_kernel_cmdline(maker: &MenuMaker, volume: &Volume) -> Result<bool, Error> {
    let mut takes = false;
    for program in maker.takers {
        takes |= volume.root.read_up_to(program, MAX_MENU)?.is_some_and(|text| text.contains(KERNEL_CMDLINE));
    }
    Ok(takes && volume.root.exists(KERNEL_CMDLINE))
}
