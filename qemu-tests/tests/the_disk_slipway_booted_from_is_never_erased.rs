//! A technician boots the unified kernel image from a stick, and the workflow erases the machine's only disk.

use anyhow::{Context, Result};
use qemu_tests::{Bench, DISK_SERIAL, bootable_image, noise, step, timed};
use slipway_protocol::{Action, EraseDisk, NodeState};
use xtask::host::command::{command, run_quietly};
use xtask::lab::qemu::{Disk, MachineConfig};

#[test]
fn the_disk_slipway_booted_from_is_never_erased() -> Result<()> {
    timed("the disk slipway booted from is never erased", || {
        let bench = Bench::new()?;
        let stick = bootable_image(bench.folder(), bench.uki())?;
        let before = std::fs::read(&stick)?;
        let mut target = noise(4 << 20);
        target.resize(64 << 20, 0);
        std::fs::write(bench.disk(), &target)?;
        bench.register()?;
        bench.start_run(&[step("erase", Action::EraseDisk(EraseDisk::default()))])?;

        let alone = bench.machine_with_firmware(&bench.disk());
        let stick_first = vec![Disk { path: stick.clone(), serial: "stick".to_owned() }];
        let disks = stick_first.into_iter().chain(alone.disks).collect();
        let config = MachineConfig { disks, nics: bench.machine().nics, ..alone };
        let machine = bench.power_on(&config)?;
        let node =
            bench.wait_for(&machine, "done", |node| matches!(node.state, NodeState::Installed | NodeState::Failed))?;

        assert_eq!(node.state, NodeState::Installed, "{node:#?}");
        assert_eq!(node.inventory.context("an inventory")?.disks.len(), 2, "the stick is seen");
        let note = node.run.context("a run")?.steps.remove(0).notes.remove(0);
        assert!(note.contains(DISK_SERIAL), "{note}");
        let after = std::fs::read(&stick)?;
        assert!(after[..1 << 20] == before[..1 << 20], "the stick has another partition table");
        // systemd's stub writes two files of 32 bytes into a folder on the stick, and firmware updates the file
        // system's metadata for them.
        let pairs = before.chunks(512).zip(after.chunks(512));
        let written = pairs.filter(|(before, after)| before != after).count();
        assert!(written <= 8, "{written} sectors of the stick were written to");
        let partition = format!("{}@@1M", stick.display());
        let program = bench.folder().join("program");
        run_quietly(command("mcopy", ["-i", &partition, "::EFI/BOOT/BOOTX64.EFI"]).arg(&program))?;
        assert!(std::fs::read(&program)? == std::fs::read(bench.uki())?, "the stick has another program");
        assert!(std::fs::read(bench.disk())?[..1 << 20].iter().all(|byte| *byte == 0));
        Ok(())
    })
}
