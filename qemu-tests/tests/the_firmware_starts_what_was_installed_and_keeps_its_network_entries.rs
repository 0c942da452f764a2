//! A machine whose firmware starts from the network first installs Debian, changes its boot order by its EFI variables, and starts
//! from its disk from then on. Another one goes on with the installed kernel without its firmware, and says how much sooner.

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use qemu_tests::{Bench, DISK_SERIAL, LIMIT, UUID, step, stream, timed};
use serde_json::{Value, json};
use slipway_protocol::{Action, EfiBootOrder, Kexec, NodeState, Reboot, Step};
use xtask::command::{command, run_quietly};
use xtask::python;
use xtask::qemu::{Boot, Disk, Machine, MachineConfig, Nic, create_disk, firmware};
use xtask::target_image::System;

/// The entry virt-fw-vars makes for a URI.
const NETWORK: u16 = 0x0099;
const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";
const DISK_SIZE: u64 = 2 << 30;
/// What the firmware's network boot loader greets with.
const NETWORK_BOOT: &str = "iPXE initialising devices";

#[test]
fn the_firmware_starts_what_was_installed_and_keeps_its_network_entries() -> Result<()> {
    timed("the firmware starts what was installed and keeps its network entries", || {
        let bench = Bench::new()?;
        bench.register()?;
        let reboot = [
            step("order", Action::EfiBootOrder(EfiBootOrder::default())),
            step("leave", Action::Reboot(Reboot::default())),
        ];
        let by_firmware = leave(&bench, "rebooted", &reboot, "restarting")?;
        let variables = read_variables(&bench.folder().join("rebooted"))?;
        let order = content(&variables, "BootOrder").context("BootOrder")?;
        let (own, others) = order.split_at(4);
        let own = u16::from_str_radix(own, 16)?.swap_bytes();
        let loader: String = "\\EFI\\systemd\\".encode_utf16().map(|unit| hex(&unit.to_le_bytes())).collect();
        let entry = |number: u16| content(&variables, &format!("Boot{number:04X}"));
        assert!(entry(own).is_some_and(|own| own.contains(&loader)), "{variables}");
        assert!(others.contains(&hex(&NETWORK.to_le_bytes())) && entry(NETWORK).is_some(), "{variables}");

        let kexec = [step("leave", Action::Kexec(Kexec::default()))];
        let by_kexec = leave(&bench, "kexeced", &kexec, "starting the kernel that is loaded")?;
        let (slow, fast) = (by_firmware.as_secs_f64(), by_kexec.as_secs_f64());
        writeln!(
            std::io::stderr(),
            "from PID 1's last word to the installed kernel: reboot {slow:.1} s, kexec {fast:.1} s"
        )?;
        assert!(by_kexec < by_firmware, "kexec took {fast:.1} s, and the reboot {slow:.1} s");
        Ok(())
    })
}

/// Installs Debian on a machine that starts from the network first, has it leave by these steps, and returns the time from the
/// last word of PID 1 to the first of the installed kernel.
fn leave(bench: &Bench, name: &str, steps: &[Step], last_word: &str) -> Result<Duration> {
    let (url, digest) = bench.add_system(System::SystemdBoot)?;
    bench.start_run(&[&[stream("system", &url, digest)], steps].concat())?;

    let folder = bench.folder().join(name);
    std::fs::create_dir_all(&folder)?;
    make_variables(&folder, &bench.lab.loader_url())?;
    let disk = folder.join("disk");
    create_disk(&disk, DISK_SIZE)?;
    let config = MachineConfig {
        boot: Boot::Uefi { uri: None },
        uuid: UUID.to_owned(),
        disks: vec![Disk { path: disk, serial: DISK_SERIAL.to_owned() }],
        nics: vec![Nic { mac: "52:54:00:7d:2f:02".to_owned(), bootfile: Some(bench.lab.script_url()) }],
        ..bench.machine()
    };
    let mut machine = Machine::start(&config, &folder)?;
    machine.wait_for_console(last_word, 3 * LIMIT)?;
    let left = Instant::now();
    machine.wait_for_console("Linux version", LIMIT)?;
    let took = left.elapsed();
    // The command line the image has in its boot entry.
    machine.wait_for_console("root=LABEL=root", LIMIT)?;
    // Without a new boot order, this is also what the firmware would begin with, had it been gone through.
    assert_eq!(machine.console()?.matches(NETWORK_BOOT).count(), 1, "the network was started from twice");
    let node = bench.wait_for(&machine, "installed", |node| node.state == NodeState::Installed)?;
    let warnings: Vec<_> = node.run.context("a run")?.steps.into_iter().filter_map(|step| step.outcome).collect();
    assert!(warnings.iter().all(|outcome| outcome.warnings.is_empty()), "{warnings:#?}");
    Ok(took)
}

/// A machine's variables, by which it starts from an URI before anything else, always.
fn make_variables(folder: &Path, uri: &str) -> Result<()> {
    let variables = folder.join("vars.fd");
    firmware::variables(&variables, Some(uri))?;
    let order = json!({ "name": "BootOrder", "guid": GLOBAL, "attr": 7, "data": hex(&NETWORK.to_le_bytes()) });
    let file = folder.join("order.json");
    std::fs::write(&file, json!({ "version": 2, "variables": [order] }).to_string())?;
    let tools = python::environment(python::FIRMWARE)?;
    let mut change = command(tools.join("virt-fw-vars"), ["--delete", "BootNext", "--set-json"]);
    run_quietly(change.arg(&file).arg("--inplace").arg(&variables))
}

/// A machine's variables after it was switched off.
fn read_variables(folder: &Path) -> Result<Value> {
    let file = folder.join("found.json");
    let tools = python::environment(python::FIRMWARE)?;
    let mut print = command(tools.join("virt-fw-vars"), ["--output-json"]);
    run_quietly(print.arg(&file).arg("--input").arg(folder.join("vars.fd")))?;
    Ok(serde_json::from_slice(&std::fs::read(&file)?)?)
}

/// What a variable holds, in hexadecimal.
fn content<'a>(variables: &'a Value, name: &str) -> Option<&'a str> {
    let mut all = variables["variables"].as_array()?.iter();
    all.find(|variable| variable["name"] == name)?["data"].as_str()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
