//! `efi-boot-order` on a disk with an image, and a folder for the firmware's variables.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use common::disk_image::{ESP, Part, ROOT, can_mount, make, read_file};
use common::partitions::info;
use common::{Bench, MIB, chain};
use slipway_actions::{BootError, Done, Error};
use slipway_protocol::{Action, BootPosition, EfiBootOrder};

const ESP_AT: usize = 1;
const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";
const LOADER: &str = if cfg!(target_arch = "aarch64") { "shimaa64.efi" } else { "shimx64.efi" };
const SECOND: &str = if cfg!(target_arch = "aarch64") { "grubaa64.efi" } else { "grubx64.efi" };
const REMOVABLE: &str = if cfg!(target_arch = "aarch64") { "BOOTAA64.EFI" } else { "BOOTX64.EFI" };
/// The machine's original entries: a network card (a path of only MAC()), and something that is not a load option.
const NETWORK: &[u8] = &[1, 0, 0, 0, 4, 0, b'P', 0, b'X', 0, b'E', 0, 0, 0, 0x7F, 0xFF, 4, 0];
const STRANGE: &[u8] = &[1, 2, 3];
const OS_RELEASE: (&str, &str) = ("etc/os-release", "NAME=\"Debian GNU/Linux\"\nID=debian\n");

/// A machine booted by UEFI, with a disk that carries Debian.
fn installed() -> Bench {
    let mut bench = Bench::new(MIB);
    bench.disks[0].disk.serial = Some("S1".to_owned());
    write_image(&bench, "disk");
    let variables = bench.path("efi/efivars");
    fs::create_dir_all(&variables).unwrap();
    fs::write(bench.path("efi/fw_platform_size"), "64\n").unwrap();
    set(&bench, "Boot0000", NETWORK);
    set(&bench, "Boot0001", STRANGE);
    set(&bench, "Boot0003", NETWORK);
    set(&bench, "BootOrder", &[3, 0, 0, 0, 3, 0, 1, 0]);
    bench
}

/// Writes an image whose partitions have new GUIDs.
fn write_image(bench: &Bench, name: &str) {
    let loader = format!("EFI/debian/{LOADER}");
    let second = format!("EFI/debian/{SECOND}");
    let esp =
        [(loader.as_str(), "the loader"), (&second, "the second loader"), ("EFI/debian/grub.cfg", "its configuration")];
    let parts = [
        Part { mib: ESP_AT..9, type_guid: ESP, name: "esp", files: &esp },
        Part { mib: 10..19, type_guid: ROOT, name: "system", files: &[OS_RELEASE] },
    ];
    make(&bench.path(name), 20, &parts);
}

fn set(bench: &Bench, name: &str, content: &[u8]) {
    fs::write(bench.path(&format!("efi/efivars/{name}-{GLOBAL}")), [&[7, 0, 0, 0], content].concat()).unwrap();
}

/// The content of a variable. Checks its attributes.
fn get(bench: &Bench, name: &str) -> Option<Vec<u8>> {
    let bytes = fs::read(bench.path(&format!("efi/efivars/{name}-{GLOBAL}"))).ok()?;
    assert_eq!(&bytes[..4], [7, 0, 0, 0], "{name}");
    Some(bytes[4..].to_vec())
}

fn order(bench: &Bench) -> Vec<u16> {
    let bytes = get(bench, "BootOrder").unwrap();
    bytes.chunks(2).map(|number| u16::from_le_bytes([number[0], number[1]])).collect()
}

fn run(bench: &Bench, inputs: EfiBootOrder) -> Result<Done, Error> {
    bench.run(&Action::EfiBootOrder(inputs)).0
}

fn succeeds(bench: &Bench, inputs: EfiBootOrder) -> String {
    let done = run(bench, inputs).unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert_eq!(done.outcome.warnings, [""; 0]);
    done.outcome.summary
}

