//! `stream-image` to a disk larger than the image: the last partition and its file system reach to the end. The
//! programs operators use check that.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::disk_image::{ESP, LINUX, Part, can_mount, can_mount_btrfs, make, read_file, run, spoil};
use common::loop_device::{Loop, alone};
use common::partitions::{self, verify};
use common::{Bench, MIB, sha256, stream};
use slipway_actions::Done;
use slipway_protocol::StreamImage;

/// A disk larger than the image. Its last partition ends one MiB before its end, because the backup table is behind.
const DISK: usize = 100;
const END: usize = DISK - 1;

/// Streams the image in the bench's folder to its disk.
fn written(bench: &Bench, grow: bool) -> Done {
    let raw = fs::read(bench.path("image")).unwrap();
    let image = StreamImage { digest: Some(sha256(&raw)), grow, ..stream(bench.place("image")) };
    bench.streams(image).0
}

/// An image with two ext4 partitions, and a disk for it.
fn with_root(type_guid: &str) -> Bench {
    let bench = Bench::new(DISK * MIB);
    let parts = [
        Part { mib: 1..9, type_guid: ESP, name: "esp", files: &[] },
        Part { mib: 9..29, type_guid, name: "root", files: &[("etc/os-release", "NAME=Debian")] },
    ];
    make(&bench.path("image"), 30, &parts);
    bench
}

/// First and last MiB of a partition, read by sgdisk, which must find the table intact.
fn extent(disk: &Path, number: u32) -> std::ops::Range<usize> {
    verify(disk);
    let info = run(Command::new("sgdisk").arg(format!("--info={number}")).arg(disk));
    let sector = |key: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.split_whitespace().next().unwrap().parse::<usize>().unwrap()
    };
    sector("First sector: ") * 512 / MIB..(sector("Last sector: ") + 1) * 512 / MIB
}

/// Whether the kernel lets us grow ext4, which takes CAP_SYS_RESOURCE (fs/ext4/resize.c, ext4_resize_begin). Prints why
/// not.
fn can_grow_ext4() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    let has = can_mount() && u64::from_str_radix(effective, 16).unwrap() >> CAP_SYS_RESOURCE & 1 == 1;
    if !has {
        eprintln!("not checked: growing ext4 needs root with CAP_SYS_RESOURCE");
    }
    has
}

/// The ext4 file system is intact, and as large as its partition if the kernel lets us grow it.
fn check_ext4(bench: &Bench, done: &Done, mib: std::ops::Range<usize>) {
    let grows = can_grow_ext4();
    assert_eq!(done.outcome.warnings.is_empty(), grows, "{:?}", done.outcome.warnings);
    assert_eq!(done.outcome.summary.ends_with(", with its ext4 file system"), grows, "{}", done.outcome.summary);
    let partition = cut_out(bench, mib.clone());
    run(Command::new("e2fsck").args(["-f", "-n"]).arg(&partition));
    let superblock = run(Command::new("dumpe2fs").arg("-h").arg(&partition));
    let blocks = superblock.lines().find_map(|line| line.strip_prefix("Block count:")).unwrap().trim();
    if grows {
        assert_eq!(blocks, format!("{}", mib.len() * 1024));
    }
}

/// Copies a part of a disk into its own file.
fn cut_out(bench: &Bench, mib: std::ops::Range<usize>) -> PathBuf {
    partitions::cut_out(bench, &bench.path("disk"), mib.start, mib.len())
}

#[test]
fn the_last_partition_and_its_ext4_reach_to_the_end_of_the_disk() {
    let bench = with_root(LINUX);
    let raw = fs::read(bench.path("image")).unwrap();
    let done = written(&bench, true);
    let grew = "; grew partition 2 from 20 MiB to 90 MiB";
    assert!(done.outcome.summary.contains(grew), "{}", done.outcome.summary);
    assert_eq!(extent(&bench.path("disk"), 1), 1..9);
    assert_eq!(extent(&bench.path("disk"), 2), 9..END);
    assert!(bench.disk()[MIB..9 * MIB] == raw[MIB..9 * MIB], "the other partition is as it was");

    check_ext4(&bench, &done, 9..END);
    let content = read_file(&bench.path("disk"), 9, "/etc/os-release").unwrap().0;
    assert_eq!(content, "NAME=Debian");
}

