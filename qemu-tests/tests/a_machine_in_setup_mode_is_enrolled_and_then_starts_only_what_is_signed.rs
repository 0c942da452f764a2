//! A machine whose firmware has no keys is started from a stick, is given the site's keys by a run, and restarts into
//! firmware that enforces them.

use std::path::Path;

use anyhow::{Context, Result};
use qemu_tests::secure_boot::{machine, stick, unsigned};
use qemu_tests::{Bench, LIMIT, step, timed};
use slipway_protocol::{Action, EnrolSecureBoot, NodeStatus, RunState};
use xtask::lab::qemu::MachineConfig;

#[test]
fn a_machine_in_setup_mode_is_enrolled_and_then_starts_only_what_is_signed() -> Result<()> {
    timed("a machine in Setup Mode is enrolled, and then starts only what is signed", || {
        let bench = Bench::with_boot_files(|lab| {
            lab.operator(&["keys", "init"])?;
            lab.make_boot_files()
        })?;
        bench.register()?;
        bench.lab.operator(&["run", "start", "m1", "--secure-boot"])?;
        let program = std::fs::read(bench.uki())?;
        let signed = from_stick(&bench, &stick(bench.folder(), "signed", &program, &[])?);
        let unsigned = from_stick(&bench, &stick(bench.folder(), "unsigned", &unsigned(&program)?, &[])?);

        let mut running = bench.power_on(&signed)?;
        let enrolled = bench.wait_for(&running, "enrolled", |node| is_over(node) && node.run.is_some())?;
        let run = enrolled.run.as_ref().context("a run")?;
        assert_eq!(run.state, RunState::Succeeded, "{run:#?}");
        let outcome = run.steps[0].outcome.as_ref().context("an outcome")?;
        assert!(outcome.summary.starts_with("wrote db, KEK and PK; from its next start on"), "{outcome:#?}");
        let state = |node: &NodeStatus| node.inventory.as_ref().map(|inventory| inventory.firmware.clone());
        let before = state(&enrolled).context("an inventory")?;
        assert_eq!((before.secure_boot, before.setup_mode, before.platform_key), (Some(false), Some(true), None));

        // From the same stick, a run enrols the same keys again, which is allowed.
        bench.start_run(&[step("again", Action::EnrolSecureBoot(EnrolSecureBoot::default()))])?;
        running.wait_for_line("secureboot: Secure boot enabled", LIMIT)?;
        let again = bench.wait_for(&running, "on", |node| is_over(node) && state(node) != state(&enrolled))?;
        let run = again.run.as_ref().context("a run")?;
        let outcome = run.steps[0].outcome.as_ref().with_context(|| format!("an outcome: {run:#?}"))?;
        assert!(outcome.summary.starts_with("nothing to write; there already: db, KEK and PK;"), "{outcome:#?}");
        let after = state(&again).context("an inventory")?;
        assert_eq!((after.secure_boot, after.setup_mode), (Some(true), Some(false)));
        let shown = bench.lab.operator(&["status", "m1"])?;
        assert!(shown.contains("Secure Boot: on, with this site's keys"), "{shown}");
        assert!(running.console()?.contains("Kernel is locked down from EFI Secure Boot"));
        drop(running);

        bench.power_on(&unsigned)?.wait_for_line("Access Denied", LIMIT).map(drop)
    })
}

fn is_over(node: &NodeStatus) -> bool {
    node.run.as_ref().is_some_and(|run| matches!(run.state, RunState::Succeeded | RunState::Failed))
}

/// Configures the machine with a USB stick.
fn from_stick(bench: &Bench, stick: &Path) -> MachineConfig {
    let drive = format!("if=none,id=stick,format=raw,readonly=on,file={}", stick.display());
    let extra = ["-device", "qemu-xhci", "-device", "usb-storage,drive=stick,bootindex=0", "-drive", &drive];
    MachineConfig { extra: extra.map(str::to_owned).to_vec(), ..machine(bench) }
}
