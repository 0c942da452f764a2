//! The removable path: what firmware starts from a disk without a boot entry, or after it lost the entry (UEFI
//! specification 2.10, 3.5.1.1).

use std::io;

use super::loader::removable_path;
use crate::error::Error;
use crate::target::root::{TargetRoot, target_file};

/// Mode of folders that are created, if the file system has modes.
const DIR_MODE: u32 = 0o755;

/// Copies a loader and the files it needs beside it to the removable path, unless that exists already. Returns the path
/// of the copied loader; none if nothing was copied.
///
/// shim starts `grubx64.efi` from its own folder, and `mmx64.efi` to enrol keys (shim, README.fallback). Fedora's GRUB
/// reads `grub.cfg` there. `fbx64.efi` is not copied: it would recreate the boot entries that the firmware lost, and on
/// machines with a TPM it would restart for ever.
pub(crate) fn install(esp: &TargetRoot, loader: &str, architecture: &str) -> Result<Option<String>, Error> {
    let removable = removable_path(architecture);
    if esp.has(&removable) || loader.eq_ignore_ascii_case(&removable) {
        return Ok(None);
    }
    let folder = loader.rsplit_once('/').map_or("", |(folder, _)| folder);
    let companions = [format!("grub{architecture}.efi"), format!("mm{architecture}.efi"), "grub.cfg".to_owned()];
    let is_grub = |name: &str| ["shim", "grub"].iter().any(|start| name.to_ascii_lowercase().starts_with(start));
    if loader.rsplit('/').next().is_some_and(is_grub) {
        for name in companions {
            let (from, to) = (format!("{folder}/{name}"), format!("EFI/BOOT/{name}"));
            if esp.exists(&from) && !esp.has(&to) {
                copy(esp, &from, &to)?;
            }
        }
    }
    // Copied last, because firmware may start it as soon as it exists.
    copy(esp, loader, &removable)?;
    Ok(Some(removable))
}

fn copy(esp: &TargetRoot, from: &str, to: &str) -> Result<(), Error> {
    let mut source = esp.open_file(from)?;
    let new = esp.begin(to, DIR_MODE)?;
    let copied = io::copy(&mut source, &mut new.file()).and_then(|_| new.finish(None));
    copied.map_err(|source| target_file("writing", to, source))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::text::folder;

    /// Checks which files are added to EFI/BOOT for a loader.
    fn check(files: &[&str], loader: &str, expect: &[(&str, &str)]) {
        let paths: Vec<String> = files.iter().map(|file| format!("EFI/{file}")).collect();
        let dir = folder(&paths.iter().map(String::as_str).zip(files.iter().copied()).collect::<Vec<_>>());
        let esp = TargetRoot::new(File::open(dir.path()).unwrap().into());
        let before = esp.has("EFI/BOOT/BOOTX64.EFI");
        let written = install(&esp, &format!("EFI/{loader}"), "x64").unwrap();
        assert_eq!(written.is_some(), !before, "{files:?}");
        let names = esp.list("EFI/BOOT").unwrap();
        let found: Vec<(&str, String)> =
            names.iter().map(|name| (name.as_str(), esp.read(&format!("EFI/BOOT/{name}")).unwrap().unwrap())).collect();
        let found: Vec<(&str, &str)> = found.iter().map(|(name, content)| (*name, content.as_str())).collect();
        assert_eq!(found, expect, "{files:?}");
    }

    #[test]
    fn a_loader_comes_with_what_it_looks_for() {
        let debian =
            ["debian/shimx64.efi", "debian/grubx64.efi", "debian/mmx64.efi", "debian/fbx64.efi", "debian/grub.cfg"];
        let expect = [
            ("BOOTX64.EFI", "debian/shimx64.efi"),
            ("grub.cfg", "debian/grub.cfg"),
            ("grubx64.efi", "debian/grubx64.efi"),
            ("mmx64.efi", "debian/mmx64.efi"),
        ];
        check(&debian, "debian/shimx64.efi", &expect);
        let systemd = ["systemd/systemd-bootx64.efi", "systemd/grub.cfg"];
        check(&systemd, "systemd/systemd-bootx64.efi", &[("BOOTX64.EFI", "systemd/systemd-bootx64.efi")]);
    }

    #[test]
    fn what_is_there_stays() {
        let there = [("BOOTX64.EFI", "BOOT/BOOTX64.EFI")];
        check(&["BOOT/BOOTX64.EFI", "a/grubx64.efi", "a/grub.cfg"], "a/grubx64.efi", &there);
        check(&["BOOT/BOOTX64.EFI"], "BOOT/BOOTX64.EFI", &there);
        let kept = [("BOOTX64.EFI", "a/grubx64.efi"), ("grub.cfg", "BOOT/grub.cfg"), ("grubx64.efi", "a/grubx64.efi")];
        check(&["BOOT/grub.cfg", "a/grubx64.efi", "a/grub.cfg"], "a/grubx64.efi", &kept);
    }
}
