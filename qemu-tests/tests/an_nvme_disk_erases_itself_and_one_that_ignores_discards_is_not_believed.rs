//! Two disks in one machine: an NVMe disk that can format itself, and a virtio disk that accepts discards and ignores
//! them.

use anyhow::{Context, Result};
use qemu_tests::{Bench, noise, step, timed};
use slipway_protocol::{Action, DiskHints, EraseDisk, EraseMode, Erasure, NodeState, NodeStatus};

const SIZE: usize = 64 << 20;

#[test]
fn an_nvme_disk_erases_itself_and_one_that_ignores_discards_is_not_believed() -> Result<()> {
    timed("an NVMe disk erases itself, and one that ignores discards is not believed", || {
        let bench = Bench::new()?;
        let (nvme, deaf) = (bench.folder().join("nvme"), bench.folder().join("deaf"));
        for disk in [&nvme, &deaf] {
            std::fs::write(disk, noise(SIZE))?;
        }
        bench.register()?;
        let erase = |serial: &str, mode, fallback: &[EraseMode]| {
            let disk = DiskHints { serial: serial.parse().ok(), ..DiskHints::default() };
            Action::EraseDisk(EraseDisk { disk, mode, fallback: fallback.to_vec(), ..EraseDisk::default() })
        };
        bench.start_run(&[
            step("nvme", erase("nvme-1", EraseMode::Secure, &[])),
            step("virtio", erase("deaf-1", EraseMode::Secure, &[EraseMode::Discard])),
        ])?;
        let mut config = bench.machine();
        for (device, id, file) in [("nvme", "nvme", &nvme), ("virtio-blk-pci", "deaf", &deaf)] {
            let drive = format!("if=none,id={id},format=raw,discard=ignore,file={}", file.display());
            let device = format!("{device},drive={id},serial={id}-1");
            config.extra.extend(["-drive".to_owned(), drive, "-device".to_owned(), device]);
        }
        let machine = bench.power_on(&config)?;
        let node =
            bench.wait_for(&machine, "done", |node| matches!(node.state, NodeState::Installed | NodeState::Failed))?;
        assert_eq!(node.state, NodeState::Installed, "{node:#?}");

        let (by_itself, _) = result(&node, 0)?;
        assert_eq!(by_itself, "NVMe format, user data erase");
        assert!(std::fs::read(&nvme)?.iter().all(|byte| *byte == 0), "the NVMe disk is erased");

        let (by_discard, warnings) = result(&node, 1)?;
        assert!(
            by_discard.starts_with("every block discarded") && by_discard.contains("head and tail"),
            "{by_discard}"
        );
        assert!(warnings[0].contains("with mode secure: it is not an NVMe, ATA or eMMC disk"), "{warnings:?}");
        assert!(warnings[1].contains("does not read as zeros"), "{warnings:?}");
        let disk = std::fs::read(&deaf)?;
        assert!(disk[..16 << 20].iter().chain(&disk[SIZE - (1 << 20)..]).all(|byte| *byte == 0));
        Ok(())
    })
}

/// Returns how the only disk of a step was erased, and the step's warnings.
fn result(node: &NodeStatus, step: usize) -> Result<(String, Vec<String>)> {
    let steps = &node.run.as_ref().context("a run")?.steps;
    let outcome = steps.get(step).and_then(|step| step.outcome.clone()).context("an outcome")?;
    match &outcome.disks.first().context("a disk")?.result {
        Erasure::Erased { method, samples: 1.., .. } => Ok((method.clone(), outcome.warnings)),
        other => anyhow::bail!("{other:?}"),
    }
}
