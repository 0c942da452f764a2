//! Two disks, each with an EFI system partition and one half of an array, and LVM on the array. Everything is made
//! twice, filled by later steps, and checked with other programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use qemu_tests::{Bench, step, timed};
use slipway_protocol::{
    Action, DiskHints, FileSystemKind, MakeFileSystem, NodeState, NumberOrName, Partition, PartitionChoice,
    StreamImage, WriteFile,
};
use xtask::lab::qemu::create_disk;

const SIZE: u64 = 192 << 20;
/// Start and size in MiB of a disk's part of the array, which follows an EFI system partition of 40 MiB.
const MEMBER_MIB: u64 = 41;
const MEMBER_MIBS: u64 = 150;

#[test]
fn an_array_of_two_disks_carries_volumes_that_later_steps_fill() -> Result<()> {
    timed("an array of two disks carries volumes that later steps fill", || {
        let bench = Bench::new()?;
        bench.register()?;
        let system = bench.folder().join("system");
        let tree = bench.folder().join("tree");
        fs::create_dir_all(tree.join("etc"))?;
        fs::write(tree.join("etc/os-release"), "NAME=small\n")?;
        succeed(Command::new("mkfs.ext4").args(["-q", "-d"]).arg(&tree).arg(&system).arg("48M"))?;
        let (url, digest) = bench.add_image(&fs::read(&system)?)?;

        let layout: Partition = serde_json::from_value(serde_json::json!({
            "disk": {"choose": "all", "serial": "<or> half-1 <or> half-2"},
            "partitions": [
                {"type": "esp", "size": "40MiB", "label": "esp"},
                {"type": "raid", "size": "rest", "label": "r"},
            ],
            "raids": [{"name": "system", "level": "raid1", "partition": "r"}],
            "volume_groups": [{"name": "vg0", "raid": "system", "volumes": [
                {"name": "my-root", "size": "64MiB"}, {"name": "swap", "size": "rest"}]}],
        }))?;
        let half = |serial: &str| DiskHints { serial: serial.parse().ok(), ..DiskHints::default() };
        let device = |path: &str| DiskHints { device: Some(path.to_owned()), ..DiskHints::default() };
        let make = |disk, partition, kind| {
            Action::MakeFileSystem(MakeFileSystem { disk, partition, kind, label: None, uuid: None })
        };
        let esp = || Some(PartitionChoice::Label("esp".to_owned()));
        let write = |disk, partition, path: &str| {
            let content = Some("from the workflow\n".to_owned());
            Action::WriteFile(WriteFile { disk, partition, path: path.to_owned(), content, ..WriteFile::default() })
        };
        let image =
            StreamImage { url, digest: Some(digest), disk: device("/dev/vg0/my-root"), ..StreamImage::default() };
        bench.start_run(&[
            step("first", Action::Partition(layout.clone())),
            step("again", Action::Partition(layout)),
            step("esp-1", make(half("half-1"), esp(), FileSystemKind::Vfat)),
            step("esp-2", make(half("half-2"), esp(), FileSystemKind::Vfat)),
            step("system", Action::StreamImage(image)),
            step("swap", make(device("/dev/vg0/swap"), None, FileSystemKind::Swap)),
            step("written", write(device("/dev/vg0/my-root"), None, "/etc/written")),
            step("loader", write(half("half-1"), Some(NumberOrName::Name("esp".to_owned())), "/loader.conf")),
        ])?;
        let mut config = bench.machine();
        let halves = ["half-1", "half-2"].map(|serial| bench.folder().join(serial));
        for (serial, file) in ["half-1", "half-2"].iter().zip(&halves) {
            create_disk(file, SIZE)?;
            let drive = format!("if=none,id={serial},format=raw,file={}", file.display());
            let device = format!("virtio-blk-pci,drive={serial},serial={serial}");
            config.extra.extend(["-drive".to_owned(), drive, "-device".to_owned(), device]);
        }
        let machine = bench.power_on(&config)?;
        let node =
            bench.wait_for(&machine, "done", |node| matches!(node.state, NodeState::Installed | NodeState::Failed))?;
        assert_eq!(node.state, NodeState::Installed, "{node:#?}\n{}", machine.console()?);
        drop(machine);
        let run = node.run.context("a run")?;
        let notes = &run.steps[1].notes;
        for what in ["the mapping ", "the array "] {
            let is_told = |note: &String| note.contains("releasing /dev/") && note.contains(what);
            ensure!(notes.iter().any(is_told), "{what}: {notes:?}");
        }

        for (index, half) in halves.iter().enumerate() {
            let member = cut(&bench, half, "member", MEMBER_MIB, MEMBER_MIBS)?;
            let said = succeed(Command::new("mdadm").arg("--examine").arg(&member))?;
            for expect in ["Version : 1.2", "Raid Level : raid1", "Raid Devices : 2", "Array State : AA", "- correct"] {
                assert!(said.contains(expect), "{expect}: {said}");
            }
            assert!(said.contains(&format!("Device Role : Active device {index}")), "{said}");
            assert!(said.contains("Data Offset : 2048 sectors"), "{said}");
            // Both halves have the written data, even if the array is not completely synchronised yet.
            let volumes = cut(&bench, half, "volumes", MEMBER_MIB + 1, MEMBER_MIBS - 1)?;
            let description = succeed(Command::new("pvck").args(["--dump", "metadata"]).arg(&volumes))?;
            assert!(description.contains("vg0 {") && description.contains("my-root {"), "{description}");
            let root = cut(&bench, half, "root", MEMBER_MIB + 2, 64)?;
            succeed(Command::new("e2fsck").args(["-f", "-n"]).arg(&root))?;
            let written = succeed(Command::new("debugfs").args(["-R", "cat /etc/written"]).arg(&root))?;
            assert_eq!(written, "from the workflow\n");
            let swap = cut(&bench, half, "swap", MEMBER_MIB + 66, 84)?;
            assert!(
                succeed(Command::new("blkid").args(["-p", "-o", "value", "-s", "TYPE"]).arg(&swap))?.contains("swap")
            );
            let esp = cut(&bench, half, "esp", 1, 40)?;
            succeed(Command::new("fsck.vfat").arg("-n").arg(&esp))?;
        }
        let esp = cut(&bench, &halves[0], "esp", 1, 40)?;
        let loader = succeed(Command::new("mtype").arg("-i").arg(&esp).arg("::/loader.conf"))?;
        assert_eq!(loader, "from the workflow\n");
        Ok(())
    })
}

/// Copies a part of a disk, which starts at `mib` and has `mibs`, into its own file.
fn cut(bench: &Bench, disk: &Path, name: &str, mib: u64, mibs: u64) -> Result<PathBuf> {
    let to = bench.folder().join(name);
    let mut dd = Command::new("dd");
    dd.args(["bs=1M", "status=none", &format!("skip={mib}"), &format!("count={mibs}")]);
    succeed(dd.arg(format!("if={}", disk.display())).arg(format!("of={}", to.display())))?;
    Ok(to)
}

/// Runs a program that must succeed. Returns its output.
fn succeed(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}
