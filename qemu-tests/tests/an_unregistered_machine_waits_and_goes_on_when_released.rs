//! The machine is not registered on the server. A person in front of it reads out its claim code.

use anyhow::{Context, Result};
use qemu_tests::{Bench, DISK_SERIAL, LIMIT, UUID, timed};
use slipway_protocol::NodeState;

#[test]
fn an_unregistered_machine_waits_and_goes_on_when_released() -> Result<()> {
    timed("an unregistered machine waits and goes on when released", || {
        let bench = Bench::new()?;
        let mut machine = bench.power_on(&bench.machine())?;
        let line = machine.wait_for_line("waits for an operator: claim code ", LIMIT)?;
        let code = line.rsplit(' ').next().context("a claim code")?;
        let held = bench.wait_for(&machine, "held", |node| node.state == NodeState::Held)?;
        assert_eq!(held.claim_code.as_deref(), Some(code));
        assert!(!held.released);

        bench.lab.operator(&["node", "release", code])?;
        machine.wait_for_console(&format!("enrolled as node {}", held.id), LIMIT)?;
        let node = bench.wait_for(&machine, "enrolled", |node| node.state == NodeState::Enrolled)?;
        assert!(node.released);
        assert_eq!(node.identity.uuid.as_deref(), Some(UUID));
        assert_eq!(node.identity.serial.as_deref(), Some("BENCH0001"));
        assert_eq!(node.identity.macs, ["52:54:00:7d:2f:01"]);
        let inventory = node.inventory.context("an inventory")?;
        assert_eq!(inventory.disks[0].serial.as_deref(), Some(DISK_SERIAL));
        assert_eq!(machine.console()?.matches("Linux version").count(), 1, "it was switched off and on");
        Ok(())
    })
}
