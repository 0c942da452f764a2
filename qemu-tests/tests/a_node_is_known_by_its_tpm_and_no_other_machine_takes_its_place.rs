//! A machine with a TPM is let in once. After a power cycle it gets in by itself. Machines with the same UUID, serial number
//! and MAC address, and another TPM or none, do not.

use anyhow::{Result, ensure};
use qemu_tests::tpm::Tpm;
use qemu_tests::{Bench, DISK_SERIAL, timed};
use slipway_protocol::{ClaimReason, KeyOrigin, Proof};
use xtask::qemu::{Boot, Disk, Machine, MachineConfig, Nic};

#[test]
fn a_node_is_known_by_its_tpm_and_no_other_machine_takes_its_place() -> Result<()> {
    timed("a node is known by its TPM, and no other machine takes its place", || {
        let bench = Bench::new()?;
        bench.register()?;
        let own = bench.folder().join("tpm");
        let start = |config: &MachineConfig, name: &str| Machine::start(config, &bench.folder().join(name));

        // The firmware measures what it starts, and has a log of it, which the machine sends.
        let tpm = Tpm::start(&own)?;
        let machine = start(&through_firmware(&bench, &tpm), "first")?;
        let node = bench.wait_for(&machine, "enrolled", |node| node.key.is_some())?;
        let (first, pinned) = (node.key.expect("it was waited for"), node.tpm);
        assert_eq!((first.origin, first.proof), (KeyOrigin::First, Proof::Registered));
        let pinned = pinned.expect("the node is known by the TPM of the first machine");
        ensure!(pinned.has_event_log, "{pinned:?}\n{}", machine.console()?);
        drop((machine, tpm));

        let tpm = Tpm::start(&own)?;
        let machine = start(&through_firmware(&bench, &tpm), "second")?;
        let node = bench.wait_for(&machine, "enrolled again", |node| {
            node.key.as_ref().is_some_and(|key| key.fingerprint != first.fingerprint)
        })?;
        let second = node.key.expect("it was waited for");
        assert_eq!((second.origin, second.proof), (KeyOrigin::Attested, Proof::Attested));
        assert_eq!(node.tpm.expect("it has one").ek, pinned.ek);
        drop((machine, tpm));

        let other = Tpm::start(&bench.folder().join("other"))?;
        let imposters = [
            ("another TPM", ClaimReason::TpmReplaced, other.arguments()),
            ("no TPM", ClaimReason::TpmMissing, Vec::new()),
        ];
        for (what, reason, extra) in imposters {
            let machine = start(&MachineConfig { extra, ..bench.machine() }, what)?;
            let held =
                bench.wait_for(&machine, "held", |node| node.claims.iter().any(|claim| claim.reason == reason))?;
            assert_eq!(held.key.expect("the node keeps its key").fingerprint, second.fingerprint, "{what}");
        }
        Ok(())
    })
}

/// The machine, started by its firmware from the network.
fn through_firmware(bench: &Bench, tpm: &Tpm) -> MachineConfig {
    MachineConfig {
        boot: Boot::Uefi { uri: Some(bench.lab.loader_url()) },
        memory_mib: 1024,
        disks: vec![Disk { path: bench.disk(), serial: DISK_SERIAL.to_owned() }],
        nics: vec![Nic { mac: "52:54:00:7d:2f:01".to_owned(), bootfile: Some(bench.lab.script_url()) }],
        extra: tpm.arguments(),
        ..bench.machine()
    }
}
