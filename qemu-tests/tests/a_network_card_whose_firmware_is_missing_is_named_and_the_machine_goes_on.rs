//! A machine has a second network card whose driver is rare and needs a firmware file. On the server, that part of the
//! pack is damaged. The machine names device, driver, file and reason on the console and in its inventory, and does its
//! work.

use std::fs;

use anyhow::{Context, Result, ensure};
use qemu_tests::{Bench, noise, stream, timed};
use slipway_protocol::node::rare_drivers::{INDEX, PACK, RareDrivers};
use slipway_protocol::{DeviceKind, NodeState};
use xtask::lab::qemu::MachineConfig;

const IMAGE: usize = 8 << 20;
/// Firmware of the card that QEMU emulates, an Intel 82551, revision F.
const FIRMWARE: &str = "e100/d102e_ucode.bin";

#[test]
fn a_network_card_whose_firmware_is_missing_is_named_and_the_machine_goes_on() -> Result<()> {
    timed("a network card whose firmware is missing is named and the machine goes on", || {
        let bench = Bench::with_boot_files(|lab| lab.make_boot_files_for_real_machines())?;
        lose_firmware(&bench)?;
        let mut image = noise(IMAGE);
        image[510..512].copy_from_slice(&[0x55, 0xaa]);
        let (url, digest) = bench.add_image(&image)?;
        bench.register()?;
        bench.start_run(&[stream("write", &url, digest)])?;
        let extra = "-netdev user,id=second -device i82551,netdev=second,romfile=";
        let extra = extra.split(' ').map(str::to_owned).collect();
        let config = MachineConfig { extra, ..bench.machine() };
        let machine = bench.power_on(&config)?;
        let node =
            bench.wait_for(&machine, "done", |node| matches!(node.state, NodeState::Installed | NodeState::Failed))?;

        let console = machine.console()?;
        ensure!(node.state == NodeState::Installed, "{node:#?}\n{console}");
        assert!(fs::read(bench.disk())?[..IMAGE] == image, "the disk is not the image");
        let said = console.lines().find(|line| line.contains(&format!("firmware {FIRMWARE} of its driver e100: ")));
        let said = said.with_context(|| format!("the lost firmware is not on the console:\n{console}"))?;
        ensure!(said.contains("network card 8086:1209 at ") && said.contains("its digest differs"), "{said}");
        let lacks = format!(": driver e100 lacks firmware {FIRMWARE}: ");
        assert!(console.contains(&lacks), "no {lacks:?} on the console:\n{console}");
        let unserved = node.inventory.context("an inventory")?.unserved;
        let [card] = &unserved[..] else {
            anyhow::bail!("not one device that does not work: {unserved:#?}\n{console}")
        };
        assert_eq!((card.kind, card.vendor.as_str(), card.device.as_str()), (DeviceKind::Network, "8086", "1209"));
        assert_eq!((card.driver.as_deref(), &card.missing_firmware[..]), (Some("e100"), &[FIRMWARE.to_owned()][..]));
        Ok(())
    })
}

/// Overwrites the firmware in the pack.
fn lose_firmware(bench: &Bench) -> Result<()> {
    let folder = bench.lab.boot_folder().join("x86_64");
    let index: RareDrivers = serde_json::from_slice(&fs::read(folder.join(INDEX))?)?;
    let piece = index.firmware.get(FIRMWARE).context("the pack has no such firmware")?;
    let mut pack = fs::read(folder.join(PACK))?;
    let (start, size) = (usize::try_from(piece.offset)?, usize::try_from(piece.size)?);
    pack.get_mut(start..start + size).context("a piece in the pack")?.fill(0);
    Ok(fs::write(folder.join(PACK), pack)?)
}