#[test]
fn without_growth_the_table_has_the_partitions_of_the_image() {
    let bench = with_root(LINUX);
    let raw = fs::read(bench.path("image")).unwrap();
    let done = written(&bench, false);
    assert!(!done.outcome.summary.contains("gr"), "{}", done.outcome.summary);
    assert_eq!(extent(&bench.path("disk"), 2), 9..29);
    assert!(bench.disk()[MIB..29 * MIB] == raw[MIB..29 * MIB]);
}

#[test]
fn an_image_as_large_as_the_disk_grows_into_what_it_left_free() {
    let bench = Bench::new(40 * MIB);
    make(&bench.path("image"), 40, &[Part { mib: 1..20, type_guid: LINUX, name: "root", files: &[] }]);
    let done = written(&bench, true);
    assert_eq!(extent(&bench.path("disk"), 1), 1..39);
    check_ext4(&bench, &done, 1..39);
}

#[test]
fn xfs_and_btrfs_grow_too() {
    let known = fs::read_to_string("/proc/filesystems").unwrap();
    for (kind, image, disk) in [("xfs", 310, 400), ("btrfs", 130, 300)] {
        if !can_mount() || !known.lines().any(|line| line.trim() == kind) {
            eprintln!("not checked: this kernel does not mount {kind} for us");
            continue;
        }
        let bench = Bench::new(MIB);
        File::create(bench.path("disk")).unwrap().set_len((disk * MIB) as u64).unwrap();
        let (whole, part) = (bench.path("image"), bench.path("part"));
        File::create(&whole).unwrap().set_len((image * MIB) as u64).unwrap();
        run(Command::new("sgdisk").arg(format!("--new=1:2048:{}", (image - 1) * 2048 - 1)).arg(&whole));
        File::create(&part).unwrap().set_len(((image - 2) * MIB) as u64).unwrap();
        run(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&part));
        let mut dd = Command::new("dd");
        dd.args(["bs=1M", "seek=1", "conv=notrunc,sparse", "status=none"]);
        run(dd.arg(format!("if={}", part.display())).arg(format!("of={}", whole.display())));

        let done = written(&bench, true);
        assert_eq!(done.outcome.warnings, [""; 0], "{kind}");
        assert_eq!(extent(&bench.path("disk"), 1), 1..disk - 1);
        let partition = cut_out(&bench, 1..disk - 1);
        let bytes = match kind {
            "xfs" => {
                run(Command::new("xfs_repair").arg("-n").arg(&partition));
                let blocks =
                    run(Command::new("xfs_db").args(["-r", "-c", "sb 0", "-c", "print dblocks"]).arg(&partition));
                blocks.trim().strip_prefix("dblocks = ").unwrap().parse::<usize>().unwrap() * 4096
            }
            _ => {
                run(Command::new("btrfs").args(["check", "--readonly"]).arg(&partition));
                let superblock = run(Command::new("btrfs").args(["inspect-internal", "dump-super"]).arg(&partition));
                superblock.lines().find_map(|line| line.strip_prefix("total_bytes")).unwrap().trim().parse().unwrap()
            }
        };
        assert_eq!(bytes, (disk - 2) * MIB, "{kind}");
    }
}

