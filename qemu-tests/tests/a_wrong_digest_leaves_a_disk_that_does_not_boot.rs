//! A bootable image arrives, but its digest differs from the one in the workflow.

use std::path::Path;

use anyhow::{Context, Result};
use qemu_tests::{Bench, LIMIT, bootable_image, has_empty_head, step, stream, timed};
use slipway_protocol::{Action, NodeState, Reboot, StepState};
use xtask::lab::qemu::firmware;

/// The greeting of the boot loader on the image.
const GREETING: &str = "iPXE initialising devices";

#[test]
fn a_wrong_digest_leaves_a_disk_that_does_not_boot() -> Result<()> {
    timed("a wrong digest leaves a disk that does not boot", || {
        let bench = Bench::new()?;
        let image = bootable_image(bench.folder(), Path::new(firmware::IPXE))?;
        bench.power_on(&bench.machine_with_firmware(&image))?.wait_for_console(GREETING, LIMIT)?;

        let (url, _) = bench.add_image(&std::fs::read(&image)?)?;
        bench.register()?;
        // A SHA-512, because the server knows the right SHA-256 and would refuse the run.
        let wrong = format!("sha512:{}", "0".repeat(128)).parse()?;
        bench.start_run(&[stream("write", &url, wrong), step("leave", Action::Reboot(Reboot {}))])?;
        let mut machine = bench.power_on(&bench.machine())?;
        let status = bench.wait_for(&machine, "failed", |node| node.state == NodeState::Failed)?;
        let run = status.run.context("a run")?;
        let failure = run.steps[0].failure.as_ref().context("a failure")?;
        assert!(failure.reason.starts_with("checking the digest"), "{failure:?}");
        assert!(failure.log_tail.iter().any(|line| line.contains("step 1/2 write: started")), "{failure:?}");
        assert_eq!(run.steps[1].state, StepState::Skipped);
        machine.wait_for_console("the machine stays up and waits for another run", LIMIT)?;
        drop(machine);

        assert!(has_empty_head(&bench.disk())?);
        let mut machine = bench.power_on(&bench.machine_with_firmware(&bench.disk()))?;
        // The firmware starts its shell after everything else failed.
        machine.wait_for_console("UEFI Interactive Shell", LIMIT)?;
        assert_eq!(machine.console()?.matches(GREETING).count(), 1, "only the untouched image boots");
        Ok(())
    })
}
