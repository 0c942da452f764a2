//! Firmware that knows RSA alone loads the boot image through nginx, with the configuration in `packaging/`. It trusts
//! the site's root for firmware. With another root it closes the connection before it asks for anything.

use anyhow::Result;
use qemu_tests::nginx::{Nginx, serve_firmware};
use qemu_tests::{Bench, LIMIT, firmware_trusts, timed};
use xtask::lab::qemu::{self, Boot, MachineConfig};
use xtask::lab::server::Lab;

#[test]
fn older_firmware_starts_the_boot_image_by_https_through_nginx() -> Result<()> {
    timed("older firmware starts the boot image by HTTPS through nginx", || {
        let folder = tempfile::tempdir()?;
        let mut other = Lab::new(folder.path())?;
        other.start_server()?;
        let other = other.operator(&["ca", "firmware"])?;
        let mut bench = Bench::new()?;
        let root = serve_firmware(&mut bench.lab)?;
        bench.register()?;
        let nginx = Nginx::start(&bench)?;
        let uri = nginx.url("x86_64/slipway.efi");
        let machine = |ca: &str| -> Result<MachineConfig> {
            let extra = firmware_trusts(bench.folder(), ca)?;
            Ok(MachineConfig {
                boot: Boot::Uefi { uri: Some(uri.clone()) },
                disks: Vec::new(),
                extra,
                ..bench.machine()
            })
        };

        let mut refusing = qemu::start(&machine(&other)?, &bench.folder().join("refusing"))?;
        refusing.wait_for_console(&format!("URI: {uri}"), LIMIT)?;
        refusing.wait_for_console("Error: Could not retrieve NBP file size from HTTP server.", LIMIT)?;
        drop(refusing);
        assert_eq!(nginx.requests()?, "", "it asked for something");
        let errors = nginx.errors()?;
        assert!(errors.contains("while SSL handshaking"), "no machine connected:\n{errors}");

        let machine = bench.power_on(&machine(&root)?)?;
        bench.wait_for(&machine, "enrolled", |node| node.inventory.is_some())?;
        let asked = nginx.requests()?;
        for request in
            ["\"HEAD /boot/x86_64/slipway.efi HTTP/1.1\" 200 ", "\"GET /boot/x86_64/slipway.efi HTTP/1.1\" 200 "]
        {
            assert!(asked.contains(request), "{request}: {asked}");
        }
        Ok(())
    })
}
