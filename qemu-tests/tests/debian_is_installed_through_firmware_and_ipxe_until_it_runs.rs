//! The demo: from power-on through UEFI firmware and iPXE to the installed system's report that it runs.

use anyhow::{Context, Result};
use qemu_tests::timed;
use slipway_protocol::{NodeState, RunState, StepState};
use xtask::lab::demo::{Demo, KERNEL_ARGUMENT};

#[test]
fn debian_is_installed_through_firmware_and_ipxe_until_it_runs() -> Result<()> {
    timed("Debian is installed through firmware and iPXE until it runs", || {
        let folder = tempfile::tempdir()?;
        let demo = Demo::prepare(&folder.path().join("demo"), false, &|_| ())?;
        let mut machine = demo.power_on()?;
        let node = demo.watch(&mut machine, |_| ())?;

        assert_eq!(node.state, NodeState::Running, "{node:#?}\n{}", machine.console()?);
        assert!(node.inventory.context("an inventory")?.firmware.uefi);
        let run = node.run.context("a run")?;
        assert_eq!(run.state, RunState::Succeeded);
        let actions: Vec<_> = run.steps.iter().map(|step| step.action.as_str()).collect();
        let expect = ["erase-disk", "stream-image", "seed-cloud-init", "kernel-args", "efi-boot-order", "reboot"];
        assert_eq!(actions, expect);
        assert!(run.steps.iter().all(|step| step.state == StepState::Succeeded && step.attempt == 1), "{run:#?}");
        // The image is smaller than the disk. slipway grows its root file system before any other change.
        let written = &run.steps[1].outcome.as_ref().context("an outcome of stream-image")?.summary;
        assert!(written.contains("with its ext4"), "{written}");
        assert_eq!(run.phone_home.get("hostname").map(String::as_str), Some("demo"));
        assert!(run.phone_home.values().any(|key| key.starts_with("ssh-ed25519 ")), "{:?}", run.phone_home);

        let console = machine.console()?;
        let installed = console.rsplit("Linux version").next().context("a second kernel")?;
        // The firmware tries the network first, until slipway tells it to start from the disk the next time.
        assert_eq!(console.matches("iPXE initialising devices").count(), 1, "the network was started from twice");
        assert!(installed.contains(KERNEL_ARGUMENT), "{installed}");
        Ok(())
    })
}
