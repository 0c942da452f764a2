//! Debian is installed with an encrypted root, through firmware. The machine's TPM opens the root. With another TPM the
//! root stays closed.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use qemu_tests::tpm::Tpm;
use qemu_tests::{Bench, DISK_SERIAL, step, stream, timed};
use slipway_protocol::{
    Action, DiskHints, EncryptRoot, KernelArgs, NodeState, Reboot, SeedCloudInit, Step, StreamImage,
};
use xtask::lab::qemu::{self, Boot, Disk, Machine, MachineConfig, Nic, create_disk};
use xtask::lab::server::{FOR_EMULATION, Lab};
use xtask::lab::target_image::System;

const DISK_SIZE: u64 = 2 << 30;
/// Time limit of the installation: an emulated processor makes the initramfs and encrypts a gigabyte.
const LIMIT: Duration = Duration::from_secs(45 * 60);
/// What systemd asks on the console if no token opens a volume.
const ASKED: &str = "Please enter";

#[test]
fn an_encrypted_root_is_opened_by_its_own_tpm_and_by_no_other() -> Result<()> {
    timed("an encrypted root is opened by its own TPM and by no other", || {
        let bench = Bench::new()?;
        bench.register()?;
        let (url, digest) = bench.add_system(System::Dracut)?;
        bench.start_run_that_phones_home(&steps(&url, digest))?;

        let disk = bench.folder().join("large-disk");
        create_disk(&disk, DISK_SIZE)?;
        let tpm = Tpm::start(&bench.folder().join("tpm"))?;
        let config = machine(&bench, &disk, &tpm);
        let mut first = qemu::start(&config, &bench.folder().join("first"))?;
        install(&bench.lab, &mut first)?;
        let cmdline = first.console()?;
        ensure!(cmdline.contains("root=/dev/mapper/root"), "the installed system has its arguments:\n{cmdline}");
        ensure!(!cmdline.contains(ASKED), "nobody was asked:\n{cmdline}");
        drop(first);
        drop(tpm);

        let key = bench.lab.operator(&["node", "recovery-key", "m1"])?;
        ensure!(key.trim().len() == 36 + 1 + 71, "a volume and its key: {key}");
        ensure!(!cmdline.contains(key.trim().rsplit(' ').next().context("a key")?), "the console has the key");

        let other = Tpm::start(&bench.folder().join("other"))?;
        let config = MachineConfig { boot: Boot::Uefi { uri: None }, ..machine(&bench, &disk, &other) };
        let mut second = qemu::start(&config, &bench.folder().join("second"))?;
        second.wait_for_console(ASKED, LIMIT)?;
        Ok(())
    })
}

/// Makes the steps of an installation with an encrypted root.
fn steps(url: &str, digest: slipway_protocol::Digest) -> Vec<Step> {
    let stream = match stream("stream", url, digest).action {
        Action::StreamImage(image) => Action::StreamImage(StreamImage { grow: false, ..image }),
        other => other,
    };
    let seed = SeedCloudInit {
        instance_id: "encrypted-1".to_owned(),
        hostname: Some("m1".to_owned()),
        user_data: "#cloud-config\n{}\n".to_owned(),
        disk: DiskHints::default(),
        ..SeedCloudInit::default()
    };
    let arguments = KernelArgs { append: vec![FOR_EMULATION.to_owned()], ..KernelArgs::default() };
    vec![
        step("stream", stream),
        step("seed", Action::SeedCloudInit(seed)),
        step("arguments", Action::KernelArgs(arguments)),
        // PCRs of the firmware and of its Secure Boot settings. They are the same for slipway and the installed system.
        step("encrypt", Action::EncryptRoot(EncryptRoot { pcrs: vec![0, 7], ..EncryptRoot::default() })),
        step("reboot", Action::Reboot(Reboot {})),
    ]
}

/// Configures a machine whose firmware boots from the network once. It measures what it starts in both boots.
fn machine(bench: &Bench, disk: &Path, tpm: &Tpm) -> MachineConfig {
    MachineConfig {
        boot: Boot::Uefi { uri: Some(bench.lab.loader_url()) },
        memory_mib: 1024,
        disks: vec![Disk { path: disk.to_owned(), serial: DISK_SERIAL.to_owned() }],
        nics: vec![Nic { mac: "52:54:00:5b:1c:02".to_owned(), bootfile: Some(bench.lab.script_url()) }],
        extra: tpm.arguments(),
        ..bench.machine()
    }
}

/// Waits until the installed system reports, from its opened root, that it runs.
fn install(lab: &Lab, machine: &mut Machine) -> Result<()> {
    let changes = lab.watch("m1")?;
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        match changes.next(Duration::from_secs(1))? {
            Some(status) if status.state == NodeState::Running => return Ok(()),
            Some(status) if status.state == NodeState::Failed => bail!("{status:#?}\n{}", machine.console()?),
            _ => ensure!(machine.is_running()?, "QEMU has ended:\n{}", machine.console()?),
        }
    }
    bail!(
        "waiting for the installed system to report that it runs: it did not within {} s:\n{}",
        LIMIT.as_secs(),
        machine.console()?
    )
}
