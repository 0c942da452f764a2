//! A machine whose node must be attested starts from a stick that the server's operator made, and is let in. Then one
//! word of the kernel's command line in that image is changed: the machine is held, and `status` names the command line
//! as the reason.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use qemu_tests::secure_boot::stick;
use qemu_tests::tpm::Tpm;
use qemu_tests::{Bench, DISK_SERIAL, UUID, timed};
use slipway_protocol::{ClaimReason, Proof};
use xtask::build::kernel;
use xtask::lab::qemu::{self, Boot, Disk, MachineConfig};

/// A word on the command line of each build, and another word of the same length.
const WORD: &[u8] = b"rootfstype=ramfs";
const OTHER: &[u8] = b"rootfstype=tmpfs";

#[test]
fn a_machine_that_must_be_attested_is_let_in_only_with_boot_files_of_the_site() -> Result<()> {
    timed("a machine that must be attested is let in only with boot files of the site", || {
        let bench = Bench::new()?;
        let built = bench.lab.make_medium("stick", kernel::CLOUD)?;
        bench.lab.operator(&["node", "add", "--name", "m1", "--uuid", UUID, "--require", "attested", "--release"])?;
        let state = bench.folder().join("tpm");
        let start = |config: &MachineConfig, name: &str| qemu::start(config, &bench.folder().join(name));

        let tpm = Tpm::start(&state)?;
        let machine = start(&from(&bench, &tpm, &built), "built")?;
        // The server does not know the TPM yet, so an operator lets the machine in by its claim code.
        let held = bench.wait_for(&machine, "held", |node| !node.claims.is_empty())?;
        assert_eq!(held.claims[0].reason, ClaimReason::ProofMissing);
        bench.lab.operator(&["node", "release", &held.claims[0].code])?;
        let is_attested = |key: &slipway_protocol::NodeKey| key.proof == Proof::Attested;
        let node = bench.wait_for(&machine, "attested", |node| node.key.as_ref().is_some_and(is_attested))?;
        let first = node.key.context("it was waited for")?;
        drop((machine, tpm));

        let mut program = fs::read(bench.uki())?;
        let at = program.windows(WORD.len()).position(|bytes| bytes == WORD).context("the command line")?;
        program[at..at + WORD.len()].copy_from_slice(OTHER);
        let changed = stick(bench.folder(), "changed", &program, &[])?;
        let tpm = Tpm::start(&state)?;
        let machine = start(&from(&bench, &tpm, &changed), "other command line")?;
        let reason = ClaimReason::BootFilesUnknown;
        let held = bench.wait_for(&machine, "held", |node| node.claims.iter().any(|claim| claim.reason == reason))?;
        let claim = held.claims.iter().find(|claim| claim.reason == reason).context("it was waited for")?;
        let problem = claim.tpm.as_ref().and_then(|tpm| tpm.problem.as_deref()).unwrap_or_default();
        ensure!(problem.contains("the command line of its unified kernel image"), "{problem}\n{}", machine.console()?);
        assert_eq!(held.key.context("the node keeps its key")?.fingerprint, first.fingerprint);
        Ok(())
    })
}

/// Configures the machine, whose firmware starts a stick.
fn from(bench: &Bench, tpm: &Tpm, stick: &Path) -> MachineConfig {
    MachineConfig {
        boot: Boot::Uefi { uri: None },
        memory_mib: 1024,
        disks: vec![Disk { path: stick.to_owned(), serial: DISK_SERIAL.to_owned() }],
        extra: tpm.arguments(),
        ..bench.machine()
    }
}
