//! A machine's disk becomes an image on the server, which is killed meanwhile. Then the disk is erased and the image is
//! written back.

use anyhow::{Context, Result};
use qemu_tests::{Bench, LIMIT, noise, progress, step, timed};
use slipway_protocol::{
    Action, CaptureDisk, EraseDisk, NodeState, NodeStatus, RunState, StepState, StreamImage, Verify,
};

const NAME: &str = "m1.raw.zst";

#[test]
fn a_captured_disk_is_written_again_as_it_was() -> Result<()> {
    timed("a captured disk is written again as it was", || {
        let mut bench = Bench::new()?;
        let mut disk = noise(96 << 20);
        disk.resize(usize::try_from(std::fs::metadata(bench.disk())?.len())?, 0);
        std::fs::write(bench.disk(), &disk)?;
        bench.register()?;
        let capture = CaptureDisk { name: NAME.to_owned(), ..CaptureDisk::default() };
        bench.start_run(&[step("capture", Action::CaptureDisk(capture))])?;

        let mut machine = bench.power_on(&bench.machine())?;
        // Keeps the machine from finishing before the server is gone.
        machine.limit_disk(0, 4 << 20)?;
        bench
            .wait_for(&machine, "in the middle of the disk", |node| progress(node, 0).is_some_and(|bytes| bytes > 0))?;
        bench.lab.kill_server()?;
        machine.limit_disk(0, 0)?;
        let last = progress(&bench.status()?[0], 0).context("progress")?;
        assert!(last < 96 << 20, "the disk was stored before the server was gone");
        machine.wait_for_console("and continues", LIMIT)?;
        bench.lab.start_server()?;
        let node = bench.wait_for(&machine, "captured", has_ended)?;
        assert_eq!(node.state, NodeState::Installed, "{node:#?}");
        let step_of_run = node.run.context("a run")?.steps.remove(0);
        assert_eq!((step_of_run.state, step_of_run.attempt), (StepState::Succeeded, 1), "{step_of_run:#?}");
        assert!(std::fs::read(bench.disk())? == disk, "the disk was written to");
        let image = step_of_run.outcome.and_then(|outcome| outcome.image).context("an image in the outcome")?;
        assert_eq!((image.name.as_str(), image.raw_size), (NAME, disk.len() as u64));

        let write = StreamImage {
            url: format!("{}/images/{}", bench.lab.url(), image.digest),
            digest: Some(image.digest),
            raw_digest: Some(image.raw_digest),
            raw_size: Some(image.raw_size),
            verify: Verify::Readback,
            ..StreamImage::default()
        };
        let first = node_run(&bench)?;
        bench.start_run(&[
            step("erase", Action::EraseDisk(EraseDisk::default())),
            step("write", Action::StreamImage(write)),
        ])?;
        let is_second = |node: &NodeStatus| node.run.as_ref().is_some_and(|run| run.id != first);
        let node = bench.wait_for(&machine, "installed", |node| is_second(node) && has_ended(node))?;
        assert_eq!(node.state, NodeState::Installed, "{node:#?}");
        assert!(std::fs::read(bench.disk())? == disk, "the disk is another than the one that was captured");
        Ok(())
    })
}

fn has_ended(node: &NodeStatus) -> bool {
    node.run.as_ref().is_some_and(|run| matches!(run.state, RunState::Succeeded | RunState::Failed))
}

/// Returns the id of the newest run of the only node.
fn node_run(bench: &Bench) -> Result<String> {
    Ok(bench.status()?.remove(0).run.context("a run")?.id)
}
