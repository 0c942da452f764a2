//! Newer firmware loads the boot image from slipway-server itself, by TLS with the CA that the firmware was given. With
//! another CA it closes the connection before it asks for anything.

use anyhow::Result;
use qemu_tests::{Bench, LIMIT, firmware_trusts, timed};
use xtask::lab::qemu::{self, Boot, MachineConfig};
use xtask::lab::server::Lab;

#[test]
fn firmware_starts_the_boot_image_by_https_from_the_server_with_the_sites_ca() -> Result<()> {
    timed("firmware starts the boot image by HTTPS from the server with the site's CA", || {
        let folder = tempfile::tempdir()?;
        let mut other = Lab::new(folder.path())?;
        other.start_server()?;
        let bench = Bench::new()?;
        bench.register()?;
        let uri = format!("{}/boot/x86_64/slipway.efi", bench.lab.url());
        let machine = |ca: String| -> Result<MachineConfig> {
            let extra = firmware_trusts(bench.folder(), &ca)?;
            Ok(MachineConfig {
                boot: Boot::NewerUefi { uri: Some(uri.clone()) },
                disks: Vec::new(),
                extra,
                ..bench.machine()
            })
        };
        let log = || std::fs::read_to_string(bench.lab.server_log());

        let config = machine(other.operator(&["ca"])?)?;
        let mut refusing = qemu::start(&config, &bench.folder().join("refusing"))?;
        refusing.wait_for_console(&format!("URI: {uri}"), LIMIT)?;
        refusing.wait_for_console("Error: Could not retrieve NBP file size from HTTP server.", LIMIT)?;
        drop(refusing);
        let log_of_refusal = log()?;
        assert!(log_of_refusal.contains("TLS handshake failed"), "no machine connected:\n{log_of_refusal}");
        assert!(!log_of_refusal.contains("route=/boot"), "it asked for something:\n{log_of_refusal}");

        let machine = bench.power_on(&machine(bench.lab.operator(&["ca"])?)?)?;
        bench.wait_for(&machine, "enrolled", |node| node.inventory.is_some())?;
        let log = log()?;
        for method in ["HEAD", "GET"] {
            assert!(log.contains(&format!("method={method} route=/boot/{{*path}}")), "no {method}:\n{log}");
        }
        Ok(())
    })
}
