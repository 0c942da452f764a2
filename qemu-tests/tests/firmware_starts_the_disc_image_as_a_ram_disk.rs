//! The firmware fetches the image of a disc by HTTP, makes it a RAM disk (NFIT), and starts slipway from that disc.

use anyhow::{Context, Result};
use qemu_tests::{Bench, timed};
use slipway_parts::Arch;
use xtask::build::{image, kernel};
use xtask::lab::qemu::{Boot, MachineConfig};
use xtask::lab::server::FOR_EMULATION;

#[test]
fn firmware_starts_the_disc_image_as_a_ram_disk() -> Result<()> {
    timed("firmware starts the disc image as a RAM disk", || {
        let bench = Bench::new()?;
        let parts = image::build_parts(&image::config(kernel::CLOUD, Arch::X86_64)?)?;
        let (parts, out) = (parts.to_str().context("a path")?, bench.lab.boot_folder());
        let (out, url) = (out.to_str().context("a path")?, bench.lab.url());
        let media = ["media", "build", "--kind", "disc", "--kernel", kernel::CLOUD, "--parts", parts, "--out", out];
        bench.lab.operator(&[&media[..], &["--url", &url, "--argument", FOR_EMULATION]].concat())?;
        bench.register()?;

        let boot = Boot::Uefi { uri: Some(format!("{}/slipway.iso", bench.lab.boot_url())) };
        let machine = bench.power_on(&MachineConfig { boot, disks: Vec::new(), ..bench.machine() })?;
        bench.wait_for(&machine, "enrolled", |node| node.inventory.is_some())?;
        let console = machine.console()?;
        // The firmware prints the URL of what it loads. It can start a disc image only as a disc.
        assert!(console.contains("/slipway.iso)"), "not from the disc:\n{console}");
        Ok(())
    })
}
