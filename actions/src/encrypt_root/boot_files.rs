//! Whether every initramfs a boot loader starts is one that is made anew: one that is not could not open the root.

use std::collections::BTreeMap;

use crate::boot_entry::bls::{self, Start};
use crate::error::Error;
use crate::pe::{self, Sections};
use crate::volume::{IMAGES, MAX_ENTRY, Volume};

/// Debian's hook by which the boot loader's copies are made anew with the initramfs (package systemd-boot).
const HOOK: &str = "etc/kernel/postinst.d/zz-systemd-boot";
/// Beginnings of the names in /boot of what is made anew.
const MADE: &[&str] = &["initrd.img-", "initramfs-"];

/// What starts with an initramfs that is not made anew, and what to do; nothing if there is no such thing.
pub(super) fn unreached(volumes: &[Volume]) -> Result<Option<String>, Error> {
    let has_hook = volumes.iter().any(|volume| volume.root.attributes(HOOK).is_ok_and(is_program));
    for volume in volumes {
        for name in volume.files(IMAGES, ".efi")? {
            let head = volume.bytes(IMAGES, &name, 0, pe::HEAD)?;
            if Sections::read(&head).is_some_and(|sections| sections.has_kernel()) {
                return Ok(Some(format!(
                    "its kernel image /{IMAGES}/{name} has its initramfs inside, which is not made anew; have kernel and \
                     initramfs as files of their own in the image"
                )));
            }
        }
        for folder in volume.entry_folders() {
            for name in volume.files(&folder, ".conf")? {
                let text = volume.root.read_up_to(&format!("{folder}/{name}"), MAX_ENTRY)?.unwrap_or_default();
                if let Some(copy) = copy_of(&name, &text).filter(|_| !has_hook) {
                    return Ok(Some(format!(
                        "its boot entry /{folder}/{name} starts /{copy}, a copy that nothing makes anew; have {HOOK} of \
                         systemd-boot in the image, or kernel and initramfs in /boot on a partition of its own"
                    )));
                }
            }
        }
    }
    Ok(None)
}

fn is_program(attributes: Option<crate::target_root::Attributes>) -> bool {
    attributes.is_some_and(|attributes| attributes.mode & 0o111 != 0)
}

/// The initramfs of an entry that has none in /boot.
fn copy_of(name: &str, text: &str) -> Option<String> {
    let Start::Kernel(boot) = bls::parse(name, text, &BTreeMap::new())?.start else { return None };
    let is_made = |path: &String| {
        let path = path.strip_prefix("boot/").unwrap_or(path);
        MADE.iter().any(|start| path.starts_with(start) && !path.contains('/'))
    };
    if boot.initrds.iter().any(is_made) { None } else { boot.initrds.into_iter().next_back() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_told_from_what_is_in_boot() {
        let check = |initrds: &str, expect: Option<&str>| {
            assert_eq!(copy_of("a.conf", &format!("linux /a\n{initrds}")).as_deref(), expect, "{initrds:?}");
        };
        check("initrd /initrd.img-6.1\n", None);
        check("initrd /boot/initramfs-6.1.img $tuned_initrd\n", None);
        check("initrd /amd-ucode.img\ninitrd /initramfs-6.1.img\n", None);
        check("initrd /debian/6.1/initrd.img-6.1\n", Some("debian/6.1/initrd.img-6.1"));
        check("initrd /id/6.1/ucode\ninitrd /id/6.1/initrd\n", Some("id/6.1/initrd"));
        check("", None);
    }
}
