//! `partition` and `make-filesystem`. The programs operators use check the result.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;
use std::process::Command;

use common::disk_image::run;
use common::loop_device;
use common::partitions::{cut_out, info, make, new, partition, succeeds, verify};
use common::{Bench, MIB, chain};
use slipway_actions::{Error, PartitionError};
use slipway_protocol::{Action, FileSystemKind, NewPartition, PartitionChoice};

const GUID: &str = "5ecf9d5c-1bb3-4d3f-8d3c-a3b3b3b3b3b3";

/// A value that blkid prints for a range of a disk.
fn blkid(disk: &Path, mib: usize, len: usize, key: &str) -> String {
    let place = [format!("--offset={}", mib * MIB), format!("--size={}", len * MIB)];
    run(Command::new("blkid").args(["-p", "-o", "value", "-s", key]).args(place).arg(disk)).trim().to_owned()
}

#[test]
fn a_table_has_the_partitions_asked_for_and_nothing_of_before() {
    let bench = Bench::new(100 * MIB);
    let disk = bench.path("disk");
    let table = vec![
        new("esp", "20MiB", Some("EFI system")),
        NewPartition { uuid: Some(GUID.to_uppercase()), ..new("root-x86-64", "rest", Some("system")) },
        new("4d21b016-b534-45c2-a9fb-5c16e091fd2d", "10MiB", None),
    ];
    succeeds(&bench, &partition(table));
    verify(&disk);
    let expect = [
        (1, "C12A7328-F81F-11D2-BA4B-00A0C93EC93B", "'EFI system'", 1..21),
        (2, "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709", "'system'", 21..89),
        (3, "4D21B016-B534-45C2-A9FB-5C16E091FD2D", "''", 89..99),
    ];
    for (number, type_guid, name, mib) in expect {
        assert_eq!(info(&disk, number, "Partition GUID code: "), type_guid);
        assert_eq!(info(&disk, number, "Partition name: "), name);
        assert_eq!(info(&disk, number, "First sector: "), (mib.start * 2048).to_string());
        assert_eq!(info(&disk, number, "Last sector: "), (mib.end * 2048 - 1).to_string());
        for ends in [mib.start, mib.end - 1] {
            assert!(bench.disk()[ends * MIB..(ends + 1) * MIB].iter().all(|byte| *byte == 0), "{ends} MiB is cleared");
        }
    }
    assert_eq!(info(&disk, 2, "Partition unique GUID: "), GUID.to_uppercase());
    let random = [1, 3].map(|number| info(&disk, number, "Partition unique GUID: "));
    assert!(random[0] != random[1] && random.iter().all(|guid| guid.as_bytes()[14] == b'4'), "{random:?}");
    assert!(bench.disk()[30 * MIB..80 * MIB].iter().all(|byte| *byte == 0xAA), "the rest is not written");
}

#[test]
fn what_does_not_fit_or_cannot_be_leaves_the_disk_as_it_was() {
    let bench = Bench::new(100 * MIB);
    let fails = |action: &Action, expect: &str| {
        let error = bench.run(action).0.unwrap_err();
        assert!(chain(&error).contains(expect), "{}", chain(&error));
        assert!(bench.disk().iter().all(|byte| *byte == 0xAA), "{expect}");
        error
    };
    let full = vec![new("esp", "50MiB", None), new("linux", "49MiB", None)];
    let error = fails(&partition(full), "the partitions need 99 MiB, but there is room for 98 MiB");
    assert!(matches!(error, Error::Partitions(PartitionError::Layout { .. })));
    let none_left = vec![new("esp", "98MiB", None), new("linux", "rest", None)];
    fails(&partition(none_left), "the partitions need 98 MiB and some space for the rest");
    fails(&partition(vec![new("ext4", "1MiB", None)]), "reading the inputs of partition: it cannot make partition 1");
    let swap = |partition| make(partition, FileSystemKind::Swap, None, None);
    fails(&swap(PartitionChoice::Number(1)), "looking for partition 1 on ");
    fails(&swap(PartitionChoice::Label("x".to_owned())), "looking for a partition with the label \"x\" on ");
}