/// The bytes of HD(1,GPT,...)/File(...) for the disk's first partition, from 1 MiB on and 8 MiB long.
fn path_to(disk: &Path, file: &str) -> Vec<u8> {
    let guid = info(disk, 1, "Partition unique GUID:").replace('-', "");
    let mut guid = base16ct::mixed::decode_vec(guid).unwrap();
    guid[..4].reverse();
    guid[4..6].reverse();
    guid[6..8].reverse();
    let file: Vec<u8> = file.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
    let drive =
        [&[4, 1, 42, 0, 1, 0, 0, 0][..], &2048_u64.to_le_bytes(), &16384_u64.to_le_bytes(), &guid, &[2, 2]].concat();
    let file = [&[4, 4][..], &(file.len() as u16 + 4).to_le_bytes(), &file].concat();
    [drive, file, vec![0x7F, 0xFF, 4, 0]].concat()
}

#[test]
fn the_disk_is_first_and_everything_else_stays() {
    let true = can_mount() else { return };
    let bench = installed();
    let summary = succeeds(&bench, EfiBootOrder::default());
    assert!(summary.starts_with("Boot0002 (Debian GNU/Linux), \\EFI\\debian\\shim"), "{summary}");
    assert!(summary.ends_with("is the first of 4 in the boot order"), "{summary}");
    assert_eq!(order(&bench), [2, 3, 0, 1]);
    let path = path_to(&bench.path("disk"), &format!("\\EFI\\debian\\{LOADER}"));
    let name: Vec<u8> = "Debian GNU/Linux\0".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let expect = [&[1, 0, 0, 0][..], &(path.len() as u16).to_le_bytes(), &name, &path].concat();
    assert_eq!(get(&bench, "Boot0002"), Some(expect));
    for (name, content) in [("Boot0000", NETWORK), ("Boot0001", STRANGE), ("Boot0003", NETWORK)] {
        assert_eq!(get(&bench, name).as_deref(), Some(content), "{name}");
    }
    assert_eq!(get(&bench, "BootNext"), None);

    let disk = bench.path("disk");
    let fallback = |name: &str| read_file(&disk, ESP_AT, &format!("/EFI/BOOT/{name}")).map(|(content, _)| content);
    assert_eq!(fallback(REMOVABLE).as_deref(), Some("the loader"));
    assert_eq!(fallback(SECOND).as_deref(), Some("the second loader"));
    assert_eq!(fallback("grub.cfg").as_deref(), Some("its configuration"));

    // Runs again after the firmware put the network first.
    set(&bench, "BootOrder", &[3, 0, 2, 0, 0, 0]);
    succeeds(&bench, EfiBootOrder::default());
    assert_eq!(order(&bench), [2, 3, 0], "the entry is taken, and not made twice");
    assert_eq!(get(&bench, "Boot0004"), None);
}

#[test]
fn what_somebody_else_wants_started_next_is_told_and_stays() {
    let true = can_mount() else { return };
    let bench = installed();
    for (next, expect) in [(3, Some("Boot0003 (PXE) is to be started once before it")), (9, None), (2, None)] {
        set(&bench, "BootNext", &[next, 0]);
        let warnings = run(&bench, EfiBootOrder::default()).unwrap().outcome.warnings;
        assert_eq!(warnings.len(), expect.iter().count(), "{warnings:?}");
        assert!(expect.is_none_or(|expect| warnings[0].starts_with(expect)), "{warnings:?}");
        assert_eq!(get(&bench, "BootNext"), Some(vec![next, 0]));
    }
}

#[test]
fn for_the_next_time_only_the_order_is_kept() {
    let true = can_mount() else { return };
    let bench = installed();
    let label = Some("rack 7".to_owned());
    let next = EfiBootOrder { position: BootPosition::Next, label, ..EfiBootOrder::default() };
    let summary = succeeds(&bench, next);
    assert!(summary.starts_with("Boot0002 (rack 7), "), "{summary}");
    assert_eq!((order(&bench), get(&bench, "BootNext")), (vec![3, 0, 1, 2], Some(vec![2, 0])));
}

