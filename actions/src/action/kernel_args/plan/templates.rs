//! The templates for the command lines of later kernels.

use slipway_formats::boot_config;
use slipway_formats::boot_config::places::{BootFiles, KERNEL_CMDLINE, MAX_ENTRY, MAX_MENU};
use slipway_protocol::KernelArgs;

use super::{Plan, refused, resolved};
use crate::error::Error;
use crate::target::volume::Volume;

/// File with the command line that kernel-install(8) uses if the system has none of its own.
const VENDOR_CMDLINE: &str = "usr/lib/kernel/cmdline";
const KERNEL_INSTALL: &[&str] = &["usr/bin/kernel-install", "bin/kernel-install"];
/// File with the variables that grub-mkconfig uses for the next grub.cfg. The files in `GRUB_DEFAULT_DIR` are read
/// afterwards and may set the same variables.
const GRUB_DEFAULT: &str = "etc/default/grub";
const GRUB_DEFAULT_DIR: &str = "etc/default/grub.d";
/// Programs that write the menus of U-Boot and EXTLINUX, and where each reads the arguments from.
const MENU_MAKERS: &[(&str, &str)] = &[
    ("usr/sbin/u-boot-update", "U_BOOT_PARAMETERS in /etc/default/u-boot or /etc/u-boot-menu/conf.d"),
    ("usr/sbin/extlinux-update", "EXTLINUX_PARAMETERS in /etc/default/extlinux"),
    ("sbin/update-extlinux", "default_kernel_opts in /etc/update-extlinux.conf"),
];

impl Plan {
    pub(super) fn templates(&mut self, index: usize, volume: &Volume, wanted: &KernelArgs) -> Result<(), Error> {
        self.kernel_cmdline(index, volume, wanted)?;
        self.grub_defaults(index, volume, wanted)?;
        let maker = MENU_MAKERS.iter().find(|(program, _)| volume.root.exists(program));
        self.menu_maker = self.menu_maker.or(maker);
        Ok(())
    }

    fn kernel_cmdline(&mut self, index: usize, volume: &Volume, wanted: &KernelArgs) -> Result<(), Error> {
        let old = volume.root.read_up_to(KERNEL_CMDLINE, MAX_ENTRY)?;
        let text = match &old {
            Some(text) => text.clone(),
            // The name is a link to another file system. This step cannot know what belongs there.
            None if volume.root.has(KERNEL_CMDLINE) => return Ok(()),
            // Without this file, a later kernel would get the vendor's command line, or that of the kernel that runs at
            // that time.
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
        let files = grub_default_files(volume)?;
        if files.is_empty() {
            return Ok(());
        }
        let texts: Vec<&str> = files.iter().map(|(_, text)| text.as_str()).collect();
        let edited = boot_config::grub_defaults(&texts, wanted, self.to)
            .map_err(|(file, reason)| refused(files.get(file).map_or(GRUB_DEFAULT, |(path, _)| path), reason))?;
        self.grub.templates += 1;
        for ((path, text), edited) in files.into_iter().zip(edited) {
            self.note(index, path, Some(text), edited, false)?;
        }
        Ok(())
    }
}

/// Whether the installed system makes boot entries with kernel-install(8).
pub(super) fn has_kernel_install(volume: &Volume) -> bool {
    KERNEL_INSTALL.iter().any(|program| volume.root.exists(program))
}

/// Returns the paths and texts of GRUB's defaults, in the order in which a shell reads them.
fn grub_default_files(volume: &Volume) -> Result<Vec<(String, String)>, Error> {
    let Some(first) = volume.root.read_up_to(GRUB_DEFAULT, MAX_MENU)? else { return Ok(Vec::new()) };
    let mut files = vec![(GRUB_DEFAULT.to_owned(), first)];
    for name in volume.files(GRUB_DEFAULT_DIR, ".cfg")? {
        let path = format!("{GRUB_DEFAULT_DIR}/{name}");
        if let Some(text) = volume.root.read_up_to(&path, MAX_ENTRY)? {
            files.push((path, text));
        }
    }
    Ok(files)
}
