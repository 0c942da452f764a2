//! Loaders other than UEFI firmware do not say where they found slipway. The kernel's command line or the medium's
//! label identifies it.

use std::path::PathBuf;

use anyhow::{Context, Result};
use qemu_tests::{Bench, DISK_SERIAL, noise, step, timed};
use slipway_protocol::{Action, DiskHints, EraseDisk, NodeState, StepState};
use xtask::host::command::{command, run_quietly};
use xtask::lab::qemu::{Boot, Disk, create_disk};

const SIZE: u64 = 64 << 20;

#[test]
fn a_medium_that_is_told_of_or_labelled_is_never_erased() -> Result<()> {
    timed("a medium that is told of or labelled is never erased", || {
        let bench = Bench::new()?;
        std::fs::write(bench.disk(), noise(usize::try_from(SIZE)?))?;
        let labelled = medium(&bench, "labelled", "SLIPWAY", "11111111")?;
        let told = medium(&bench, "told", "STICK", "22222222")?;
        let before = [std::fs::read(&labelled)?, std::fs::read(&told)?];
        bench.register()?;
        let by_serial = DiskHints { serial: "told".parse().ok(), ..DiskHints::default() };
        bench.start_run(&[
            step("the only disk", Action::EraseDisk(EraseDisk::default())),
            step("the medium", Action::EraseDisk(EraseDisk { disk: by_serial, ..EraseDisk::default() })),
        ])?;

        let mut config = bench.machine();
        for (path, serial) in [(&labelled, "labelled"), (&told, "told")] {
            config.disks.push(Disk { path: path.clone(), serial: serial.to_owned() });
        }
        let Boot::Kernel { cmdline, .. } = &mut config.boot else { anyhow::bail!("the machine boots a kernel") };
        cmdline.push_str(" slipway.boot_medium=UUID=2222-2222");
        let machine = bench.power_on(&config)?;
        let node = bench.wait_for(&machine, "failed", |node| node.state == NodeState::Failed)?;

        let steps = node.run.context("a run")?.steps;
        assert_eq!(steps[0].state, StepState::Succeeded, "{:#?}", steps[0]);
        assert!(steps[0].notes[0].contains(DISK_SERIAL), "{:?}", steps[0].notes);
        let StepState::Failed = steps[1].state else { anyhow::bail!("the medium was erased: {:#?}", steps[1]) };
        let failure = steps[1].failure.clone().context("a reason")?;
        let told_why = format!("{} {}", failure.reason, failure.causes.join(" "));
        assert!(told_why.contains("slipway booted from it"), "{told_why}");
        assert!(std::fs::read(bench.disk())?[..1 << 20].iter().all(|byte| *byte == 0));
        assert!(before == [std::fs::read(&labelled)?, std::fs::read(&told)?], "a medium was written to");
        Ok(())
    })
}

/// Makes a stick without a partition table. Its FAT file system has this label and volume serial number.
fn medium(bench: &Bench, name: &str, label: &str, serial: &str) -> Result<PathBuf> {
    let path = bench.folder().join(name);
    create_disk(&path, SIZE)?;
    run_quietly(command("mkfs.vfat", ["-n", label, "-i", serial]).arg(&path))?;
    Ok(path)
}
