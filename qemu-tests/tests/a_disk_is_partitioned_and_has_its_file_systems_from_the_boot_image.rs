//! A disk gets partitions, file systems and files in them, with only the programs in the boot image.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use qemu_tests::{Bench, DISK_SERIAL, step, timed};
use slipway_protocol::{
    Action, DiskHints, FileSystemKind, MakeFileSystem, NewPartition, NodeState, NumberOrName, Partition,
    PartitionChoice, PartitionSize, WriteFile,
};
use xtask::lab::qemu::{Disk, MachineConfig, create_disk};

const MIB: u64 = 1 << 20;
const DISK_MIB: u64 = 640;
/// Label, type in the partition table, file system, start in MiB and size in MiB.
const PARTITIONS: [(&str, &str, FileSystemKind, u64, u64); 4] = [
    ("ESP", "esp", FileSystemKind::Vfat, 1, 40),
    ("swap", "swap", FileSystemKind::Swap, 41, 20),
    ("system", "linux", FileSystemKind::Ext4, 61, 200),
    ("data", "linux", FileSystemKind::Xfs, 261, DISK_MIB - 262),
];

#[test]
fn a_disk_is_partitioned_and_has_its_file_systems_from_the_boot_image() -> Result<()> {
    timed("a disk is partitioned and has its file systems from the boot image", || {
        let bench = Bench::new()?;
        bench.register()?;
        let disk = bench.folder().join("large");
        create_disk(&disk, DISK_MIB * MIB)?;
        let table = Partition {
            partitions: PARTITIONS.map(|(label, r#type, _, _, mib)| new(label, r#type, mib)).into(),
            ..Partition::default()
        };
        let mut steps = vec![step("partition", Action::Partition(table))];
        for (label, _, kind, _, _) in PARTITIONS {
            steps.push(step(&format!("make-{label}"), make(label, kind)));
        }
        for label in ["ESP", "system", "data"] {
            steps.push(step(&format!("write-{label}"), write(label)));
        }
        bench.start_run(&steps)?;
        let disks = vec![Disk { path: disk.clone(), serial: DISK_SERIAL.to_owned() }];
        let machine = bench.power_on(&MachineConfig { disks, ..bench.machine() })?;
        let node =
            bench.wait_for(&machine, "done", |node| matches!(node.state, NodeState::Installed | NodeState::Failed))?;
        assert_eq!(node.state, NodeState::Installed, "{node:#?}\n{}", machine.console()?);
        drop(machine);

        for (label, _, kind, start, mib) in PARTITIONS {
            let place = cut_out(&disk, &bench.folder().join(label), start, mib)?;
            let known = ["TYPE", "LABEL"]
                .map(|key| tell(Command::new("blkid").args(["-p", "-o", "value", "-s", key]).arg(&place)));
            assert_eq!(
                known.into_iter().collect::<Result<Vec<_>>>()?,
                [format!("{}\n", kind.name()), format!("{label}\n")]
            );
            let files = match kind {
                FileSystemKind::Vfat => {
                    tell(Command::new("fsck.vfat").arg("-n").arg(&place))?;
                    tell(Command::new("mdir").args(["-b", "-i"]).arg(&place).arg("::/"))?
                }
                FileSystemKind::Ext4 => {
                    tell(Command::new("e2fsck").args(["-f", "-n"]).arg(&place))?;
                    tell(Command::new("debugfs").args(["-R", "ls -p /"]).arg(&place))?
                }
                FileSystemKind::Xfs => {
                    tell(Command::new("xfs_repair").arg("-n").arg(&place))?;
                    tell(Command::new("xfs_db").args(["-r", "-f", "-c", "path /", "-c", "ls"]).arg(&place))?
                }
                FileSystemKind::Swap => continue,
            };
            assert!(files.contains("written"), "{label}: {files}");
        }
        Ok(())
    })
}

fn new(label: &str, r#type: &str, mib: u64) -> NewPartition {
    let size = PartitionSize::Bytes(mib * MIB);
    NewPartition { r#type: r#type.to_owned(), size, label: Some(label.to_owned()), uuid: None }
}

fn make(label: &str, kind: FileSystemKind) -> Action {
    let (partition, label) = (Some(PartitionChoice::Label(label.to_owned())), Some(label.to_owned()));
    Action::MakeFileSystem(MakeFileSystem { disk: DiskHints::default(), partition, kind, label, uuid: None })
}

fn write(label: &str) -> Action {
    let (path, content) = ("/written".to_owned(), Some("from the workflow\n".to_owned()));
    Action::WriteFile(WriteFile {
        path,
        content,
        partition: Some(NumberOrName::Name(label.to_owned())),
        ..WriteFile::default()
    })
}

/// Copies a partition to its own file, for programs that take no offset.
fn cut_out(disk: &Path, to: &Path, start: u64, mib: u64) -> Result<PathBuf> {
    let mut disk = File::open(disk)?;
    disk.seek(SeekFrom::Start(start * MIB))?;
    let mut partition = Vec::new();
    disk.take(mib * MIB).read_to_end(&mut partition)?;
    fs::write(to, partition)?;
    Ok(to.to_owned())
}

/// Runs a program that must succeed. Returns its output.
fn tell(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{command:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    Ok(said)
}
