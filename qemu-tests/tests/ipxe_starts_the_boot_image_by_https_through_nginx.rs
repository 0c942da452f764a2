//! iPXE 2.0, as Debian has it, loads the server's script, kernel and initramfs by HTTPS through nginx. It trusts the
//! root certificate that the firmware has: the site's root for firmware. If the firmware has none, iPXE closes the
//! connection before it asks for anything.

use anyhow::{Context, Result};
use qemu_tests::nginx::{Nginx, serve_firmware};
use qemu_tests::{Bench, LIMIT, firmware_trusts, timed};
use xtask::lab::qemu::{self, Boot, MachineConfig, Nic};

#[test]
fn ipxe_starts_the_boot_image_by_https_through_nginx() -> Result<()> {
    timed("iPXE starts the boot image by HTTPS through nginx", || {
        let mut bench = Bench::new()?;
        let root = serve_firmware(&mut bench.lab)?;
        bench.register()?;
        let nginx = Nginx::start(&bench)?;
        let machine = |extra: Vec<String>| MachineConfig {
            // How the firmware gets iPXE does not matter here.
            boot: Boot::Uefi { uri: Some(bench.lab.loader_url()) },
            disks: Vec::new(),
            nics: vec![Nic { mac: "52:54:00:7d:2f:01".to_owned(), bootfile: Some(nginx.url("ipxe")) }],
            extra,
            ..bench.machine()
        };

        let mut refusing = qemu::start(&machine(Vec::new()), &bench.folder().join("refusing"))?;
        refusing.wait_for_console(&format!("{}... Permission denied", nginx.url("ipxe")), LIMIT)?;
        drop(refusing);
        assert_eq!(nginx.requests()?, "", "it asked for something");

        let machine = bench.power_on(&machine(firmware_trusts(bench.folder(), &root)?))?;
        bench.wait_for(&machine, "enrolled", |node| node.inventory.is_some())?;
        let asked = nginx.requests()?;
        let by_ipxe = |file: &str| {
            let mut lines = asked.lines().filter(|line| line.contains("\"iPXE/2.") && line.contains("\" 200 "));
            lines.any(|line| line.contains(&format!("\"GET /boot/{file}")))
        };
        // Kernel and initramfs are of one build.
        let build = asked.split_once("/boot/media/").and_then(|(_, rest)| rest.split('/').next());
        let build = build.with_context(|| format!("no build is named: {asked}"))?;
        let files = ["vmlinuz", "initramfs"].map(|file| format!("media/{build}/x86_64/{file} "));
        for file in ["ipxe ", "ipxe?uuid="].into_iter().chain(files.iter().map(String::as_str)) {
            assert!(by_ipxe(file), "{file}: {asked}");
        }
        Ok(())
    })
}
