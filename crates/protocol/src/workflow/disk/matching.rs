//! Whether hints select a disk, judged by the disk's own properties. The machine decides whether the disk may be
//! touched at all.

use super::{BY_PATH, DiskHints, is_of_one_disk};
use crate::shared::identity::serial_number;
use crate::shared::inventory::Disk;
use crate::shared::printable::size;
use crate::workflow::hint::TextHint;

const GIB: u64 = 1 << 30;
/// Transports whose disks have a serial number from their maker.
const OF_MAKERS: [&str; 4] = ["nvme", "sata", "ata", "sas"];

impl DiskHints {
    /// Returns whether the hints name a disk, so that they may select a removable disk too.
    pub fn names_one_disk(&self) -> bool {
        let names = [&self.serial, &self.wwn, &self.wwn_with_extension];
        self.device.is_some() || names.into_iter().flatten().any(TextHint::is_exact)
    }

    /// Returns whether no disk but this one can match the hints, whatever else the machine has. Serial numbers of
    /// virtual disks and placeholders are not enough for that.
    pub fn is_certain(&self, disk: &Disk) -> bool {
        let is_one =
            |hint: &Option<TextHint>| hint.as_ref().is_some_and(|hint| hint.is_exact() && hint.values().len() == 1);
        let is_place = [&self.name, &self.by_path, &self.hctl].into_iter().any(is_one);
        // Without its vendor extension, several volumes of an array have the same name.
        let is_whole = |hint: &TextHint| hint.matches(&disk.wwn.as_deref().into_iter().collect::<Vec<_>>(), bare_wwn);
        let names = [&self.wwn, &self.wwn_with_extension];
        let has_name = names.into_iter().any(|hint| is_one(hint) && hint.as_ref().is_some_and(is_whole));
        let has_maker = disk.transport.as_deref().is_some_and(|transport| OF_MAKERS.contains(&transport));
        let is_real = disk.serial.as_deref().is_some_and(|serial| serial_number(serial).is_ok());
        let has_serial = is_one(&self.serial) && has_maker && is_real;
        let is_named = has_name && disk.wwn.as_deref().is_some_and(is_of_one_disk);
        (self.device.is_some() || is_place || is_named || has_serial) && self.mismatch(disk).is_none()
    }

    /// Returns the property by which a disk does not match the hints, in words. None if it matches. Ignores `device`
    /// and `choose`.
    pub fn mismatch(&self, disk: &Disk) -> Option<String> {
        let skip = self.skip.iter().find(|skip| mismatch(skip, disk).is_none());
        skip.map(|skip| format!("is to be skipped: it is {}", wanted(skip))).or_else(|| mismatch(self, disk))
    }

    /// Returns the hints in words.
    pub fn wanted(&self) -> String {
        wanted(self)
    }
}

/// Returns the property by which a disk does not match the hints, apart from `skip`.
fn mismatch(hints: &DiskHints, disk: &Disk) -> Option<String> {
    let facts = facts(hints, disk);
    let differs = facts.iter().find_map(|fact| {
        let hint = fact.hint.filter(|hint| !hint.matches(&fact.found, fact.bare))?;
        let found = fact.found.first().map_or_else(|| "none".to_owned(), |found| format!("{found:?}"));
        Some(format!("has {} {found}, not {:?}", fact.key, hint.to_string()))
    });
    differs
        .or_else(|| {
            let size = hints.size.as_ref().filter(|size| !size.matches(disk.size))?;
            Some(format!("has size {} GiB, not {:?}", disk.size / GIB, size.to_string()))
        })
        .or_else(|| {
            let least = hints.min_size.filter(|least| disk.size < *least)?;
            Some(format!("has {}, less than {}", size(disk.size), size(least)))
        })
        .or_else(|| {
            let rotational = hints.rotational.filter(|wanted| *wanted != disk.rotational)?;
            Some(format!("has rotational {}, not {rotational}", disk.rotational))
        })
}

fn wanted(hints: &DiskHints) -> String {
    let device = hints.device.as_ref().map(|device| format!("device {device}"));
    let nothing = Disk::default();
    let texts = facts(hints, &nothing).into_iter().filter_map(|fact| Some(format!("{} {}", fact.key, fact.hint?)));
    let sizes = [
        hints.size.as_ref().map(|size| format!("size {size} GiB")),
        hints.min_size.map(|least| format!("at least {}", size(least))),
        hints.rotational.map(|rotational| format!("rotational {rotational}")),
    ];
    let all: Vec<String> = device.into_iter().chain(texts).chain(sizes.into_iter().flatten()).collect();
    if all.is_empty() { "a disk".to_owned() } else { format!("a disk with {}", all.join(" and ")) }
}

/// A text hint, and the values of the disk it may match.
struct Fact<'a> {
    key: &'static str,
    hint: Option<&'a TextHint>,
    found: Vec<&'a str>,
    /// Strips the parts of a value that do not count, such as a prefix.
    bare: fn(&str) -> &str,
}

