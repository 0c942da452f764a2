//! Finds the disk that slipway was started from, and disks from which another machine could start slipway.
//!
//! The EFI stub records the GPT partition from which the firmware loaded slipway. A loader that knows better can name
//! the medium on the kernel's command line. If neither is given, as with BIOS, an MBR or a kernel loaded by GRUB, a
//! medium is recognised by its label. Ventoy starts an image that is a file on its stick, and names the stick itself.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use crate::disk::probe::{self, Place};

/// Key on the kernel's command line. The value has no blanks: `PARTUUID=`, `PARTLABEL=`, `UUID=` or `LABEL=` of the
/// medium or one of its partitions, or the path of the disk.
const KEY: &str = "slipway.boot_medium=";
/// Label of a file system or name of a partition that marks a disk as a medium. Case is ignored.
const LABEL: &str = "slipway";
/// Label of the second partition of Ventoy's sticks, which may have an image of slipway among others.
const VENTOY_LABEL: &str = "VTOYEFI";
/// What Ventoy tells the system that it starts (Ventoy documentation, "Ventoy Information Format"): the variable, the
/// signature at its beginning, its size in bytes, and the offset of the stick's identity in it.
const VENTOY: &str = "VentoyOsParam-77772020-2e77-6576-6e74-6f792e6e6574";
const VENTOY_SIGNATURE: &[u8] = b"  www.ventoy.net";
const VENTOY_SIZE: usize = 512;
const VENTOY_DISK: usize = 17;
/// Offset of the identity in the stick's first block, with an MBR as with a GPT (the same document).
const VENTOY_ON_DISK: usize = 384;
/// Maximum number of partitions per disk whose file systems are checked.
const MOST_PLACES: usize = 16;

/// What identifies the medium that slipway was started from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Name {
    PartUuid(String),
    PartLabel(String),
    Uuid(String),
    Label(String),
    Device(String),
    /// The identity that Ventoy has given to the disk.
    Ventoy([u8; 16]),
}

/// What is known about the medium that slipway was started from.
#[derive(Debug)]
pub(super) struct BootMedium {
    names: Vec<Name>,
}

/// The role of a disk in starting slipway.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Slipway was started from it.
    BootedFrom,
    /// It is a boot medium for slipway, with how that was recognised.
    Made(String),
    /// It has no role.
    Other,
}

impl BootMedium {
    /// Reads what firmware and kernel command line say. Fails if the value on the command line is not understood. `sys`
    /// and `proc` are the mount points of sysfs and procfs.
    pub(super) fn of(sys: &Path, proc: &Path) -> io::Result<Self> {
        let command_line = fs::read_to_string(proc.join("cmdline")).unwrap_or_default();
        let mut names = told(&command_line)?;
        let efivars = sys.join("firmware/efi/efivars");
        names.extend(boot_partition(&efivars).map(Name::PartUuid));
        names.extend(ventoy_stick(&efivars).map(Name::Ventoy));
        Ok(Self { names })
    }

    /// Returns the role of the disk at a path. A disk that cannot be read has no role, unless its path is named. A
    /// device in place of a disk may never respond, so it is only read if a medium was named.
    pub(super) fn look_at(&self, path: &str, is_layer: bool) -> Found {
        if is_layer && self.names.is_empty() {
            return Found::Other;
        }
        // The table is read separately, so that a damaged file system cannot hide it.
        let mut places = probe::in_table(path).unwrap_or_default();
        places.extend(probe::first(path, MOST_PLACES).unwrap_or_default());
        if self.names.iter().any(|name| name.is_of(path, &places)) {
            return Found::BootedFrom;
        }
        places.iter().find_map(mark).map_or(Found::Other, Found::Made)
    }
}

impl Name {
    fn is_of(&self, path: &str, places: &[Place]) -> bool {
        let any = |of: fn(&Place) -> Option<&String>, wanted: &String, is_same: fn(&str, &str) -> bool| {
            places.iter().filter_map(of).any(|found| is_same(found, wanted))
        };
        match self {
            Name::PartUuid(wanted) => any(|place| place.partuuid.as_ref(), wanted, str::eq_ignore_ascii_case),
            Name::PartLabel(wanted) => any(|place| place.partlabel.as_ref(), wanted, str::eq),
            Name::Uuid(wanted) => any(|place| place.uuid.as_ref(), wanted, str::eq_ignore_ascii_case),
            Name::Label(wanted) => any(|place| place.label.as_ref(), wanted, str::eq),
            Name::Device(wanted) => wanted == path,
            Name::Ventoy(wanted) => ventoy_of(path).as_ref() == Some(wanted),
        }
    }
}

