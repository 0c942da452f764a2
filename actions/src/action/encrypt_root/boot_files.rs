//! Checks that every initramfs a boot loader starts is rebuilt. Any other could not open the root.

use std::collections::BTreeMap;

use slipway_formats::boot_config::places::{BootFiles, IMAGES, MAX_ENTRY};
use slipway_formats::boot_config::{self, INITRD};
use slipway_formats::boot_entry::BootEntry;
use slipway_formats::boot_entry::bls::{self, Start};
use slipway_formats::pe::{self, Sections};

use super::images::{self, HOOK, System};
use crate::error::Error;
use crate::target::mount::{SearchLog, Unmounted};
use crate::target::roles;
use crate::target::volume::Volume;

/// The problem with a unified kernel image.
const INSIDE: &str =
    "contains its initramfs, which is not rebuilt; use an image with separate kernel and initramfs files";
/// The problem with a system whose initramfs images have other names or are elsewhere.
const NO_IMAGE: &str = "its /boot has no initrd.img-VERSION, initramfs-VERSION.img or initrd-VERSION of a kernel whose \
                        modules are in /lib/modules, so the files that open the root could not be added to any; in the \
                        image, make one of these with dracut and, if /boot is a partition of its own, name it in \
                        /etc/fstab by UUID, LABEL, PARTUUID or PARTLABEL";
/// The consequence for a rescue entry.
const FOR_RESCUE: &str =
    "has a rescue initramfs that is not rebuilt: it can open the root only with the recovery key, if at all";

/// Reports a partition that could not be mounted although the boot loader may read from it, and what to do. Other
/// partitions do not matter.
pub(super) fn unseen(volumes: &[Volume], looked_at: &SearchLog) -> Result<Option<String>, Error> {
    let mut named = Vec::new();
    for volume in volumes {
        named.extend(images::boot_entries(&volume.root)?);
    }
    let may_be_read = |Unmounted { partition, file_system, .. }: &Unmounted| {
        let found = file_system.as_ref();
        let is_unknown = partition.type_guid.is_none() && found.is_some_and(|found| found.kind == "vfat");
        is_unknown
            || roles::is_for_booting(partition, found)
            || roles::rank(partition, found) < roles::UNMARKED
            || named.iter().any(|entry| entry.means(&roles::tags(partition, found)))
    };
    let unseen = looked_at.unmounted.iter().find(|place| place.is_refused && may_be_read(place));
    Ok(unseen.map(|Unmounted { reason, .. }| {
        format!("{reason}; the boot loader may read from there: repair its file system, or make the image again")
    }))
}

/// Returns the problem if a boot entry's initramfs is not rebuilt, or if there is no initramfs to rebuild, and what to
/// do about it; `None` if all is well. Rescue entries, which the system does not need, only add to `warnings`.
pub(super) fn unreached(volumes: &[Volume], warnings: &mut Vec<String>) -> Result<Option<String>, Error> {
    // Without a system there is nothing to encrypt.
    let Some(system) = System::find(volumes)? else { return Ok(None) };
    for volume in volumes {
        for name in volume.files(IMAGES, ".efi")? {
            if is_unified(volume, &format!("{IMAGES}/{name}"))? {
                return Ok(Some(format!("its kernel image /{IMAGES}/{name} {INSIDE}")));
            }
        }
        for folder in volume.entry_folders() {
            for name in volume.files(&folder, ".conf")? {
                let text = volume.root.read_up_to(&format!("{folder}/{name}"), MAX_ENTRY)?.unwrap_or_default();
                let Some(entry) = bls::parse(&name, &text, &BTreeMap::new()) else { continue };
                match unreached_by(&entry.start, volume, &system)? {
                    None => {}
                    Some(_) if is_for_rescue(&entry.start) => {
                        warnings.push(format!("the boot entry /{folder}/{name} {FOR_RESCUE}"));
                    }
                    Some(reason) => return Ok(Some(format!("its boot entry /{folder}/{name} {reason}"))),
                }
            }
        }
    }
    Ok((!system.has_images()).then(|| NO_IMAGE.to_owned()))
}

