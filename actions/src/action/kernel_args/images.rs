//! Unified kernel images of the installed system, and the addon that extends their command lines.

use std::fs;
use std::path::Path;

use slipway_formats::boot_config::Edit;
use slipway_formats::boot_config::places::{ADDONS, BootFiles, IMAGES};
use slipway_formats::boot_config::uki::{self, MAX_SECTION};
use slipway_formats::pe::{self, Sections};
use slipway_protocol::KernelArgs;

use super::refused;
use crate::error::Error;
use crate::target::volume::Volume;

const ADDON: &str = "slipway.addon.efi";
/// Maximum bytes of the command lines of all images of a file system.
const MAX_LINES: usize = 1 << 20;
/// Firmware variable (UEFI specification, 3.3): four bytes of attributes, then one byte that is 1 if only signed
/// programs may run.
const SECURE_BOOT: &str = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// The changes to the images of a file system.
#[derive(Debug, Default)]
pub(super) struct Images {
    /// Number of images.
    pub(super) count: usize,
    /// Command lines of the images and of the addon after the change.
    pub(super) lines: Vec<String>,
    /// Path and new content of the addon, if it must change; the content is `None` if the addon is to be removed.
    pub(super) addon: Option<(String, Option<Vec<u8>>)>,
}

/// Examines the images of a file system.
pub(super) fn look(volume: &Volume, wanted: &KernelArgs) -> Result<Images, Error> {
    let (mut found, mut total, mut are_done) = (Vec::new(), 0, true);
    for name in volume.files(IMAGES, ".efi")? {
        let Some(sections) = Sections::read(&volume.bytes(IMAGES, &name, 0, pe::HEAD)?).filter(Sections::has_kernel)
        else {
            continue;
        };
        let lines = texts(volume, IMAGES, &name, &sections, ".cmdline")?;
        let magic = texts(volume, IMAGES, &name, &sections, ".sdmagic")?.concat();
        let is_done = uki::is_done(&lines, wanted);
        if let Some(reason) = uki::why_not(&lines, &magic, wanted).filter(|_| !is_done) {
            return Err(refused(&format!("{IMAGES}/{name}"), reason));
        }
        are_done &= is_done;
        total += lines.iter().map(String::len).sum::<usize>();
        if total > MAX_LINES {
            let reason = format!("with this file, the command lines of the images have more than {MAX_LINES} bytes");
            return Err(refused(&format!("{IMAGES}/{name}"), reason));
        }
        found.push((sections.machine, lines));
    }
    let Some((machine, _)) = found.first() else { return Ok(Images::default()) };
    let machine = *machine;
    let lines: Vec<Vec<String>> = found.into_iter().map(|(_, lines)| lines).collect();
    let path = format!("{ADDONS}/{ADDON}");
    let old = match Sections::read(&volume.bytes(ADDONS, ADDON, 0, pe::HEAD)?) {
        Some(sections) => texts(volume, ADDONS, ADDON, &sections, ".cmdline")?.concat(),
        None => String::new(),
    };
    let new = match uki::addon_command_line(&old, &lines, wanted) {
        // No addon is made: it would only repeat the images' arguments, but need a stub that reads it, or a signature.
        _ if are_done && old.is_empty() => String::new(),
        Edit::Edited(new) => new,
        Edit::Refused(reason) => return Err(refused(&path, reason)),
        Edit::NoCommandLine => old.clone(),
    };
    if new != old && runs_only_signed(Path::new(SECURE_BOOT)) {
        let reason = "Secure Boot is on, so the addon would have to be signed: build the arguments into the images, or \
                      put a signed addon there with write-file";
        return Err(refused(&path, reason.to_owned()));
    }
    let content = (!new.is_empty()).then(|| uki::addon(machine, &new));
    let addon = (new != old).then_some((path, content));
    Ok(Images { count: lines.len(), lines: lines.concat().into_iter().chain([new]).collect(), addon })
}

/// Returns the texts of all sections with this name.
fn texts(volume: &Volume, dir: &str, name: &str, sections: &Sections, section: &str) -> Result<Vec<String>, Error> {
    let (mut texts, mut total) = (Vec::new(), 0);
    for place in sections.of(section) {
        total += place.len;
        if total > MAX_SECTION {
            let reason = format!("its {section} sections have {total} bytes, more than {MAX_SECTION}");
            return Err(refused(&format!("{dir}/{name}"), reason));
        }
        texts.push(pe::line(&volume.bytes(dir, name, place.offset, place.len)?));
    }
    Ok(texts)
}

/// Whether the firmware of this machine runs only signed programs, from the file of the variable.
fn runs_only_signed(variable: &Path) -> bool {
    fs::read(variable).is_ok_and(|bytes| bytes.get(4) == Some(&1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secure_boot_is_told_by_its_variable() {
        let dir = tempfile::tempdir().unwrap();
        for (bytes, expect) in [(&[6, 0, 0, 0, 1][..], true), (&[6, 0, 0, 0, 0], false), (&[6], false)] {
            let file = dir.path().join("variable");
            fs::write(&file, bytes).unwrap();
            assert_eq!(runs_only_signed(&file), expect, "{bytes:?}");
        }
        assert!(!runs_only_signed(&dir.path().join("missing")));
    }
}
