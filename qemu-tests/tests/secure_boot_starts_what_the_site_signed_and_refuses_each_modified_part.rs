//! Firmware with the site's keys tries boot images one after the other. It refuses each for one reason, and starts the
//! last, which is unchanged.

use std::path::Path;

use anyhow::{Context, Result};
use qemu_tests::secure_boot::{changed, machine, stick, unsigned};
use qemu_tests::{Bench, LIMIT, timed};
use slipway_parts::Arch;
use xtask::lab::qemu::MachineConfig;
use xtask::lab::qemu::firmware::{self, GLOBAL, Variable};

/// Slot of the first disk on the PCI bus. The others follow.
const FIRST_SLOT: usize = 0x10;

/// A kernel argument that a loader, or somebody at the firmware's menu, tries to add.
const UNWANTED: &str = "init=/bin/sh";
/// The firmware's entry for the last program, and the program's path.
const ENTRY: &str = "Boot0077";
const PROGRAM: &str = "\\FILLER";

#[test]
fn secure_boot_starts_what_the_site_signed_and_refuses_each_modified_part() -> Result<()> {
    timed("Secure Boot starts what the site signed, and refuses each modified part", || {
        let (mut by_old_key, mut retired) = (Vec::new(), Vec::new());
        let bench = Bench::with_boot_files(|lab| {
            lab.operator(&["keys", "init"])?;
            by_old_key = std::fs::read(lab.make_boot_files()?.uki)?;
            lab.operator(&["keys", "rotate"])?;
            lab.operator(&["keys", "rotate", "--finish"])?;
            // This program differs from the later one, because its configuration has the CA twice.
            let files = lab.make_boot_files_with_ca(lab.operator(&["ca"])?.repeat(2))?;
            lab.operator(&["keys", "revoke", files.uki.to_str().context("a path in UTF-8")?])?;
            retired = std::fs::read(files.uki)?;
            lab.make_boot_files()
        })?;
        bench.register()?;
        let signed = std::fs::read(bench.uki())?;
        let refused = [
            ("unsigned", unsigned(&signed)?),
            ("stub", changed(&signed, ".text")?),
            ("kernel", changed(&signed, ".linux")?),
            ("initramfs", changed(&signed, ".initrd")?),
            ("command-line", changed(&signed, ".cmdline")?),
            ("by-old-key", by_old_key),
            ("retired", retired),
        ];
        let mut config = MachineConfig { extra: Vec::new(), ..machine(&bench) };
        for (index, (name, program)) in refused.iter().enumerate() {
            add_disk(&mut config, index, &stick(bench.folder(), name, program, &[])?);
        }
        // The unchanged program, where firmware looks only because its entry says so. This firmware tries the entry
        // when it comes to the disk that has the entry's file.
        let last = stick(bench.folder(), "last", &refused[0].1, &signed)?;
        add_disk(&mut config, refused.len(), &last);

        let keys = bench.folder().join("keys");
        let keys_path = keys.to_str().context("a path in UTF-8")?;
        bench.lab.operator(&["keys", "export", keys_path])?;
        let folder = bench.folder().join("machine");
        std::fs::create_dir_all(&folder)?;
        firmware::variables(&folder.join("vars.fd"), Arch::X86_64, firmware::Release::Host, None)?;
        let mut variables = firmware::exported_keys(&keys)?;
        variables.extend(entry());
        firmware::set(&folder.join("vars.fd"), &variables)?;

        let mut running = bench.power_on(&config)?;
        for (index, (name, _)) in refused.iter().enumerate() {
            let place = format!("Pci(0x{:X},0x0): Access Denied", FIRST_SLOT + index);
            running.wait_for_line(&place, LIMIT).with_context(|| format!("offering {name}"))?;
        }
        running.wait_for_line(&format!("starting {ENTRY}"), LIMIT)?;
        let command_line = running.wait_for_line("Command line: ", LIMIT)?;
        assert!(!command_line.contains(UNWANTED), "the firmware's entry adds to it: {command_line}");
        let is_on = |firmware: &slipway_protocol::Firmware| firmware.secure_boot == Some(true);
        let node = bench.wait_for(&running, "on", |node| {
            node.inventory.as_ref().is_some_and(|inventory| is_on(&inventory.firmware))
        })?;
        let key = node.inventory.and_then(|inventory| inventory.firmware.platform_key).context("a platform key")?;
        assert!(bench.lab.operator(&["keys", "show"])?.contains(&key), "{key}");
        Ok(())
    })
}

/// Makes the firmware's entry for the last program, with arguments that are not signed, after the entries tried for the
/// disks (UEFI specification 2.10, 3.1.3, "Load Options").
fn entry() -> [Variable; 2] {
    let text = |text: &str| text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let file = text(PROGRAM);
    // The path of a file on any disk (10.3.5.4), and the end of the device path.
    let path = [&[4, 4][..], &(file.len() as u16 + 4).to_le_bytes(), &file, &[0x7f, 0xff, 4, 0]].concat();
    let content =
        [&1_u32.to_le_bytes()[..], &(path.len() as u16).to_le_bytes(), &text("signed"), &path, &text(UNWANTED)];
    let variable = |name, content| Variable { name, vendor: GLOBAL, attributes: 7, content };
    let number = u16::from_str_radix(ENTRY.trim_start_matches("Boot"), 16).unwrap_or_default();
    [variable(ENTRY, content.concat()), variable("BootOrder", number.to_le_bytes().to_vec())]
}

/// Adds a disk. Firmware tries the disks in the order in which they are added.
fn add_disk(config: &mut MachineConfig, index: usize, image: &Path) {
    let drive = format!("if=none,id=try{index},format=raw,readonly=on,file={}", image.display());
    let device = format!("virtio-blk-pci,drive=try{index},bootindex={index},addr=0x{:x}", FIRST_SLOT + index);
    config.extra.extend(["-drive".to_owned(), drive, "-device".to_owned(), device]);
}
