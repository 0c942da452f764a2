//! An image smaller than its disk: sgdisk finds the partition table right for the disk afterwards. Growth is tested in
//! `grow.rs`.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::process::Command;

use common::disk_image::{ESP, LINUX, Part, make, run, widen_entries};
use common::partitions::verify;
use common::unreadable::Unreadable;
use common::written::{check_does_not_boot, check_untouched, check_untouched_or_does_not_boot, fails, file};
use common::{Bench, MIB, chain, gzip, image, sha256, stream, xz, zstd, zstd_sized};
use slipway_actions::{Done, Error, ImageError, PartitionError};
use slipway_protocol::{Action, KernelArgs, StreamImage, Verify};

/// Streams the image in the bench's folder to its disk.
fn stream_image(bench: &Bench) -> Result<Done, Error> {
    let raw = std::fs::read(bench.path("image")).unwrap();
    let image = StreamImage { digest: Some(sha256(&raw)), grow: false, ..stream(bench.place("image")) };
    bench.run(&Action::StreamImage(image)).0
}

fn one_partition(bench: &Bench) -> Vec<u8> {
    let image = bench.path("image");
    make(&image, 30, &[Part { mib: 1..29, type_guid: LINUX, name: "root", files: &[] }]);
    std::fs::read(image).unwrap()
}

#[test]
fn the_backup_table_moves_to_the_end_of_the_disk() {
    let bench = Bench::new(100 * MIB);
    let image = bench.path("image");
    let parts = [
        Part { mib: 1..9, type_guid: ESP, name: "esp", files: &[] },
        Part { mib: 9..29, type_guid: LINUX, name: "root", files: &[] },
    ];
    make(&image, 30, &parts);
    let raw = std::fs::read(&image).unwrap();
    let done = stream_image(&bench).unwrap();
    assert_eq!(done.outcome.warnings, [""; 0]);

    verify(bench.path("disk"));
    let table = |path| {
        let printed = run(Command::new("sgdisk").args(["--print", "--info=1", "--info=2"]).arg(path));
        let of_partitions = ["Partition GUID", "Partition unique", "Partition name", "First sector", "Last sector"];
        let kept = printed.lines().filter(|line| of_partitions.iter().any(|words| line.starts_with(words)));
        kept.map(str::to_owned).collect::<Vec<String>>()
    };
    assert_eq!(table(bench.path("disk")), table(image), "the partitions are those of the image");
    let disk = bench.disk();
    assert!(disk[MIB..29 * MIB] == raw[MIB..29 * MIB], "what is in them, too");
}

#[test]
fn the_backup_table_is_whole_where_it_covers_the_old_one() {
    for blocks in [1, 2, 20, 32, 33, 34] {
        let bench = Bench::new(30 * MIB + blocks * 512);
        one_partition(&bench);
        let done = stream_image(&bench).unwrap_or_else(|error| panic!("{blocks} blocks: {}", chain(&error)));
        assert_eq!(done.outcome.warnings, [""; 0]);
        verify(bench.path("disk"));
    }
}

const SMALL: usize = 16 * MIB;

/// An image of this many MiB with one partition, for a small disk.
fn small(bench: &Bench, mib: usize) -> StreamImage {
    make(&bench.path("image"), mib, &[Part { mib: 1..mib - 1, type_guid: LINUX, name: "root", files: &[] }]);
    StreamImage { grow: false, ..stream(bench.place("image")) }
}

/// Writes an image to a small disk with one sector that becomes unreadable after this number of flushes. Returns
/// whether that was found. None where this cannot be tried.
fn finds_unreadable(sector: usize, flushes: usize, image: &dyn Fn(&Bench) -> StreamImage) -> Option<bool> {
    let mut bench = Bench::new(SMALL);
    let disk = Unreadable::new(&bench.path("disk"), sector, flushes)?;
    let path = disk.path.to_str().unwrap().to_owned();
    bench.disks.clear();
    bench.add_device(&path, SMALL);
    let image = image(&bench);
    let Err(error) = bench.run(&Action::StreamImage(image)).0 else { return Some(false) };
    let expect = format!("reading {path} at byte ");
    assert!(chain(&error).starts_with(&expect), "sector {sector}, {flushes} flushes: {}", chain(&error));
    check_does_not_boot(&bench);
    Some(true)
}

#[test]
fn what_is_emptied_and_what_the_image_has_at_the_tail_are_read_back() {
    let without_table = |bench: &Bench| StreamImage { grow: false, ..file(bench, &image(5 * MIB)) };
    for (name, mib, image) in [
        ("a tail that the image has nothing for", 15, &without_table as &dyn Fn(&Bench) -> StreamImage),
        ("the tail of the image", 15, &|bench| small(bench, 16)),
        ("the end of a partition that grew", 14, &|bench| StreamImage { grow: true, ..small(bench, 8) }),
    ] {
        for verify in [Verify::Readback, Verify::None] {
            let found = finds_unreadable(mib * MIB / 512 + 7, 0, &|bench| StreamImage { verify, ..image(bench) });
            let Some(found) = found else { return };
            assert_eq!(found, verify == Verify::Readback, "{name}");
        }
    }
}

