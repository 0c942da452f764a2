//! The slot of a controller gets its power after the installer has started, and its driver is already loaded, so nobody
//! waits for its scan. The hint names a disk of this controller, so the run must not begin before that disk appears.

use anyhow::{Context, Result, ensure};
use qemu_tests::{Bench, DISK_SERIAL, LIMIT, noise, step, timed};
use serde_json::json;
use slipway_protocol::{Action, DiskHints, EraseDisk, NodeState};
use xtask::lab::qemu::MachineConfig;

const LATE: &str = "late-controller";

#[test]
fn a_controller_that_is_plugged_in_late_brings_the_disk_that_is_meant() -> Result<()> {
    timed("a controller that is plugged in late brings the disk that is meant", || {
        let bench = Bench::new()?;
        let before = noise(64 << 20);
        std::fs::write(bench.disk(), &before)?;
        let late = bench.folder().join("late");
        std::fs::write(&late, &before)?;
        bench.register()?;
        let disk = DiskHints { serial: LATE.parse().ok(), ..DiskHints::default() };
        bench.start_run(&[step("erase", Action::EraseDisk(EraseDisk { disk, ..EraseDisk::default() }))])?;

        let own = format!("if=none,id=own,format=raw,file={}", bench.disk().display());
        let drive = format!("if=none,id=late,format=raw,file={}", late.display());
        let own_disk = format!("scsi-hd,bus=first.0,drive=own,serial={DISK_SERIAL}");
        let extra = [
            // Slots take five seconds to switch the power on, as in real machines.
            ["-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off"],
            ["-device", "pcie-root-port,id=bay,chassis=1,slot=1"],
            ["-device", "virtio-scsi-pci,id=first"],
            ["-drive", &own],
            ["-device", &own_disk],
            ["-drive", &drive],
        ];
        let extra = extra.concat().into_iter().map(str::to_owned).collect();
        let mut machine = bench.power_on(&MachineConfig { disks: Vec::new(), extra, ..bench.machine() })?;
        machine.wait_for_console("is pid 1", LIMIT)?;
        machine.qmp("device_add", json!({"driver": "virtio-scsi-pci", "id": "second", "bus": "bay"}))?;
        machine.qmp("device_add", json!({"driver": "scsi-hd", "bus": "second.0", "drive": "late", "serial": LATE}))?;
        let node =
            bench.wait_for(&machine, "done", |node| matches!(node.state, NodeState::Installed | NodeState::Failed))?;
        assert_eq!(node.state, NodeState::Installed, "{node:#?}\n{}", machine.console()?);
        drop(machine);
        let notes = &node.run.context("a run")?.steps[0].notes;
        ensure!(notes[0].contains(LATE), "{notes:#?}");
        ensure!(std::fs::read(bench.disk())? == before, "the other disk was changed");
        ensure!(std::fs::read(&late)? != before, "the disk that is meant was not erased");
        Ok(())
    })
}
