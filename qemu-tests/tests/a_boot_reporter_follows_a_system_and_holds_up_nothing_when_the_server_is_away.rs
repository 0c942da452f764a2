//! A Debian is installed with a boot reporter. It boots while the server is away and with a full disk. Nothing waits
//! for the reporter or fails because of it, even when it crashes. Once the server is back, it gets the report, and
//! nothing of the reporter stays on the disk.

use anyhow::{Context, Result};
use qemu_tests::{Bench, DISK_SERIAL, LIMIT, step, stream, timed};
use slipway_protocol::{Action, BootReporter, BootStage, NodeState, RunInTarget, WriteFile};
use xtask::lab::qemu::{Boot, Disk, MachineConfig, create_disk};
use xtask::lab::target_image::System;

const DISK_SIZE: u64 = 4 << 30;
/// Prints on the console how the boot went, and when the reporter is gone.
const TELL: &str = r#"
state=$(systemctl is-system-running --wait)
exec >/dev/console 2>&1
echo "told: the reporter is $(systemctl show --property=ActiveState --value slipway-report.service), the system $state"
echo "told: $(systemctl --failed --plain --no-legend | grep -c slipway) failed units are ours"
echo "told: we are $(systemd-analyze critical-chain | grep -c slipway) times in the critical chain"
head -c 1M /dev/zero >/more || echo "told: the disk is full"
systemctl kill --signal=ABRT slipway-report.service
while [ "$(systemctl show --property=NRestarts --value slipway-report.service)" = 0 ]; do sleep 1; done
echo "told: after a crash it runs again, and \
$(systemctl --failed --plain --no-legend | grep -c slipway) failed units are ours"
while [ -e /usr/local/lib/slipway ]; do sleep 1; done
cd /etc/systemd/system
echo "told: of the reporter \
$(ls slipway-report.service multi-user.target.wants/slipway-report.service | wc -l) files are left"
"#;
/// Fills the disk, including the blocks reserved for root, before the reporter starts.
const UNIT: &str = r#"[Unit]
Before=slipway-report.service
[Service]
ExecStartPre=-/bin/sh -c "fallocate --length $(($(stat --file-system --format '%%f * %%S' /))) /all"
ExecStart=/bin/sh /etc/tell.sh
[Install]
WantedBy=multi-user.target
"#;

#[test]
fn a_boot_reporter_follows_a_system_and_holds_up_nothing_when_the_server_is_away() -> Result<()> {
    timed("a boot reporter follows a system and holds up nothing when the server is away", || {
        let mut bench = Bench::new()?;
        bench.register()?;
        let (url, digest) = bench.add_system(System::SystemdBoot)?;
        let write = |path: &str, content: &str| {
            let (path, content) = (path.to_owned(), Some(content.to_owned()));
            Action::WriteFile(WriteFile { path, content, ..WriteFile::default() })
        };
        let command = ["systemctl", "enable", "tell.service"].map(str::to_owned).to_vec();
        bench.start_run(&[
            stream("system", &url, digest),
            step("script", write("/etc/tell.sh", TELL)),
            step("unit", write("/etc/systemd/system/tell.service", UNIT)),
            step("enable", Action::RunInTarget(RunInTarget { command, ..RunInTarget::default() })),
            step("report", Action::BootReporter(BootReporter::default())),
        ])?;
        let disk = bench.folder().join("large-disk");
        create_disk(&disk, DISK_SIZE)?;
        let disks = vec![Disk { path: disk, serial: DISK_SERIAL.to_owned() }];
        let installing = bench.power_on(&MachineConfig { disks: disks.clone(), ..bench.machine() })?;
        let node = bench
            .wait_for(&installing, "installed", |node| matches!(node.state, NodeState::Booting | NodeState::Failed))?;
        assert_eq!(node.state, NodeState::Booting, "{node:#?}");
        drop(installing);

        bench.lab.stop_server()?;
        let boot = Boot::Uefi { uri: None };
        let mut machine = bench.power_on(&MachineConfig { boot, disks, ..bench.machine() })?;
        let told = machine.wait_for_line("told: the reporter is ", LIMIT)?;
        assert!(told.contains("is active,"), "it waits for the server after the boot is over: {told}");
        assert!(told.ends_with(" running") || told.ends_with(" degraded"), "{told}");
        machine.wait_for_console("told: 0 failed units are ours", LIMIT)?;
        machine.wait_for_console("told: we are 0 times in the critical chain", LIMIT)?;
        machine.wait_for_console("told: the disk is full", LIMIT)?;
        machine.wait_for_console("told: after a crash it runs again, and 0 failed units are ours", LIMIT)?;

        bench.lab.start_server()?;
        let node = bench.wait_for(&machine, "running", |node| node.state == NodeState::Running)?;
        let boot = node.run.and_then(|run| run.boot).context("a boot that was reported")?;
        assert_eq!((boot.report.stage, boot.boots), (BootStage::Running, 1));
        machine.wait_for_console("told: of the reporter 0 files are left", LIMIT)?;
        let log = bench.lab.operator(&["node", "log", "m1", "--type", "host_boot"])?;
        for part in ["==== journal ====\n", "==== mounts ====\n", "==== addresses ====\n", "tell.service"] {
            assert!(log.contains(part), "{part}: {log}");
        }
        // The reporter writes "not available" if a part is missing. This Debian has at least these parts.
        for part in ["failed units", "jobs", "mounts", "addresses", "journal"] {
            let content = log.split_once(&format!("==== {part} ====\n")).context(part)?.1;
            assert!(!content.starts_with("not available: "), "{part}: {log}");
        }
        Ok(())
    })
}