#[test]
fn each_part_of_a_table_that_moved_is_read_back_before_the_next_is_written() {
    const END: usize = SMALL / 512;
    let finds = |sector, flushes| {
        let image = |bench: &Bench| StreamImage { verify: Verify::Readback, ..small(bench, 8) };
        finds_unreadable(sector, flushes, &image)
    };
    let Some(_) = finds(0, 0) else { return };
    let last = (0..12).rev().find(|flushes| finds(0, *flushes) == Some(true)).unwrap();
    for (name, sector, flushes) in [
        ("the header", 1, last - 1),
        ("the header of the backup", END - 1, last - 1),
        ("the entries", 40, last - 2),
        ("the entries of the backup", END - 33, last - 2),
    ] {
        assert_eq!(finds(sector, flushes), Some(true), "{name}");
    }
}

#[test]
fn a_table_with_larger_entries_is_refused_before_anything_is_written_and_no_step_panics_at_it() {
    let bench = Bench::new(40 * MIB);
    let mut raw = one_partition(&bench);
    widen_entries(&mut raw);
    let error = fails(&bench, file(&bench, &raw));
    assert_error!(error, Error::Image(ImageError::TableDamaged { .. }));
    assert!(chain(&error).contains("have 256 bytes, and Linux reads only those of 128; create"), "{}", chain(&error));
    check_untouched(&bench);
    let rest = bench.disk().split_off(raw.len());
    std::fs::write(bench.path("disk"), [raw, rest].concat()).unwrap();
    let args = KernelArgs { append: vec!["quiet".to_owned()], ..KernelArgs::default() };
    let error = bench.run(&Action::KernelArgs(args)).0.unwrap_err();
    let expect = "it has 128 entries of 256 bytes, but only up to 8192 entries of 128 bytes are supported";
    assert_error!(error, Error::Partitions(PartitionError::Table { .. }));
    assert!(chain(&error).ends_with(expect), "{}", chain(&error));
}

/// Writes an image for 4096-byte blocks to the bench's folder. The disk is a file, so it has 512-byte blocks.
fn for_large_blocks(bench: &Bench) -> Vec<u8> {
    let mut raw = one_partition(bench);
    raw.copy_within(512..1024, 4096);
    raw[512..1024].fill(0);
    raw
}

#[track_caller]
fn refuses_the_block_size(bench: &Bench, image: StreamImage) {
    let error = fails(bench, image);
    assert_error!(error, Error::Image(ImageError::BlockSize { expected: 512, found: 4096, .. }));
}

#[test]
fn a_table_for_blocks_of_another_size_is_found_before_anything_is_written() {
    let bench = Bench::new(40 * MIB);
    let raw = for_large_blocks(&bench);
    for stream in [raw.clone(), zstd(&raw), gzip(&raw), xz(&raw)] {
        for raw_digest in [None, Some(sha256(&raw))] {
            refuses_the_block_size(&bench, StreamImage { raw_digest, ..file(&bench, &stream) });
            check_untouched(&bench);
        }
    }
    let frames: Vec<u8> = raw.chunks(700_001).flat_map(zstd_sized).collect();
    refuses_the_block_size(&bench, file(&bench, &frames));
    // Frames that are decoded in parallel with the first may be written before it, because there is no place to hold
    // them back.
    check_untouched_or_does_not_boot(&bench);
}

#[test]
fn a_table_for_a_larger_disk_is_found_before_anything_is_written() {
    let bench = Bench::new(25 * MIB);
    let mut raw = one_partition(&bench);
    raw.truncate(20 * MIB);
    for stream in [raw.clone(), zstd(&raw)] {
        let error = fails(&bench, file(&bench, &stream));
        assert_error!(error, Error::Image(ImageError::TableTooLarge { .. }));
        check_untouched(&bench);
    }
}

#[test]
fn a_table_that_does_not_fit_is_that_of_another_image_as_long_as_nothing_is_proven() {
    let maker = Bench::new(MIB);
    let mut larger = one_partition(&maker);
    larger.truncate(20 * MIB);
    let right = image(3 * MIB);
    for wrong in [larger, for_large_blocks(&maker)] {
        // The first table is for a larger disk, the second for larger blocks.
        let bench = Bench::new(if wrong.len() < 30 * MIB { 25 * MIB } else { 40 * MIB });
        let mirrors = vec![bench.put("right", &right)];
        let verified = StreamImage { mirrors, digest: Some(sha256(&right)), ..file(&bench, &wrong) };
        let unverified = StreamImage { digest: None, ..verified.clone() };
        fails(&bench, unverified);
        check_untouched(&bench);
        bench.streams(verified);
        assert!(bench.disk().starts_with(&right));
    }
}

#[test]
fn an_image_that_ends_within_a_partition_is_written_with_a_warning() {
    let bench = Bench::new(100 * MIB);
    let mut raw = one_partition(&bench);
    raw.truncate(20 * MIB);
    let image = StreamImage { digest: Some(sha256(&raw)), grow: false, ..file(&bench, &raw) };
    let done = bench.streams(image).0;
    let after = "ends after the end of the image, which may be truncated";
    assert_eq!(done.outcome.warnings, [format!("partition 1 (root) of {} {after}", bench.place("disk"))]);
}

#[test]
fn a_table_for_blocks_of_another_size_that_comes_late_leaves_a_disk_that_does_not_boot() {
    let bench = Bench::new(40 * MIB);
    let raw = bench.put("raw", &for_large_blocks(&bench));
    // With clusters this small, the first block does not hold the whole table.
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-f", "raw", "-O", "qcow2", "-o", "cluster_size=512"]);
    run(convert.arg(raw).arg(bench.path("image")));
    refuses_the_block_size(&bench, stream(bench.place("image")));
    check_does_not_boot(&bench);
}
