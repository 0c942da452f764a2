//! Partitions and file systems that tests ask for, and what sgdisk and dd find of them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use slipway_protocol::{
    Action, DiskHints, FileSystemKind, MakeFileSystem, NewPartition, Partition, PartitionChoice, PartitionSize,
};

use super::Bench;
use super::disk_image::run;

pub fn new(r#type: &str, size: &str, label: Option<&str>) -> NewPartition {
    let size = PartitionSize::Text(size.to_owned());
    NewPartition { r#type: r#type.to_owned(), size, label: label.map(str::to_owned), uuid: None }
}

pub fn partition(partitions: Vec<NewPartition>) -> Action {
    Action::Partition(Partition { partitions, ..Partition::default() })
}

pub fn make(partition: PartitionChoice, kind: FileSystemKind, label: Option<&str>, uuid: Option<&str>) -> Action {
    let [label, uuid] = [label, uuid].map(|text| text.map(str::to_owned));
    let partition = Some(partition);
    Action::MakeFileSystem(MakeFileSystem { disk: DiskHints::default(), partition, kind, label, uuid })
}

pub fn succeeds(bench: &Bench, action: &Action) {
    assert_eq!(bench.succeeds(action).0.outcome.warnings, [""; 0]);
}

/// Checks with sgdisk that the partition table of a disk is intact.
#[track_caller]
pub fn verify(disk: impl AsRef<OsStr>) {
    let verdict = run(Command::new("sgdisk").arg("--verify").arg(disk));
    assert!(verdict.contains("No problems found"), "{verdict}");
}

/// A value of `sgdisk --info`.
pub fn info(disk: &Path, number: u32, key: &str) -> String {
    let info = run(Command::new("sgdisk").arg(format!("--info={number}")).arg(disk));
    let line = info.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_else(|| panic!("no {key} in {info}"));
    line.split(" (").next().unwrap().trim().to_owned()
}

/// Copies a part of a disk into its own file.
pub fn cut_out(bench: &Bench, disk: &Path, mib: usize, len: usize) -> PathBuf {
    let to = bench.path("part");
    let mut dd = Command::new("dd");
    dd.args(["bs=1M", "conv=sparse", "status=none", &format!("skip={mib}"), &format!("count={len}")]);
    run(dd.arg(format!("if={}", disk.display())).arg(format!("of={}", to.display())));
    to
}
