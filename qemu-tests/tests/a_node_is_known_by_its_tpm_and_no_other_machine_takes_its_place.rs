//! A machine with a TPM is let in once. After a power cycle it gets in by itself. Machines with the same UUID, serial
//! number and MAC address do not: neither with another TPM or none, nor with what the TPM signed before, nor with an
//! event log that lacks an event of the boot.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use qemu_tests::tpm::Tpm;
use qemu_tests::{Bench, DISK_SERIAL, UUID, timed};
use serde_json::{Value, json};
use slipway_parts::cpio::{self, Archive};
use slipway_protocol::{ClaimReason, KeyOrigin, Proof};
use xtask::host::command;
use xtask::lab::qemu::{self, Boot, Disk, MachineConfig, Nic};

const MAC: &str = "52:54:00:7d:2f:01";

#[test]
fn a_node_is_known_by_its_tpm_and_no_other_machine_takes_its_place() -> Result<()> {
    timed("a node is known by its TPM, and no other machine takes its place", || {
        let bench = Bench::new()?;
        bench.register()?;
        let state = bench.folder().join("tpm");
        let start = |config: &MachineConfig, name: &str| qemu::start(config, &bench.folder().join(name));

        // The firmware measures what it starts, and keeps an event log, which the machine sends.
        let tpm = Tpm::start(&state)?;
        let machine = start(&through_firmware(&bench, &tpm), "first")?;
        let node = bench.wait_for(&machine, "enrolled", |node| node.key.is_some())?;
        let (first, pinned) = (node.key.expect("it was waited for"), node.tpm);
        assert_eq!((first.origin, first.proof), (KeyOrigin::First, Proof::Registered));
        let pinned = pinned.expect("the node is known by the TPM of the first machine");
        ensure!(pinned.has_event_log, "{pinned:?}\n{}", machine.console()?);
        drop((machine, tpm));

        let tpm = Tpm::start(&state)?;
        let machine = start(&through_firmware(&bench, &tpm), "second")?;
        let node = bench.wait_for(&machine, "enrolled again", |node| {
            node.key.as_ref().is_some_and(|key| key.fingerprint != first.fingerprint)
        })?;
        let second = node.key.expect("it was waited for");
        assert_eq!((second.origin, second.proof), (KeyOrigin::Attested, Proof::Attested));
        assert_eq!(node.tpm.expect("it has one").ek, pinned.ek);
        drop((machine, tpm));

        assert_eq!(replay(&bench)?, "401", "it is asked for a new proof");
        let own = Tpm::start(&state)?;
        let other = Tpm::start(&bench.folder().join("other"))?;
        let imposters = [
            ("another TPM", ClaimReason::TpmReplaced, other.arguments()),
            ("no TPM", ClaimReason::TpmMissing, Vec::new()),
            // Something ran that is not in the firmware's log.
            ("altered log", ClaimReason::TpmRefused, own.arguments()),
        ];
        for (what, reason, extra) in imposters {
            let config = MachineConfig { extra, ..bench.machine() };
            let config = if reason == ClaimReason::TpmRefused { with_hidden_program(config, &bench)? } else { config };
            let machine = start(&config, what)?;
            let held =
                bench.wait_for(&machine, "held", |node| node.claims.iter().any(|claim| claim.reason == reason))?;
            assert_eq!(held.key.expect("the node keeps its key").fingerprint, second.fingerprint, "{what}");
        }
        Ok(())
    })
}

/// Sends the machine's last proof again, with a key of the sender. Returns the status of the answer.
fn replay(bench: &Bench) -> Result<String> {
    let path = |name: &str| bench.folder().join(name).display().to_string();
    let key =
        ["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=stranger"];
    let csr = command::stdout(command::command("openssl", key).args(["-keyout", &path("stranger.key")]))?;
    let recorded: Value = serde_json::from_str(&bench.lab.operator(&["node", "attestation", "m1"])?)?;
    let tpm = json!({ "present": { "keys": recorded["keys"], "proof": recorded["proof"] } });
    let identity = json!({ "uuid": UUID, "serial": "BENCH0001", "macs": [MAC] });
    let request = json!({
        "identity": identity, "inventory": {}, "csr": csr, "agent_version": "0", "boot_id": "stranger", "tpm": tpm,
    });
    fs::write(path("request.json"), request.to_string())?;
    fs::write(path("ca.pem"), bench.lab.operator(&["ca"])?)?;
    let url = bench.lab.url().replace("10.0.2.2", "127.0.0.1") + "/v1/enrol";
    let mut curl =
        command::command("curl", ["-sS", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", &path("ca.pem")]);
    let data = format!("@{}", path("request.json"));
    Ok(command::stdout(curl.args(["-H", "Content-Type: application/json", "--data", &data, &url]))?.trim().to_owned())
}

/// Adds a program that runs before the boot image and measures itself into PCR 9, like a boot loader that hides an
/// event. The command is TPM2_PCR_Extend with the empty password (TPM 2.0 Library, part 3, 22.2).
fn with_hidden_program(mut config: MachineConfig, bench: &Bench) -> Result<MachineConfig> {
    const BEFORE: &str = "/before";
    let script = format!(
        "#!/bin/busybox sh\n\
         set -e\n\
         b=/bin/busybox\n\
         $b mount -t devtmpfs devtmpfs /dev\n\
         exec 3<>/dev/tpm0\n\
         printf '\\200\\002\\0\\0\\0\\101\\0\\0\\001\\202\\0\\0\\0\\011\\0\\0\\0\\011\
         \\100\\0\\0\\011\\0\\0\\0\\0\\0\\0\\0\\0\\001\\0\\013{}' >&3\n\
         $b head -c 10 <&3 >/dev/null\n\
         exec 3>&-\n\
         $b umount /dev\n\
         exec /init\n",
        "x".repeat(32)
    );
    let Boot::Kernel { initramfs, cmdline, .. } = &mut config.boot else { bail!("the machine starts a kernel") };
    let mut archive = Archive::default();
    archive.add_file("/bin/busybox", 0o755, fs::read("/bin/busybox").context("reading /bin/busybox")?);
    archive.add_file(BEFORE, 0o755, script.into_bytes());
    let mut bytes = fs::read(&*initramfs)?;
    cpio::pad(&mut bytes);
    bytes.extend(archive.to_bytes(0));
    *initramfs = bench.folder().join("initramfs");
    fs::write(&*initramfs, bytes)?;
    cmdline.push_str(&format!(" rdinit={BEFORE}"));
    Ok(config)
}

/// Configures the machine to be started by its firmware from the network.
fn through_firmware(bench: &Bench, tpm: &Tpm) -> MachineConfig {
    MachineConfig {
        boot: Boot::Uefi { uri: Some(bench.lab.loader_url()) },
        memory_mib: 1024,
        disks: vec![Disk { path: bench.disk(), serial: DISK_SERIAL.to_owned() }],
        nics: vec![Nic { mac: MAC.to_owned(), bootfile: Some(bench.lab.script_url()) }],
        extra: tpm.arguments(),
        ..bench.machine()
    }
}