#[test]
fn file_systems_are_right_by_their_own_programs() {
    const SIZE: usize = 400;
    let bench = Bench::new(SIZE * MIB);
    let disk = bench.path("disk");
    let table =
        vec![new("esp", "40MiB", Some("esp")), new("swap", "30MiB", Some("swap")), new("root", "rest", Some("root"))];
    succeeds(&bench, &partition(table));
    let label = |label: &str| PartitionChoice::Label(label.to_owned());
    succeeds(&bench, &make(label("esp"), FileSystemKind::Vfat, Some("EFI SYSTEM"), Some("AB12-cd34")));
    succeeds(&bench, &make(PartitionChoice::Number(2), FileSystemKind::Swap, Some("s"), Some(GUID)));
    succeeds(&bench, &make(label("root"), FileSystemKind::Ext4, Some("system"), Some(GUID)));
    for (mib, len, kind, name, uuid) in [
        (1, 40, "vfat", "EFI SYSTEM", "AB12-CD34"),
        (41, 30, "swap", "s", GUID),
        (71, SIZE - 72, "ext4", "system", GUID),
    ] {
        let found = ["TYPE", "LABEL", "UUID"].map(|key| blkid(&disk, mib, len, key));
        assert_eq!(found, [kind, name, uuid]);
        let probed = slipway_actions::probe(disk.to_str().unwrap()).unwrap();
        let place = probed.iter().find(|place| place.start == (mib * MIB) as u64).unwrap();
        assert_eq!((place.kind, place.label.as_deref(), place.uuid.as_deref()), (Some(kind), Some(name), Some(uuid)));
    }
    run(Command::new("fsck.vfat").arg("-n").arg(cut_out(&bench, &disk, 1, 40)));
    run(Command::new("e2fsck").args(["-f", "-n"]).arg(cut_out(&bench, &disk, 71, SIZE - 72)));
}

#[test]
fn xfs_is_right_by_its_own_program_and_leaves_its_neighbours_alone() {
    let Some(_alone) = loop_device::alone() else { return };
    let bench = Bench::new(340 * MIB);
    let disk = bench.path("disk");
    let table = [("20MiB", "a"), ("300MiB", "data"), ("rest", "b")];
    succeeds(&bench, &partition(table.map(|(size, label)| new("linux", size, Some(label))).into()));
    let before = bench.disk();
    let data = PartitionChoice::Label("data".to_owned());
    succeeds(&bench, &make(data, FileSystemKind::Xfs, Some("-twelve byt-"), Some(GUID)));
    assert_eq!(["TYPE", "LABEL", "UUID"].map(|key| blkid(&disk, 21, 300, key)), ["xfs", "-twelve byt-", GUID]);
    run(Command::new("xfs_repair").arg("-n").arg(cut_out(&bench, &disk, 21, 300)));
    let after = bench.disk();
    assert!(after[..21 * MIB] == before[..21 * MIB] && after[321 * MIB..] == before[321 * MIB..]);
}

#[test]
fn xfs_in_too_small_a_partition_is_refused_before_anything_is_written() {
    let bench = Bench::new(301 * MIB);
    succeeds(&bench, &partition(vec![new("linux", "rest", None)]));
    let before = bench.disk();
    let error = bench.refusal(&make(PartitionChoice::Number(1), FileSystemKind::Xfs, None, None));
    assert!(error.ends_with("XFS needs at least 300 MiB; make the partition larger"), "{error}");
    assert!(bench.disk() == before);
}

#[test]
fn a_partition_is_made_anew_without_its_neighbours() {
    let bench = Bench::new(200 * MIB);
    let disk = bench.path("disk");
    succeeds(&bench, &partition(vec![new("linux", "40MiB", Some("a")), new("linux", "100MiB", Some("b"))]));
    succeeds(&bench, &make(PartitionChoice::Number(1), FileSystemKind::Ext4, None, None));
    succeeds(&bench, &make(PartitionChoice::Number(2), FileSystemKind::Ext4, None, None));
    let neighbour = bench.disk()[MIB..41 * MIB].to_vec();
    succeeds(&bench, &make(PartitionChoice::Number(2), FileSystemKind::Vfat, None, None));
    assert_eq!(blkid(&disk, 41, 100, "TYPE"), "vfat");
    run(Command::new("fsck.vfat").arg("-n").arg(cut_out(&bench, &disk, 41, 100)));
    assert!(bench.disk()[MIB..41 * MIB] == neighbour);
    let small = make(PartitionChoice::Number(1), FileSystemKind::Vfat, None, None);
    succeeds(&bench, &partition(vec![new("esp", "16MiB", None)]));
    let error = bench.refusal(&small);
    assert!(error.ends_with("FAT32 needs at least 34 MiB on this disk; make the partition larger"), "{error}");
}
