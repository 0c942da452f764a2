//! A technician gives the image of a disc to a management controller, which presents it to the machine as a CD drive.
//! The image has a bootstrap token, because nobody has registered the machine.

use anyhow::{Context, Result};
use qemu_tests::{Bench, timed};
use slipway_protocol::NodeState;
use xtask::build::kernel;
use xtask::lab::qemu::{Boot, MachineConfig};

#[test]
fn a_disc_image_starts_a_machine_from_its_cd_drive() -> Result<()> {
    timed("a disc image starts a machine from its CD drive", || {
        let bench = Bench::new()?;
        let disc = bench.lab.make_medium("disc", kernel::CLOUD)?;
        let token = bench.folder().join("token");
        std::fs::write(&token, bench.lab.operator(&["token", "add"])?)?;
        let [medium, file] = [&disc, &token].map(|path| path.display().to_string());
        bench.lab.operator(&["media", "settings", &medium, "--token-file", &file])?;
        let drive = format!("if=none,id=disc,format=raw,media=cdrom,readonly=on,file={}", disc.display());
        let extra = ["-drive", &drive, "-device", "ide-cd,drive=disc,bootindex=0"].map(str::to_owned).to_vec();
        let config = MachineConfig { boot: Boot::Uefi { uri: None }, disks: Vec::new(), extra, ..bench.machine() };
        let machine = bench.power_on(&config)?;
        let node = bench.wait_for(&machine, "enrolled", |node| node.state == NodeState::Enrolled)?;
        assert!(node.inventory.context("an inventory")?.firmware.uefi);
        Ok(())
    })
}
