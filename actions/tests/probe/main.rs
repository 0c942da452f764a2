//! `probe` finds what the blkid program finds: in images of every kind, in damaged images, and in partition tables.
#![allow(clippy::unwrap_used, reason = "tests may unwrap")]

mod blkid;
mod crafted;
mod images;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use blkid::Found;
use images::Image;
use slipway_actions::{Place, probe};

/// Number of places damaged in each image, one at a time. blkid is started for each.
const DAMAGES: usize = 160;
const WORKERS: usize = 2;

/// What `probe` finds in a whole image.
fn found(path: &Path) -> Option<Found> {
    let places = probe(path.to_str().unwrap()).unwrap();
    let whole = places.into_iter().find(|place| place.number == 0)?;
    Some(Found { kind: whole.kind?.to_owned(), uuid: whole.uuid, label: whole.label })
}

/// Runs a check on every image that can be made here, and fails with everything the checks return.
fn for_each_image(check: impl Fn(&Image, &Path) -> Vec<String> + Sync) {
    let dir = tempfile::tempdir().unwrap();
    let images = Mutex::new(images::all());
    let failures = Mutex::new(Vec::new());
    let work = || {
        loop {
            let Some(image) = images.lock().unwrap().pop() else { break };
            let path = dir.path().join(image.0);
            if image.make(&path) {
                failures.lock().unwrap().extend(check(&image, &path));
                fs::remove_file(&path).unwrap();
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(work);
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} differ:\n{}", failures.len(), failures.join("\n"));
}

fn compare(what: &str, path: &Path) -> Option<String> {
    let (ours, theirs) = (found(path), blkid::probe(path));
    (ours != theirs).then(|| format!("{what}: found {ours:?}, and blkid {theirs:?}"))
}

#[test]
fn images_of_every_kind_are_what_blkid_says_they_are() {
    for_each_image(|image, path| {
        let kind = found(path).map(|found| found.kind);
        let as_meant = kind.as_deref() == Some(image.1);
        let wrong_kind = (!as_meant).then(|| format!("{}: found {kind:?}, meant {}", image.0, image.1));
        wrong_kind.into_iter().chain(compare(image.0, path)).collect()
    });
}

#[test]
fn a_damaged_byte_is_judged_as_blkid_judges_it() {
    for_each_image(|image, path| {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let offsets: Vec<u64> = image.superblocks(file.metadata().unwrap().len()).into_iter().flatten().collect();
        let mut failures = Vec::new();
        for (index, offset) in offsets.iter().step_by(offsets.len().div_ceil(DAMAGES)).enumerate() {
            let mut byte = [0];
            file.read_exact_at(&mut byte, *offset).unwrap();
            let damaged = [byte[0] ^ [0xFF, 0x01, 0x80, 0x24][index % 4]];
            file.write_all_at(&damaged, *offset).unwrap();
            failures.extend(compare(&format!("{} with {damaged:02x?} at {offset}", image.0), path));
            file.write_all_at(&byte, *offset).unwrap();
        }
        failures
    });
}

#[test]
fn a_truncated_image_is_judged_as_blkid_judges_it() {
    for_each_image(|image, path| {
        let file = File::options().write(true).open(path).unwrap();
        let size = file.metadata().unwrap().len();
        let near_end = [1, 512, 4096, 65536].map(|less| size - size.min(less));
        let ends = image.superblocks(size).into_iter().flat_map(|Range { start, end }| [start, start + 40, end]);
        let fixed = [0, 1, 512, 1024, 1025, 4096, 40_959, 40_960, 65_536, 1_440 << 10, 1 << 20, size / 2];
        let sizes: BTreeSet<u64> = near_end.into_iter().chain(ends).chain(fixed).filter(|less| *less < size).collect();
        let mut failures = Vec::new();
        for size in sizes.into_iter().rev() {
            file.set_len(size).unwrap();
            failures.extend(compare(&format!("{} cut to {size} bytes", image.0), path));
        }
        failures
    });
}

#[test]
fn what_is_no_file_system_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    for content in [vec![0; 2 << 20], vec![0xFF; 2 << 20], vec![0x55; 100_000]] {
        fs::write(&path, content).unwrap();
        assert_eq!(compare("image", &path), None);
        assert_eq!(found(&path), None);
    }
}

#[test]
fn several_file_systems_in_one_place_are_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let both = |first: &str, second: &str| {
        File::create(&path).unwrap().set_len(128 << 20).unwrap();
        let all = images::all();
        for name in [first, second] {
            let image = all.iter().find(|image| image.0 == name).unwrap();
            assert!(image.add_to(&path));
        }
        assert_eq!(compare("image", &path), None);
        found(&path).map(|found| found.kind)
    };
    assert_eq!(both("ext4", "swap-old").as_deref(), Some("ambivalent"));
    assert_eq!(both("ext4", "md-1.1").as_deref(), Some("linux_raid_member"));
    assert_eq!(both("vfat-32", "luks2-crafted").as_deref(), Some("crypto_LUKS"));
}