/// Returns how a place is recognised as a medium for slipway; `None` if it is not.
fn mark(place: &Place) -> Option<String> {
    let what = if place.number == 0 { "it".to_owned() } else { format!("its partition {}", place.number) };
    let is_marked = |text: &&String| text.eq_ignore_ascii_case(LABEL);
    let label = place.label.as_ref().filter(is_marked).map(|label| format!("{what} has the label {label}"));
    let is_ventoy = place.number > 0 && place.label.as_deref() == Some(VENTOY_LABEL);
    let ventoy = is_ventoy.then(|| format!("{what} has the label {VENTOY_LABEL}, as Ventoy's sticks have"));
    let name = || place.partlabel.as_ref().filter(is_marked).map(|name| format!("{what} has the name {name}"));
    label.or(ventoy).or_else(name)
}

/// Returns the media that are named on the kernel's command line.
fn told(command_line: &str) -> io::Result<Vec<Name>> {
    command_line
        .split_whitespace()
        .filter_map(|word| word.strip_prefix(KEY))
        .map(|value| {
            let named = match value.split_once('=') {
                _ if value.starts_with("/dev/") => Some(Name::Device(value.to_owned())),
                Some((_, "")) | None => None,
                Some(("PARTUUID", uuid)) => Some(Name::PartUuid(uuid.to_owned())),
                Some(("PARTLABEL", label)) => Some(Name::PartLabel(label.to_owned())),
                Some(("UUID", uuid)) => Some(Name::Uuid(uuid.to_owned())),
                Some(("LABEL", label)) => Some(Name::Label(label.to_owned())),
                Some(_) => None,
            };
            let expected = "PARTUUID=, PARTLABEL=, UUID= or LABEL= with a value, or a path below /dev/";
            named.ok_or_else(|| io::Error::other(format!("the kernel command line has {KEY}{value}: give {expected}")))
        })
        .collect()
}

/// Reads the unique GUID of the partition from which the boot stub was loaded (The Boot Loader Interface,
/// LoaderDevicePartUUID): four bytes of attributes, then UTF-16.
fn boot_partition(efivars: &Path) -> Option<String> {
    let value = fs::read(efivars.join("LoaderDevicePartUUID-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f")).ok()?;
    let units: Vec<u16> = value.get(4..)?.as_chunks().0.iter().map(|unit| u16::from_le_bytes(*unit)).collect();
    Some(String::from_utf16_lossy(&units).trim_end_matches('\0').to_ascii_lowercase())
}

/// Reads the identity of the stick from which Ventoy started slipway.
fn ventoy_stick(efivars: &Path) -> Option<[u8; 16]> {
    let value = fs::read(efivars.join(VENTOY)).ok()?;
    let told = value.get(4..).filter(|told| told.len() == VENTOY_SIZE && told.starts_with(VENTOY_SIGNATURE))?;
    let sum = told.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    told.get(VENTOY_DISK..)?.first_chunk().copied().filter(|disk| sum == 0 && *disk != [0; 16])
}

