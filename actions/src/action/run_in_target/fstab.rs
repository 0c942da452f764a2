//! What an installed system mounts for its boot loader and kernels (fstab(5)).

use crate::disk::partitions::Partition;
use crate::disk::probe::FileSystem;

/// Tags by which a file system is recognised whatever its device is called.
const LASTING: &[&str] = &["UUID", "LABEL", "PARTUUID", "PARTLABEL"];
/// Prefix of the folders that have links by these tags, in lower case (udev, 60-persistent-storage.rules).
const LINKS: &str = "/dev/disk/by-";

/// A relevant line of fstab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// A tag with its value, such as `UUID=...`.
    pub(crate) source: String,
    /// Mount point, without the first slash.
    pub(crate) place: String,
}

/// The boot file systems that are named by a tag, so that their device names here do not matter.
pub(crate) fn boot_entries(fstab: &str) -> Vec<Entry> {
    let lines = fstab.lines().filter(|line| !line.trim_start().starts_with('#'));
    let entry = |line: &str| {
        let mut fields = line.split_whitespace().map(|field| decoded(field, "\\", 3, 8));
        let source = lasting(&fields.next()?.replace('"', ""))?;
        let place = fields.next()?.trim_matches('/').to_owned();
        is_for_booting(&place).then_some(Entry { source, place })
    };
    let mut entries: Vec<Entry> = Vec::new();
    for entry in lines.filter_map(entry) {
        if entries.iter().all(|earlier| earlier.place != entry.place) {
            entries.push(entry);
        }
    }
    entries
}

/// The tag and value of a source, which may be a link; `None` if its name may belong to another device tomorrow.
fn lasting(source: &str) -> Option<String> {
    if let Some((folder, name)) = source.strip_prefix(LINKS).and_then(|rest| rest.split_once('/')) {
        let key = LASTING.iter().find(|key| key.eq_ignore_ascii_case(folder))?;
        // libudev, udev_util_encode_string.
        return Some(format!("{key}={}", decoded(name, "\\x", 2, 16)));
    }
    let (key, _) = source.split_once('=')?;
    LASTING.contains(&key).then(|| source.to_owned())
}

/// Decodes a text in which `mark` and this many digits stand for a special byte: `\040` in fstab, `\x20` in the names
/// of links.
fn decoded(text: &str, mark: &str, digits: usize, base: u32) -> String {
    let mut parts = text.split(mark);
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        // The number parser would accept a sign too.
        let number = part.get(..digits).filter(|number| number.chars().all(|c| c.is_digit(base)));
        match number.and_then(|number| u8::from_str_radix(number, base).ok()) {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend_from_slice(&part.as_bytes()[digits..]);
            }
            None => bytes.extend_from_slice([mark, part].concat().as_bytes()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether a mount point is for boot loaders and kernels.
fn is_for_booting(place: &str) -> bool {
    let folder = place.split('/').next();
    matches!(place, "boot" | "efi") || folder == Some("boot") && place.split('/').all(|name| name != "..")
}

impl Entry {
    /// Whether the entry means this partition.
    pub(crate) fn means(&self, partition: &Partition, file_system: Option<&FileSystem>) -> bool {
        let Some((key, value)) = self.source.split_once('=') else { return false };
        let is = |found: Option<&str>| found.is_some_and(|found| found.eq_ignore_ascii_case(value));
        match key {
            "UUID" => is(file_system.and_then(|found| found.uuid.as_deref())),
            "LABEL" => file_system.and_then(|found| found.label.as_deref()) == Some(value),
            "PARTUUID" => is(partition.guid.as_deref()),
            "PARTLABEL" => !value.is_empty() && partition.name == value,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_boot_file_systems_with_lasting_names_count() {
        let fstab = "# UUID=x /boot ext4\nUUID=\"1-2\"\t/boot/efi/ vfat umask=077 0 1\nLABEL=b /boot ext4\n/dev/sda1 /efi vfat\n\
                     UUID=r / ext4\nLABEL=c /boot xfs\nUUID=z\nPARTUUID=x /boot/loader\nUUID=y /boot/../etc\n\
                     UUID=v /efi/x\nUUID=w /bootx\n";
        let entry = |source: &str, place: &str| Entry { source: source.to_owned(), place: place.to_owned() };
        assert_eq!(
            boot_entries(fstab),
            [entry("UUID=1-2", "boot/efi"), entry("LABEL=b", "boot"), entry("PARTUUID=x", "boot/loader")]
        );
    }

    #[test]
    fn links_of_lasting_names_are_these_names() {
        let check = |source: &str, expect: Option<&str>| {
            let entries = boot_entries(&format!("{source} /boot ext4 defaults 0 1\n"));
            assert_eq!(entries.first().map(|entry| entry.source.as_str()), expect, "{source}");
        };
        check("/dev/disk/by-uuid/0a-B", Some("UUID=0a-B"));
        check("/dev/disk/by-partuuid/0a", Some("PARTUUID=0a"));
        check("\"/dev/disk/by-label/a\"", Some("LABEL=a"));
        check("/dev/disk/by-label/EFI\\x20System", Some("LABEL=EFI System"));
        check("/dev/disk/by-partlabel/a\\x2fb\\x5cx20", Some("PARTLABEL=a/b\\x20"));
        check("/dev/disk/by-label/gr\\xc3\\xb6ße", Some("LABEL=größe"));
        check("/dev/disk/by-label/a\\xzz\\x2", Some("LABEL=a\\xzz\\x2"));
        check("/dev/disk/by-label/\\x2ö", Some("LABEL=\\x2ö"));
        check("/dev/disk/by-label/\\xff", Some("LABEL=\u{FFFD}"));
        check("LABEL=EFI\\040System", Some("LABEL=EFI System"));
        check("LABEL=no#9", Some("LABEL=no#9"));
        check("LABEL=a\\9\\0\\+12\\777", Some("LABEL=a\\9\\0\\+12\\777"));
        check("  #LABEL=a", None);
        for other in ["/dev/disk/by-id/x", "/dev/disk/by-uuid", "/dev/sda1", "/dev/mapper/LABEL=x", "ID=x"] {
            check(other, None);
        }
    }
}
