//! What an installed system mounts for its boot loader and kernels (fstab(5)).

use crate::partitions::Partition;
use crate::probe::FileSystem;

/// A line of interest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// `UUID=...` and the like.
    pub(crate) source: String,
    /// Without the first slash.
    pub(crate) place: String,
}

/// The boot file systems that are named by what a prober finds, whatever the devices are called here.
pub(crate) fn boot_entries(fstab: &str) -> Vec<Entry> {
    let lines = fstab.lines().map(|line| line.split('#').next().unwrap_or_default());
    let entry = |line: &str| {
        let mut fields = line.split_whitespace();
        let source = fields.next()?.replace('"', "");
        let place = fields.next()?.trim_matches('/');
        let is_named = ["UUID=", "LABEL=", "PARTUUID=", "PARTLABEL="].iter().any(|start| source.starts_with(start));
        (is_named && is_for_booting(place)).then(|| Entry { source, place: place.to_owned() })
    };
    let mut entries: Vec<Entry> = Vec::new();
    for entry in lines.filter_map(entry) {
        if entries.iter().all(|earlier| earlier.place != entry.place) {
            entries.push(entry);
        }
    }
    entries
}

/// Whether boot loaders and kernels are there.
fn is_for_booting(place: &str) -> bool {
    let folder = place.split('/').next();
    matches!(place, "boot" | "efi") || folder == Some("boot") && place.split('/').all(|name| name != "..")
}

impl Entry {
    /// Whether this is the partition meant.
    pub(crate) fn means(&self, partition: &Partition, file_system: &FileSystem) -> bool {
        let Some((key, value)) = self.source.split_once('=') else { return false };
        let is = |found: Option<&str>| found.is_some_and(|found| found.eq_ignore_ascii_case(value));
        match key {
            "UUID" => is(file_system.uuid.as_deref()),
            "LABEL" => file_system.label.as_deref() == Some(value),
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
}