/// After a device was replaced, the one that is left has not the number 1.
#[test]
fn a_btrfs_grows_whatever_number_its_device_has() {
    let Some(_alone) = alone().filter(|_| can_mount_btrfs()) else { return };
    let bench = Bench::new(400 * MIB);
    let (first, second) = (bench.path("first"), bench.path("second"));
    {
        let [first, second] = [&first, &second].map(|path| Loop::new(path, 512, 200 * MIB));
        let mount = tempfile::tempdir().unwrap();
        run(Command::new("mkfs.btrfs").args(["-q", &first.0]));
        run(Command::new("mount").arg(&first.0).arg(mount.path()));
        run(Command::new("btrfs").args(["device", "add", "-f", &second.0]).arg(mount.path()));
        run(Command::new("btrfs").args(["device", "remove", &first.0]).arg(mount.path()));
        run(Command::new("umount").arg(mount.path()));
    }
    let image = bench.path("image");
    File::create(&image).unwrap().set_len(202 << 20).unwrap();
    run(Command::new("sgdisk").arg("--new=1:2048:+200M").arg(&image));
    File::options().write(true).open(&image).unwrap().write_all_at(&fs::read(&second).unwrap(), 1 << 20).unwrap();
    let done = written(&bench, true);
    assert_eq!(done.outcome.warnings, [""; 0]);
    assert!(done.outcome.summary.ends_with("with its btrfs file system"), "{}", done.outcome.summary);
}

#[test]
fn an_ext4_with_errors_is_not_grown_and_the_reason_is_told() {
    if !can_mount() {
        return;
    }
    let bench = with_root(LINUX);
    // The state of the file system: valid, and with errors.
    File::options()
        .write(true)
        .open(bench.path("image"))
        .unwrap()
        .write_all_at(&[3, 0], (9 << 20) + 1024 + 0x3A)
        .unwrap();
    let warnings = written(&bench, true).outcome.warnings;
    assert!(warnings.len() == 1 && warnings[0].contains("check it with e2fsck -f"), "{warnings:?}");
}

#[test]
fn what_cannot_grow_is_left_as_it_is_and_named() {
    let bench = with_root(LINUX);
    let image = bench.path("image");
    let plain = fs::read(&image).unwrap();
    let put = |bytes: &[u8]| File::options().write(true).open(&image).unwrap().write_all_at(bytes, 9 << 20).unwrap();
    for (spoil, reason) in
        [("nothing", "it has no file system"), ("swap", "it contains swap"), ("read-only", "it is marked as read-only")]
    {
        fs::write(&image, &plain).unwrap();
        match spoil {
            "read-only" => drop(run(Command::new("sgdisk").arg("--attributes=2:set:60").arg(&image))),
            "swap" => {
                let swap = bench.path("swap");
                File::create(&swap).unwrap().set_len(20 << 20).unwrap();
                run(Command::new("mkswap").arg(&swap));
                put(&fs::read(swap).unwrap());
            }
            _ => put(&[0; 8192]),
        }
        let raw = fs::read(&image).unwrap();
        let done = written(&bench, true);
        assert_eq!(done.outcome.warnings, [""; 0], "{spoil}");
        let left = format!("; did not grow partition 2 (root) of {}: {reason}", bench.path("disk").display());
        assert!(done.outcome.summary.ends_with(&left), "{spoil}: {}", done.outcome.summary);
        assert_eq!(extent(&bench.path("disk"), 2), 9..29, "{spoil}");
        assert!(bench.disk()[MIB..29 * MIB] == raw[MIB..29 * MIB], "{spoil}");
    }
}

#[test]
fn a_file_system_that_does_not_mount_is_a_warning_and_leaves_nothing_of_before_at_its_end() {
    let bench = with_root(LINUX);
    spoil(&bench.path("image"), 9);
    let done = written(&bench, true);
    assert!(
        done.outcome.summary.ends_with("; grew partition 2 from 20 MiB to 90 MiB, but not its ext4 file system"),
        "{}",
        done.outcome.summary
    );
    let warning = "the ext4 file system in partition 2 was not grown, and still has 20 MiB: ";
    assert!(done.outcome.warnings[0].starts_with(warning), "{:?}", done.outcome.warnings);
    assert_eq!(extent(&bench.path("disk"), 2), 9..END);
    let disk = bench.disk();
    assert!(disk[(END - 1) * MIB..].iter().take(MIB).all(|byte| *byte == 0), "no signature is at the new end");
    assert!(disk[30 * MIB..(END - 1) * MIB].iter().all(|byte| *byte == 0xAA), "what is between is not written");
}

