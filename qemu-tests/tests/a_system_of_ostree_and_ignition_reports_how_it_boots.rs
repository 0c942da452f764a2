//! A Debian that is an OSTree deployment reports how it boots. First, Ignition installs the reporter, which fetches the
//! program from the server, runs it and names a failed unit. Later, the reporter is in the files of the deployment. It
//! reports from the emergency shell which file system is missing, and once that is there, that the system runs.

use std::fs::File;

use anyhow::{Context, Result};
use qemu_tests::{Bench, DISK_SERIAL, LIMIT, step, stream, timed};
use serde_json::json;
use slipway_protocol::node::boot_report::MAINTENANCE;
use slipway_protocol::{
    Action, BootReport, BootReporter, BootStage, NodeState, NodeStatus, SeedCloudInit, SeedPlace, Step,
};
use xtask::host::command::{command, run_quietly};
use xtask::lab::qemu::{Boot, Disk, Machine, MachineConfig, create_disk};
use xtask::lab::target_image::System;

const DISK_SIZE: u64 = 4 << 30;
/// Program of a unit that fails in each boot.
const BROKEN: &str = "/bin/false";
/// Waits until nothing of the reporter is left, makes later boots wait for a file system, and says so on the console.
const LATER: &str = "/bin/sh -ec 'while [ -e /var/lib/slipway ]; do sleep 1; done; \
                     echo LABEL=data /var/data ext4 x-systemd.device-timeout=40 >/etc/fstab; sync; \
                     echo told: of the reporter $(ls /etc/systemd/system | grep -c slipway) files are left \
                     >/dev/ttyS0'";

#[test]
fn a_system_of_ostree_and_ignition_reports_how_it_boots() -> Result<()> {
    timed("a system of OSTree and Ignition reports how it boots", || {
        let bench = Bench::new()?;
        bench.register()?;
        let path = bench.folder().join("large-disk");
        create_disk(&path, DISK_SIZE)?;
        let system = Disk { path, serial: DISK_SERIAL.to_owned() };

        let (url, digest) = bench.add_system(System::Ostree)?;
        install(&bench, &system, &[stream("system", &url, digest), step("seed", seed()), reporter()])?;
        let mut machine = start(&bench, &[&system])?;
        let node = bench.wait_for(&machine, "running", |node| node.state == NodeState::Running)?;
        let known = report(&node).context("a report")?;
        assert_eq!((known.stage, known.system_state.as_deref()), (BootStage::Running, Some("degraded")));
        assert_eq!(known.failed_units, ["broken.service"]);
        machine.wait_for_console("told: of the reporter 0 files are left", LIMIT)?;
        let log = bench.lab.operator(&["node", "log", "m1", "--type", "host_boot"])?;
        assert!(log.contains("/ostree/deploy/debian/") && log.contains("broken.service"), "{log}");
        drop(machine);

        // Ignition does not run again in a system that has booted.
        install(&bench, &system, &[reporter()])?;
        let machine = start(&bench, &[&system])?;
        let is_shell = |known: &&BootReport| known.system_state.as_deref() == Some(MAINTENANCE);
        let node = bench.wait_for(&machine, "in a shell", |node| report(node).filter(is_shell).is_some())?;
        let known = report(&node).context("a report")?;
        assert_eq!((node.state, known.stage), (NodeState::Booting, BootStage::Booting));
        for unit in ["dev-disk-by\\x2dlabel-data.device", "var-data.mount", "local-fs.target"] {
            assert!(known.failed_units.iter().any(|failed| failed == unit), "{known:?}");
        }
        drop(machine);

        let path = bench.folder().join("data");
        File::create(&path)?.set_len(16 << 20)?;
        run_quietly(command("mkfs.ext4", ["-q", "-L", "data"]).arg(&path))?;
        let data = Disk { path, serial: "data".to_owned() };
        let mut machine = start(&bench, &[&system, &data])?;
        let node = bench.wait_for(&machine, "running", |node| node.state == NodeState::Running)?;
        let boot = node.run.as_ref().and_then(|run| run.boot.as_ref()).context("a boot that was reported")?;
        assert_eq!((boot.report.stage, boot.boots), (BootStage::Running, 2));
        assert_eq!(boot.report.failed_units, ["broken.service"]);
        machine.wait_for_console("told: of the reporter 0 files are left", LIMIT)?;
        Ok(())
    })
}

/// Makes a seed: an Ignition config that enables two units.
fn seed() -> Action {
    let unit = |name: &str, start: &str| {
        let contents = format!("[Service]\nExecStart={start}\n[Install]\nWantedBy=multi-user.target\n");
        json!({"name": name, "enabled": true, "contents": contents})
    };
    let units = [unit("broken.service", BROKEN), unit("later.service", LATER)];
    let config = json!({"ignition": {"version": "3.0.0"}, "systemd": {"units": units}});
    Action::SeedCloudInit(SeedCloudInit {
        seed: SeedPlace::Ignition,
        user_data: config.to_string(),
        ..SeedCloudInit::default()
    })
}

fn reporter() -> Step {
    step("report", Action::BootReporter(BootReporter { optional: false, ..BootReporter::default() }))
}

/// Boots slipway on the machine and runs these steps.
fn install(bench: &Bench, disk: &Disk, steps: &[Step]) -> Result<()> {
    bench.start_run(steps)?;
    let machine = bench.power_on(&MachineConfig { disks: vec![disk.clone()], ..bench.machine() })?;
    let is_over = |node: &NodeStatus| matches!(node.state, NodeState::Booting | NodeState::Failed);
    let node = bench.wait_for(&machine, "installed", is_over)?;
    assert_eq!(node.state, NodeState::Booting, "{node:#?}\n{}", machine.console()?);
    Ok(())
}

/// Starts the installed system.
fn start(bench: &Bench, disks: &[&Disk]) -> Result<Machine> {
    let disks = disks.iter().map(|disk| (*disk).clone()).collect();
    let boot = Boot::Uefi { uri: None };
    bench.power_on(&MachineConfig { boot, disks, memory_mib: 1024, ..bench.machine() })
}

/// Returns the newest boot report of the system.
fn report(node: &NodeStatus) -> Option<&BootReport> {
    Some(&node.run.as_ref()?.boot.as_ref()?.report)
}
