//! Links below /dev/disk, as udev makes them. Programs of an installed system look there for persistent names: without
//! the link of the UUID, grub-mkconfig writes today's device name of the root into the menu.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::{fs, io};

use crate::disk::open::OpenDisk;
use crate::disk::{node, partitions};
use crate::error::Error;
use crate::target::mount;
use crate::text;

/// Makes the links of a disk's partitions. Returns a warning for each that cannot be made.
pub(super) fn make(disk: &OpenDisk) -> Result<Vec<String>, Error> {
    let mut warnings = Vec::new();
    for partition in partitions::read(disk)? {
        let Some(node) = node::of_partition(disk, &partition) else { continue };
        let file_system = mount::probe(disk, &partition)?;
        let of_file_system = file_system.map(|found| [("by-uuid", found.uuid), ("by-label", found.label)]);
        let of_table = [("by-partuuid", partition.guid.clone()), ("by-partlabel", Some(partition.name.clone()))];
        for (folder, name) in of_file_system.into_iter().flatten().chain(of_table) {
            let Some(name) = name.filter(|name| !name.is_empty()) else { continue };
            if let Err(error) = link(Path::new("/dev/disk"), folder, &name, &node) {
                let name = partition.describe(disk);
                warnings.push(format!("{name} has no link in /dev/disk/{folder}: {}", text::chain(&error)));
            }
        }
    }
    Ok(warnings)
}

/// Makes one link, and replaces an existing one.
fn link(disks: &Path, folder: &str, name: &str, node: &Path) -> io::Result<()> {
    let folder = disks.join(folder);
    fs::create_dir_all(&folder)?;
    let path = folder.join(encoded(name));
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => symlink(node, path),
    }
}

/// Encodes a name as udev does, so that any name is a valid file name (libudev, udev_util_encode_string).
fn encoded(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        match c {
            _ if c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c) => text.push(c),
            _ if c.is_ascii() => text.push_str(&format!("\\x{:02x}", u32::from(c))),
            _ => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_to_the_node_and_stays_in_its_folder() {
        let disks = tempfile::tempdir().unwrap();
        let check = |name: &str, expect: &str| {
            for node in ["/dev/vda1", "/dev/vda2"] {
                link(disks.path(), "by-label", name, Path::new(node)).unwrap();
                let found = fs::read_link(disks.path().join("by-label").join(expect)).unwrap();
                assert_eq!(found, Path::new(node), "{name}");
            }
        };
        check("root", "root");
        check("a b", "a\\x20b");
        check("../../passwd", "..\\x2f..\\x2fpasswd");
        check("größe", "größe");
        assert!(link(disks.path(), "by-label", "..", Path::new("/dev/vda1")).is_err());
    }
}
