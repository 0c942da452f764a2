//! `partition` with arrays and volume groups. mdadm and lvm check the result.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use common::disk_image::run;
use common::loop_device::{Loop, alone};
use common::partitions::{cut_out, new, succeeds};
use common::{Bench, MIB, chain};
use slipway_actions::{Error, PartitionError};
use slipway_protocol::{
    Action, DiskChoice, DiskHints, NewPartition, NewRaid, NewVolume, NewVolumeGroup, Partition, PartitionChoice,
    PartitionSize, RaidLevel,
};

/// Two disks. The second is larger.
fn two_disks() -> Bench {
    let mut bench = Bench::new(100 * MIB);
    bench.add_disk("other", 120 * MIB);
    bench
}

fn partition(partitions: Vec<NewPartition>, raids: Vec<NewRaid>, volume_groups: Vec<NewVolumeGroup>) -> Action {
    let disk = DiskHints { choose: DiskChoice::All, ..DiskHints::default() };
    Action::Partition(Partition { disk, partitions, raids, volume_groups })
}

fn raid(name: &str, level: RaidLevel, partition: &str) -> NewRaid {
    NewRaid { name: name.to_owned(), level, partition: PartitionChoice::Label(partition.to_owned()) }
}

fn volume(name: &str, size: &str) -> NewVolume {
    NewVolume { name: name.to_owned(), size: PartitionSize::Text(size.to_owned()) }
}

fn group(name: &str, partition: &str, volumes: Vec<NewVolume>) -> NewVolumeGroup {
    let partition = Some(PartitionChoice::Label(partition.to_owned()));
    NewVolumeGroup { name: name.to_owned(), raid: None, partition, volumes }
}

/// Values that mdadm prints for the member at a range of a disk, by key.
fn examine(bench: &Bench, disk: &str, mib: usize, len: usize) -> impl Fn(&str) -> String {
    let member = cut_out(bench, &bench.path(disk), mib, len);
    let said = run(Command::new("mdadm").arg("--examine").arg(member));
    move |key| {
        let found = said.lines().find_map(|line| line.trim().strip_prefix(key)?.trim().strip_prefix(':'));
        found.unwrap_or_else(|| panic!("no {key} in {said}")).trim().to_owned()
    }
}

#[test]
fn arrays_are_right_by_mdadm() {
    let bench = two_disks();
    let table = vec![
        new("esp", "10MiB", Some("esp")),
        new("raid", "20MiB", Some("fast")),
        new("raid", "20MiB", Some("both")),
        new("raid", "rest", Some("safe")),
    ];
    let raids = vec![
        raid("esp", RaidLevel::Raid1, "esp"),
        raid("fast", RaidLevel::Raid0, "fast"),
        raid("both", RaidLevel::Raid10, "both"),
        raid("safe", RaidLevel::Raid1, "safe"),
    ];
    succeeds(&bench, &partition(table, raids, Vec::new()));
    for (name, version, level, mib, lens, room) in [
        ("esp", "1.0", "raid1", 1, [10, 10], "10112 KiB"),
        ("fast", "1.2", "raid0", 11, [20, 20], "19456 KiB"),
        ("both", "1.2", "raid10", 31, [20, 20], "19456 KiB"),
        // The array is as large as the rest of the smaller disk.
        ("safe", "1.2", "raid1", 51, [48, 68], "48128 KiB"),
    ] {
        let members = [("disk", lens[0]), ("other", lens[1])];
        let said = members.map(|(disk, len)| examine(&bench, disk, mib, len));
        for (index, say) in said.iter().enumerate() {
            assert_eq!(say("Version"), version, "{name}");
            assert!(say("Name").starts_with(&format!("any:{name}")), "{}", say("Name"));
            assert_eq!((say("Raid Level").as_str(), say("Raid Devices").as_str()), (level, "2"));
            assert!(say("Checksum").ends_with(" - correct"), "{name}: {}", say("Checksum"));
            assert_eq!(say("Device Role"), format!("Active device {index}"), "{name}");
            assert!(say("Array State").starts_with("AA "), "{name}: {}", say("Array State"));
            let kib = room.trim_end_matches(" KiB").parse::<u64>().unwrap();
            assert!(say("Avail Dev Size").starts_with(&format!("{} sectors", 2 * kib)), "{}", say("Avail Dev Size"));
        }
        assert_eq!(said[0]("Array UUID"), said[1]("Array UUID"));
        assert_ne!(said[0]("Device UUID"), said[1]("Device UUID"));
        // The kernel must still synchronise arrays with copies.
        let state = if level == "raid0" { "clean" } else { "active" };
        assert!(said.iter().all(|say| say("State") == state), "{name}: {}", said[0]("State"));
        for (disk, len) in members {
            let probed = slipway_actions::probe(bench.path(disk).to_str().unwrap()).unwrap();
            let place = probed.iter().find(|place| place.start == (mib * MIB) as u64).unwrap();
            assert_eq!(place.size, (len * MIB) as u64);
            let label = format!("any:{name}");
            assert_eq!((place.kind, place.label.as_deref()), (Some("linux_raid_member"), Some(label.as_str())));
        }
    }
    let other = fs::read(bench.path("other")).unwrap();
    for (what, at) in [("where the data of an array begins", 52), ("and where it ends", 98)] {
        for disk in [&bench.disk(), &other] {
            assert!(disk[at * MIB..(at + 1) * MIB].iter().all(|byte| *byte == 0), "{what}, {at} MiB");
        }
    }
    assert!(bench.disk()[60 * MIB..80 * MIB].iter().all(|byte| *byte == 0xAA), "the rest is not written");
}

