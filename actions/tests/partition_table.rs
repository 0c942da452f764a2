//! An image smaller than its disk: the partition table is right for the disk afterwards, by sgdisk's judgement.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::process::Command;

use common::disk_image::{ESP, LINUX, Part, make, run};
use common::{Bench, MIB, sha256, stream};
use slipway_protocol::{Action, StreamImage};

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
    let action = StreamImage { digest: Some(sha256(&raw)), ..stream(image.to_str().unwrap()) };
    let done = bench.run(&Action::StreamImage(action)).0.unwrap();
    assert_eq!(done.outcome.warnings, [""; 0]);

    let verdict = run(Command::new("sgdisk").arg("--verify").arg(bench.path("disk")));
    assert!(verdict.contains("No problems found"), "{verdict}");
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