#[test]
fn entries_of_former_installations_of_the_disk_go_and_those_of_others_stay() {
    let true = can_mount() else { return };
    let mut bench = installed();
    // The entry of a disk that is currently detached: its partition is on no disk, and it is not known to be gone.
    write_image(&bench, "away");
    let path = path_to(&bench.path("away"), "\\a");
    let away = [&[1, 0, 0, 0][..], &(path.len() as u16).to_le_bytes(), &[0, 0], &path].concat();
    set(&bench, "Boot0007", &away);
    succeeds(&bench, EfiBootOrder::default());
    // The installed system added its own entry.
    set(&bench, "Boot0008", &get(&bench, "Boot0002").unwrap());
    set(&bench, "BootOrder", &[8, 0, 2, 0, 7, 0, 0, 0]);

    write_image(&bench, "disk");
    let summary = succeeds(&bench, EfiBootOrder::default());
    assert!(summary.ends_with("; removed 2 of former installations"), "{summary}");
    assert_eq!(order(&bench), [4, 7, 0]);
    assert_eq!((get(&bench, "Boot0002"), get(&bench, "Boot0008"), get(&bench, "Boot0007")), (None, None, Some(away)));

    // For another disk, the entries noted for the first disk are not removed.
    write_image(&bench, "disk");
    bench.disks[0].disk.serial = Some("S2".to_owned());
    let summary = succeeds(&bench, EfiBootOrder::default());
    assert!(!summary.contains("removed"), "{summary}");
    assert_eq!(order(&bench), [2, 4, 7, 0]);
}

#[test]
fn what_the_disk_held_before_the_run_is_a_former_installation_too() {
    let true = can_mount() else { return };
    let mut bench = installed();
    // The disk has no serial number, and slipway never installed anything on it.
    bench.disks[0].disk.serial = None;
    write_image(&bench, "old");
    let path = path_to(&bench.path("old"), "\\a");
    set(&bench, "Boot0005", &[&[1, 0, 0, 0][..], &(path.len() as u16).to_le_bytes(), &[0, 0], &path].concat());
    succeeds(&bench, EfiBootOrder::default());
    assert!(get(&bench, "Boot0005").is_some(), "a disk that may only be away");
    bench.former = vec![info(&bench.path("old"), 1, "Partition unique GUID:").to_ascii_lowercase()];
    succeeds(&bench, EfiBootOrder::default());
    assert_eq!((get(&bench, "Boot0005"), order(&bench)), (None, vec![2, 3, 0, 1]));
}

#[test]
fn an_entry_that_is_gone_since_the_last_time_is_made_again_and_told() {
    let true = can_mount() else { return };
    let bench = installed();
    succeeds(&bench, EfiBootOrder::default());
    fs::remove_file(bench.path(&format!("efi/efivars/Boot0002-{GLOBAL}"))).unwrap();
    let done = run(&bench, EfiBootOrder::default()).unwrap();
    assert!(done.outcome.warnings[0].starts_with("the firmware has forgotten the entry"), "{:?}", done.outcome);
    assert_eq!(order(&bench), [2, 3, 0, 1]);
    succeeds(&bench, EfiBootOrder::default());
}

#[test]
fn while_a_disk_cannot_be_read_no_entry_is_removed() {
    let true = can_mount() else { return };
    let mut bench = installed();
    succeeds(&bench, EfiBootOrder::default());
    bench.add_disk("other", MIB);
    bench.disks[1].disk.read_only = true;
    fs::remove_file(bench.path("other")).unwrap();
    write_image(&bench, "disk");
    let done = run(&bench, EfiBootOrder::default()).unwrap();
    assert!(done.outcome.warnings[0].starts_with("entries of former installations were left"), "{:?}", done.outcome);
    assert_eq!(order(&bench), [4, 2, 3, 0, 1]);
}

#[test]
fn a_second_disk_with_the_same_image_is_told() {
    let true = can_mount() else { return };
    let mut bench = installed();
    bench.add_disk("other", MIB);
    bench.disks[1].disk.read_only = true;
    fs::copy(bench.path("disk"), bench.path("other")).unwrap();
    let done = run(&bench, EfiBootOrder::default()).unwrap();
    let [warning] = done.outcome.warnings.as_slice() else { panic!("{:?}", done.outcome) };
    assert!(warning.contains("other has a partition with the same GUID as partition 1"), "{warning}");
    // Another path to the same disk.
    bench.disks[1].disk.other_path_to = Some(bench.place("disk"));
    succeeds(&bench, EfiBootOrder::default());
    bench.disks[1].disk.other_path_to = None;
    write_image(&bench, "other");
    succeeds(&bench, EfiBootOrder::default());
}

