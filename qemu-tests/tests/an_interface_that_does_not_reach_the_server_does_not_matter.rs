//! The first interface gets an address and a gateway by DHCP, but leads nowhere, like the internal network of a service
//! processor.

use anyhow::{Context, Result};
use qemu_tests::{Bench, LIMIT, timed};
use slipway_protocol::NodeState;
use xtask::lab::qemu::MachineConfig;

#[test]
fn an_interface_that_does_not_reach_the_server_does_not_matter() -> Result<()> {
    timed("an interface that does not reach the server does not matter", || {
        let bench = Bench::new()?;
        bench.register()?;
        let extra = [
            "-netdev",
            "user,id=nowhere,restrict=on",
            "-device",
            "virtio-net-pci,netdev=nowhere,mac=52:54:00:7d:2f:00,romfile=",
            "-netdev",
            "user,id=rack",
            "-device",
            "virtio-net-pci,netdev=rack,mac=52:54:00:7d:2f:01,romfile=",
        ];
        let config = MachineConfig { nics: Vec::new(), extra: extra.map(str::to_owned).to_vec(), ..bench.machine() };
        let mut machine = bench.power_on(&config)?;
        machine.wait_for_console("eth1: reached the server", LIMIT)?;
        let node = bench.wait_for(&machine, "enrolled", |node| node.state == NodeState::Enrolled)?;
        let inventory = node.inventory.context("an inventory")?;
        let macs: Vec<_> = inventory.nics.iter().filter_map(|nic| nic.mac.as_deref()).collect();
        assert_eq!(macs, ["52:54:00:7d:2f:00", "52:54:00:7d:2f:01"]);
        assert!(machine.console()?.contains("eth0: 10.0.2.15/24"), "the other one had no address");
        Ok(())
    })
}