/// Returns why the initramfs of a boot entry would not be rebuilt; `None` if it would be.
fn unreached_by(start: &Start, volume: &Volume, system: &System) -> Result<Option<String>, Error> {
    let boot = match start {
        Start::Unified(path) => return Ok(Some(format!("starts /{path}, which {INSIDE}"))),
        Start::Kernel(boot) | Start::Program(boot) if is_unified(volume, &boot.kernel)? => {
            return Ok(Some(format!("starts /{}, which {INSIDE}", boot.kernel)));
        }
        Start::Program(boot) if !boot_config::is_linux_program(!boot.initrds.is_empty(), &boot.cmdline) => {
            return Ok(None);
        }
        Start::Kernel(boot) | Start::Program(boot) => boot,
    };
    let initrds = initrds(boot);
    if system.makes_copy(&boot.kernel) || initrds.iter().any(|path| system.makes(volume, path)) {
        return Ok(None);
    }
    let Some(last) = initrds.last() else {
        let reason = format!(
            "starts /{} and has no initramfs, but only an initramfs can open the root; make one with dracut in the \
             image",
            boot.kernel
        );
        return Ok((!boot.kernel.contains("memtest")).then_some(reason));
    };
    Ok(Some(match system.missing_for(last) {
        Some(file) => format!(
            "starts /{last}, which nothing rebuilds, because its system has no /{file}; in the image, remove the \
             entries of kernels that are not installed"
        ),
        None => format!(
            "starts /{last}, a copy that nothing rebuilds; in the image, have /{HOOK} of systemd-boot, with the copied \
             files in /boot, or have kernel and initramfs in /boot on a partition of its own, which /etc/fstab names \
             by UUID, LABEL, PARTUUID or PARTLABEL"
        ),
    }))
}

/// Whether an entry is a rescue entry, by its initramfs.
fn is_for_rescue(start: &Start) -> bool {
    match start {
        Start::Kernel(boot) | Start::Program(boot) => initrds(boot).iter().any(|path| images::is_for_rescue(path)),
        Start::Unified(_) => false,
    }
}

fn is_unified(volume: &Volume, path: &str) -> Result<bool, Error> {
    let head = volume.root.head(path, pe::HEAD)?;
    Ok(head.and_then(|head| Sections::read(&head)).is_some_and(|sections| sections.has_kernel()))
}

/// Returns all initramfs paths of an entry.
fn initrds(boot: &BootEntry) -> Vec<String> {
    let loaded = boot.cmdline.split_whitespace().filter_map(|word| word.strip_prefix(INITRD));
    let plain = |path: &str| path.replace('\\', "/").trim_start_matches('/').to_owned();
    boot.initrds.iter().cloned().chain(loaded.map(plain)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot(text: &str) -> BootEntry {
        match bls::parse("a.conf", text, &BTreeMap::new()).unwrap().start {
            Start::Kernel(boot) | Start::Program(boot) => boot,
            Start::Unified(path) => panic!("{path}"),
        }
    }

    #[test]
    fn an_initramfs_is_given_by_a_line_or_by_an_argument() {
        let check = |lines: &str, expect: &[&str]| {
            assert_eq!(initrds(&boot(&format!("linux /a\n{lines}\n"))), expect, "{lines:?}");
        };
        check("initrd /initrd.img-6.1", &["initrd.img-6.1"]);
        check("initrd /boot/initramfs-6.1.img $tuned_initrd", &["boot/initramfs-6.1.img"]);
        check("initrd /amd-ucode.img\ninitrd /initramfs-6.1.img", &["amd-ucode.img", "initramfs-6.1.img"]);
        check("options root=x initrd=\\id\\6.1\\initrd", &["id/6.1/initrd"]);
        check("options root=x", &[]);
    }
}
