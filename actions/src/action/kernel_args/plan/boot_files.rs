//! The files that boot loaders read.

use slipway_formats::boot_config::places::{BootFiles, IMAGES, MAX_ENTRY, MAX_MENU};
use slipway_formats::boot_config::{self, Edit};
use slipway_protocol::KernelArgs;

use super::{Change, Plan, resolved};
use crate::action::kernel_args::{images, refused};
use crate::error::Error;
use crate::target::volume::Volume;

impl Plan {
    pub(super) fn grub_menus(&mut self, index: usize, volume: &Volume, wanted: &KernelArgs) -> Result<(), Error> {
        for dir in volume.grub_folders()? {
            let env = format!("{dir}/grubenv");
            let found = self.edit(index, volume, &env, &|text| boot_config::grub_env(text, wanted))?;
            self.has_kernelopts |= found > 0;
            let path = format!("{dir}/grub.cfg");
            let Some(text) = volume.root.read_up_to(&path, MAX_MENU)? else { continue };
            self.grub_reads_entries |= text.lines().any(|line| line.trim_start().starts_with("blscfg"));
            let (menu, starts_linux) = resolved(&path, &text, boot_config::grub_config(&text, wanted, self.to))?;
            let (menu, has_kernelopts) = resolved(&path, &menu, boot_config::kernelopts_of_config(&menu, wanted))?;
            self.grub.entries += usize::from(starts_linux);
            self.has_kernelopts |= has_kernelopts;
            self.note(index, path, Some(text), menu, starts_linux || has_kernelopts)?;
            // GRUB's menu includes custom.cfg (GRUB, util/grub.d/41_custom.in).
            let (custom, to) = (format!("{dir}/custom.cfg"), self.to);
            self.grub.entries +=
                self.edit(index, volume, &custom, &|text| boot_config::grub_config(text, wanted, to))?;
        }
        Ok(())
    }

    pub(super) fn xen_configs(&mut self, index: usize, volume: &Volume, wanted: &KernelArgs) -> Result<(), Error> {
        let to = self.to;
        for path in volume.xen_configs()? {
            self.menus.entries += self.edit(index, volume, &path, &|text| boot_config::xen_config(text, wanted, to))?;
        }
        Ok(())
    }

    pub(super) fn bls_entries(&mut self, index: usize, volume: &Volume, wanted: &KernelArgs) -> Result<(), Error> {
        for dir in volume.entry_folders() {
            for name in volume.files(&dir, ".conf")? {
                let path = format!("{dir}/{name}");
                let Some(text) = volume.root.read_up_to(&path, MAX_ENTRY)? else { continue };
                let edit = boot_config::bls_entry(&text, wanted, self.has_kernelopts);
                let (edited, starts_linux) = resolved(&path, &text, edit)?;
                if !starts_linux {
                    continue;
                }
                if let Some(argument) = wanted.added().find(|argument| !boot_config::is_plain_for_grub(argument))
                    && self.grub_reads_entries
                {
                    let reason =
                        format!("GRUB runs its options as a command, and would not pass on {argument:?} unchanged");
                    return Err(refused(&path, reason));
                }
                self.specified.entries += 1;
                let options = boot_config::bls_options(&edited);
                let lasts =
                    options.contains("ostree=") || boot_config::takes_kernelopts(&edited) && self.has_kernelopts;
                self.specified.templates += usize::from(lasts);
                if !lasts && options.split_whitespace().any(|word| word.starts_with("root=")) {
                    self.newest = Some(options);
                }
                self.note(index, path, Some(text), edited, true)?;
            }
        }
        Ok(())
    }

    pub(super) fn menus(&mut self, index: usize, volume: &Volume, wanted: &KernelArgs) -> Result<(), Error> {
        let to = self.to;
        for path in volume.menus() {
            self.menus.entries += self.edit(index, volume, &path, &|text| boot_config::extlinux(text, wanted, to))?;
        }
        Ok(())
    }

    pub(super) fn unified_images(&mut self, index: usize, volume: &Volume, wanted: &KernelArgs) -> Result<(), Error> {
        let found = images::look(volume, wanted)?;
        self.images += found.count;
        self.hold(IMAGES, found.lines.iter().map(String::len).sum())?;
        self.texts.extend(found.lines);
        let addon = found.addon.map(|(path, content)| Change { volume: index, path, content, is_new: true });
        self.changes.extend(addon);
        Ok(())
    }

    /// Edits a file if it exists and has a kernel command line. Returns 1 if so.
    fn edit(&mut self, index: usize, volume: &Volume, path: &str, edit: &dyn Fn(&str) -> Edit) -> Result<usize, Error> {
        let Some(text) = volume.root.read_up_to(path, MAX_MENU)? else { return Ok(0) };
        let (edited, has_command_line) = resolved(path, &text, edit(&text))?;
        self.note(index, path.to_owned(), Some(text), edited, has_command_line)?;
        Ok(usize::from(has_command_line))
    }
}
