//! Machines get their address from a DHCP server that knows nothing of slipway. slipway tells them what to boot: UEFI
//! firmware by TFTP, and the option ROM of a BIOS by HTTP. A second proxyDHCP server refuses to start.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use qemu_tests::site::{DHCP, MAC, SLIPWAY, Site, serve};
use qemu_tests::{LIMIT, UUID, timed};
use slipway_parts::Arch;
use xtask::build::server::{Profile, build_server};
use xtask::host::command::stdout;
use xtask::host::packages;
use xtask::lab::qemu::Boot;
use xtask::lab::qemu::firmware::IPXE;

#[test]
fn proxydhcp_beside_a_foreign_dhcp_server_starts_registered_machines() -> Result<()> {
    timed("proxydhcp beside a foreign DHCP server starts registered machines", || {
        packages::ensure(packages::QEMU)?;
        let program = build_server(Profile::Dev)?;
        let Some(mut site) = Site::new()? else { return Ok(()) };
        let boot = site.programs.path("boot");
        std::fs::create_dir_all(boot.join("x86_64"))?;
        // iPXE takes the place of slipway, because it is small and says what it does.
        std::fs::copy(IPXE, boot.join("x86_64/slipway.efi")).with_context(|| format!("copying {IPXE}"))?;
        let data = site.programs.path("data");
        site.programs.start(serve(Command::new(&program), &data, &boot, SLIPWAY, "br0"), "server.log")?;
        site.programs.wait_for("server.log", "\"https\":")?;

        // A machine that is not registered gets an address and nothing else.
        let card = format!("virtio-net-pci,netdev=net0,mac={MAC},romfile=");
        let stranger = site.machine(Arch::X86_64, Boot::UefiPxe, &card)?;
        site.programs.wait_for("server.log", "unknown machine")?;
        drop(stranger);
        assert!(
            !site.programs.read("server.log")?.contains("answered boot firmware interface"),
            "a stranger was answered"
        );

        let add = ["node", "add", "--name", "m1", "--uuid", UUID, "--release"];
        stdout(Command::new(&program).arg("--data").arg(&data).args(add))?;
        let mut machine = site.machine(Arch::X86_64, Boot::UefiPxe, &card)?;
        let address = machine.wait_for_line("Station IP address is ", LIMIT)?;
        machine.wait_for_console(&format!("Server IP address is {SLIPWAY}"), LIMIT)?;
        machine.wait_for_console("NBP filename is x86_64/slipway.efi", LIMIT)?;
        machine.wait_for_console("NBP file downloaded successfully", LIMIT)?;
        machine.wait_for_console("iPXE initialising devices", LIMIT)?;
        machine.wait_for_console("slipway: starting the installer", LIMIT)?;
        let address = address.trim().rsplit(' ').next().context("an address")?;
        assert!(site.programs.read("leases")?.contains(address), "{address} is not of the DHCP server");
        drop(machine);

        let scripts = || -> Result<usize> { Ok(site.programs.read("server.log")?.matches("route=/boot/ipxe").count()) };
        let before = scripts()?;
        let _machine = site.machine(Arch::X86_64, Boot::BiosPxe, &format!("e1000,netdev=net0,mac={MAC}"))?;
        let start = Instant::now();
        while scripts()? == before {
            if start.elapsed() > LIMIT {
                bail!("waiting for the script to be fetched by a BIOS:\n{}", site.programs.read("server.log")?);
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }

        let second = serve(site.elsewhere(&program), &site.programs.path("data2"), &boot, DHCP, "eth0").output()?;
        let said = String::from_utf8_lossy(&second.stderr);
        assert!(!second.status.success() && said.contains(&format!("{SLIPWAY}, already answers")), "{said}");
        Ok(())
    })
}
