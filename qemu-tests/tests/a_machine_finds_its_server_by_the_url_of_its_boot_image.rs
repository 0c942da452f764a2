//! A boot image that names no server finds it nevertheless: its stub notes the URL that firmware loaded it from by HTTPS,
//! and the server has the boot files.

use std::fs;

use anyhow::{Context, Result, ensure};
use qemu_tests::{Bench, firmware_trusts, timed};
use xtask::binary::Arch;
use xtask::qemu::{Boot, MachineConfig};

#[test]
fn a_machine_finds_its_server_by_the_url_of_its_boot_image() -> Result<()> {
    timed("a machine finds its server by the URL of its boot image", || {
        let bench = Bench::new()?;
        bench.register()?;
        forget_the_server(&bench)?;
        let uri = format!("{}/boot/{}/slipway.efi", bench.lab.url(), Arch::X86_64.name());
        let config = MachineConfig {
            boot: Boot::NewerUefi { uri: Some(uri.clone()) },
            disks: Vec::new(),
            extra: firmware_trusts(bench.folder(), &bench.lab.operator(&["ca"])?)?,
            ..bench.machine()
        };
        let machine = bench.power_on(&config)?;
        let node = bench.wait_for(&machine, "enrolled", |node| node.inventory.is_some())?;
        assert_eq!(node.inventory.and_then(|inventory| inventory.loaded_from), Some(uri));
        Ok(())
    })
}

/// Makes a comment of the line with the server in the configuration, which is in the image as it is.
fn forget_the_server(bench: &Bench) -> Result<()> {
    let mut image = fs::read(bench.uki())?;
    let line = format!("server: \"{}\"\n", bench.lab.url());
    let line = line.as_bytes();
    let places: Vec<usize> = (0..image.len()).filter(|at| image[*at..].starts_with(line)).collect();
    ensure!(places.len() == 1, "the server is at {places:?} in the boot image");
    *image.get_mut(places[0]).context("the line's first byte")? = b'#';
    fs::write(bench.uki(), image)?;
    Ok(())
}
