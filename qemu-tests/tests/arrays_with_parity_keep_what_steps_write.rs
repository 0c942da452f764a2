//! Four disks with an array of each parity level. Later steps fill their file systems. The content is then restored
//! from three of the disks.

use std::fs;
use std::process::Command;

use anyhow::Result;
use qemu_tests::{Bench, step, timed};
use slipway_protocol::{Action, DiskHints, NodeState, Partition, StreamImage, WriteFile};
use xtask::host::command::{run_quietly, stdout};

const MIB: usize = 1 << 20;
const DISKS: usize = 4;
const SIZE: usize = 80 << 20;
/// Size of an array's chunk on one disk, in bytes.
const CHUNK: usize = 512 << 10;
/// Name of each array, and start and end of its data on each disk in bytes. The MiB before the start holds the
/// superblock.
const ARRAYS: [(&str, usize, usize); 2] = [("five", 2 * MIB, 32 * MIB), ("six", 33 * MIB, 79 * MIB)];

#[test]
fn arrays_with_parity_keep_what_steps_write() -> Result<()> {
    timed("arrays with parity keep what steps write", || {
        let bench = Bench::new()?;
        bench.register()?;
        let system = bench.folder().join("system");
        let tree = bench.folder().join("tree");
        fs::create_dir_all(tree.join("etc"))?;
        fs::write(tree.join("etc/os-release"), "NAME=small\n")?;
        run_quietly(Command::new("mkfs.ext4").args(["-q", "-d"]).arg(&tree).arg(&system).arg("48M"))?;
        let (url, digest) = bench.add_image(&fs::read(&system)?)?;
        let layout: Partition = serde_json::from_value(serde_json::json!({
            "disk": {"choose": "all", "serial": "<or> s-0 <or> s-1 <or> s-2 <or> s-3"},
            "partitions": [
                {"type": "raid", "size": "31MiB", "label": "five"},
                {"type": "raid", "size": "rest", "label": "six"},
            ],
            "raids": [
                {"name": "five", "level": "raid5", "partition": "five"},
                {"name": "six", "level": "raid6", "partition": "six"},
            ],
        }))?;
        let mut steps = vec![step("arrays", Action::Partition(layout))];
        for (name, ..) in ARRAYS {
            let disk = DiskHints { device: Some(format!("/dev/md/{name}")), ..DiskHints::default() };
            let (url, digest) = (url.clone(), Some(digest.clone()));
            let image = StreamImage { url, digest, disk: disk.clone(), ..StreamImage::default() };
            steps.push(step(name, Action::StreamImage(image)));
            let content = Some(format!("on {name}\n"));
            let write = WriteFile { disk, path: "/etc/written".to_owned(), content, ..WriteFile::default() };
            steps.push(step(&format!("{name}-written"), Action::WriteFile(write)));
        }
        bench.start_run(&steps)?;
        let mut config = bench.machine();
        let disks: Vec<_> = (0..DISKS).map(|index| bench.folder().join(format!("s-{index}"))).collect();
        for (index, file) in disks.iter().enumerate() {
            // The XOR of these values is not zero, so the parity is wrong until the kernel has computed it.
            fs::write(file, vec![1 << index; SIZE])?;
            let drive = format!("if=none,id=s-{index},format=raw,file={}", file.display());
            let device = format!("virtio-blk-pci,drive=s-{index},serial=s-{index}");
            config.extra.extend(["-drive".to_owned(), drive, "-device".to_owned(), device]);
        }
        let machine = bench.power_on(&config)?;
        let node =
            bench.wait_for(&machine, "done", |node| matches!(node.state, NodeState::Installed | NodeState::Failed))?;
        assert_eq!(node.state, NodeState::Installed, "{node:#?}\n{}", machine.console()?);
        drop(machine);

        let contents = disks.iter().map(fs::read).collect::<Result<Vec<_>, _>>()?;
        for (name, start, end) in ARRAYS {
            let parities = if name == "five" { 1 } else { 2 };
            let members: Vec<&[u8]> = contents.iter().map(|disk| &disk[start..end]).collect();
            for lost in 0..DISKS {
                let volume = bench.folder().join(format!("{name}-without-{lost}"));
                fs::write(&volume, without(&members, lost, parities))?;
                run_quietly(Command::new("e2fsck").args(["-f", "-n"]).arg(&volume))?;
                let written = stdout(Command::new("debugfs").args(["-R", "cat /etc/written"]).arg(&volume))?;
                assert_eq!(written, format!("on {name}\n"), "without disk {lost}");
            }
        }
        Ok(())
    })
}

/// Restores the content of an array in the left-symmetric layout from all members but `lost`: the first parity of each
/// row is the XOR of its data. Rows that were never written may have no parity yet, which does not affect files.
fn without(members: &[&[u8]], lost: usize, parities: usize) -> Vec<u8> {
    let mut volume = Vec::new();
    for row in 0..members[0].len() / CHUNK {
        let first_parity = DISKS - 1 - row % DISKS;
        let second_parity = if parities == 2 { Some((first_parity + 1) % DISKS) } else { None };
        for data in 0..DISKS - parities {
            let disk = (first_parity + parities + data) % DISKS;
            let chunk = |disk: usize| members[disk][row * CHUNK..][..CHUNK].iter();
            if disk != lost {
                volume.extend(chunk(disk));
                continue;
            }
            let mut sum = vec![0_u8; CHUNK];
            for other in (0..DISKS).filter(|other| *other != lost && Some(*other) != second_parity) {
                sum.iter_mut().zip(chunk(other)).for_each(|(sum, byte)| *sum ^= byte);
            }
            volume.extend(sum);
        }
    }
    volume
}