/// An MBR image with partitions made by sfdisk, and ext4 at the start of the last one.
fn with_mbr(table: &str, last: usize) -> Bench {
    let bench = Bench::new(DISK * MIB);
    let part = [Part { mib: last..29, type_guid: LINUX, name: "root", files: &[("a", "b")] }];
    make(&bench.path("image"), 30, &part);
    run(Command::new("sgdisk").arg("--zap").arg(bench.path("image")));
    let image = bench.path("image").display().to_string();
    run(Command::new("sh").args(["-c", "printf \"$1\" | sfdisk -q --wipe never \"$0\"", &image, table]));
    bench
}

fn mbr(disk: &Path) -> String {
    let dump = run(Command::new("sfdisk").arg("--dump").arg(disk));
    let lines = dump.lines().filter_map(|line| Some(line.split_once(" : ")?.1.replace(' ', "")));
    lines.collect::<Vec<String>>().join("\n")
}

#[test]
fn the_last_primary_partition_of_an_mbr_grows() {
    let bench =
        with_mbr("label: dos\\nstart=2048, size=8MiB, type=c, bootable\\nstart=9MiB, size=20MiB, type=83\\n", 9);
    let done = written(&bench, true);
    let expect = format!("start=2048,size=16384,type=c,bootable\nstart=18432,size={},type=83", (DISK - 9) * 2048);
    assert_eq!(mbr(&bench.path("disk")), expect);
    check_ext4(&bench, &done, 9..DISK);
    assert_eq!(read_file(&bench.path("disk"), 9, "/a").unwrap().0, "b");
}

/// sgdisk finds fault with a hybrid MBR whose records are not partitions of the GPT.
#[test]
fn a_hybrid_mbr_agrees_with_the_gpt_when_its_partition_has_grown() {
    let bench = with_root(LINUX);
    let image = bench.path("image");
    run(Command::new("sgdisk").arg("--hybrid=1:2").arg(&image));
    verify(&image);
    written(&bench, true);
    let disk = bench.path("disk");
    assert_eq!(extent(&disk, 2), 9..END);
    let records = fs::read(&disk).unwrap()[446..510].to_vec();
    let kinds: Vec<u8> = records.chunks(16).map(|record| record[4]).collect();
    let blocks: Vec<u32> =
        records.chunks(16).map(|record| u32::from_le_bytes(record[12..16].try_into().unwrap())).collect();
    assert_eq!((kinds[0], blocks), (0xEE, vec![2047, 8 * 2048, (END as u32 - 9) * 2048, 0]));
}

#[test]
fn a_partition_of_type_0_is_one_and_nothing_grows_over_it() {
    let bench = with_mbr("label: dos\\nstart=1MiB, size=8MiB, type=83\\nstart=10MiB, size=19MiB, type=83\\n", 1);
    let image = bench.path("image");
    File::options().write(true).open(&image).unwrap().write_all_at(&[0], 446 + 16 + 4).unwrap();
    let before = mbr(&image);
    let done = written(&bench, true);
    assert_eq!(mbr(&bench.path("disk")), before);
    assert!(done.outcome.summary.contains("did not grow partition 2"), "{}", done.outcome.summary);
}

#[test]
fn an_extended_partition_is_left_with_all_it_holds() {
    let extended = "start=4MiB, size=25MiB, type=5\\nstart=9MiB, size=20MiB, type=83\\n";
    let bench = with_mbr(&format!("label: dos\\nstart=1MiB, size=3MiB, type=83\\n{extended}"), 9);
    let before = mbr(&bench.path("image"));
    let done = written(&bench, true);
    assert!(done.outcome.summary.contains("; did not grow partition 2 "), "{}", done.outcome.summary);
    assert_eq!(mbr(&bench.path("disk")), before);
}