#[test]
fn arrays_with_parity_are_right_by_mdadm() {
    let mut bench = two_disks();
    bench.add_disk("third", 100 * MIB);
    let table = vec![new("raid", "20MiB", Some("five")), new("raid", "rest", Some("six"))];
    let raids = vec![raid("five", RaidLevel::Raid5, "five"), raid("six", RaidLevel::Raid6, "six")];
    let action = partition(table, raids, Vec::new());
    let error = bench.refusal(&action);
    assert!(error.contains("making array six: raid6 needs 4 to 255 disks, but 3 are chosen"), "{error}");
    bench.add_disk("fourth", 100 * MIB);
    succeeds(&bench, &action);
    for (name, level, mib, len, size) in [
        ("five", "raid5", 1, 20, "58368 KiB (57.00 MiB 59.77 MB)"),
        ("six", "raid6", 21, 78, "157696 KiB (154.00 MiB 161.48 MB)"),
    ] {
        for (index, disk) in ["disk", "fourth", "other", "third"].into_iter().enumerate() {
            let say = examine(&bench, disk, mib, if disk == "other" && name == "six" { len + 20 } else { len });
            assert_eq!((say("Raid Level").as_str(), say("Raid Devices").as_str()), (level, "4"));
            assert_eq!((say("Layout").as_str(), say("Chunk Size").as_str()), ("left-symmetric", "512K"), "{name}");
            assert_eq!(say("Array Size"), size, "{name}");
            assert!(say("Checksum").ends_with(" - correct"), "{name}: {}", say("Checksum"));
            assert_eq!(say("Device Role"), format!("Active device {index}"), "{disk}");
            assert!(say("Array State").starts_with("AAAA "), "{name}: {}", say("Array State"));
            // The parity must still be computed.
            assert_eq!(say("State"), "active");
        }
    }
}

/// Loop devices over the partition at a range of each disk.
fn loops(bench: &Bench, places: &[(&str, usize, usize)]) -> Vec<Loop> {
    let attach = |&(disk, mib, len): &(&str, usize, usize)| {
        let content = fs::read(cut_out(bench, &bench.path(disk), mib, len)).unwrap();
        let device = Loop::new(&bench.path(&format!("loop-{disk}")), 512, content.len());
        let mut file = File::options().write(true).open(&device.0).unwrap();
        file.write_all(&content).unwrap();
        file.sync_all().unwrap();
        device
    };
    places.iter().map(attach).collect()
}

/// The output of an LVM program that sees only these devices.
fn lvm(program: &str, devices: &[Loop], arguments: &[&str]) -> String {
    let accepted: String = devices.iter().map(|device| format!("\"a|^{}$|\", ", device.0)).collect();
    let config = format!(
        "devices {{ filter = [{accepted}\"r|.*|\"] use_devicesfile = 0 hints = \"none\" }} backup {{ backup = 0 \
         archive = 0 }}"
    );
    let mut command = Command::new(program);
    // This kernel may have no device mapper.
    command.args(["--driverloaded", "n", "--config", &config]).args(arguments);
    run(command.env("LVM_SUPPRESS_FD_WARNINGS", "1"))
}

