//! An arm64 machine is started by its firmware and gets a Debian. Its firmware starts that from the disk, and the
//! installed system reports that it runs.

use anyhow::{Context, Result};
use qemu_tests::{Bench, DISK_SERIAL, timed};
use slipway_parts::Arch;
use slipway_protocol::{NodeState, NodeStatus, RunState};
use xtask::host::translation;
use xtask::lab::qemu::{Boot, Disk, MachineConfig, create_disk};
use xtask::lab::target_image::System;

const DISK_SIZE: u64 = 2 << 30;

#[test]
fn an_arm64_debian_is_installed_until_it_runs() -> Result<()> {
    timed("an arm64 Debian is installed until it runs", || {
        // Without this Debian, another test still writes the disk of an arm64 machine.
        if let Err(error) = translation::ensure() {
            eprintln!("not checked: no arm64 Debian can be made here: {error:#}");
            return Ok(());
        }
        let bench = Bench::with_boot_files(|lab| lab.make_boot_files_for_arm64())?;
        bench.register()?;
        let (_, digest) = bench.add_system(System::Arm64)?;
        bench.lab.operator(&["os", "add", "debian-12", "--image", &digest.to_string(), "--phone-home"])?;
        bench.lab.operator(&["run", "start", "--yes", "m1", "--os", "debian-12"])?;

        let disk = bench.folder().join("large-disk");
        create_disk(&disk, DISK_SIZE)?;
        let config = MachineConfig {
            arch: Arch::Aarch64,
            boot: Boot::Uefi { uri: Some(bench.lab.image_url(Arch::Aarch64)) },
            memory_mib: 1024,
            disks: vec![Disk { path: disk, serial: DISK_SERIAL.to_owned() }],
            ..bench.machine()
        };
        let machine = bench.power_on(&config)?;
        let is_done = |node: &NodeStatus| matches!(node.state, NodeState::Booting | NodeState::Failed);
        let node = bench.wait_for(&machine, "installed", is_done)?;
        assert_eq!(node.state, NodeState::Booting, "{node:#?}\n{}", machine.console()?);
        let node = bench.wait_for(&machine, "running", |node| node.state == NodeState::Running)?;
        assert_eq!(node.inventory.context("an inventory")?.cpu.arch, "aarch64");
        assert_eq!(node.run.context("a run")?.state, RunState::Succeeded);
        Ok(())
    })
}
