//! `erase-disk`: nothing is recognised afterwards.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use common::disk_image::{LINUX, Part, make};
use common::{Bench, MIB};
use slipway_protocol::{Action, DiskHints, EraseDisk, EraseMode};

fn erase(bench: &Bench, mode: EraseMode) -> slipway_actions::Done {
    let (result, reports) = bench.run(&Action::EraseDisk(EraseDisk { disk: DiskHints::default(), mode }));
    let last = reports.progress.last().unwrap();
    assert_eq!(Some(last.bytes), last.total);
    result.unwrap()
}

#[test]
fn metadata_leaves_nothing_to_recognise_on_the_disk_or_in_its_partitions() {
    let bench = Bench::new(100 * MIB);
    let path = bench.path("disk");
    let files = &[("file", "content")];
    let parts = [
        Part { mib: 1..30, type_guid: LINUX, name: "a", files },
        Part { mib: 40..99, type_guid: LINUX, name: "b", files },
    ];
    make(&path, 100, &parts);
    File::options().write(true).open(&path).unwrap().write_all_at(&[0xAA; MIB], 70 * MIB as u64).unwrap();
    let done = erase(&bench, EraseMode::Metadata);
    assert!(done.outcome.summary.contains("the ends of 2 partitions"), "{}", done.outcome.summary);
    let wipefs = common::disk_image::run(Command::new("wipefs").arg("-n").arg(&path));
    assert_eq!(wipefs, "", "wipefs finds nothing on the disk");
    let disk = bench.disk();
    for zero in [0..17, 29..30, 40..56, 98..100] {
        assert!(disk[zero.start * MIB..zero.end * MIB].iter().all(|byte| *byte == 0), "{zero:?} MiB are zero");
    }
    assert!(disk[70 * MIB..71 * MIB].iter().all(|byte| *byte == 0xAA), "data is left alone");
    let blkid = Command::new("blkid").args(["-p", "-O", &MIB.to_string()]).arg(&path).output().unwrap();
    assert!(blkid.stdout.is_empty(), "blkid finds nothing in the first partition");
}

#[test]
fn zero_clears_every_byte() {
    let bench = Bench::new(70 * MIB + 4096);
    erase(&bench, EraseMode::Zero);
    assert!(bench.disk().iter().all(|byte| *byte == 0));
}
