//! A boot image that names no server finds its server nevertheless: the image's stub notes the URL from which firmware
//! loaded it by HTTPS, and the server there has the boot files.

use std::fs;

use anyhow::{Context, Result, ensure};
use qemu_tests::{Bench, firmware_trusts, timed};
use slipway_parts::{Arch, sha256};
use xtask::lab::qemu::{Boot, MachineConfig};

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

/// Makes a comment of the configuration's line with the server, and puts the digest of the changed configuration into
/// the manifest, where the machine looks. The image has both uncompressed.
fn forget_the_server(bench: &Bench) -> Result<()> {
    let mut image = fs::read(bench.uki())?;
    let server = only(&image, format!("server: \"{}\"\n", bench.lab.url()).as_bytes())?;
    let key = b"\"config_sha256\":\"";
    let at = only(&image, key)? + key.len();
    let digest = at..at + 64;
    // The configuration begins with the certificates, because its keys are sorted.
    let start = image[..server].windows(6).rposition(|bytes| bytes == b"ca: |\n").context("no CA before the server")?;
    let is_end = |end: &usize| {
        let config = &image[start..*end];
        config.ends_with(b"\n") && sha256(config).as_bytes() == &image[digest.clone()]
    };
    let end = (server..image.len()).find(is_end).context("the configuration has another digest")?;
    image[server] = b'#';
    let new = sha256(&image[start..end]);
    image[digest].copy_from_slice(new.as_bytes());
    fs::write(bench.uki(), image)?;
    Ok(())
}

/// Returns the position of these bytes, which must occur once.
fn only(image: &[u8], bytes: &[u8]) -> Result<usize> {
    let places: Vec<usize> = (0..image.len()).filter(|at| image[*at..].starts_with(bytes)).collect();
    ensure!(places.len() == 1, "{:?} is at {places:?} in the boot image", String::from_utf8_lossy(bytes));
    Ok(places[0])
}
