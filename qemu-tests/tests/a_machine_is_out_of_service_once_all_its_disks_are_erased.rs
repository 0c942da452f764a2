//! A machine whose disks are all erased by one command, of which one is an NVMe disk that erases itself.

use anyhow::{Context, Result};
use qemu_tests::{Bench, noise, timed};
use slipway_protocol::{Erasure, NodeState, RunState};

const SIZE: usize = 64 << 20;

#[test]
fn a_machine_is_out_of_service_once_all_its_disks_are_erased() -> Result<()> {
    timed("a machine is out of service once all its disks are erased", || {
        let bench = Bench::new()?;
        let nvme = bench.folder().join("nvme");
        for disk in [&nvme, &bench.disk()] {
            std::fs::write(disk, noise(SIZE))?;
        }
        bench.register()?;
        bench.lab.operator(&["node", "decommission", "--yes", "--erase", "m1"])?;
        let mut config = bench.machine();
        let drive = format!("if=none,id=nvme,format=raw,file={}", nvme.display());
        config.extra.extend(["-drive".to_owned(), drive, "-device".to_owned(), "nvme,drive=nvme,serial=S5".to_owned()]);
        let machine = bench.power_on(&config)?;
        let is_over = |state| matches!(state, NodeState::Decommissioned | NodeState::Failed);
        let node = bench.wait_for(&machine, "out of service", |node| is_over(node.state))?;
        assert_eq!(node.state, NodeState::Decommissioned, "{node:#?}");

        let run = node.run.context("the run stays")?;
        assert_eq!(run.state, RunState::Succeeded);
        let mut disks = run.steps[0].outcome.clone().context("an outcome")?.disks;
        disks.sort_by(|one, other| one.path.cmp(&other.path));
        let methods = disks.iter().map(|disk| match &disk.result {
            Erasure::Erased { method, samples: 1.., .. } => method.as_str(),
            Erasure::Erased { .. } | Erasure::Skipped { .. } => "none",
        });
        let [by_itself, by_zeros] = methods.collect::<Vec<_>>()[..] else { panic!("{disks:#?}") };
        assert_eq!(by_itself, "NVMe format, user data erase");
        assert!(by_zeros.contains("zero"), "{by_zeros}");
        for disk in [&nvme, &bench.disk()] {
            assert!(std::fs::read(disk)?.iter().all(|byte| *byte == 0), "{}", disk.display());
        }
        // The machine knocks as an unknown one.
        bench.wait_for(&machine, "waiting", |stranger| stranger.state == NodeState::Held && stranger.id != node.id)?;
        Ok(())
    })
}
