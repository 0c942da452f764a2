//! Reads what cloud-init and ds-identify read in the root file system of an image.

use slipway_formats::boot_config::places::{BootFiles, BootText};
use slipway_formats::{fstab, roles};
use slipway_user_data::image::{File, Image, telling};

use super::volume::Volume;
use super::{Known, ROOTS, Unknown};

const MAIN: &str = "etc/cloud/cloud.cfg";
const PARTS: &str = "etc/cloud/cloud.cfg.d";
const DS_IDENTIFY: &str = "etc/cloud/ds-identify.cfg";
/// Folders that must be in the root file system: those with cloud-init's configuration and seed, and their parents.
const FOLDERS: &[&str] = &["etc", "var", "var/lib", "var/lib/cloud"];
const FSTAB: &str = "etc/fstab";
const UNITS: &str = "etc/systemd/system";
/// Maximum number of bytes of one file, and of all files.
const MAX_FILE: u64 = 64 << 10;
const MAX_ALL: usize = 256 << 10;

/// Reads cloud-init's files, and takes over `texts`, the boot texts of each volume, for volumes that a machine looks
/// at. `None` if no root file system is found.
pub(super) fn read(volumes: &[Volume], texts: &[Vec<BootText>]) -> Known<Image> {
    let Some(root) = root(volumes)? else { return Ok(None) };
    if is_mounted_elsewhere(root)? {
        return Err(Unknown);
    }
    let file = |path: &str| -> Known<File> {
        let is_there = root.is_file(path)?;
        let text = if is_there { root.text(path, MAX_FILE)? } else { None };
        Ok(text.map(|text| File { path: format!("/{path}"), text }))
    };
    let mut image = Image { main: file(MAIN)?, ds_identify: file(DS_IDENTIFY)?, ..Image::default() };
    for name in root.files(PARTS, ".cfg")? {
        image.parts.extend(file(&format!("{PARTS}/{name}"))?);
    }
    for (volume, texts) in volumes.iter().zip(texts) {
        let is_root = std::ptr::eq(volume, root);
        if is_root || roles::is_for_booting(volume.kind.as_deref(), volume.label.as_deref()) {
            let of = if is_root { String::new() } else { format!(" of {}", volume.name) };
            let file = |text: &BootText| File { path: format!("/{}{of}", text.path), text: text.text.clone() };
            image.boot.extend(texts.iter().map(file).filter_map(telling));
        }
    }
    let files = image.main.iter().chain(&image.parts).chain(&image.ds_identify).chain(&image.boot);
    let is_small = files.map(|file| file.text.len()).sum::<usize>() <= MAX_ALL;
    if is_small && !root.is_unknown.get() { Ok(Some(image)) } else { Err(Unknown) }
}

/// Finds the root file system as machines do.
fn root(volumes: &[Volume]) -> Known<&Volume> {
    let mut candidates: Vec<&Volume> = volumes.iter().filter(|volume| volume.keeps_owners()).collect();
    candidates.sort_by_key(|volume| {
        roles::rank(ROOTS, volume.kind.as_deref(), &volume.partition_name, volume.label.as_deref())
    });
    for volume in candidates {
        for path in roles::OS_RELEASE {
            if volume.is_file(path)? {
                return Ok(Some(volume));
            }
        }
    }
    Ok(None)
}

/// Whether the configuration or the seed may be on another file system than the root.
fn is_mounted_elsewhere(root: &Volume) -> Result<bool, Unknown> {
    for folder in FOLDERS {
        if root.followed(folder)?.is_some_and(|path| path != format!("/{folder}")) {
            return Ok(true);
        }
    }
    let mut mounted = fstab::entries(&root.text(FSTAB, MAX_FILE)?.unwrap_or_default());
    for name in root.files(UNITS, ".mount")? {
        let path = format!("{UNITS}/{name}");
        let text = if root.is_file(&path)? { root.text(&path, MAX_FILE)? } else { None };
        mounted.extend(text.and_then(|text| fstab::of_unit(&text)));
    }
    Ok(mounted.iter().any(|entry| matches!(entry.place.split('/').next(), Some("etc" | "var"))))
}
