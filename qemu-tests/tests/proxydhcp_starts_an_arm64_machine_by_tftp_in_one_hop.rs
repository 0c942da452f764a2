//! The firmware of an arm64 machine gets its address from a DHCP server that knows nothing of slipway. From slipway it
//! gets the unified image by TFTP, without a boot loader in between. The machine enrols.

use std::process::Command;

use anyhow::{Context, Result};
use qemu_tests::site::{MAC, SLIPWAY, Site, serve};
use qemu_tests::{LIMIT, UUID, timed};
use slipway_parts::Arch;
use xtask::build::server::{Profile, build_server};
use xtask::build::{image, kernel};
use xtask::host::command::stdout;
use xtask::host::packages;
use xtask::lab::qemu::Boot;
use xtask::lab::server::{FOR_EMULATION, parse_status};

#[test]
fn proxydhcp_starts_an_arm64_machine_by_tftp_in_one_hop() -> Result<()> {
    timed("proxydhcp starts an arm64 machine by TFTP in one hop", || {
        packages::ensure(packages::QEMU_ARM64)?;
        let (program, arch) = (build_server(Profile::Dev)?, Arch::Aarch64);
        let parts = image::build_parts(&image::config(kernel::CLOUD, arch)?)?;
        let Some(mut site) = Site::new()? else { return Ok(()) };
        let (boot, data) = (site.programs.path("boot"), site.programs.path("data"));
        std::fs::create_dir_all(&boot)?;
        let operator = |arguments: &[&str]| {
            let mut command = Command::new(&program);
            command.arg("--data").arg(&data).args(arguments);
            command
        };
        site.programs.start(serve(Command::new(&program), &data, &boot, SLIPWAY, "br0"), "server.log")?;
        site.programs.wait_for("server.log", "\"https\":")?;
        let mut media = operator(&["media", "build", "--kind", "network", "--kernel", kernel::CLOUD]);
        media.args(["--argument", FOR_EMULATION, "--parts"]).arg(parts).arg("--out").arg(&boot);
        stdout(&mut media)?;
        stdout(&mut operator(&["node", "add", "--name", "m1", "--uuid", UUID, "--release"]))?;

        let mut machine =
            site.machine(arch, Boot::UefiPxe, &format!("virtio-net-pci,netdev=net0,mac={MAC},romfile="))?;
        machine.wait_for_console(&format!("Server IP address is {SLIPWAY}"), LIMIT)?;
        machine.wait_for_console("NBP filename is aarch64/slipway.efi", LIMIT)?;
        machine.wait_for_console("NBP file downloaded successfully", LIMIT)?;
        // The kernel's first message: no boot loader was started in between.
        machine.wait_for_console("EFI stub: ", LIMIT)?;
        machine.wait_for_console("enrolled as node ", LIMIT)?;
        let status = stdout(&mut operator(&["status", "--json"]))?;
        let node = parse_status(status.lines().next().context("a node")?)?;
        let inventory = node.inventory.context("an inventory")?;
        assert_eq!((inventory.cpu.arch.as_str(), inventory.firmware.uefi), ("aarch64", true));
        Ok(())
    })
}