fn facts<'a>(hints: &'a DiskHints, disk: &'a Disk) -> [Fact<'a>; 10] {
    let fact = |key, hint: &'a Option<TextHint>, found: &[Option<&'a str>], bare| {
        let found = found.iter().flatten().copied().collect();
        Fact { key, hint: hint.as_ref(), found, bare }
    };
    let (wwn, by_path) = (disk.wwn.as_deref(), disk.by_path.as_deref());
    let (base, extension) = wwn.and_then(split_wwn).unzip();
    [
        fact("name", &hints.name, &[Some(&disk.path), by_path], whole),
        fact("serial", &hints.serial, &[disk.serial.as_deref()], whole),
        fact("wwn", &hints.wwn, &[wwn, base], bare_wwn),
        fact("wwn_with_extension", &hints.wwn_with_extension, &[wwn], bare_wwn),
        fact("wwn_vendor_extension", &hints.wwn_vendor_extension, &[extension], bare_wwn),
        fact("model", &hints.model, &[disk.model.as_deref(), model_alone(disk)], whole),
        fact("vendor", &hints.vendor, &[disk.vendor.as_deref()], whole),
        fact("hctl", &hints.hctl, &[disk.hctl.as_deref()], whole),
        fact("by_path", &hints.by_path, &[by_path], bare_path),
        fact("tran", &hints.tran, &[disk.transport.as_deref()], whole),
    ]
}

/// Returns the model without a leading vendor, as Ironic has it. None if the model has no leading vendor.
fn model_alone(disk: &Disk) -> Option<&str> {
    disk.model.as_deref()?.strip_prefix(disk.vendor.as_deref()?).map(str::trim_start)
}

fn whole(text: &str) -> &str {
    text
}

fn bare_path(path: &str) -> &str {
    path.strip_prefix(BY_PATH).unwrap_or(path)
}

/// Strips the prefix of a World Wide Name that is in lower case.
fn bare_wwn(wwn: &str) -> &str {
    ["naa.", "eui.", "uuid.", "nvme.", "0x"].iter().find_map(|prefix| wwn.strip_prefix(prefix)).unwrap_or(wwn)
}

/// Splits a World Wide Name of 16 bytes (SPC-4, 7.8.6.6.5, NAA IEEE Registered Extended) into the part that udev calls
/// the WWN, and its vendor extension.
fn split_wwn(wwn: &str) -> Option<(&str, &str)> {
    let bare = wwn.strip_prefix("naa.")?;
    let is_extended = bare.len() == 32 && bare.starts_with('6') && bare.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_extended.then(|| bare.split_at(16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_certain_if_no_other_can_have_what_the_hints_name() {
        let text = |text: &str| Some(text.to_owned());
        let disk = Disk {
            path: "/dev/sda".to_owned(),
            serial: text("S6PENG0T912345"),
            wwn: text("naa.6001405d27e5d898829468b90ce4ef8c"),
            hctl: text("0:0:0:0"),
            by_path: text("/dev/disk/by-path/pci-0000:02:00.0-scsi-0:0:0:0"),
            model: text("ACME"),
            transport: text("sas"),
            ..Disk::default()
        };
        let check = |json: &str, disk: &Disk, expect: bool| {
            let hints: DiskHints = serde_json::from_str(json).expect(json);
            assert_eq!(hints.is_certain(disk), expect, "{json} {disk:?}");
        };
        for json in [
            r#"{"device": "/dev/sda"}"#,
            r#"{"name": "/dev/sda"}"#,
            r#"{"by_path": "pci-0000:02:00.0-scsi-0:0:0:0"}"#,
            r#"{"hctl": "0:0:0:0"}"#,
            r#"{"wwn": "0x6001405d27e5d898829468b90ce4ef8c"}"#,
            r#"{"wwn_with_extension": "6001405D27E5D898829468B90CE4EF8C"}"#,
            r#"{"serial": "s6peng0t912345", "model": "ACME"}"#,
        ] {
            check(json, &disk, true);
        }
        for json in [
            "{}",
            r#"{"model": "ACME"}"#,
            r#"{"choose": "largest"}"#,
            r#"{"serial": "<in> S6PENG"}"#,
            r#"{"serial": "<or> S6PENG0T912345 <or> S2"}"#,
            // Without the extension, other volumes of the array have the same name.
            r#"{"wwn": "0x6001405d27e5d898"}"#,
            r#"{"wwn": "<in> 6001405d27e5d898829468b90ce4ef8c"}"#,
            r#"{"device": "/dev/sda", "model": "other"}"#,
        ] {
            check(json, &disk, false);
        }
        let serial = |serial: &str| format!(r#"{{"serial": "{serial}"}}"#);
        for (transport, number, expect) in [
            ("nvme", "S1ABC", true),
            ("sata", "S1ABC", true),
            ("usb", "S1ABC", false),
            ("virtio", "S1ABC", false),
            ("fc", "S1ABC", false),
            ("sata", "0123456789ABCDEF", false),
            ("sata", "00000000", false),
        ] {
            let disk = Disk { transport: text(transport), serial: text(number), ..Disk::default() };
            check(&serial(number), &disk, expect);
        }
        let copied = Disk { wwn: text("naa.5000000000000000"), ..Disk::default() };
        check(r#"{"wwn": "0x5000000000000000"}"#, &copied, false);
    }
}