/// The lines of a report, with fields separated by single spaces.
fn report(program: &str, devices: &[Loop], fields: &str) -> Vec<String> {
    let said = lvm(program, devices, &["--noheadings", "--units", "m", "--nosuffix", "-o", fields]);
    said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn volumes_are_right_by_lvm() {
    let Some(_alone) = alone() else { return };
    let bench = two_disks();
    let table = vec![new("esp", "10MiB", Some("esp")), new("lvm", "rest", Some("pv"))];
    let volumes = vec![volume("root-a", "50MiB"), volume("home", "48MiB"), volume("swap", "rest")];
    succeeds(&bench, &partition(table, Vec::new(), vec![group("my-vg", "pv", volumes)]));
    let devices = loops(&bench, &[("disk", 11, 88), ("other", 11, 108)]);
    for device in &devices {
        lvm("pvck", &devices, &[&device.0]);
    }
    assert_eq!(lvm("vgck", &devices, &["my-vg"]), "");
    let paths = [&devices[0].0, &devices[1].0];
    // 87 and 107 MiB are 21 and 26 extents of 4 MiB.
    let mut expect = [(paths[0], 84), (paths[1], 104)].map(|(path, mib)| format!("{path} my-vg {mib}.00 0 1.00"));
    // LVM sorts by name, and a loop device that was taken later may have a lower number.
    expect.sort();
    let mut found = report("pvs", &devices, "pv_name,vg_name,pv_size,pv_free,pe_start");
    found.sort();
    assert_eq!(found, expect);
    assert_eq!(
        report("vgs", &devices, "vg_name,vg_attr,vg_size,vg_extent_size,vg_free"),
        ["my-vg wz--n- 188.00 4.00 0"]
    );
    let found = report("lvs", &devices, "lv_name,lv_size,segtype,seg_pe_ranges,lv_layout");
    let [first, second] = paths;
    let expect = [
        format!("home 48.00 linear {first}:13-20 linear"),
        format!("home 48.00 linear {second}:0-3 linear"),
        format!("root-a 52.00 linear {first}:0-12 linear"),
        format!("swap 88.00 linear {second}:4-25 linear"),
    ];
    assert_eq!(found, expect);
    for (disk, mib) in [("disk", 11), ("other", 11)] {
        let probed = slipway_actions::probe(bench.path(disk).to_str().unwrap()).unwrap();
        let place = probed.iter().find(|place| place.start == (mib * MIB) as u64).unwrap();
        assert_eq!(place.kind, Some("LVM2_member"));
        assert!(report("pvs", &devices, "pv_uuid").contains(&place.uuid.clone().unwrap()), "{place:?}");
    }
    // The start of the first volume, the end of the first volume, and the start of the second.
    for at in [12, 12 + 51, 12 + 52] {
        assert!(bench.disk()[at * MIB..(at + 1) * MIB].iter().all(|byte| *byte == 0), "{at} MiB is cleared");
    }
    assert!(bench.disk()[13 * MIB..60 * MIB].iter().all(|byte| *byte == 0xAA), "the rest is not written");
}

#[test]
fn what_cannot_be_had_leaves_the_disks_as_they_were() {
    let fails = |bench: &Bench, action: &Action, expect: &str| {
        let error = bench.run(action).0.unwrap_err();
        assert!(chain(&error).contains(expect), "{}", chain(&error));
        for disk in &bench.disks {
            let content = fs::read(Path::new(&disk.disk.path)).unwrap();
            assert!(content.iter().all(|byte| *byte == 0xAA), "{expect}: {}", disk.disk.path);
        }
        error
    };
    let table = |size: &str| vec![new("raid", size, Some("r")), new("lvm", "20MiB", Some("pv"))];
    let mirror = || vec![raid("r", RaidLevel::Raid1, "r")];
    let alone = partition(table("20MiB"), mirror(), Vec::new());
    fails(&Bench::new(100 * MIB), &alone, "making array r: raid1 needs 2 to 384 disks, but 1 are chosen");
    let bench = two_disks();
    let small = partition(table("1MiB"), mirror(), Vec::new());
    fails(&bench, &small, "making array r: its smallest partition has 1048576 bytes");
    let large = vec![group("vg", "pv", vec![volume("a", "36MiB"), volume("b", "rest")])];
    let error = fails(
        &bench,
        &partition(table("20MiB"), Vec::new(), large),
        "making volume group vg: its volumes need 36 MiB and some space for the rest, but there is room for 32 MiB",
    );
    assert!(matches!(error, Error::Partitions(PartitionError::Layer { .. })));
    let on_array = NewVolumeGroup { name: "vg".to_owned(), raid: Some("r".to_owned()), ..NewVolumeGroup::default() };
    let on_array = partition(table("20MiB"), mirror(), vec![on_array]);
    fails(&bench, &on_array, "making volume group vg: it is on an array, which is started only if slipway is");
    let nowhere = partition(table("20MiB"), vec![raid("r", RaidLevel::Raid1, "x")], Vec::new());
    fails(&bench, &nowhere, "it cannot make array \"r\": there is no partition with the label \"x\"");
}
