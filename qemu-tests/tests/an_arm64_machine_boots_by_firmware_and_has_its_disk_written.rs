//! The firmware of an arm64 machine fetches the unified image by HTTP. slipway writes one disk, and makes file systems
//! on another with the programs in the boot image. The firmware starts the written disk.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use qemu_tests::{Bench, DISK_SERIAL, LIMIT, bootable_image, step, stream, timed};
use slipway_parts::Arch;
use slipway_protocol::{
    Action, DiskHints, EfiBootOrder, FileSystemKind, MakeFileSystem, NewPartition, NodeState, NodeStatus, Partition,
    PartitionChoice, PartitionSize, Reboot, RunState, Step, StepState,
};
use xtask::lab::qemu::{Boot, Disk, MachineConfig, create_disk, firmware};

const MIB: u64 = 1 << 20;
/// Serial number of the disk that gets file systems.
const DATA_SERIAL: &str = "data-1";
/// File systems on that disk, with start and size of their partitions in MiB. mkfs.xfs takes no less than 300 MiB.
const PARTITIONS: [(FileSystemKind, u64, u64); 2] = [(FileSystemKind::Ext4, 1, 40), (FileSystemKind::Xfs, 41, 310)];
/// What the program on the written disk prints.
const GREETING: &str = "iPXE initialising devices";

#[test]
fn an_arm64_machine_boots_by_firmware_and_has_its_disk_written() -> Result<()> {
    timed("an arm64 machine boots by firmware and has its disk written", || {
        let bench = Bench::with_boot_files(|lab| lab.make_boot_files_for_arm64())?;
        let program = firmware::network_boot_loader(Arch::Aarch64)?;
        let image = std::fs::read(bootable_image(bench.folder(), &program)?)?;
        let (url, digest) = bench.add_image(&image)?;
        bench.register()?;
        let mut write = stream("write", &url, digest);
        if let Action::StreamImage(stream) = &mut write.action {
            stream.disk = by_serial(DISK_SERIAL)?;
        }
        let mut steps = vec![write];
        steps.extend(file_systems()?);
        let order = EfiBootOrder { disk: by_serial(DISK_SERIAL)?, ..EfiBootOrder::default() };
        steps.push(step("order", Action::EfiBootOrder(order)));
        steps.push(step("leave", Action::Reboot(Reboot::default())));
        bench.start_run(&steps)?;

        let data = bench.folder().join("data");
        create_disk(&data, 400 * MIB)?;
        let disk = |path: &Path, serial: &str| Disk { path: path.to_owned(), serial: serial.to_owned() };
        let disks = vec![disk(&bench.disk(), DISK_SERIAL), disk(&data, DATA_SERIAL)];
        let boot = Boot::Uefi { uri: Some(bench.lab.image_url(Arch::Aarch64)) };
        let config = MachineConfig { arch: Arch::Aarch64, boot, disks, ..bench.machine() };
        let mut machine = bench.power_on(&config)?;
        let is_done = |node: &NodeStatus| matches!(node.state, NodeState::Installed | NodeState::Failed);
        let node = bench.wait_for(&machine, "done", is_done)?;
        assert_eq!(node.state, NodeState::Installed, "{node:#?}\n{}", machine.console()?);
        machine.wait_for_console(GREETING, LIMIT)?;
        drop(machine);

        let inventory = node.inventory.context("an inventory")?;
        assert_eq!((inventory.cpu.arch.as_str(), inventory.firmware.uefi), ("aarch64", true));
        let run = node.run.context("a run")?;
        assert_eq!(run.state, RunState::Succeeded);
        assert!(run.steps.iter().all(|step| step.state == StepState::Succeeded), "{run:#?}");
        // The partition tables at both ends were fitted to the disk, so only what is between them is compared.
        let partition = MIB as usize..image.len() - MIB as usize;
        let written = std::fs::read(bench.disk())?;
        assert!(written[partition.clone()] == image[partition], "the image is not on the disk");
        for (kind, first, _) in PARTITIONS {
            assert_eq!(file_system(&data, first * MIB)?, kind.name());
        }
        Ok(())
    })
}

/// Makes the steps that partition the other disk and make its file systems.
fn file_systems() -> Result<Vec<Step>> {
    let partition = |(kind, _, mib): (FileSystemKind, u64, u64)| NewPartition {
        r#type: "linux".to_owned(),
        size: PartitionSize::Bytes(mib * MIB),
        label: Some(kind.name().to_owned()),
        uuid: None,
    };
    let partitions = PARTITIONS.map(partition).into();
    let table = Partition { disk: by_serial(DATA_SERIAL)?, partitions, ..Partition::default() };
    let mut steps = vec![step("partition", Action::Partition(table))];
    for (kind, ..) in PARTITIONS {
        let partition = Some(PartitionChoice::Label(kind.name().to_owned()));
        let make = MakeFileSystem { disk: by_serial(DATA_SERIAL)?, partition, kind, label: None, uuid: None };
        steps.push(step(kind.name(), Action::MakeFileSystem(make)));
    }
    Ok(steps)
}

fn by_serial(serial: &str) -> Result<DiskHints> {
    Ok(DiskHints { serial: Some(serial.parse()?), ..DiskHints::default() })
}

/// Returns the type of file system that blkid finds on a disk at an offset in bytes.
fn file_system(disk: &Path, offset: u64) -> Result<String> {
    let query = ["-p", "-o", "value", "-s", "TYPE", "--offset", &offset.to_string()];
    let output = Command::new("blkid").args(query).arg(disk).output()?;
    ensure!(output.status.success(), "blkid: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