/// Reads the bytes of a disk in which Ventoy would have put an identity.
fn ventoy_of(path: &str) -> Option<[u8; 16]> {
    let mut block = [0; VENTOY_ON_DISK + 16];
    File::open(path).and_then(|mut disk| disk.read_exact(&mut block)).ok()?;
    block.last_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_partition_slipway_booted_from_is_read_from_its_variable() {
        let dir = tempfile::tempdir().unwrap();
        let name = "LoaderDevicePartUUID-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";
        let units = "ABCD-12\0".encode_utf16().flat_map(u16::to_le_bytes);
        fs::write(dir.path().join(name), [6, 0, 0, 0].into_iter().chain(units).collect::<Vec<u8>>()).unwrap();
        assert_eq!(boot_partition(dir.path()).as_deref(), Some("abcd-12"));
        assert_eq!(boot_partition(Path::new("/nowhere")), None);
    }

    #[test]
    fn the_command_line_names_the_medium_or_is_not_understood() {
        let check = |value: &str, expect: Option<Name>| {
            let found = told(&format!("quiet slipway.server=https://s/?LABEL=x {KEY}{value} ro\n"));
            assert_eq!(found.ok(), expect.map(|name| vec![name]), "{value}");
        };
        check("PARTUUID=AB-1", Some(Name::PartUuid("AB-1".to_owned())));
        check("LABEL=a=b", Some(Name::Label("a=b".to_owned())));
        check("UUID=AB12-CD34", Some(Name::Uuid("AB12-CD34".to_owned())));
        check("PARTLABEL=x", Some(Name::PartLabel("x".to_owned())));
        check("/dev/sda", Some(Name::Device("/dev/sda".to_owned())));
        for wrong in ["", "sda", "LABEL=", "label=x", "PARTUUID", "=x"] {
            check(wrong, None);
        }
        assert_eq!(told("quiet").ok(), Some(Vec::new()));
        assert_eq!(told(&format!("{KEY}UUID=a {KEY}UUID=b")).map(|names| names.len()).ok(), Some(2));
    }

    #[test]
    fn a_medium_is_known_by_what_was_told_and_one_that_is_made_by_its_label() {
        let place = |number, label: &str, partlabel: &str| Place {
            number,
            start: 0,
            size: 512,
            kind: Some("vfat"),
            uuid: Some("AB12-CD34".to_owned()),
            label: Some(label.to_owned()),
            partuuid: Some("0f-1".to_owned()),
            partlabel: Some(partlabel.to_owned()),
        };
        let places = [place(1, "DATA", "first")];
        for (name, expect) in [
            (Name::PartUuid("0F-1".to_owned()), true),
            (Name::PartUuid("0f-2".to_owned()), false),
            (Name::Uuid("ab12-cd34".to_owned()), true),
            (Name::Label("DATA".to_owned()), true),
            (Name::Label("data".to_owned()), false),
            (Name::PartLabel("first".to_owned()), true),
            (Name::Device("/dev/sdb".to_owned()), true),
            (Name::Device("/dev/sdc".to_owned()), false),
        ] {
            assert_eq!(name.is_of("/dev/sdb", &places), expect, "{name:?}");
        }
        assert_eq!(mark(&place(1, "DATA", "first")), None);
        assert_eq!(mark(&place(2, "SLIPWAY", "first")).as_deref(), Some("its partition 2 has the label SLIPWAY"));
        assert_eq!(mark(&place(3, "", "slipway")).as_deref(), Some("its partition 3 has the name slipway"));
        assert_eq!(mark(&place(0, "Slipway", "")).as_deref(), Some("it has the label Slipway"));
        let ventoy = "its partition 2 has the label VTOYEFI, as Ventoy's sticks have";
        assert_eq!(mark(&place(2, "VTOYEFI", "VTOYEFI")).as_deref(), Some(ventoy));
        assert_eq!(mark(&place(1, "SLIPWAY2", "my slipway")), None);
    }

    #[test]
    fn the_stick_from_which_ventoy_started_slipway_is_known_by_what_ventoy_tells() {
        let dir = tempfile::tempdir().unwrap();
        let stick = dir.path().join("stick").to_str().unwrap().to_owned();
        let disk: [u8; 16] = std::array::from_fn(|at| at as u8 + 1);
        let mut told = [VENTOY_SIGNATURE, &[0], &disk].concat();
        told.resize(VENTOY_SIZE, 0);
        told[16] = told.iter().fold(0_u8, |sum, byte| sum.wrapping_sub(*byte));
        let check = |told: &[u8], expect: Option<[u8; 16]>| {
            fs::write(dir.path().join(VENTOY), [&[6, 0, 0, 0], told].concat()).unwrap();
            assert_eq!(ventoy_stick(dir.path()), expect);
        };
        let damaged = [&told[..511], &[1]].concat();
        check(&damaged, None);
        check(&told[..511], None);
        check(&told, Some(disk));
        let medium = BootMedium { names: vec![Name::Ventoy(disk)] };
        fs::write(&stick, [0; 1 << 20]).unwrap();
        assert_eq!(medium.look_at(&stick, false), Found::Other);
        fs::write(&stick, [&[0; VENTOY_ON_DISK], &disk[..], &[0; 1 << 20]].concat()).unwrap();
        assert_eq!(medium.look_at(&stick, false), Found::BootedFrom);
    }

    #[test]
    fn a_medium_is_seen_on_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("medium").to_str().unwrap().to_owned();
        let look = |names: &[Name], is_layer| BootMedium { names: names.to_vec() }.look_at(&path, is_layer);
        let make = |program: &str, arguments: &[&str]| {
            fs::File::create(&path).unwrap().set_len(40 << 20).unwrap();
            let output = Command::new(program).args(arguments).arg(&path).output().unwrap();
            assert!(output.status.success(), "{program}: {output:?}");
        };
        assert_eq!(look(&[], false), Found::Other, "it is not there");
        make("mkfs.vfat", &["-n", "SLIPWAY", "-i", "12345678"]);
        assert_eq!(look(&[], false), Found::Made("it has the label SLIPWAY".to_owned()));
        assert_eq!(look(&[], true), Found::Other);
        assert_eq!(look(&[Name::Uuid("1234-5678".to_owned())], true), Found::BootedFrom);
        make("sgdisk", &["--new=1:2048:0", "--change-name=1:slipway"]);
        assert_eq!(look(&[], false), Found::Made("its partition 1 has the name slipway".to_owned()));
        let many: Vec<String> = (1..=17).map(|number| format!("--new={number}:0:+1M")).collect();
        let mut many: Vec<&str> = many.iter().map(String::as_str).collect();
        let guid = "11111111-2222-3333-4444-555555555555";
        let given = format!("--partition-guid=17:{guid}");
        many.push(&given);
        make("sgdisk", &many);
        assert_eq!(look(&[], false), Found::Other);
        assert_eq!(look(&[Name::PartUuid(guid.to_owned())], false), Found::BootedFrom);
    }
}
