//! What a system mounts: fstab(5), and systemd's mount units (systemd.mount(5)).

mod unit;

use crate::escapes::decoded_text;
pub use unit::of_unit;

/// Tags by which a file system is recognised whatever its device is called.
const LASTING: &[&str] = &["UUID", "LABEL", "PARTUUID", "PARTLABEL"];
/// Prefix of the folders that have links by these tags, in lower case (udev, 60-persistent-storage.rules).
const LINKS: &str = "/dev/disk/by-";
/// What a line may have in place of a mount point (fstab(5), the second field).
const NOWHERE: &[&str] = &["none", "swap"];

/// A file system that is mounted when the system starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// A tag with its value, such as `UUID=...`, or a device or a path as written.
    pub source: String,
    /// Mount point, without slashes at its ends; empty for the root.
    pub place: String,
    /// File system type.
    pub kind: String,
    /// The mount options.
    pub options: Vec<String>,
}

/// The identifiers of a partition and of the file system in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tags<'a> {
    /// UUID of the file system.
    pub uuid: Option<&'a str>,
    /// Label of the file system.
    pub label: Option<&'a str>,
    /// Identity of the partition.
    pub partuuid: Option<&'a str>,
    /// Name of the partition.
    pub partlabel: Option<&'a str>,
}

/// What an fstab mounts when the system starts. Of two lines for a mount point, the first counts
/// (systemd-fstab-generator(8)).
pub fn entries(fstab: &str) -> Vec<Entry> {
    firsts(lines(fstab).filter(Entry::is_mounted))
}

/// The entries of boot file systems that are named by a tag, so that the device names of this machine do not matter.
/// They count even if the system mounts them only to update them, as many do.
pub fn boot_entries(fstab: &str) -> Vec<Entry> {
    firsts(lines(fstab).filter(|entry| entry.tag().is_some() && is_for_booting(&entry.place)))
}

fn firsts(all: impl Iterator<Item = Entry>) -> Vec<Entry> {
    let mut firsts: Vec<Entry> = Vec::new();
    for entry in all {
        if firsts.iter().all(|earlier| earlier.place != entry.place) {
            firsts.push(entry);
        }
    }
    firsts
}

fn lines(fstab: &str) -> impl Iterator<Item = Entry> {
    fstab.lines().filter(|line| !line.trim_start().starts_with('#')).filter_map(entry)
}

fn entry(line: &str) -> Option<Entry> {
    let mut fields = line.split_whitespace().map(|field| decoded_text(field, "\\", 3, 8));
    let (source, place) = (fields.next()?, fields.next()?);
    if NOWHERE.contains(&place.as_str()) {
        return None;
    }
    let [kind, options] = [fields.next(), fields.next()].map(Option::unwrap_or_default);
    Some(Entry::new(&source, &place, &kind, &options))
}

impl Entry {
    fn new(source: &str, place: &str, kind: &str, options: &str) -> Self {
        let source = source.replace('"', "");
        Self {
            source: lasting(&source).unwrap_or(source),
            place: cleaned(place),
            kind: kind.to_owned(),
            options: options.split(',').filter(|option| !option.is_empty()).map(str::to_owned).collect(),
        }
    }

    /// The tag and its value, if a tag names the file system.
    pub fn tag(&self) -> Option<(&str, &str)> {
        self.source.split_once('=').filter(|(key, _)| LASTING.contains(key))
    }

    /// Whether the entry means the file system or partition with these identifiers.
    pub fn means(&self, tags: &Tags) -> bool {
        let Some((key, value)) = self.tag() else { return false };
        let is = |found: Option<&str>| found.is_some_and(|found| found.eq_ignore_ascii_case(value));
        match key {
            "UUID" => is(tags.uuid),
            "LABEL" => tags.label == Some(value),
            "PARTUUID" => is(tags.partuuid),
            _ => !value.is_empty() && tags.partlabel == Some(value),
        }
    }

    /// The option that chooses a subvolume of btrfs, as written: `subvol=PATH` or `subvolid=NUMBER`. The last counts.
    pub fn subvolume(&self) -> Option<&str> {
        let is_one = |option: &&String| option.starts_with("subvol=") || option.starts_with("subvolid=");
        self.options.iter().rev().find(is_one).map(String::as_str)
    }

    /// The folder that appears at the mount point, without slashes at its ends, if the entry is a bind mount.
    pub fn bound(&self) -> Option<String> {
        let is_bind = |option: &String| matches!(option.as_str(), "bind" | "rbind");
        let is_bound = self.options.iter().any(is_bind) || self.kind == "bind";
        (is_bound && self.source.starts_with('/')).then(|| cleaned(&self.source))
    }

