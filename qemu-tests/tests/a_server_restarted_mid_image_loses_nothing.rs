//! The server, which serves the image and receives the reports, is killed while a machine installs, and started again.

use anyhow::{Context, Result};
use qemu_tests::{Bench, LIMIT, noise, progress, stream, timed};
use slipway_protocol::{NodeState, StepState};

#[test]
fn a_server_restarted_mid_image_loses_nothing() -> Result<()> {
    timed("a server restarted mid-image loses nothing", || {
        let mut bench = Bench::new()?;
        let image = noise(96 << 20);
        let (url, digest) = bench.add_image(&image)?;
        bench.register()?;
        bench.start_run(&[stream("write", &url, digest)])?;
        let mut machine = bench.power_on(&bench.machine())?;
        // Keeps the machine from finishing before the server is gone.
        machine.limit_disk(0, 4 << 20)?;
        bench.wait_for(&machine, "in the middle of the image", |node| {
            progress(node, 0).is_some_and(|bytes| bytes > 0)
        })?;
        bench.lab.kill_server()?;
        machine.limit_disk(0, 0)?;
        let last = progress(&bench.status()?[0], 0).context("progress")?;
        assert!(last < image.len() as u64, "the image was written before the server was gone");
        machine.wait_for_console("fetching again from byte", LIMIT)?;
        bench.lab.start_server()?;

        let node = bench.wait_for(&machine, "installed", |node| node.state == NodeState::Installed)?;
        let step = node.run.context("a run")?.steps.remove(0);
        assert_eq!((step.state, step.attempt), (StepState::Succeeded, 1), "{step:#?}");
        assert!(step.notes.iter().any(|note| note.starts_with("fetching again from byte")), "{step:#?}");
        assert!(std::fs::read(bench.disk())?.starts_with(&image));
        Ok(())
    })
}
