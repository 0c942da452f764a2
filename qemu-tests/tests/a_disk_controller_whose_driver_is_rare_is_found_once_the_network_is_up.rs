//! A machine has its only disk behind a SCSI controller. Neither its driver nor a module that the driver needs is in
//! the boot image. The machine fetches both once the network is up, its first report has the disk, and the run writes
//! the disk.

use anyhow::{Context, Result, ensure};
use qemu_tests::{Bench, noise, stream, timed};
use slipway_protocol::NodeState;
use xtask::lab::qemu::MachineConfig;

const IMAGE: usize = 8 << 20;

#[test]
fn a_disk_controller_whose_driver_is_rare_is_found_once_the_network_is_up() -> Result<()> {
    timed("a disk controller whose driver is rare is found once the network is up", || {
        let bench = Bench::with_boot_files(|lab| lab.make_boot_files_for_real_machines())?;
        let mut image = noise(IMAGE);
        image[510..512].copy_from_slice(&[0x55, 0xaa]);
        let (url, digest) = bench.add_image(&image)?;
        bench.register()?;
        bench.start_run(&[stream("write", &url, digest)])?;
        let drive = format!("if=none,id=old,format=raw,file={}", bench.disk().display());
        let extra = ["-device", "am53c974,id=esp", "-drive", &drive, "-device", "scsi-hd,bus=esp.0,drive=old"];
        let extra = extra.map(str::to_owned).to_vec();
        let config = MachineConfig { disks: Vec::new(), extra, ..bench.machine() };
        let machine = bench.power_on(&config)?;
        let node =
            bench.wait_for(&machine, "done", |node| matches!(node.state, NodeState::Installed | NodeState::Failed))?;

        let console = machine.console()?;
        ensure!(node.state == NodeState::Installed, "{node:#?}\n{console}");
        let inventory = node.inventory.context("an inventory")?;
        assert_eq!(inventory.disks.len(), 1, "{inventory:#?}");
        assert_eq!(inventory.unserved, [], "the first report was made before the driver was there");
        assert!(std::fs::read(bench.disk())?[..IMAGE] == image, "the disk is not the image");
        for module in ["esp_scsi", "am53c974"] {
            let said = format!("loaded {module} from the server for the storage controller 1022:2020 at ");
            assert!(console.contains(&said), "no {said:?} on the console:\n{console}");
        }
        // The network card's own driver is in the image, so nothing was fetched for it.
        assert!(!console.contains("for the network card"), "{console}");
        Ok(())
    })
}