#[test]
fn a_firmware_that_refuses_or_forgets_is_told_and_has_the_fallback() {
    let true = can_mount() else { return };
    let check = |place: &str, expect: &str| {
        let bench = installed();
        let file = bench.path(&format!("efi/efivars/BootOrder-{GLOBAL}"));
        fs::remove_file(&file).unwrap();
        symlink(place, &file).unwrap();
        let done = run(&bench, EfiBootOrder::default()).unwrap_or_else(|error| panic!("{}", chain(&error)));
        assert!(done.outcome.warnings[0].contains(expect), "{:?}", done.outcome);
        assert!(done.outcome.summary.ends_with(&format!("/EFI/BOOT/{REMOVABLE}")), "{:?}", done.outcome);
        let path = format!("/EFI/BOOT/{REMOVABLE}");
        assert_eq!(read_file(&bench.path("disk"), ESP_AT, &path).unwrap().0, "the loader");
    };
    check("/dev/full", "writing the EFI variable BootOrder: No space left on device");
    check("/dev/null", "but returned something else when it was read back");

    let bench = installed();
    fs::remove_dir_all(bench.path("efi/efivars")).unwrap();
    let done = run(&bench, EfiBootOrder::default()).unwrap();
    assert!(done.outcome.warnings[0].contains("listing the EFI variable"), "{:?}", done.outcome);
}

#[test]
fn a_machine_that_was_not_started_by_uefi_is_told_before_the_disk_is_looked_at() {
    let bench = Bench::without_disks();
    let error = run(&bench, EfiBootOrder::default()).unwrap_err();
    assert!(matches!(error, Error::Boot(BootError::NotUefi { .. })), "{error}");
    let inputs = EfiBootOrder { loader: Some("shim".to_owned()), ..EfiBootOrder::default() };
    assert!(matches!(run(&bench, inputs), Err(Error::Inputs { .. })));
    let optional = EfiBootOrder { optional: true, ..EfiBootOrder::default() };
    assert_eq!(succeeds(&bench, optional), "skipped: this machine was not started by UEFI");
}

#[test]
fn what_is_optional_stops_no_run() {
    let true = can_mount() else { return };
    let bench = installed();
    let loader = Some("/EFI/debian/none.efi".to_owned());
    let optional = EfiBootOrder { loader, optional: true, ..EfiBootOrder::default() };
    let done = run(&bench, optional).unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert!(done.outcome.warnings[0].contains("none.efi"), "{:?}", done.outcome);
    assert_eq!(order(&bench), [3, 0, 3, 1], "the order is as it was");
}

#[test]
fn a_loader_that_is_named_must_be_there() {
    let true = can_mount() else { return };
    let bench = installed();
    let named = |loader: String| EfiBootOrder { loader: Some(loader), ..EfiBootOrder::default() };
    let summary = succeeds(&bench, named(format!("\\EFI\\debian\\{SECOND}")));
    assert!(summary.contains(&format!("\\EFI\\debian\\{SECOND} on partition 1 (esp)")), "{summary}");
    let error = run(&bench, named("/EFI/debian/none.efi".to_owned())).unwrap_err();
    let error = chain(&error);
    assert!(error.contains("partition 1 (esp)") && error.contains("has no /EFI/debian/none.efi"), "{error}");
    assert_eq!(order(&bench), [2, 3, 0, 1]);
}

#[test]
fn an_entry_with_arguments_of_an_earlier_system_stays_and_is_told() {
    let true = can_mount() else { return };
    let bench = installed();
    succeeds(&bench, EfiBootOrder::default());
    let arguments: Vec<u8> = "root=/dev/mapper/oldvg-root ro\0".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let old = [get(&bench, "Boot0002").unwrap(), arguments].concat();
    set(&bench, "Boot0002", &old);
    for number in [4, 4] {
        let done = run(&bench, EfiBootOrder::default()).unwrap();
        assert!(done.outcome.summary.starts_with(&format!("Boot{number:04X} ")), "{:?}", done.outcome);
        assert_eq!(order(&bench)[..2], [number, 2]);
        assert_eq!(get(&bench, "Boot0002").as_ref(), Some(&old));
        let [warning] = done.outcome.warnings.as_slice() else { panic!("{:?}", done.outcome) };
        let expect = "Boot0002 (Debian GNU/Linux) starts the same boot loader with \"root=/dev/mapper/oldvg-root ro\"";
        assert!(warning.starts_with(expect), "{warning}");
    }
}
