//! A USB disk takes longer than anything else to appear. A run that may erase the only disk must not begin before that:
//! then there are two disks, and it is not known which one is meant.

use anyhow::{Context, Result, ensure};
use qemu_tests::{Bench, DISK_SERIAL, noise, step, timed};
use slipway_protocol::{Action, EraseDisk, NodeState};
use xtask::lab::qemu::{Boot, MachineConfig};

const LATE_SERIAL: &str = "late-usb-disk";

#[test]
fn a_disk_that_comes_late_makes_the_choice_ambiguous() -> Result<()> {
    timed("a disk that comes late makes the choice ambiguous", || {
        let bench = Bench::with_boot_files(|lab| lab.make_boot_files_for_real_machines())?;
        let before = noise(64 << 20);
        std::fs::write(bench.disk(), &before)?;
        let late = bench.folder().join("late");
        std::fs::write(&late, &before)?;
        bench.register()?;
        bench.start_run(&[step("erase", Action::EraseDisk(EraseDisk::default()))])?;

        let mut config = bench.machine();
        let Boot::Kernel { cmdline, .. } = &mut config.boot else { unreachable!("the machine starts a kernel") };
        // The driver looks for the disk this many seconds after it found the device.
        cmdline.push_str(" usb_storage.delay_use=15");
        let drive = format!("if=none,id=late,format=raw,file={}", late.display());
        let usb = format!("usb-storage,bus=xhci.0,drive=late,serial={LATE_SERIAL}");
        let extra = ["-device", "qemu-xhci,id=xhci", "-drive", &drive, "-device", &usb];
        let config = MachineConfig { extra: extra.map(str::to_owned).to_vec(), ..config };
        let machine = bench.power_on(&config)?;
        let node =
            bench.wait_for(&machine, "done", |node| matches!(node.state, NodeState::Installed | NodeState::Failed))?;

        let console = machine.console()?;
        ensure!(node.state == NodeState::Failed, "a disk was erased: {node:#?}\n{console}");
        let failure = node.run.context("a run")?.steps.remove(0).failure.context("a failure")?.in_one_line();
        for serial in [DISK_SERIAL, LATE_SERIAL] {
            ensure!(failure.contains(serial), "the failure does not name {serial}: {failure}");
        }
        ensure!(console.contains("waiting for the disk of USB device"), "{console}");
        for disk in [bench.disk(), late] {
            ensure!(std::fs::read(&disk)? == before, "{} was changed", disk.display());
        }
        Ok(())
    })
}
