//! Whether every initramfs a boot loader starts is one that is made anew: one that is not could not open the root.

use std::collections::BTreeMap;

use super::images::{self, System};
use crate::boot_config::{self, INITRD};
use crate::boot_entry::BootEntry;
use crate::boot_entry::bls::{self, Start};
use crate::error::Error;
use crate::mount::LookedAt;
use crate::partitions::Partition;
use crate::pe::{self, Sections};
use crate::probe::FileSystem;
use crate::seal;
use crate::target::{self, UNMARKED};
use crate::target_root::Attributes;
use crate::volume::{IMAGES, MAX_ENTRY, Volume};

/// Debian's hook by which the boot loader's copies are made anew with the initramfs (package systemd-boot).
const HOOK: &str = "etc/kernel/postinst.d/zz-systemd-boot";
/// Names in the path of a kernel that kernel-install(8) has put there: TOKEN/VERSION/linux.
const COPIED: usize = 3;
/// Beginnings of the names in /boot of what is made anew.
const MADE: &[&str] = &["initrd.img-", "initramfs-", "initrd-"];
/// What is wrong with a unified kernel image.
const INSIDE: &str =
    "has its initramfs inside, which is not made anew; have kernel and initramfs as files of their own in the image";
/// What is wrong with a system whose images have other names, or are elsewhere.
const NO_IMAGE: &str = "its /boot has no initrd.img-VERSION, initramfs-VERSION.img or initrd-VERSION of a kernel whose \
                        modules are in /lib/modules, and what opens the root could not be put into any; have dracut make one of \
                        these in the image, and where /boot is a partition of its own, /etc/fstab name it by UUID, LABEL, \
                        PARTUUID or PARTLABEL";

/// A partition that may hold what the boot loader reads and could not be looked into, and what to do. Nothing starts from others.
pub(super) fn unseen(volumes: &[Volume], looked_at: &LookedAt) -> Result<Option<String>, Error> {
    let mut named = Vec::new();
    for volume in volumes {
        named.extend(images::boot_entries(&volume.root)?);
    }
    let may_be_read = |(partition, found): &(Partition, FileSystem)| {
        let is_unknown = partition.type_guid.is_none() && found.kind == "vfat";
        is_unknown
            || seal::is_for_booting(partition, Some(found))
            || target::rank(partition, Some(found)) < UNMARKED
            || named.iter().any(|entry| entry.means(partition, found))
    };
    let mut refusals = looked_at.refusals.iter().zip(&looked_at.unmounted);
    let unseen = refusals.find(|(_, place)| may_be_read(place));
    Ok(unseen.map(|(refusal, _)| {
        format!("{refusal}; the boot loader may read from there: mend its file system, or make the image anew")
    }))
}

/// What starts with an initramfs that is not made anew, or that there is none to make, and what to do; nothing if neither is so.
pub(super) fn unreached(volumes: &[Volume]) -> Result<Option<String>, Error> {
    // Without a system there is nothing to encrypt.
    let Some(system) = System::find(volumes)? else { return Ok(None) };
    let has_hook = volumes.iter().any(|volume| volume.root.attributes(HOOK).is_ok_and(is_program));
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
                if let Some(reason) = unreached_by(&entry.start, volume, system.has_at_boot(volume), has_hook)? {
                    return Ok(Some(format!("its boot entry /{folder}/{name} {reason}")));
                }
            }
        }
    }
    Ok((!system.has_images()).then(|| NO_IMAGE.to_owned()))
}

fn is_program(attributes: Option<Attributes>) -> bool {
    attributes.is_some_and(|attributes| attributes.mode & 0o111 != 0)
}

/// What is wrong with an entry of a file system, which may be the one at /boot.
fn unreached_by(start: &Start, volume: &Volume, is_at_boot: bool, has_hook: bool) -> Result<Option<String>, Error> {
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
    if has_hook && boot.kernel.split('/').count() >= COPIED {
        return Ok(None);
    }
    // A link is made anew by what it leads to.
    let lead = |path: &String| volume.root.followed(path).unwrap_or_else(|_| path.clone());
    let initrds = initrds(boot);
    Ok(match initrds.last() {
        _ if is_at_boot && initrds.iter().map(lead).any(|path| is_made(&path)) => None,
        Some(copy) => Some(format!(
            "starts /{copy}, a copy that nothing makes anew; have {HOOK} of systemd-boot in the image, or kernel and initramfs in \
             /boot on a partition of its own, which /etc/fstab names by UUID, LABEL, PARTUUID or PARTLABEL"
        )),
        None if boot.kernel.contains("memtest") => None,
        None => Some(format!(
            "starts /{} and has no initramfs, which is what opens the root; have dracut make one in the image",
            boot.kernel
        )),
    })
}

fn is_unified(volume: &Volume, path: &str) -> Result<bool, Error> {
    let head = volume.root.head(path, pe::HEAD)?;
    Ok(head.and_then(|head| Sections::read(&head)).is_some_and(|sections| sections.has_kernel()))
}

/// All that an entry has for an initramfs.
fn initrds(boot: &BootEntry) -> Vec<String> {
    let loaded = boot.cmdline.split_whitespace().filter_map(|word| word.strip_prefix(INITRD));
    let plain = |path: &str| path.replace('\\', "/").trim_start_matches('/').to_owned();
    boot.initrds.iter().cloned().chain(loaded.map(plain)).collect()
}

/// Whether this is the name of what is made anew in /boot.
fn is_made(path: &str) -> bool {
    let path = path.trim_start_matches('/');
    let name = path.strip_prefix("boot/").unwrap_or(path);
    !name.contains('/') && MADE.iter().any(|start| name.starts_with(start))
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
    fn copies_are_told_from_what_is_in_boot() {
        let check = |lines: &str, expect: &[(&str, bool)]| {
            let found = initrds(&boot(&format!("linux /a\n{lines}\n")));
            let found: Vec<_> = found.iter().map(|path| (path.as_str(), is_made(path))).collect();
            assert_eq!(found, expect, "{lines:?}");
        };
        check("initrd /initrd.img-6.1", &[("initrd.img-6.1", true)]);
        check("initrd /boot/initramfs-6.1.img $tuned_initrd", &[("boot/initramfs-6.1.img", true)]);
        check(
            "initrd /amd-ucode.img\ninitrd /initramfs-6.1.img",
            &[("amd-ucode.img", false), ("initramfs-6.1.img", true)],
        );
        check("initrd /debian/6.1/initrd.img-6.1", &[("debian/6.1/initrd.img-6.1", false)]);
        check("options root=x initrd=\\id\\6.1\\initrd", &[("id/6.1/initrd", false)]);
        check("options root=x", &[]);
    }
}
