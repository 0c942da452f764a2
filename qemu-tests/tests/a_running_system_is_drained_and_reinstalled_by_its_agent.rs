//! A Debian with an agent runs. It is drained, with a unit that hangs; it is rebooted; and it is given a run while it
//! runs, for which it restarts into slipway by itself. Nobody switches the machine.

use anyhow::{Context, Result};
use qemu_tests::{Bench, DISK_SERIAL, LIMIT, step, stream, timed};
use slipway_protocol::{
    Action, Agent, BootReporter, EraseDisk, EraseMode, NodeState, NodeStatus, RunInTarget, RunState, TaskState,
    WriteFile,
};
use xtask::lab::qemu::{Boot, Disk, MachineConfig, create_disk};
use xtask::lab::target_image::System;

const DISK_SIZE: u64 = 4 << 30;
/// The most memory of the agent, in KiB.
const MEMORY_KIB: u64 = 8 << 10;
/// A unit that does not stop before it is killed.
const HANGS: &str = "[Service]\nExecStart=sleep infinity\nExecStop=sleep infinity\nTimeoutStopSec=3600\n\
                     [Install]\nWantedBy=multi-user.target\n";
/// What draining does here, in place of the recipe, which the server alone knows: the same, for one unit.
const DRAIN: &str = include_str!("../../server/src/rules/drain/systemd.sh");
/// Prints the memory of the agent, without what it shares with others.
const MEMORY: &str = "pid=$(systemctl show --property=MainPID --value slipway-report.service); \
                      awk '/^VmRSS/ { print \"memory:\", $2 }' /proc/$pid/status";

#[test]
fn a_running_system_is_drained_and_reinstalled_by_its_agent() -> Result<()> {
    timed("a running system is drained and reinstalled by its agent", || {
        let bench = Bench::new()?;
        bench.register()?;
        let (url, digest) = bench.add_system(System::SystemdBoot)?;
        let unit = WriteFile {
            path: "/etc/systemd/system/hangs.service".to_owned(),
            content: Some(HANGS.to_owned()),
            ..WriteFile::default()
        };
        let command = ["systemctl", "enable", "hangs.service"].map(str::to_owned).to_vec();
        let drain = format!("set -- hangs.service\n{DRAIN}");
        let tasks = [("drain", drain.as_str()), ("memory", MEMORY)];
        let tasks = tasks.map(|(name, command)| (name.to_owned(), command.to_owned())).into();
        let agent = Some(Agent { tasks, ..Agent::default() });
        bench.start_run(&[
            stream("system", &url, digest),
            step("unit", Action::WriteFile(unit)),
            step("enable", Action::RunInTarget(RunInTarget { command, ..RunInTarget::default() })),
            step("agent", Action::BootReporter(BootReporter { agent, ..BootReporter::default() })),
        ])?;
        let disk = bench.folder().join("large-disk");
        create_disk(&disk, DISK_SIZE)?;
        let disks = vec![Disk { path: disk, serial: DISK_SERIAL.to_owned() }];
        let installing = bench.power_on(&MachineConfig { disks: disks.clone(), ..bench.machine() })?;
        let is_over = |node: &NodeStatus| matches!(node.state, NodeState::Booting | NodeState::Failed);
        let node = bench.wait_for(&installing, "installed", is_over)?;
        assert_eq!(node.state, NodeState::Booting, "{node:#?}");
        drop(installing);

        let boot = Boot::Uefi { uri: None };
        // Room for slipway beside the system that it is loaded from.
        let mut machine = bench.power_on(&MachineConfig { boot, disks, memory_mib: 1024, ..bench.machine() })?;
        let node = bench.wait_for(&machine, "heard of", |node| node.agent.is_some())?;
        assert_eq!(node.state, NodeState::Running);
        let before = node.agent.context("an agent")?.boot_id;

        let printed = bench.lab.operator(&["node", "task", "--yes", "m1", "memory"])?;
        let kib: u64 = printed.trim().rsplit(' ').next().unwrap_or_default().parse().context(printed)?;
        println!("the agent has {kib} KiB in memory");
        assert!(kib < MEMORY_KIB, "{kib} KiB");

        let failed = bench.lab.operator(&["node", "drain", "--yes", "--timeout", "5s", "m1"]);
        let failed = format!("{:#}", failed.err().context("a unit hangs")?);
        assert!(failed.contains("could not be drained") && failed.contains("still runs: hangs.service"), "{failed}");
        assert_eq!(bench.status()?[0].state, NodeState::Running);
        bench.lab.operator(&["node", "drain", "--yes", "--force", "--timeout", "5s", "m1"])?;
        assert_eq!(bench.status()?[0].state, NodeState::Draining);
        bench.lab.operator(&["node", "drain", "--undo", "m1"])?;
        assert_eq!(bench.status()?[0].state, NodeState::Running);

        bench.lab.operator(&["node", "reboot", "--yes", "m1"])?;
        let after = bench.status()?.remove(0).agent.context("an agent")?.boot_id;
        assert_ne!(before, after);

        // The machine starts slipway, takes the run, and erases the disk that its system was on.
        let erase = EraseDisk { mode: EraseMode::Metadata, ..EraseDisk::default() };
        bench.start_run(&[step("erase", Action::EraseDisk(erase))])?;
        machine.wait_for_console("slipway", LIMIT)?;
        let is_over = |node: &NodeStatus| {
            node.run.as_ref().is_some_and(|run| matches!(run.state, RunState::Succeeded | RunState::Failed))
        };
        let node = bench.wait_for(&machine, "erased", is_over)?;
        assert_eq!(node.run.as_ref().map(|run| run.state), Some(RunState::Succeeded), "{node:#?}");
        let task = node.task.context("a task")?;
        assert_eq!((task.name.as_str(), task.state), ("boot-slipway", TaskState::Succeeded));
        assert_eq!(node.agent, None);
        Ok(())
    })
}