    /// Whether the system starts even without this file system: it does not wait for it, or mounts it only on demand.
    pub fn may_fail(&self) -> bool {
        self.options.iter().any(|option| matches!(option.as_str(), "nofail" | "noauto"))
    }

    /// The part of a path below the mount point, without slashes at its ends; `None` if the path is elsewhere. `path`
    /// has no slashes at its ends.
    pub fn below<'p>(&self, path: &'p str) -> Option<&'p str> {
        match path.strip_prefix(self.place.as_str())? {
            rest if rest.is_empty() || self.place.is_empty() => Some(rest),
            rest => rest.strip_prefix('/'),
        }
    }

    /// Whether the system mounts the file system by itself: at its start, or at the first access (systemd.mount(5)).
    fn is_mounted(&self) -> bool {
        let has = |wanted: &str| self.options.iter().any(|option| option == wanted);
        !has("noauto") || has("x-systemd.automount")
    }
}

/// A path without slashes at its ends, without empty names and dots.
fn cleaned(path: &str) -> String {
    path.split('/').filter(|name| !matches!(*name, "" | ".")).collect::<Vec<_>>().join("/")
}

/// The tag and value of a source, which may be a link; `None` for others, such as a device name, which may change.
fn lasting(source: &str) -> Option<String> {
    if let Some((folder, name)) = source.strip_prefix(LINKS).and_then(|rest| rest.split_once('/')) {
        let key = LASTING.iter().find(|key| key.eq_ignore_ascii_case(folder))?;
        // Names of links are encoded by libudev (udev_util_encode_string).
        return Some(format!("{key}={}", decoded_text(name, "\\x", 2, 16)));
    }
    let (key, _) = source.split_once('=')?;
    LASTING.contains(&key).then(|| source.to_owned())
}

/// Whether a mount point is for boot loaders and kernels.
fn is_for_booting(place: &str) -> bool {
    let folder = place.split('/').next();
    matches!(place, "boot" | "efi") || folder == Some("boot") && place.split('/').all(|name| name != "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_boot_file_systems_with_lasting_names_count_for_booting() {
        let fstab = "# UUID=x /boot ext4\nUUID=\"1-2\"\t/boot/efi/ vfat umask=077 0 1\nLABEL=b /boot ext4\n\
                     /dev/sda1 /efi vfat\nUUID=r / ext4\nLABEL=c /boot xfs\nUUID=z\nPARTUUID=x /boot/loader\n\
                     UUID=y /boot/../etc\nUUID=v /efi/x\nUUID=w /bootx\n";
        let found: Vec<_> = boot_entries(fstab).into_iter().map(|entry| (entry.source, entry.place)).collect();
        let entry = |source: &str, place: &str| (source.to_owned(), place.to_owned());
        assert_eq!(
            found,
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

    #[test]
    fn what_is_mounted_at_the_start_counts_once() {
        let places = |fstab: &str| entries(fstab).into_iter().map(|entry| entry.place).collect::<Vec<_>>();
        assert_eq!(places("UUID=a / ext4\n\tUUID=b\t/var/\text4 defaults 0 2\nUUID=c /var xfs\n"), ["", "var"]);
        assert_eq!(places("UUID=a none swap sw\nUUID=b swap swap\n/dev/sda3\n"), [""; 0]);
        assert_eq!(places("a /a x noauto\nb /b x noauto,x-systemd.automount\nc //c/./d/ x nofail"), ["b", "c/d"]);
        let may_fail = |options: &str| entries(&format!("a /a x {options}")).iter().all(Entry::may_fail);
        assert_eq!(["defaults", "ro,nofail", "noauto,x-systemd.automount"].map(may_fail), [false, true, true]);
    }

    #[test]
    fn options_choose_a_subvolume_or_bind_a_folder() {
        let check = |line: &str, subvolume: Option<&str>, bound: Option<&str>| {
            let entry = entries(line).remove(0);
            assert_eq!((entry.subvolume(), entry.bound().as_deref()), (subvolume, bound), "{line}");
        };
        check("UUID=a /var btrfs", None, None);
        check("UUID=a /var btrfs rw,subvol=/@/var,compress=zstd 0 0", Some("subvol=/@/var"), None);
        check("UUID=a /var btrfs subvol=a,subvolid=257", Some("subvolid=257"), None);
        check("/data/var/ /var none defaults,bind", None, Some("data/var"));
        check("UUID=a /var ext4 bind", None, None);
    }

    #[test]
    fn a_path_is_below_a_mount_point_or_elsewhere() {
        let check = |place: &str, path: &str, expect: Option<&str>| {
            assert_eq!(Entry::new("x", place, "", "").below(path), expect, "{place} {path}");
        };
        check("/var", "var/lib", Some("lib"));
        check("/var", "var", Some(""));
        check("/var", "various", None);
        check("/var/lib", "var", None);
        check("/", "var", Some("var"));
    }
}
