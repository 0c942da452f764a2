//! Texts with arguments of the kernel, wherever boot loaders have them.

use slipway_formats::boot_entry::grub;
use slipway_formats::pe::{self, Sections};

use crate::error::Error;
use crate::target::volume::{ADDONS, IMAGES, MAX_ENTRY, MAX_MENU, REMOVABLE, Volume};

/// The paths and texts of boot entries and menus, of Xen's configurations, of environment blocks, and of the command
/// lines in unified kernel images and their addons.
pub(crate) fn read(volume: &Volume) -> Result<Vec<(String, String)>, Error> {
    let mut texts = Vec::new();
    let read = |path: &str, max| volume.root.read_up_to(path, max);
    for folder in volume.entry_folders() {
        for name in volume.files(&folder, ".conf")? {
            let path = format!("{folder}/{name}");
            texts.extend(read(&path, MAX_ENTRY)?.map(|text| (path, text)));
        }
    }
    for folder in volume.grub_folders()? {
        for name in ["grub.cfg", "custom.cfg"] {
            let menu = format!("{folder}/{name}");
            texts.extend(read(&menu, MAX_MENU)?.map(|text| (menu, text)));
        }
        let block = format!("{folder}/grubenv");
        let values = read(&block, MAX_ENTRY)?.map(|text| grub::environment(&text).into_values().collect::<Vec<_>>());
        texts.extend(values.map(|values| (block, values.join("\n"))));
    }
    for path in volume.menus().chain(volume.xen_configs()?) {
        texts.extend(read(&path, MAX_MENU)?.map(|text| (path, text)));
    }
    for folder in [IMAGES, REMOVABLE, ADDONS] {
        for name in volume.files(folder, ".efi")? {
            let sections = Sections::read(&volume.bytes(folder, &name, 0, pe::HEAD)?);
            for section in sections.iter().flat_map(|sections| sections.of(".cmdline")) {
                let len = section.len.min(MAX_ENTRY);
                let line = pe::line(&volume.bytes(folder, &name, section.offset, len)?);
                texts.push((format!("{folder}/{name}"), line.to_string()));
            }
        }
    }
    Ok(texts)
}
