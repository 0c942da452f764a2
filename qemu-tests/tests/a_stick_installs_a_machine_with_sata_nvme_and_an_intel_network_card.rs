//! A technician boots the image for real machines from a USB stick. The machine has typical server hardware: a SATA
//! disk on AHCI, an NVMe disk, and an Intel network card.

use anyhow::Result;
use qemu_tests::{Bench, noise, step, timed};
use slipway_protocol::{Action, Digest, DiskHints, NodeState, NodeStatus, StreamImage};
use xtask::build::kernel;
use xtask::lab::qemu::{Boot, MachineConfig, create_disk};

const IMAGE: usize = 24 << 20;
const DISK: u64 = 64 << 20;

#[test]
fn a_stick_installs_a_machine_with_sata_nvme_and_an_intel_network_card() -> Result<()> {
    timed("a stick installs a machine with SATA, NVMe and an Intel network card", || {
        let bench = Bench::new()?;
        let stick = bench.lab.make_medium("stick", kernel::GENERIC)?;
        let [sata, nvme] = ["sata", "nvme"].map(|name| bench.folder().join(name));
        for disk in [&sata, &nvme] {
            create_disk(disk, DISK)?;
        }
        let mut image = noise(IMAGE);
        image[510..512].copy_from_slice(&[0x55, 0xaa]);
        let (url, digest): (String, Digest) = bench.add_image(&image)?;
        bench.register()?;
        let disk = DiskHints { serial: Some("nvme-1".parse()?), ..DiskHints::default() };
        let stream = StreamImage { url, digest: Some(digest), disk, ..StreamImage::default() };
        bench.start_run(&[step("write", Action::StreamImage(stream))])?;

        let drive = |id: &str, path: &std::path::Path| format!("if=none,id={id},format=raw,file={}", path.display());
        let extra = [
            "-device qemu-xhci -device usb-storage,drive=stick,bootindex=0 -device \
             ide-hd,drive=sata,bus=ide.0,serial=sata-1",
            "-device nvme,drive=nvme,serial=nvme-1 -netdev user,id=lan -device e1000e,netdev=lan,romfile=",
        ];
        let mut extra: Vec<String> = extra.join(" ").split(' ').map(str::to_owned).collect();
        for (id, path) in [("stick", &stick), ("sata", &sata), ("nvme", &nvme)] {
            extra.extend(["-drive".to_owned(), drive(id, path)]);
        }
        let (disks, nics) = (Vec::new(), Vec::new());
        let config = MachineConfig { boot: Boot::Uefi { uri: None }, disks, nics, extra, ..bench.machine() };
        let machine = bench.power_on(&config)?;
        let node =
            bench.wait_for(&machine, "done", |node| matches!(node.state, NodeState::Installed | NodeState::Failed))?;

        assert_eq!(node.state, NodeState::Installed, "{node:#?}");
        // The step names its disk, so the machine does not wait for the others, and tells of them when they are there.
        let has_all = |node: &NodeStatus| node.inventory.as_ref().is_some_and(|known| known.disks.len() == 3);
        bench.wait_for(&machine, "the SATA disk, the NVMe disk and the stick", has_all)?;
        assert!(std::fs::read(&nvme)?[..IMAGE] == image, "the image is not on the NVMe disk");
        assert!(std::fs::read(&sata)?.iter().all(|byte| *byte == 0), "the SATA disk was written to");
        Ok(())
    })
}
