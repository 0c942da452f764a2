//! A machine has less memory than the size of the image that is written to its disk. It boots the image for physical
//! machines, with all drivers and firmware.

use anyhow::{Result, bail};
use qemu_tests::{Bench, noise, stream, timed};
use slipway_protocol::NodeState;
use xtask::lab::qemu::{Boot, MachineConfig, create_disk};

const MEMORY_MIB: u32 = 192;
const IMAGE: usize = 224 << 20;

#[test]
fn a_machine_with_192_mib_is_installed_by_the_image_for_real_machines() -> Result<()> {
    timed("a machine with 192 MiB is installed by the image for real machines", || {
        let bench = Bench::with_boot_files(|lab| lab.make_boot_files_for_real_machines())?;
        let mut image = noise(IMAGE);
        image[510..512].copy_from_slice(&[0x55, 0xaa]);
        let (url, digest) = bench.add_image(&image)?;
        create_disk(&bench.disk(), 256 << 20)?;
        bench.register()?;
        bench.start_run(&[stream("write", &url, digest)])?;
        let config = bench.machine();
        let Boot::Kernel { vmlinuz, initramfs, cmdline } = config.boot else { bail!("it is started by firmware") };
        // The same argument as in the boot script and in the unified image.
        let boot = Boot::Kernel { vmlinuz, initramfs, cmdline: format!("{cmdline} rootfstype=ramfs") };
        let machine = bench.power_on(&MachineConfig { boot, memory_mib: MEMORY_MIB, ..bench.machine() })?;
        let node =
            bench.wait_for(&machine, "done", |node| matches!(node.state, NodeState::Installed | NodeState::Failed))?;
        assert_eq!(node.state, NodeState::Installed, "{node:#?}");
        assert!(std::fs::read(bench.disk())?[..IMAGE] == image, "the disk is not the image");
        Ok(())
    })
}