/// Number, start and size in bytes, PARTUUID and PARTLABEL of the partitions, read by partx.
fn partx(path: &Path) -> Vec<String> {
    let columns = ["--raw", "--noheadings", "--output", "NR,START,SECTORS,TYPE,UUID,NAME"];
    let output = Command::new("partx").args(columns).arg(path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let is_extended = |line: &Vec<&str>| ["0x5", "0xf", "0x85"].contains(&line[3]);
    let sectors = |text: &str| text.parse::<u64>().unwrap() * 512;
    let line = |l: Vec<&str>| format!("{} {} {} {} {}", l[0], sectors(l[1]), sectors(l[2]), l[4], l[5..].join(" "));
    lines.filter(|line| !is_extended(line)).map(line).collect()
}

fn ours(path: &Path) -> Vec<String> {
    let line = |place: Place| {
        let (uuid, name) = (place.partuuid.unwrap_or_default(), place.partlabel.unwrap_or_default());
        format!("{} {} {} {uuid} {}", place.number, place.start, place.size, name.replace(' ', "\\x20"))
    };
    probe(path.to_str().unwrap()).unwrap().into_iter().filter(|place| place.number > 0).map(line).collect()
}

#[test]
fn partitions_have_the_uuids_and_labels_that_linux_gives_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let check = |script: &str, expect: usize| {
        File::create(&path).unwrap().set_len(64 << 20).unwrap();
        images::run_with_input(Command::new("sfdisk").arg("--quiet").arg(&path), script);
        assert_eq!(ours(&path), partx(&path), "{script}");
        assert_eq!(ours(&path).len(), expect, "{script}");
    };
    check("label: gpt\nsize=8M, name=\"EFI System\", type=U\nsize=8M\nsize=8M, name=\"root a\"\n", 3);
    check("label: dos\nlabel-id: 0x1234abcd\nsize=8M, type=c\nsize=20M, type=5\nsize=4M\nsize=4M\nsize=4M\n", 4);
    check("label: dos\nlabel-id: 0x00000000\nsize=8M\n", 1);
}

#[test]
fn file_systems_are_found_in_their_partitions_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    File::create(&path).unwrap().set_len(64 << 20).unwrap();
    let script = "label: dos\nstart=2048, size=16384\nstart=18432, size=8192\nstart=26624, size=104448\n";
    images::run_with_input(Command::new("sfdisk").arg("--quiet").arg(&path), script);
    let disk = File::options().write(true).open(&path).unwrap();
    let put = |name: &str, size: u64, at: u64| {
        let part = dir.path().join("part");
        File::create(&part).unwrap().set_len(size).unwrap();
        assert!(images::all().iter().find(|image| image.0 == name).unwrap().add_to(&part));
        disk.write_all_at(&fs::read(part).unwrap(), at).unwrap();
    };
    put("ext4", 8 << 20, 1 << 20);
    // The end of the last partition is also the end of the disk.
    put("md-0.90", 51 << 20, 13 << 20);
    let kinds: Vec<_> =
        probe(path.to_str().unwrap()).unwrap().into_iter().map(|place| (place.number, place.kind)).collect();
    assert_eq!(kinds, [(1, Some("ext4")), (2, None), (3, Some("linux_raid_member"))]);
    assert_eq!(compare("disk", &path), None);
}
